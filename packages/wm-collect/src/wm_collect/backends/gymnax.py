"""Gymnax environments, and any object with Gymnax's functional interface.

Only `reset_env`, `step_env` and `is_truncated` are used: Gymnax's own `step` resets by itself and
computes a reset at every step.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wm_collect.actions import ActionSpace, ContinuousActions, DiscreteActions
from wm_collect.backends.simulator import Simulator, SimulatorStep, as_flag, missing_package

# Whether an episode can end before its time limit: `is_terminated` of each class in gymnax 1.0.1.
TERMINATES: Mapping[str, bool] = {
    "CartPole-v1": True,
    "Pendulum-v1": False,
    "Acrobot-v1": True,
    "MountainCar-v0": True,
    "MountainCarContinuous-v0": True,
    "Asterix-MinAtar": True,
    "Breakout-MinAtar": True,
    "Freeway-MinAtar": False,
    "Seaquest-MinAtar": True,
    "SpaceInvaders-MinAtar": True,
    "Catch-bsuite": True,
    "DeepSea-bsuite": True,
    "MemoryChain-bsuite": True,
    "UmbrellaChain-bsuite": True,
    "DiscountingChain-bsuite": False,
    "MNISTBandit-bsuite": True,
    "SimpleBandit-bsuite": True,
    "FourRooms-misc": True,
    "MetaMaze-misc": True,
    "PointRobot-misc": False,
    "BernoulliBandit-misc": False,
    "GaussianBandit-misc": False,
    "Reacher-misc": False,
    "Swimmer-misc": False,
    "Pong-misc": True,
    "FrozenLake-misc": True,
}

# Their reset makes no random draw with the default parameters.
RESET_IGNORES_KEY = frozenset(
    {
        "Asterix-MinAtar",
        "Seaquest-MinAtar",
        "SpaceInvaders-MinAtar",
        "DeepSea-bsuite",
        "DiscountingChain-bsuite",
        "FourRooms-misc",
        "Pong-misc",
        "FrozenLake-misc",
    }
)


def has_id(env_id: str) -> bool:
    """Return whether Gymnax knows the id, ids registered with it at run time included."""
    loaded = sys.modules.get("gymnax")
    return env_id in TERMINATES or (loaded is not None and env_id in loaded.registered_envs)


def load(env_id: str, *, episode_length: int | None, env_params: Any) -> Simulator:
    """Build a Gymnax environment by its id.

    Args:
        env_id: an id of `gymnax.registered_envs`.
        episode_length: time limit in simulator steps; None for the environment's own.
        env_params: a Gymnax parameter object, a mapping of fields to change in the default one,
            or None.

    Returns:
        The environment as a simulator.

    Raises:
        ModuleNotFoundError: gymnax is not installed.
        ValueError: the parameters, the observation or the action space cannot be used.
    """
    try:
        import gymnax
    except ModuleNotFoundError as error:
        raise missing_package(env_id, error.name or "gymnax", None) from error
    env, _ = gymnax.make(env_id)
    return from_object(
        env,
        env_id=env_id,
        backend="gymnax",
        terminates=TERMINATES.get(env_id),
        episode_length=episode_length,
        env_params=env_params,
        reset_ignores_key=env_id in RESET_IGNORES_KEY and env_params is None,
    )


def from_object(
    env: Any,
    *,
    env_id: str,
    backend: str,
    terminates: bool | None,
    episode_length: int | None,
    env_params: Any,
    reset_ignores_key: bool = False,
) -> Simulator:
    """Wrap an object with Gymnax's interface.

    Args:
        env: the object: `reset_env(key, params)`, `step_env(key, state, action, params)`,
            `action_space(params)`, `default_params`, and `is_truncated(state, params)` if it has
            a limit of its own.
        env_id: name used in messages and files.
        backend: backend name put on the spec.
        terminates: whether episodes may end early; None when unknown.
        episode_length: time limit in simulator steps; None for `max_steps_in_episode`.
        env_params: as for `load`.
        reset_ignores_key: whether every episode starts from the same state.

    Returns:
        The environment as a simulator.

    Raises:
        ValueError: as for `load`.
    """
    params = _resolve_params(env, env_id, env_params)
    if episode_length is None:
        own_length = getattr(params, "max_steps_in_episode", None)
        if own_length is None:
            raise ValueError(
                f"The environment {env_id!r} has no max_steps_in_episode in its parameters, so "
                f"its time limit is unknown; pass episode_length=, in simulator steps."
            )
        episode_length = int(own_length)
    if hasattr(params, "max_steps_in_episode"):
        params = dataclasses.replace(params, max_steps_in_episode=int(episode_length))

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        obs, inner = env.reset_env(key, params)
        return inner, obs

    def step(key: jax.Array, inner: Any, action: jax.Array) -> SimulatorStep:
        obs, inner, reward, terminated, _ = env.step_env(key, inner, action, params)
        truncated = (
            as_flag(env.is_truncated(inner, params))
            if hasattr(env, "is_truncated")
            else jnp.array(False)
        )
        return SimulatorStep(inner, obs, reward, as_flag(terminated), truncated)

    return Simulator(
        env_id=env_id,
        backend=backend,
        source=env,
        reset=reset,
        step=step,
        actions=_action_space(env, params, env_id),
        episode_length=episode_length,
        terminates=terminates,
        reset_ignores_key=reset_ignores_key,
    )


def _resolve_params(env: Any, env_id: str, env_params: Any) -> Any:
    if env_params is None:
        return env.default_params
    if not isinstance(env_params, Mapping):
        return env_params
    default = env.default_params
    fields = [field.name for field in dataclasses.fields(default)]
    unknown = sorted(set(env_params) - set(fields))
    if unknown:
        raise ValueError(
            f"env_params names {unknown}, which the parameters of {env_id!r} do not have; "
            f"accepted are {sorted(fields)}."
        )
    return dataclasses.replace(default, **env_params)


def _action_space(env: Any, params: Any, env_id: str) -> ActionSpace:
    space = env.action_space(params)
    if hasattr(space, "n"):
        return DiscreteActions(int(space.n))
    if hasattr(space, "low") and hasattr(space, "high"):
        return ContinuousActions.from_box(space.low, space.high, tuple(space.shape))
    raise ValueError(
        f"The environment {env_id!r} has the action space {space!r}; only Discrete and Box spaces "
        f"are supported, so flatten it in a wrapper of your own."
    )
