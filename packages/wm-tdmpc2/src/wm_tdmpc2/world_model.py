"""The world model as pure functions: encode, next, reward, q and the policy prior pi.

All functions take parameters first, accept any leading axes, and return raw logits where a head
is two-hot; `config.two_hot.mean` turns logits into scalars.

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


def encode(wm_params: Params, obs: jax.Array, *, config: TDMPC2Config) -> jax.Array:
    """Return the latent `[..., Z]` of observations `[..., O]`."""
    latent = apply(encoder_module(config), wm_params["encoder"], _rows(obs))
    return latent.reshape(*obs.shape[:-1], latent.shape[-1])


def next(wm_params: Params, z: jax.Array, action: jax.Array, *, config: TDMPC2Config) -> jax.Array:
    """Return the predicted next latent `[..., Z]` of latents `[..., Z]` and actions `[..., A]`."""
    za = _rows(jnp.concatenate([z, action], axis=-1))
    latent = apply(dynamics_module(config), wm_params["dynamics"], za)
    return latent.reshape(z.shape)


def reward(
    wm_params: Params, z: jax.Array, action: jax.Array, *, config: TDMPC2Config
) -> jax.Array:
    """Return reward logits `[..., K]` of the transition that `action` starts."""
    za = _rows(jnp.concatenate([z, action], axis=-1))
    logits = apply(value_module(config), wm_params["reward"], za)
    return logits.reshape(*z.shape[:-1], logits.shape[-1])


def q(
    q_params: Params,
    z: jax.Array,
    action: jax.Array,
    dropout_key: jax.Array,
    *,
    config: TDMPC2Config,
) -> jax.Array:
    """Return the logits `[Nq, ..., K]` of every member in `q_params`.

    Dropout is active in every call, as in the paper-era code (its ensemble never leaves training
    mode).
    """
    parts = (_rows(z), _rows(action))
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
) -> jax.Array:
    """Return the decoded values `[2, ...]` of the drawn pair of members.

    Only the drawn pair is evaluated: the reference evaluates all members and keeps two, which
    has the same distribution. Deviations: T31.
    """
    if config.num_q == 2:
        # The pair is always both members, and its order cannot matter: pairs are averaged or
        # minimised.
        return config.two_hot.mean(q(q_params, z, action, dropout_key, config=config))
    # One member after the other: stacked, every use of a member's normalisation parameters would
    # look up the pair again (XLA fuses the look-up into the loops that read it).
    values = [
        config.two_hot.mean(q(select_member(q_params, pair[i]), z, action, key, config=config)[0])
        for i, key in enumerate(jax.random.split(dropout_key))
    ]
    return jnp.stack(values)


def pi(pi_params: Params, z: jax.Array, eps: jax.Array, *, config: TDMPC2Config) -> PolicySample:
    """Sample the policy prior at latents `[..., Z]` with standard normal `eps` `[..., A]`."""
    out = apply(policy_module(config), pi_params, _rows(z))
    mean, raw_log_std = jnp.split(out.reshape(*z.shape[:-1], out.shape[-1]), 2, axis=-1)
    return squashed_gaussian(mean, bounded_log_std(raw_log_std, config=config), eps)


def bounded_log_std(raw: jax.Array, *, config: TDMPC2Config) -> jax.Array:
    """Return log σ = log_std_min + ½ (log_std_max − log_std_min)(tanh(raw) + 1), elementwise.

    Source: nicklashansen/tdmpc2@b67b21c, common/math.py, `log_std`.
    """
    half_range = 0.5 * (config.log_std_max - config.log_std_min)
    return config.log_std_min + half_range * (jnp.tanh(raw) + 1)


def squashed_gaussian(mean: jax.Array, log_std: jax.Array, eps: jax.Array) -> PolicySample:
    """Squash the Gaussian sample u = mean + eps·σ; all three arguments are `[..., A]`.

    a = tanh(u); log_pi = A (Σ_d(−½ ε_d² − log σ_d) − ½ ln 2π) − Σ_d ln(relu(1 − a_d²) + 1e-6).

    The Gaussian part, its constant included, is scaled by the action dimension and the squash
    correction is not: the paper-era code's form, with gradient through both.

    Source: nicklashansen/tdmpc2@b67b21c, common/world_model.py, `WorldModel.pi`;
    common/math.py, `gaussian_logprob`, `squash`.
    """
    action = jnp.tanh(mean + eps * jnp.exp(log_std))
    gaussian = jnp.sum(-0.5 * jnp.square(eps) - log_std, axis=-1) - HALF_LOG_2PI
    # relu, not maximum: its gradient at exactly 0 is 0, where a saturated tanh would give ½.
    room = jax.nn.relu(1 - jnp.square(action)) + TANH_EPS
    log_pi = mean.shape[-1] * gaussian - jnp.sum(jnp.log(room), axis=-1)
    return PolicySample(action=action, mean=jnp.tanh(mean), log_std=log_std, log_pi=log_pi)


def _rows(x: jax.Array) -> jax.Array:
    """Return `[..., F]` as `[B, F]`: sums over rows (gradients) are slow over several axes."""
    return x.reshape(-1, x.shape[-1])
