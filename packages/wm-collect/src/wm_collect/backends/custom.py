"""Environments of one's own: registered builders, importable ones, and ready-made objects.

An object is used through whichever interface it has: `wm_collect.FunctionalEnv`, which Brax and
Playground share and which is recommended for one's own; Gymnax's (`reset_env` and `step_env` with
parameters); or the one that everything becomes in the end, `wm_collect.Environment`.
"""

import importlib
import inspect
import os
import sys
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


def is_own(env_id: str) -> bool:
    """Return whether an id is a registered name, or says what to import: "module:attribute"."""
    return env_id in _builders or ":" in env_id


def build(name: str, *, episode_length: int | None, env_params: Any) -> Any:
    """Return the environment object of a registered or importable builder.

    Args:
        name: a registered name, or "module:attribute": a builder as `register_env` takes it, which
            may be the environment's class, or an environment object.
        episode_length: time limit in simulator steps, or None; passed to a builder that accepts it.
        env_params: parameters, or None; passed to a builder that accepts it.

    Returns:
        Whatever the builder returns, or the object itself.

    Raises:
        TypeError: the attribute is neither a builder nor an environment.
        ValueError: there is no such module or attribute.
    """
    builder = _builders.get(name)
    if builder is None:
        builder = _import(name)
        if not _is_builder(builder):
            return builder
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


def _import(name: str) -> Any:
    """Return what "module:attribute" names; the current folder is searched first.

    It stays on the search path, as with `python -m`: the module may import its neighbours later.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise ValueError(
            f"The environment {name!r} cannot be imported; write it as "
            f'"module:attribute", such as "my_envs:make".'
        )
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports something that is not
        raise ValueError(
            f"The environment {name!r} was not found: there is no module {error.name!r} in "
            f"{folder}, and none is installed. Run the command in the folder that holds it."
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        own = [
            own
            for own, value in vars(module).items()
            if getattr(value, "__module__", None) == module_name
        ]
        raise ValueError(
            f"The module {module_name!r} has no {attribute!r}; it defines {', '.join(own)}."
        )
    if not (_is_builder(found) or isinstance(found, tuple) or _resets(found)):
        raise TypeError(
            f"{name!r} is of type {type(found).__name__}; give an environment object, its class, "
            f"or a function that makes one."
        )
    return found


def _is_builder(found: Any) -> bool:
    return isinstance(found, type) or (callable(found) and not _resets(found))


def _resets(found: Any) -> bool:
    return hasattr(found, "reset") or hasattr(found, "reset_env")


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
        f"are: an object with reset(key), step(state, action) and action_size, as in "
        f"wm_collect.FunctionalEnv, Brax and Playground; a Gymnax environment (reset_env and "
        f"step_env); one with spec, reset(key) and step(key, state, action) as in "
        f"wm_collect.Environment."
    )
