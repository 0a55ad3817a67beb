"""The environment as it was given, before `make_env` converts, counts and clips for it.

What `make_env` would refuse is written down as a finding, and a stand-in is used for it (a time
limit, action bounds), so that everything else can still be checked.
"""

import dataclasses
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from wm_collect.actions import ContinuousActions
from wm_collect.backends import custom
from wm_collect.env_check.report import Finding
from wm_collect.environment import Environment, EnvSpec, SimulatedEnvironment, make_env

_STAND_IN_LENGTH = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """An environment as its author wrote it.

    Attributes:
        reset: key -> (state, obs), fresh Python that no `jax.jit` has remembered.
        step: (key, state, action) -> (state, obs, reward, terminated, truncated), likewise.
        action: some action that `step` takes, in the environment's own units.
        ready_made: whether the object is an `Environment` by itself, used without conversions.
        of_library: whether it is one of a library's environments, and not a person's own.
        adapt: make the `Environment` that an agent would train on; raises what `make_env` raises.
    """

    reset: Callable[[jax.Array], Any]
    step: Callable[[jax.Array, Any, jax.Array], Any]
    action: jax.Array
    ready_made: bool
    of_library: bool
    adapt: Callable[[], Environment]


def look_at(env: Any, **options: Any) -> tuple[str, Given | None, list[Finding]]:
    """Find an environment's interface, time limit and action bounds.

    Args:
        env: what `make_env` takes.
        **options: `episode_length`, `env_params` and `terminates` of `make_env`.

    Returns:
        Its name; the environment as given, or None if it has no known interface; and findings.
    """
    name = env if isinstance(env, str) else type(env).__name__
    if isinstance(env, str) and custom.is_own(env):
        given = {key: options[key] for key in ("episode_length", "env_params")}
        env, options = custom.build(env, **given), options | {"env_params": None}
    elif isinstance(env, str):
        env, options = _quietly(lambda: make_env(env, **options)), {}
    if isinstance(env, Environment) and isinstance(env.spec, EnvSpec):
        env = make_env(env, **options)
        findings = _bounds_of_spec(env.spec)
        return env.spec.env_id, _ready_made(env), findings
    return name, *_from_object(env, name, options)


def _ready_made(env: Environment) -> Given:
    spec = env.spec
    if isinstance(env, SimulatedEnvironment):
        simulator = env.simulator
        return Given(
            # Inside a jit that has run before, Python would not run again.
            reset=inspect.unwrap(simulator.reset),
            step=inspect.unwrap(simulator.step),
            action=simulator.actions.from_agent(simulator.actions.zero()),
            ready_made=False,
            of_library=spec.backend != "custom",
            adapt=lambda: env,
        )
    zero = jnp.zeros((), jnp.int32) if spec.discrete else jnp.zeros(spec.action_dim, jnp.float32)
    return Given(
        reset=env.reset,
        step=env.step,
        action=zero,
        ready_made=True,
        of_library=False,
        adapt=lambda: env,
    )


def _from_object(
    env: Any, name: str, options: dict[str, Any]
) -> tuple[Given | None, list[Finding]]:
    """Look at an object in the interface of Gymnax or in that of Brax and Playground."""
    findings = []
    if isinstance(env, tuple) and len(env) == 2:
        env, params = env
        if options["env_params"] is None:
            options = options | {"env_params": params}
    if hasattr(env, "action_space"):
        env, found = _with_valid_actions(env, options["env_params"])
        findings += found
    if options["terminates"] is None and getattr(env, "terminates", None) is None:
        findings.append(
            Finding(
                "error",
                "terminates-unknown",
                "Nothing says whether an episode can end before its time limit. Give the object "
                "an attribute terminates=True or terminates=False, or pass it to make_env.",
            )
        )
        options = options | {"terminates": True}
    if _has_no_time_limit(env, options):
        findings.append(
            Finding(
                "error",
                "time-limit",
                "The object has no time limit. Give it an attribute episode_length, in simulator "
                "steps (in Gymnax's interface max_steps_in_episode of its parameters does it "
                "too), or pass episode_length= to make_env.",
            )
        )
        options = options | {"episode_length": _STAND_IN_LENGTH}
    try:
        simulator = custom.from_object(
            env,
            env_id=name,
            episode_length=options["episode_length"],
            env_params=options["env_params"],
        )
    except TypeError as error:  # no interface; then the rest of what was found is no news
        return None, [Finding("error", "interface", str(error))]
    except ValueError as error:
        return None, [*findings, Finding("error", "interface", str(error))]
    given = Given(
        reset=simulator.reset,
        step=simulator.step,
        action=simulator.actions.from_agent(simulator.actions.zero()),
        ready_made=False,
        of_library=False,
        adapt=lambda: _quietly(lambda: make_env(env, **options)),
    )
    return given, findings


def _has_no_time_limit(env: Any, options: dict[str, Any]) -> bool:
    if options["episode_length"] is not None or getattr(env, "episode_length", None) is not None:
        return False
    params = getattr(env, "default_params", None)
    return getattr(params, "max_steps_in_episode", None) is None


def _with_valid_actions(env: Any, params: Any) -> tuple[Any, list[Finding]]:
    """Return the object with action bounds that can be used, and what is wrong with its own."""
    own = params is None or isinstance(params, Mapping)
    space = env.action_space(env.default_params if own else params)
    if hasattr(space, "n"):
        return env, []
    try:
        shape = tuple(space.shape)
        actions = ContinuousActions.from_box(space.low, space.high, shape)
    except (AttributeError, TypeError, ValueError) as error:
        stand_in = SimpleNamespace(low=-1.0, high=1.0, shape=getattr(space, "shape", (1,)))
        wrong = f"{error}" if isinstance(error, ValueError) else f"It is {space!r}."
        return _Replaced(env, action_space=lambda params: stand_in), [
            Finding(
                "error",
                "action-bounds",
                f"The action space cannot be used. {wrong} Return a space with finite low and "
                f"high, low below high, and a shape; or one with a number of choices n.",
            )
        ]
    return env, _unbounded(actions.low, actions.high)


def _bounds_of_spec(spec: EnvSpec) -> list[Finding]:
    if spec.discrete:
        return []
    n_low, n_high = len(spec.action_low), len(spec.action_high)
    inverted = [
        i
        for i, (low, high) in enumerate(zip(spec.action_low, spec.action_high, strict=False))
        if not low <= high
    ]
    if (n_low, n_high) != (spec.action_dim,) * 2 or inverted:
        return [
            Finding(
                "error",
                "action-bounds",
                f"The spec has action_dim={spec.action_dim}, action_low={spec.action_low} and "
                f"action_high={spec.action_high}. Give one bound on each side per dimension, the "
                f"lower one not above the upper one.",
            )
        ]
    return _unbounded(spec.action_low, spec.action_high)


def _unbounded(low: tuple[float, ...], high: tuple[float, ...]) -> list[Finding]:
    free = [
        i for i, (a, b) in enumerate(zip(low, high, strict=True)) if math.isinf(a) or math.isinf(b)
    ]
    if not free:
        return []
    return [
        Finding(
            "warning",
            "action-bounds",
            f"Action dimension {', '.join(map(str, free))} has no finite bounds, so it receives "
            f"the agent's action in [-1, 1] as it is. Give finite bounds if more is meant.",
        )
    ]


class _Replaced:
    """An object with some of its attributes replaced."""

    def __init__(self, original: Any, **replaced: Any) -> None:
        self._original = original
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _quietly(make: Callable[[], Environment]) -> Environment:
    """Make an environment without the warning that becomes a finding here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Every episode of .* starts from the same state")
        return make()
