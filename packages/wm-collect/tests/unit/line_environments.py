"""A point on a line in both of the recommended interfaces, to be broken in one place at a time."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from wm_collect import EnvSpec, EnvState, Transition


class State(NamedTuple):
    obs: Any
    reward: Any
    done: Any


class Line:
    """Drive a point on a line to the origin; keeps all rules."""

    action_size = 1
    episode_length = 6
    terminates = False

    def reset(self, key: jax.Array) -> State:
        place = jax.random.uniform(key, (1,), minval=-1.0)
        return State(place, jnp.zeros(()), jnp.array(False))

    def step(self, state: Any, action: jax.Array) -> Any:
        place = state.obs + 0.1 * action
        return State(place, -jnp.abs(place[0]), jnp.array(False))


class Timed(NamedTuple):
    obs: Any
    reward: Any
    done: Any
    time: Any
    key: Any


class TimedLine(Line):
    """The same with a clock, a key and a time of its own at which it terminates."""

    episode_length = 20
    terminates = True

    def reset(self, key: jax.Array) -> Timed:
        first_key, key = jax.random.split(key)
        time = jnp.zeros((), jnp.int32)
        return Timed(*super().reset(first_key), time=time, key=key)

    def step(self, state: Timed, action: jax.Array) -> Timed:
        moved = super().step(state, action)
        time = state.time + 1
        # Not the same for all episodes.
        done = time >= 8 + 4 * (state.key[-1] % 3 if state.key.ndim else self._draw(state.key))
        return Timed(moved.obs, moved.reward, done, time, state.key)

    def _draw(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, 3)


class ReadyLine:
    """The same as a `wm_collect.Environment`; keeps all rules."""

    spec = EnvSpec(
        env_id="ready-line",
        backend="custom",
        obs_dim=1,
        action_dim=1,
        discrete=False,
        episode_length=6,
        action_repeat=1,
        terminates=False,
        reset_ignores_key=False,
        action_low=(-1.0,),
        action_high=(1.0,),
    )

    def __init__(self, **changes: Any) -> None:
        self.spec = dataclasses.replace(self.spec, **changes)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        place = jax.random.uniform(key, (1,), minval=-1.0)
        return EnvState(inner=place, steps=jnp.zeros((), jnp.int32)), place

    def step(self, key: jax.Array, state: EnvState, action: jax.Array) -> Any:
        place = state.inner + 0.1 * jnp.clip(action, -1.0, 1.0)
        steps = state.steps + 1
        return Transition(
            state=EnvState(inner=place, steps=steps),
            obs=place,
            reward=-jnp.abs(place[0]),
            terminated=jnp.array(False),
            truncated=steps >= self.spec.episode_length,
        )
