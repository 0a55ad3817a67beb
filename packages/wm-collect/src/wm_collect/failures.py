"""Reasons for which a run stops before its end, each told in one sentence."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wm_collect.loop import Algorithm, ChunkReport, RunState
from wm_collect.metrics import TRAIN_RETURN, metric_key


class TrainingDiverged(RuntimeError):
    """A metric or a trained value is not finite any more.

    Attributes:
        tick: absolute tick at which this was first seen.
    """

    def __init__(self, message: str, tick: int) -> None:
        super().__init__(message)
        self.tick = tick


class TrainingInterrupted(KeyboardInterrupt):
    """The run was stopped in good order by Ctrl-C, after its running chunk.

    Attributes:
        run_state: the state at `tick`, from which the run can go on.
        tick: absolute tick, the number of ticks done.
        log_state: the argument of `train` with which the next log row is what it would have been.
        evaluations: the series so far, as `train` returns them.
    """

    def __init__(
        self,
        message: str,
        run_state: RunState,
        tick: int,
        log_state: dict[str, Any],
        evaluations: dict[str, np.ndarray],
    ) -> None:
        super().__init__(message)
        self.run_state = run_state
        self.tick = tick
        self.log_state = log_state
        self.evaluations = evaluations


def check_finite(
    algorithm: Algorithm,
    report: ChunkReport,
    start: int,
    stop: int,
    *,
    trained_names: Sequence[str],
    seeds: Sequence[int] | None,
    remedy: str,
) -> None:
    """Raise at a chunk's first metric or return that is not finite, or else at a trained value.

    Args:
        algorithm: the agent, for its metric names.
        report: the chunk's report, as NumPy arrays.
        start: first tick of the chunk.
        stop: tick after its last.
        trained_names: names of the leaves behind `report.trained_finite`.
        seeds: the list of seeds; None for a run without a seed axis.
        remedy: what the message ends with.

    Raises:
        TrainingDiverged: something is not finite.
    """
    found: list[tuple[int, int, str, str]] = []
    # What did not happen at a tick is recorded as zero, which is finite.
    columns = {metric_key(name): report.ticks.metrics[name] for name in algorithm.metric_names}
    columns |= {TRAIN_RETURN: report.ticks.episode_return.sum(-1)}
    for order, (name, column) in enumerate(columns.items()):
        values = np.atleast_2d(column)[:, : stop - start]
        for index, row in np.argwhere(~np.isfinite(values)):
            seed = "" if seeds is None else f", seed {seeds[index]}"
            value = values[index, row]
            found.append((start + int(row), order, f"{name} became {value}", seed))
    if not found:
        for index, leaf in np.argwhere(~np.atleast_2d(report.trained_finite)):
            seed = "" if seeds is None else f", seed {seeds[index]}"
            found.append((stop - 1, leaf, f"{trained_names[leaf]} is no longer finite", seed))
    if found:
        tick, _, what, seed = min(found)
        raise TrainingDiverged(f"Training diverged: {what} at tick {tick}{seed}. {remedy}", tick)


def check_counters(
    algorithm: Algorithm, counters: dict[str, Any], seeds: Sequence[int] | None
) -> None:
    """Raise what `Algorithm.check` has to say about the counters, given as NumPy arrays.

    Raises:
        ValueError: it has something to say.
    """
    for index in range(1 if seeds is None else len(seeds)):
        one = {k: np.atleast_1d(value)[index].item() for k, value in counters.items()}
        complaint = algorithm.check(one)
        if complaint:
            raise ValueError(complaint if seeds is None else f"Seed {seeds[index]}: {complaint}")
