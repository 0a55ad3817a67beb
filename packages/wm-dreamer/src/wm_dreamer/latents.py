"""Categorical latents: uniform mixture, sampling from explicit noise, straight-through, KL.

A latent state is S independent categoricals of C classes, one-hot, `[..., S, C]`.
"""

import jax
import jax.numpy as jnp
import numpy as np


def mix_uniform(logits: jax.Array, unimix: float) -> jax.Array:
    """Return the log-probabilities of the softmax mixed with the uniform distribution.

    log((1 − unimix)·softmax(logits) + unimix / C). They are what the rest of the agent calls
    logits: sampling, KL, entropy and straight-through gradients all use the mixture.

    Args:
        logits: `[..., C]`, unnormalised.
        unimix: weight of the uniform distribution, in [0, 1).

    Returns:
        `[..., C]`, normalised.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/nets.py, `RSSM._logit` and `Dist` ("onehot").
    """
    if unimix == 0:
        return jax.nn.log_softmax(logits)
    probs = (1 - unimix) * jax.nn.softmax(logits) + unimix / logits.shape[-1]
    return jnp.log(probs)


def sample_classes(log_probs: jax.Array, noise: jax.Array) -> jax.Array:
    """Return classes drawn by inverting the cumulative distribution at `noise`.

    One uniform number decides one categorical, whatever its number of classes: drawing a Gumbel
    number per class, as the reference does, costs C times as many random numbers (D34).

    Args:
        log_probs: normalised log-probabilities `[..., C]`.
        noise: `[...]`, uniform in [0, 1). A value 1 + k picks class k whatever the probabilities,
            which is how a recorded draw is repeated.

    Returns:
        `[...]` int32 in 0…C − 1. No gradient flows.
    """
    probs = jnp.exp(jax.lax.stop_gradient(log_probs))
    # As a product: a cumulative sum along a short last axis is slow, and on accelerators the
    # default precision of products is not enough for probabilities.
    n_classes = probs.shape[-1]
    ones = np.triu(np.ones((n_classes, n_classes), np.float32))
    cumulative = jnp.matmul(probs, ones, precision=jax.lax.Precision.HIGHEST)
    threshold = (noise * cumulative[..., -1])[..., None]
    drawn = jnp.sum(cumulative[..., :-1] <= threshold, axis=-1, dtype=jnp.int32)
    return jnp.where(noise < 1, drawn, noise.astype(jnp.int32) - 1)


def one_hot_sample(log_probs: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return a one-hot sample with straight-through gradients, and its classes.

    The value is exactly the one-hot, the gradient that of the probabilities:
    onehot + p − stop_gradient(p).

    Args:
        log_probs: normalised log-probabilities `[..., C]`.
        noise: `[...]`, see `sample_classes`.

    Returns:
        The sample `[..., C]` float32, and the classes `[...]` int32.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/jaxutils.py, `OneHotDist.sample`.
    """
    classes = sample_classes(log_probs, noise)
    probs = jnp.exp(log_probs)
    one_hot = jax.nn.one_hot(classes, log_probs.shape[-1], dtype=log_probs.dtype)
    return one_hot + (probs - jax.lax.stop_gradient(probs)), classes


def entropy(log_probs: jax.Array) -> jax.Array:
    """Return −Σ p·log p over the last axis: `[..., C]` to `[...]`, in nats."""
    return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


def kl_divergence(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """Return KL(p ‖ q), summed over the latents.

    Args:
        log_p: normalised log-probabilities `[..., S, C]`.
        log_q: likewise.

    Returns:
        `[...]`, in nats.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/nets.py, `RSSM.loss`.
    """
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=(-2, -1))
