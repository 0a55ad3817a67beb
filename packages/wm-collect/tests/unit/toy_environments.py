"""Tiny environments in the interfaces of Gymnax and Brax, with every habit that can go wrong."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Params:
    """Gymnax-like parameters."""

    max_steps_in_episode: float = 12.0
    terminates_at: int = 1000
    cuts_at: int = 1000


class Box:
    """A box space."""

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...]) -> None:
        self.low, self.high, self.shape = low, high, shape


class GymnaxToy:
    """Counts its steps; observes [start, time, action]; rewards 1, an int, per simulator step."""

    terminates = True
    default_params = Params()

    def __init__(self) -> None:
        self.n_traced_steps = 0

    def action_space(self, params: Params) -> Box:
        return Box(-3.0, 3.0, (1,))

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, Any]:
        # A weakly typed integer, and a float that a step makes of an int.
        state = {"time": jnp.asarray(0), "start": jax.random.uniform(key), "last": 0}
        return self._obs(state), state

    def step_env(
        self, key: jax.Array, state: Any, action: jax.Array, params: Params
    ) -> tuple[jax.Array, Any, Any, jax.Array, dict[str, Any]]:
        self.n_traced_steps += 1
        state = {**state, "time": state["time"] + 1, "last": action[0]}
        return self._obs(state), state, 1, state["time"] >= params.terminates_at, {}

    def is_truncated(self, state: Any, params: Params) -> jax.Array:
        return (state["time"] >= params.max_steps_in_episode) | (state["time"] >= params.cuts_at)

    def _obs(self, state: Any) -> jax.Array:
        return jnp.stack([state["start"], state["time"] * 1.0, jnp.asarray(state["last"]) * 1.0])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    """Brax-like state."""

    obs: Any
    reward: Any
    done: Any
    info: dict[str, Any]


class BraxToy:
    """Observes [start, time]; raises `done` at a time; keeps its key; writes into its input."""

    action_size = 2
    terminates = True
    episode_length = 10

    def __init__(self, done_at: int = 1000, done: float = 1.0, obs_at_done: float = 0.0) -> None:
        self.done_at, self.done, self.obs_at_done = done_at, done, obs_at_done

    def reset(self, key: jax.Array) -> State:
        start = jax.random.uniform(key)
        zero = jnp.zeros(())
        info = {"rng": key, "time": zero}
        return State(jnp.stack([start, zero]), zero, zero, info)

    def step(self, state: State, action: jax.Array) -> State:
        state.info["time"] = state.info["time"] + 1
        time = state.info["time"]
        at_end = time >= self.done_at
        done = jnp.where(at_end, self.done, 0.0)
        obs = state.obs.at[1].set(jnp.where(at_end, self.obs_at_done + time, time))
        return State(obs, action.sum(), done, state.info)
