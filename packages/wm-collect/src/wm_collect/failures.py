"""Reasons for which a run stops before its end, each told in one sentence."""

import signal
from collections.abc import Sequence
from typing import Any

import numpy as np

from wm_collect.loop import Algorithm, RunState


class TrainingDiverged(RuntimeError):
    """No seed is left that learns: each has met a number that is not finite.

    Attributes:
        tick: absolute tick at which the last of them did.
    """

    def __init__(self, message: str, tick: int) -> None:
        super().__init__(message)
        self.tick = tick


class TrainingInterrupted(KeyboardInterrupt):
    """The run was stopped in good order by Ctrl-C or SIGTERM, after its running chunk.

    Attributes:
        signal: which of the two, a `signal.Signals`.
        run_state: the state at `tick`, from which the run can go on.
        tick: absolute tick, the number of ticks done.
        log_state: the argument of `train` with which the next log row is what it would have been.
        evaluations: the series so far, as `train` returns them.
    """

    def __init__(
        self,
        message: str,
        signal: signal.Signals,
        run_state: RunState,
        tick: int,
        log_state: dict[str, Any],
        evaluations: dict[str, np.ndarray],
    ) -> None:
        super().__init__(message)
        self.signal = signal
        self.run_state = run_state
        self.tick = tick
        self.log_state = log_state
        self.evaluations = evaluations


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
