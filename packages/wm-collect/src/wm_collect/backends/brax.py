"""Brax environments."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

from wm_collect.backends import state_api
from wm_collect.backends.simulator import Simulator, missing_package

# Whether an episode can end before its time limit: `step` of each class in brax 0.14.2 (`fast`, a
# test double without physics, never raises done).
TERMINATES: Mapping[str, bool] = {
    "ant": True,
    "fast": False,
    "halfcheetah": False,
    "hopper": True,
    "humanoid": True,
    "humanoidstandup": False,
    "inverted_pendulum": True,
    "inverted_double_pendulum": True,
    "pusher": False,
    "reacher": False,
    "swimmer": False,
    "walker2d": True,
}
_EPISODE_LENGTH = 1000  # brax.envs.create's default; a bare environment has no limit of its own


def has_id(env_id: str) -> bool:
    """Return whether Brax knows the id, ids registered with it at run time included."""
    loaded = sys.modules.get("brax.envs")
    return env_id in TERMINATES or (loaded is not None and env_id in loaded._envs)


def load(env_id: str, *, episode_length: int | None, env_params: Any) -> Simulator:
    """Build a bare Brax environment by its id.

    Args:
        env_id: a registered name, such as "hopper".
        episode_length: time limit in simulator steps; None for 1000.
        env_params: keyword arguments of the environment's class as a mapping, such as
            `{"backend": "spring"}`, or None.

    Returns:
        The environment as a simulator.

    Raises:
        ModuleNotFoundError: brax is not installed.
        ValueError: the parameters are no mapping, or the class does not accept them.
    """
    from wm_collect.backends.mujoco_import import mujoco_imports

    if env_params is not None and not isinstance(env_params, Mapping):
        raise ValueError(
            f"env_params of the Brax environment {env_id!r} must be a mapping of keyword "
            f"arguments, such as {{'backend': 'spring'}}, but {env_params!r} was given."
        )
    with mujoco_imports():
        try:
            from brax import envs
        except ModuleNotFoundError as error:
            raise missing_package(env_id, error.name or "brax", "brax") from error
        try:
            with warnings.catch_warnings():
                # That Brax's own physics is no longer developed; known, and said at every start.
                warnings.filterwarnings("ignore", "Brax System", UserWarning)
                env = envs.get_environment(env_id, **(env_params or {}))
        except TypeError as error:
            raise ValueError(
                f"env_params {dict(env_params or {})!r} was refused by the Brax environment "
                f"{env_id!r}: {error}."
            ) from error
    return state_api.from_object(
        env,
        env_id=env_id,
        backend="brax",
        terminates=_terminates(env_id, env_params or {}),
        episode_length=_EPISODE_LENGTH if episode_length is None else episode_length,
        reset_ignores_key=env_id == "fast",
    )


def _terminates(env_id: str, env_params: Mapping[str, Any]) -> bool | None:
    """Return what is known; the walking robots can be told to live on when they fall."""
    if env_params.get("terminate_when_unhealthy") is False:
        return False
    return TERMINATES.get(env_id)
