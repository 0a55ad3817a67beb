"""The world model as pure functions: encode, next, reward, q and the policy prior pi.

All functions take parameters first, accept any leading axes, and return raw logits where a head
is two-hot; `config.two_hot.mean` turns logits into scalars.

Where there are several tasks, `embedding` `[B, D]` holds the task of each row of the last leading
axis; it is appended to the first operand (z, then e, then a). See `wm_tdmpc2.task_context`.

Source: nicklashansen/tdmpc2@b67b21c, common/world_model.py, common/math.py.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from wm_tdmpc2.config import TDMPC2Config
from wm_tdmpc2.networks import (
    Params,
    apply,
    dynamics_module,
    encoder_module,
    ensemble,
    policy_module,
    select_member,
    termination_module,
    value_module,
)

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
TANH_EPS = 1e-6


class PolicySample(NamedTuple):
    """A sample of the policy prior; axes `[..., A]` except `log_pi` `[...]`."""

    action: jax.Array  # squashed sample in (-1, 1)
    mean: jax.Array  # squashed mean
    log_std: jax.Array  # of the Gaussian before squashing
    log_pi: jax.Array  # the paper-era log-probability (see `squashed_gaussian`)


def encode(
    wm_params: Params, obs: jax.Array, *, config: TDMPC2Config, embedding: jax.Array | None = None
) -> jax.Array:
    """Return the latent `[..., Z]` of observations `[..., O]`."""
    latent = apply(encoder_module(config), wm_params["encoder"], _rows(_joined(obs, embedding)))
    return latent.reshape(*obs.shape[:-1], latent.shape[-1])


def next(
    wm_params: Params,
    z: jax.Array,
    action: jax.Array,
    *,
    config: TDMPC2Config,
    embedding: jax.Array | None = None,
) -> jax.Array:
    """Return the predicted next latent `[..., Z]` of latents `[..., Z]` and actions `[..., A]`."""
    za = _rows(_joined(z, embedding, action))
    latent = apply(dynamics_module(config), wm_params["dynamics"], za)
    return latent.reshape(z.shape)


def reward(
    wm_params: Params,
    z: jax.Array,
    action: jax.Array,
    *,
    config: TDMPC2Config,
    embedding: jax.Array | None = None,
) -> jax.Array:
    """Return reward logits `[..., K]` of the transition that `action` starts."""
    za = _rows(_joined(z, embedding, action))
    logits = apply(value_module(config), wm_params["reward"], za)
    return logits.reshape(*z.shape[:-1], logits.shape[-1])


def termination(wm_params: Params, z: jax.Array, *, config: TDMPC2Config) -> jax.Array:
    """Return the logits `[...]` of having terminated on entering latents `[..., Z]`.

    Source: nicklashansen/tdmpc2@e9f5932, common/world_model.py, `WorldModel.termination`.
    """
    logits = apply(termination_module(config), wm_params["termination"], _rows(z))
    return logits.reshape(z.shape[:-1])


def q(
    q_params: Params,
    z: jax.Array,
    action: jax.Array,
    dropout_key: jax.Array,
    *,
    config: TDMPC2Config,
    embedding: jax.Array | None = None,
) -> jax.Array:
    """Return the logits `[Nq, ..., K]` of every member in `q_params`.

    Dropout is active in every call, as in the paper-era code (its ensemble never leaves training
    mode).
    """
    parts = tuple(_rows(part) for part in _aligned(z, embedding, action))
    logits = ensemble(q_params, parts, dropout_key, config=config)
    return logits.reshape(logits.shape[0], *z.shape[:-1], logits.shape[-1])


def q_pair(
    q_params: Params,
    z: jax.Array,
    action: jax.Array,
    pair: jax.Array,
    dropout_key: jax.Array,
    *,
    config: TDMPC2Config,
    embedding: jax.Array | None = None,
) -> jax.Array:
    """Return the decoded values `[2, ...]` of the drawn pair of members.

    Only the drawn pair is evaluated: the reference evaluates all members and keeps two, which
    has the same distribution. Deviations: T31.
    """

    def values_of(params: Params, key: jax.Array) -> jax.Array:
        return config.two_hot.mean(q(params, z, action, key, config=config, embedding=embedding))

    if config.num_q == 2:
        # The pair is always both members, and its order cannot matter: pairs are averaged or
        # minimised.
        return values_of(q_params, dropout_key)
    # One member after the other: stacked, every use of a member's normalisation parameters would
    # look up the pair again (XLA fuses the look-up into the loops that read it).
    values = [
        values_of(select_member(q_params, pair[i]), key)[0]
        for i, key in enumerate(jax.random.split(dropout_key))
    ]
    return jnp.stack(values)


def pi(
    pi_params: Params,
    z: jax.Array,
    eps: jax.Array,
    *,
    config: TDMPC2Config,
    embedding: jax.Array | None = None,
    action_mask: jax.Array | None = None,
) -> PolicySample:
    """Sample the policy prior at latents `[..., Z]` with standard normal `eps` `[..., A]`.

    Args:
        pi_params: policy-prior parameters.
        z: latents, `[..., Z]`.
        eps: standard normal, `[..., A]`.
        config: static configuration.
        embedding: `[B, D]`.
        action_mask: `[..., A]`, 1 for the dimensions a row's task has and 0 for padding.
    """
    out = apply(policy_module(config), pi_params, _rows(_joined(z, embedding)))
    mean, raw_log_std = jnp.split(out.reshape(*z.shape[:-1], out.shape[-1]), 2, axis=-1)
    log_std = bounded_log_std(raw_log_std, config=config)
    return squashed_gaussian(mean, log_std, eps, action_mask)


def bounded_log_std(raw: jax.Array, *, config: TDMPC2Config) -> jax.Array:
    """Return log σ = log_std_min + ½ (log_std_max − log_std_min)(tanh(raw) + 1), elementwise.

    Source: nicklashansen/tdmpc2@b67b21c, common/math.py, `log_std`.
    """
    half_range = 0.5 * (config.log_std_max - config.log_std_min)
    return config.log_std_min + half_range * (jnp.tanh(raw) + 1)


def squashed_gaussian(
    mean: jax.Array, log_std: jax.Array, eps: jax.Array, action_mask: jax.Array | None = None
) -> PolicySample:
    """Squash the Gaussian sample u = mean + eps·σ; all arguments are `[..., A]`.

    a = tanh(u); log_pi = n (Σ_d(−½ ε_d² − log σ_d) − ½ ln 2π) − Σ_d ln(relu(1 − a_d²) + 1e-6),
    n = A. Where a mask is given, mean, log σ and ε are multiplied by it, so that padded dimensions
    act 0, and n counts the others.

    The Gaussian part, its constant included, is scaled by the action dimension and the squash
    correction is not: the paper-era code's form, with gradient through both.

    Source: nicklashansen/tdmpc2@b67b21c, common/world_model.py, `WorldModel.pi`;
    common/math.py, `gaussian_logprob`, `squash`.
    """
    n_dims: float | jax.Array = mean.shape[-1]
    if action_mask is not None:
        mask = jnp.broadcast_to(action_mask, mean.shape)
        mean, log_std, eps = mean * mask, log_std * mask, eps * mask
        n_dims = jnp.sum(mask, axis=-1)
    action = jnp.tanh(mean + eps * jnp.exp(log_std))
    gaussian = jnp.sum(-0.5 * jnp.square(eps) - log_std, axis=-1) - HALF_LOG_2PI
    # relu, not maximum: its gradient at exactly 0 is 0, where a saturated tanh would give ½.
    room = jax.nn.relu(1 - jnp.square(action)) + TANH_EPS
    log_pi = n_dims * gaussian - jnp.sum(jnp.log(room), axis=-1)
    return PolicySample(action=action, mean=jnp.tanh(mean), log_std=log_std, log_pi=log_pi)


def _aligned(x: jax.Array, *others: jax.Array | None) -> list[jax.Array]:
    """Return the operands that are there, with the leading axes of the first."""
    lead = x.shape[:-1]
    given = [other for other in others if other is not None]
    return [x] + [jnp.broadcast_to(other, (*lead, other.shape[-1])) for other in given]


def _joined(x: jax.Array, *others: jax.Array | None) -> jax.Array:
    """Return the operands that are there, one after the other along the last axis."""
    parts = _aligned(x, *others)
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def _rows(x: jax.Array) -> jax.Array:
    """Return `[..., F]` as `[B, F]`: sums over rows (gradients) are slow over several axes."""
    return x.reshape(-1, x.shape[-1])
