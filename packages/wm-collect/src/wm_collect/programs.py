"""The compiled programs of a run: its start, its chunk and its evaluation, built before any work.

All are traced first, so that a mistake in a user's function shows at once, then compiled side by
side. What is compiled and how long it takes is announced, and where JAX keeps a cache on disk the
next start of the same run loads them from there.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect import extensions as ext
from wm_collect import metrics, randomness
from wm_collect.compile_cache import count_compilations
from wm_collect.evaluate import Evaluate, Evaluation, TaskEvaluations
from wm_collect.interrupt import wait_until_ready
from wm_collect.loop import (
    Algorithm,
    ChunkReport,
    RunState,
    init_run,
    make_chunk,
    trained_names,
)
from wm_collect.progress import RunProgress, format_number
from wm_collect.quiet import quiet_xla

# XLA's passes use one core each, and a gigabyte or more.
_COMPILE_THREADS = max(3, os.cpu_count() or 1)

# What messages call the programs.
_CHUNK, _EVALUATION, _INIT = "training program", "evaluation program", "initial state"


@dataclasses.dataclass(frozen=True)
class Programs:
    """Compiled functions of a run, for the run's own shapes only.

    Attributes:
        chunk: see `wm_collect.loop.make_chunk`.
        evaluation: `evaluation(run_state, seed_keys, tick) -> {name: [] or [S]}`, called on the
            host; None if there is nothing to evaluate.
        trained_names: names of the arrays that learning changes, in the order of `Health`.
    """

    chunk: Callable[..., tuple[RunState, ChunkReport]]
    evaluation: Callable[..., dict[str, Any]] | None
    trained_names: tuple[str, ...]


def prepare(
    algorithm: Algorithm,
    extensions: Sequence[Any],
    evaluate: Evaluate | TaskEvaluations | None,
    seed_keys: jax.Array,
    initial: RunState | None,
    max_chunk_ticks: int,
    progress: RunProgress,
    shared: Any = None,
) -> tuple[Programs, RunState]:
    """Compile a run's programs, and make its initial state if none is given.

    Args:
        algorithm: the agent's functions.
        extensions: checked extensions.
        evaluate: measures the agent; None if only the extensions' `eval_metrics` should run.
        seed_keys: `[]`, or `[S]` for seeds side by side.
        initial: the state of a resumed run.
        max_chunk_ticks: the longest chunk.
        progress: where the compilations are announced.
        shared: data that all seeds read in their updates, see `wm_collect.loop.make_chunk`.

    Returns:
        The programs, and the state to start from.

    Raises:
        ValueError: `initial` is not a state of this agent, these seeds and these extensions.
    """
    seeds_batched = seed_keys.ndim == 1
    tick = jax.ShapeDtypeStruct((), jnp.int32)

    def start(seed_key: jax.Array) -> RunState:
        return init_run(algorithm, extensions, seed_key)

    init = jax.jit(jax.vmap(start) if seeds_batched else start)
    chunk = make_chunk(
        algorithm, extensions, max_chunk_ticks=max_chunk_ticks, seeds_batched=seeds_batched
    )
    evaluations = _evaluations(extensions, evaluate, seeds_batched)

    progress.set_phase("tracing the programs")
    template = jax.eval_shape(init, seed_keys)
    if initial is not None:
        check_same_form(initial, template)
    lowered = {_CHUNK: chunk.lower(template, seed_keys, tick, tick, shared)}
    for name, evaluation in evaluations.items():
        lowered[name] = evaluation.lower(template, seed_keys, tick)
    if initial is None:
        lowered[_INIT] = init.lower(seed_keys)
    compiled = _compile(lowered, progress)
    if initial is None:
        initial = compiled[_INIT](seed_keys)
    one_seed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[seed_keys.ndim :], leaf.dtype), template.agent
    )
    names = trained_names(algorithm, one_seed)
    run_evaluations = {name: compiled[name] for name in evaluations}
    programs = Programs(compiled[_CHUNK], _merged(run_evaluations, evaluate), names)
    return programs, initial


def check_same_form(state: Any, template: Any) -> None:
    """Raise unless `state` has the tree, shapes and dtypes of `template`.

    Raises:
        ValueError: it has not; the message names the first difference.
    """
    given = dict(jax.tree_util.tree_leaves_with_path(state))
    needed = dict(jax.tree_util.tree_leaves_with_path(template))
    for path in [*needed, *(path for path in given if path not in needed)]:
        described = [
            f"{leaves[path].dtype}{list(leaves[path].shape)}" if path in leaves else "absent"
            for leaves in (given, needed)
        ]
        if described[0] != described[1]:
            raise ValueError(
                f"the initial state does not fit this run: {jax.tree_util.keystr(path)} is "
                f"{described[0]} but the run needs {described[1]}. Resume with the settings, seeds "
                "and extensions the state was made with."
            )


def _evaluations(
    extensions: Sequence[Any], evaluate: Evaluate | TaskEvaluations | None, seeds_batched: bool
) -> dict[str, Any]:
    """Return the jitted evaluations by the names messages call them, none if there are none."""
    reporting = any("eval_metrics" in ext.implemented_phases(e) for e in extensions)

    def jitted(measure: Callable[..., dict[str, jax.Array]]) -> Any:
        def evaluation(
            run_state: RunState, seed_key: jax.Array, tick: jax.Array
        ) -> dict[str, jax.Array]:
            return measure(run_state, randomness.evaluation_key(seed_key, tick))

        return jax.jit(jax.vmap(evaluation, in_axes=(0, 0, None)) if seeds_batched else evaluation)

    def added(run_state: RunState, key: jax.Array) -> dict[str, jax.Array]:
        return _extension_metrics(extensions, run_state, key)

    if isinstance(evaluate, TaskEvaluations):
        programs = {
            f"evaluation of {task}": jitted(partial(_measure_task, measure, i, task))
            for i, (task, measure) in enumerate(evaluate.tasks.items())
        }
        return programs | ({_EVALUATION: jitted(added)} if reporting else {})
    if evaluate is None:
        return {_EVALUATION: jitted(added)} if reporting else {}

    def whole(run_state: RunState, key: jax.Array) -> dict[str, jax.Array]:
        measured = evaluate(run_state.agent, jax.random.fold_in(key, randomness.EVALUATE))
        return _summary(measured) | added(run_state, key)

    return {_EVALUATION: jitted(whole)}


def _summary(measured: Evaluation, suffix: str = "") -> dict[str, jax.Array]:
    return {
        metrics.EVAL_RETURN + suffix: jnp.mean(measured.episode_return),
        metrics.EVAL_STD + suffix: jnp.std(measured.episode_return),
        metrics.EVAL_LENGTH + suffix: jnp.mean(measured.episode_length.astype(jnp.float32)),
    }


def _measure_task(
    measure: Evaluate, index: int, task: str, run_state: RunState, key: jax.Array
) -> dict[str, jax.Array]:
    """Measure one task of several; its episodes are drawn by its place among them."""
    key = jax.random.fold_in(jax.random.fold_in(key, randomness.EVALUATE), index)
    return _summary(measure(run_state.agent, key), f"/{task}")


def _extension_metrics(
    extensions: Sequence[Any], run_state: RunState, key: jax.Array
) -> dict[str, jax.Array]:
    added = ext.evaluation_metrics(
        extensions,
        run_state.agent,
        run_state.extensions,
        jax.random.fold_in(key, randomness.EVAL_METRICS),
    )
    for name, value in added.items():
        if jnp.ndim(value) != 0:
            raise ValueError(
                f"the evaluation metric {name} of an extension must be a scalar, got shape "
                f"{jnp.shape(value)}: reduce it, for example with its mean."
            )
    return {metrics.metric_key(name, "Eval"): jnp.asarray(v) for name, v in added.items()}


def _merged(
    compiled: dict[str, Any], evaluate: Evaluate | TaskEvaluations | None
) -> Callable[..., dict[str, Any]] | None:
    """Return the host's evaluation: all programs, one after the other, and their summary."""
    if not compiled:
        return None

    def evaluation(run_state: RunState, seed_keys: jax.Array, tick: jax.Array) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for program in compiled.values():
            measured = program(run_state, seed_keys, tick)
            for value in measured.values():
                wait_until_ready(value)
            row |= jax.device_get(measured)
        if isinstance(evaluate, TaskEvaluations):
            returns = {task: row[f"{metrics.EVAL_RETURN}/{task}"] for task in evaluate.tasks}
            row |= {metrics.EVAL_RETURN: np.mean(list(returns.values()), axis=0)}
            row |= evaluate.summary(returns)
        return row

    return evaluation


def _compile(lowered: dict[str, Any], progress: RunProgress) -> dict[str, Any]:
    """Compile programs by name, side by side."""
    names = ", the ".join(lowered)
    progress.set_phase(f"compiling the {names}")
    began = time.monotonic()
    with (
        quiet_xla(),
        count_compilations() as counts,
        ThreadPoolExecutor(_COMPILE_THREADS, thread_name_prefix="compile") as pool,
    ):
        compiled = dict(
            zip(lowered, pool.map(lambda one: one.compile(), lowered.values()), strict=True)
        )
    seconds = format_number(round(time.monotonic() - began, 1))
    if counts.loaded and not counts.compiled:
        progress.message(f"loaded the {names} from the cache in {seconds} s")
    else:
        kept = (
            " (kept for the next start)" if jax.config.values["jax_compilation_cache_dir"] else ""
        )
        progress.message(f"compiled the {names} in {seconds} s{kept}")
    return compiled
