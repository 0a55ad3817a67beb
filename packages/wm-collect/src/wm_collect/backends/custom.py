"""Environments of one's own: registered builders and ready-made objects.

An object is used through whichever interface it has: `wm_collect.Environment`, Gymnax's
(`reset_env` and `step_env` with parameters), or the one Brax and Playground share (`reset(key)`
and `step(state, action)`, both returning a state with `obs`, `reward` and `done`).
"""

import inspect
from collections.abc import Callable
from typing import Any

from wm_collect.backends import gymnax, state_api
from wm_collect.backends.simulator import Simulator

_builders: dict[str, Callable[..., Any]] = {}


def register_env(name: str, builder: Callable[..., Any]) -> None:
    """Make an environment of your own available under a name.

    Args:
        name: the id under which `make_env` finds it; it goes before the ids of the libraries.
        builder: called each time the environment is made, with those of the keyword arguments
            `episode_length` and `env_params` that it accepts. It returns an environment object,
            or a pair (Gymnax environment, its parameters). Action repeat is never passed on:
            `make_env` repeats actions itself.

    Raises:
        TypeError: the builder cannot be called.
        ValueError: the name is empty, contains a slash, or is taken.
    """
    if not callable(builder):
        raise TypeError(f"The builder of {name!r} must be callable, but {builder!r} was given.")
    if not name or "/" in name:
        raise ValueError(
            f"The environment name {name!r} must not be empty or contain a slash, which separates "
            f"a library's name from its ids."
        )
    if name in _builders:
        raise ValueError(
            f"An environment named {name!r} is registered already; choose another name."
        )
    _builders[name] = builder


def registered_envs() -> tuple[str, ...]:
    """Return the names given to `register_env`, in the order of registration."""
    return tuple(_builders)


def build(name: str, *, episode_length: int | None, env_params: Any) -> Any:
    """Call a registered builder and return the object it makes.

    Args:
        name: a registered name.
        episode_length: time limit in simulator steps, or None; passed on if accepted.
        env_params: parameters, or None; passed on if accepted.

    Returns:
        Whatever the builder returns.
    """
    builder = _builders[name]
    offered = {"episode_length": episode_length, "env_params": env_params}
    accepted = inspect.signature(builder).parameters.values()
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted):
        names = {
            parameter.name
            for parameter in accepted
            if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        }
        offered = {key: value for key, value in offered.items() if key in names}
    # A builder's own default stands where nothing was asked for.
    return builder(**{key: value for key, value in offered.items() if value is not None})


def from_object(
    env: Any, *, env_id: str | None, episode_length: int | None, env_params: Any
) -> Simulator:
    """Wrap an object with Gymnax's interface or with that of Brax and Playground.

    The object may say about itself: `episode_length` (simulator steps), `terminates` (bool) and
    `reset_ignores_key` (bool).

    Args:
        env: the object, or a pair (Gymnax environment, parameters).
        env_id: the name; None for the object's class name.
        episode_length: time limit in simulator steps; None for the object's own.
        env_params: Gymnax parameters; an object of the other kind takes none.

    Returns:
        The environment as a simulator.

    Raises:
        TypeError: the object has none of the interfaces.
        ValueError: its time limit is unknown, or parameters were given that it cannot take.
    """
    if isinstance(env, tuple) and len(env) == 2:
        env, own_params = env
        env_params = own_params if env_params is None else env_params
    name = type(env).__name__ if env_id is None else env_id
    terminates = getattr(env, "terminates", None)
    ignores_key = bool(getattr(env, "reset_ignores_key", False))
    if episode_length is None:
        episode_length = getattr(env, "episode_length", None)
    if hasattr(env, "step_env") and hasattr(env, "reset_env"):
        return gymnax.from_object(
            env,
            env_id=name,
            backend="custom",
            terminates=terminates,
            reset_ignores_key=ignores_key,
            episode_length=episode_length,
            env_params=env_params,
        )
    if hasattr(env, "reset") and hasattr(env, "step") and hasattr(env, "action_size"):
        if env_params is not None:
            raise ValueError(
                f"env_params was given for the environment object {name!r}, which is built "
                f"already; set its parameters when building it."
            )
        if episode_length is None:
            raise ValueError(
                f"The time limit of the environment object {name!r} is unknown; pass "
                f"episode_length=, in simulator steps, or give the object an attribute of that "
                f"name."
            )
        return state_api.from_object(
            env,
            env_id=name,
            backend="custom",
            terminates=terminates,
            reset_ignores_key=ignores_key,
            episode_length=int(episode_length),
        )
    raise TypeError(
        f"The environment {name!r} of type {type(env).__name__} has no known interface. Accepted "
        f"are: an object with spec, reset(key) and step(key, state, action) as in "
        f"wm_collect.Environment; a Gymnax environment (reset_env and step_env); a Brax or "
        f"Playground environment (reset(key), step(state, action) and action_size)."
    )
