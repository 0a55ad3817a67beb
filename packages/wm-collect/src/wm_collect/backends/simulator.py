"""What every backend delivers: one environment, one simulator step at a time, without resets.

`wm_collect.environment` builds an `Environment` on top of it: the agent's action bounds, the
action repeat, the step counter and the time limit live there, once for all backends.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from wm_collect.actions import ActionSpace


class SimulatorStep(NamedTuple):
    """Outcome of one simulator step.

    Attributes:
        inner: the library's own state after the step, any pytree.
        obs: observation after the step, before any reset.
        reward: reward of the step, a scalar.
        terminated: whether the environment ended the episode, a scalar; a time limit is not one.
        truncated: whether a limit of the environment's own cut the episode, a scalar. Our time
            limit is counted outside, so this is constantly false in most environments.
    """

    inner: Any
    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Simulator:
    """A single environment of some library, behind two pure functions.

    Compared and hashed by identity: build it once and keep it.

    Attributes:
        env_id: the environment's name.
        backend: "gymnax", "brax", "playground" or "custom".
        source: the library's own environment object, for rendering.
        reset: key -> (inner, obs).
        step: (key, inner, action in environment units) -> `SimulatorStep`.
        actions: what the environment accepts.
        episode_length: the time limit, in simulator steps.
        terminates: whether an episode may end before its time limit; None when unknown.
        reset_ignores_key: whether every episode starts from the same state.
    """

    env_id: str
    backend: str
    source: Any
    reset: Callable[[jax.Array], tuple[Any, jax.Array]]
    step: Callable[[jax.Array, Any, jax.Array], SimulatorStep]
    actions: ActionSpace
    episode_length: int
    terminates: bool | None
    reset_ignores_key: bool = False


def missing_package(env_id: str, package: str, extra: str | None) -> ModuleNotFoundError:
    """Return the error for an environment whose library is not installed.

    Args:
        env_id: the environment asked for.
        package: the import that failed.
        extra: the extra of wm-collect that brings it, or None if it is a plain dependency.

    Returns:
        The error, to be raised.
    """
    what = "wm-collect" if extra is None else f"wm-collect[{extra}]"
    return ModuleNotFoundError(
        f"The environment {env_id!r} needs the package {package!r}, which is not installed; "
        f'install it with: pip install "{what}"'
    )


def as_flag(value: Any) -> jax.Array:
    """Return a library's done flag (bool, 0.0 or 1.0) as a bool; NaN does not count as raised."""
    return jnp.asarray(value) > 0
