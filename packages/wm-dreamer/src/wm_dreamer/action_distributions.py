"""The actor's distributions: a mixed categorical, or a normal that may leave the action box.

Source: danijar/dreamerv3@2411f7d, dreamerv3/nets.py, `Dist` ("onehot", "normal");
dreamerv3/configs.yaml, `actor`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from wm_dreamer import latents
from wm_dreamer.config import DreamerV3Config

# Raw deviations are shifted by this before the sigmoid.
STD_SHIFT = 2.0


class CategoricalAction(NamedTuple):
    """One of A actions, as a one-hot vector.

    Attributes:
        log_probs: normalised log-probabilities, uniform mixture included, `[..., A]`.
    """

    log_probs: jax.Array

    def sample(self, noise: jax.Array) -> jax.Array:
        """Return one-hot actions `[..., A]` for noise `[...]`, see `latents.sample_classes`."""
        classes = latents.sample_classes(self.log_probs, noise)
        return jax.nn.one_hot(classes, self.log_probs.shape[-1], dtype=self.log_probs.dtype)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-probability of one-hot actions: `[..., A]` to `[...]`."""
        return jnp.sum(action * self.log_probs, axis=-1)

    def entropy(self) -> jax.Array:
        """Return the entropy of the mixture `[...]`, in nats."""
        return latents.entropy(self.log_probs)


class NormalAction(NamedTuple):
    """Independent normals. The mean lies in [−1, 1], a sample may lie outside.

    Attributes:
        mean: `[..., A]`, agent units.
        std: `[..., A]`.
    """

    mean: jax.Array
    std: jax.Array

    def sample(self, noise: jax.Array) -> jax.Array:
        """Return mean + std·noise for standard normal noise `[..., A]`."""
        return self.mean + self.std * noise

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-density summed over the dimensions: `[..., A]` to `[...]`."""
        z = (action - self.mean) / self.std
        log_density = -0.5 * jnp.square(z) - jnp.log(self.std) - 0.5 * math.log(2 * math.pi)
        return jnp.sum(log_density, axis=-1)

    def entropy(self) -> jax.Array:
        """Return the differential entropy, summed over the dimensions: `[...]`, in nats."""
        return jnp.sum(0.5 + 0.5 * math.log(2 * math.pi) + jnp.log(self.std), axis=-1)


ActionDistribution = CategoricalAction | NormalAction


def action_distribution(
    outputs: dict[str, jax.Array], *, config: DreamerV3Config
) -> ActionDistribution:
    """Return the distribution for the actor's raw outputs, each `[..., A]`.

    Discrete: the softmax with `actor_unimix` of uniform mixture. Continuous: mean = tanh(raw),
    std = (maxstd − minstd)·sigmoid(raw + 2) + minstd.
    """
    if config.discrete:
        return CategoricalAction(latents.mix_uniform(outputs["logits"], config.actor_unimix))
    spread = jax.nn.sigmoid(outputs["std"] + STD_SHIFT)
    return NormalAction(
        mean=jnp.tanh(outputs["mean"]),
        std=(config.maxstd - config.minstd) * spread + config.minstd,
    )


def action_vector(action: jax.Array, *, config: DreamerV3Config) -> jax.Array:
    """Return actions as the networks read them: one-hot for indices `[...]`, else unchanged."""
    return jax.nn.one_hot(action, config.action_dim) if config.discrete else action
