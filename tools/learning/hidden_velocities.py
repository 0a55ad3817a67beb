"""A task with part of its observation hidden, so that acting well needs a memory."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.environment import Environment, EnvSpec, EnvState, Transition, make_env


class _HiddenVelocities:
    """An environment that shows only some entries of another one's observation."""

    def __init__(self, env: Environment, visible: Sequence[int]) -> None:
        self._env = env
        self._visible = np.asarray(visible)
        self.spec: EnvSpec = dataclasses.replace(
            env.spec, env_id=f"{env.spec.env_id} without velocities", obs_dim=len(visible)
        )

    def reset(self, key: jax.Array) -> tuple[EnvState, jax.Array]:
        state, obs = self._env.reset(key)
        return state, jnp.take(obs, self._visible)

    def step(self, key: jax.Array, state: EnvState, action: jax.Array) -> Transition:
        transition = self._env.step(key, state, action)
        return transition._replace(obs=jnp.take(transition.obs, self._visible))


def hidden_velocities(env_id: str, visible: Sequence[int]) -> Environment:
    """Return a task of which only the observation entries `visible` are shown."""
    return _HiddenVelocities(make_env(env_id), visible)
