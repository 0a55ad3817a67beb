"""Every random draw of an update and of a decision, as explicit arrays.

The pure functions take them as arguments, so recorded draws of the reference can be repeated. A
categorical takes one uniform number (`wm_dreamer.latents.sample_classes` says how a class is
forced), a continuous action one standard normal number per dimension.
"""

from typing import NamedTuple

import jax

from wm_dreamer.config import DreamerV3Config


class UpdateNoise(NamedTuple):
    """The draws of one update, in the reference's order.

    Axes: T rows of B sequences, H imagined steps from N = T·B starts, S latents, A action
    dimensions. Start n is row n // B of sequence n mod B.

    Attributes:
        posterior: `[T, B, S]` uniform.
        action: `[H, N]` uniform with discrete actions, `[H, N, A]` normal with continuous ones.
            The reference also draws an action at the last state, which nothing uses (D37).
        prior: `[H, N, S]` uniform, for the states after each action.
    """

    posterior: jax.Array
    action: jax.Array
    prior: jax.Array


class ActNoise(NamedTuple):
    """The draws of one decision for N environments.

    Attributes:
        posterior: `[N, S]` uniform.
        action: `[N]` uniform with discrete actions, `[N, A]` normal with continuous ones.
    """

    posterior: jax.Array
    action: jax.Array


def draw_update_noise(key: jax.Array, *, config: DreamerV3Config) -> UpdateNoise:
    """Draw the noise of one update; `key` is consumed."""
    posterior, action, prior = jax.random.split(key, 3)
    rows = (config.batch_length, config.batch_size)
    starts = (config.imag_horizon, config.batch_length * config.batch_size)
    return UpdateNoise(
        posterior=jax.random.uniform(posterior, (*rows, config.stoch)),
        action=_action_noise(action, starts, config),
        prior=jax.random.uniform(prior, (*starts, config.stoch)),
    )


def draw_act_noise(key: jax.Array, n_envs: int, *, config: DreamerV3Config) -> ActNoise:
    """Draw the noise of one decision for `n_envs` environments; `key` is consumed."""
    posterior, action = jax.random.split(key)
    return ActNoise(
        posterior=jax.random.uniform(posterior, (n_envs, config.stoch)),
        action=_action_noise(action, (n_envs,), config),
    )


def _action_noise(key: jax.Array, shape: tuple[int, ...], config: DreamerV3Config) -> jax.Array:
    if config.discrete:
        return jax.random.uniform(key, shape)
    return jax.random.normal(key, (*shape, config.action_dim))
