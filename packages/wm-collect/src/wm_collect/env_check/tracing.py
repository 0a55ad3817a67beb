"""What shows when an environment's functions are traced: types, shapes, callbacks, Python branches.

Nothing is compiled or run. The functions are looked at as given, before `make_env` converts types.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.env_check.given import Given
from wm_collect.env_check.report import Finding
from wm_collect.environment import EnvSpec, Transition

_CALLBACKS = ("pure_callback", "io_callback")


def trace(given: Given, spec: EnvSpec | None) -> list[Finding]:
    """Trace a reset and a step from its state, alone and vmapped.

    Args:
        given: the environment.
        spec: its specification if it is ready made, to compare with; else None.

    Returns:
        What is wrong.
    """
    key = jax.random.key(0)
    reset = _Traced("reset", given.reset, key)
    if reset.error is not None:
        return [reset.error]
    if not (isinstance(reset.returned, tuple) and len(reset.returned) == 2):
        return [
            _error(
                "interface",
                f"reset returned {type(reset.returned).__name__}; return the pair (state, "
                f"observation).",
            )
        ]
    state = reset.shapes[0]
    step = _Traced("step", given.step, key, state, given.action)
    if step.error is not None:
        return [step.error]
    if given.ready_made and not isinstance(step.returned, Transition):
        return [
            _error(
                "interface",
                f"step returned {type(step.returned).__name__}; return a wm_collect.Transition.",
            )
        ]
    findings = [
        *_observations(reset.returned[1], step.returned[1], given, spec),
        *_scalars(step.returned, given),
        *_states(state, step.shapes[0], given),
        *_callbacks(reset, step),
    ]
    if not any(finding.rule == "host-callback" for finding in findings):
        findings += _vmapped(given, state)
    return findings


class _Traced:
    """One traced call.

    Attributes:
        returned: what Python returned while it was traced: a NumPy array is still one.
        shapes: shapes and types of it.
        primitives: names of the operations, those of inner programs included.
        error: what went wrong, or None.
    """

    def __init__(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        self.returned: Any = None
        self.shapes: Any = None
        self.primitives: set[str] = set()
        self.error: Finding | None = None

        def recorded(*args: Any) -> Any:
            self.returned = function(*args)
            return self.returned

        try:
            program, self.shapes = jax.make_jaxpr(recorded, return_shape=True)(*args)
        except Exception as error:  # the environment's own code may raise anything
            self.error = _not_traceable(name, error)
        else:
            self.primitives = set(_primitives(program.jaxpr))


def _not_traceable(name: str, error: Exception) -> Finding:
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return _error(
            "pure",
            f"{name} uses an array that an earlier call left behind, in an attribute or a global. "
            f"Return everything that is remembered as a part of the state.",
        )
    first_line = str(error).strip().partition("\n")[0]
    if isinstance(error, jax.errors.ConcretizationTypeError):
        remedy = (
            "Python decides by the value of an array (if, while, int(), float()), which is not "
            "known when the function is compiled; use jnp.where, jax.lax.cond or jax.lax.scan"
        )
    elif isinstance(error, jax.errors.TracerArrayConversionError):
        remedy = "NumPy is given a JAX array; use jax.numpy instead"
    else:
        remedy = "jax.jit has to be able to trace it"
    return _error("jittable", f"{name} cannot be compiled: {remedy} ({_named(error, first_line)}).")


def _named(error: Exception, first_line: str) -> str:
    return f"{type(error).__name__}: {first_line.rstrip('.')}"


def _primitives(jaxpr: Any) -> Iterator[str]:
    """Yield the names of all operations, depth first."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for parameter in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from _primitives(inner)


def _observations(first: Any, later: Any, given: Given, spec: EnvSpec | None) -> Iterator[Finding]:
    """Compare the observations of a reset and of a step, as Python returned them."""
    for name, obs in (("reset", first), ("step", later)):
        if not hasattr(obs, "shape"):
            what = f"{name} returns an observation of type {type(obs).__name__}"
        elif len(obs.shape) != 1:
            what = f"{name} returns an observation of shape {tuple(obs.shape)}"
        else:
            continue
        yield _error("obs-shape", f"{what}; return one flat array of shape (n,).")
        return
    if first.shape != later.shape:
        yield _error(
            "obs-shape",
            f"The observation has the shape {first.shape} after a reset and {later.shape} after a "
            f"step; return the same shape from both.",
        )
    elif spec is not None and first.shape != (spec.obs_dim,):
        yield _error(
            "obs-shape",
            f"The observation has the shape {first.shape}, but spec.obs_dim is {spec.obs_dim}; "
            f"correct the spec.",
        )
    for name, obs in (("reset", first), ("step", later)):
        if obs.dtype != np.float32:
            origin = " (a NumPy array)" if isinstance(obs, np.ndarray | np.generic) else ""
            yield _not_float32(
                "obs-dtype", f"{name} returns {obs.dtype} observations{origin}", given
            )
            return


def _scalars(moved: Any, given: Given) -> Iterator[Finding]:
    """Look at the reward and the flags of a step, as Python returned them."""
    _, _, reward, terminated, truncated = moved
    flags = {"terminated": terminated, "truncated": truncated}
    for name, value in ({"reward": reward} | flags).items():
        if jnp.shape(value) != ():
            yield _error(
                "scalars",
                f"{name} has the shape {jnp.shape(value)}; return a single number of shape (), "
                f"for example {name}[0].",
            )
    if not isinstance(reward, float) and jnp.result_type(reward) != np.float32:
        yield _not_float32("reward-dtype", f"step returns {jnp.result_type(reward)} rewards", given)
    if given.ready_made:
        for name, value in flags.items():
            if jnp.result_type(value) != np.bool_:
                yield _error(
                    "flag-dtype",
                    f"{name} is {jnp.result_type(value)}; return a bool, for example {name} > 0.",
                )


def _not_float32(rule: str, what: str, given: Given) -> Finding:
    if given.ready_made:
        return _error(rule, f"{what}; return float32, for example with .astype(jnp.float32).")
    return Finding(
        "warning", rule, f"{what}, which are converted to float32; return float32 yourself."
    )


def _states(first: Any, later: Any, given: Given) -> Iterator[Finding]:
    """Compare the states after a reset and after a step."""
    tree: Any = jax.tree.structure(first)
    tree_later: Any = jax.tree.structure(later)
    if tree != tree_later:
        yield _error(
            "state-structure",
            f"The state has the structure {tree} after a reset and {tree_later} after a step; "
            f"return the same fields from both.",
        )
        return
    leaves = jax.tree_util.tree_leaves_with_path(first)
    for (path, old), new in zip(leaves, jax.tree.leaves(later), strict=True):
        where = jax.tree_util.keystr(path) or "(itself)"
        if old.shape != new.shape:
            yield _error(
                "state-structure",
                f"The part {where} of the state has the shape {old.shape} after a reset and "
                f"{new.shape} after a step; return the same shape from both.",
            )
        elif old.dtype != new.dtype:
            change = (
                f"The part {where} of the state is {old.dtype} after a reset and {new.dtype} after "
                f"a step"
            )
            if given.ready_made:
                yield _error(
                    "state-dtype",
                    f"{change}, which no compiled loop can carry; return one type from both.",
                )
            else:
                yield Finding(
                    "warning",
                    "state-dtype",
                    f"{change}; it is converted to a type that holds both. Return one type from "
                    f"both, for example jnp.zeros((), jnp.float32) instead of 0.",
                )


def _callbacks(reset: _Traced, step: _Traced) -> Iterator[Finding]:
    for name, traced in (("reset", reset), ("step", step)):
        for primitive in sorted(traced.primitives.intersection(_CALLBACKS)):
            yield _error(
                "host-callback",
                f"{name} calls back into Python ({primitive}), so every step would leave the "
                f"device; write it in jax.numpy.",
            )
        if any(primitive.startswith("debug_") for primitive in traced.primitives):
            yield Finding(
                "warning",
                "host-callback",
                f"{name} prints or calls Python while it runs (jax.debug), which slows training "
                f"down; remove it when the environment works.",
            )


def _vmapped(given: Given, state: Any) -> Iterator[Finding]:
    """Trace two environments side by side."""
    keys = jax.random.split(jax.random.key(0), 2)
    two = lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype)  # noqa: E731
    action = jax.ShapeDtypeStruct((2, *given.action.shape), given.action.dtype)
    for name, function, args in (
        ("reset", given.reset, (keys,)),
        ("step", given.step, (keys, jax.tree.map(two, state), action)),
    ):
        try:
            jax.eval_shape(jax.vmap(function), *args)
        except jax.errors.UnexpectedTracerError as error:
            yield _not_traceable(name, error)
            return
        except Exception as error:  # the environment's own code may raise anything
            first_line = str(error).strip().partition("\n")[0]
            yield _error(
                "vmappable",
                f"{name} works for one environment, but not under jax.vmap "
                f"({_named(error, first_line)}); use operations that jax.vmap can batch.",
            )
            return


def _error(rule: str, message: str) -> Finding:
    return Finding("error", rule, message)
