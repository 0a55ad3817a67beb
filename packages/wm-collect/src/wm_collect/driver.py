"""The host side of a run: call the compiled chunk, and between chunks log, evaluate and save.

Nothing here changes what a run computes. Where rows are logged, the policy evaluated and
checkpoints written depends on the absolute tick alone, so a run resumed from a checkpoint does
these things where the uninterrupted run does them, with the same numbers.
"""

import math
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect import extensions as ext
from wm_collect import health, metrics, programs, randomness
from wm_collect.checkpoint import Checkpoints
from wm_collect.clocks import Clock
from wm_collect.evaluate import Evaluate, TaskEvaluations
from wm_collect.failures import TrainingDiverged, TrainingInterrupted, check_counters
from wm_collect.interrupt import StopRequest, wait_until_ready
from wm_collect.loop import Algorithm, RunState
from wm_collect.pace import Pace
from wm_collect.progress import RunProgress
from wm_collect.sinks import Sink

_TRAINING = "training"
# A tick with this many updates cannot be cut, so it is announced.
_MANY_UPDATES = 100


def train(
    algorithm: Algorithm,
    *,
    seeds: int | Sequence[int],
    stop_tick: int,
    clock: Clock,
    log_every: int,
    extensions: Sequence[Any] = (),
    initial: RunState | None = None,
    shared: Any = None,
    start_tick: int = 0,
    log_state: Mapping[str, Any] | None = None,
    evaluate: Evaluate | TaskEvaluations | None = None,
    eval_every: int | None = None,
    checkpoints: Checkpoints | None = None,
    save_every: int | None = None,
    save_minutes: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    sinks: Sequence[Sink] = (),
    progress: RunProgress | None = None,
    resume_hint: str = "",
    max_chunk_ticks: int = 1000,
    chunk_seconds: float = 1.5,
) -> tuple[RunState, dict[str, np.ndarray]]:
    """Run the ticks `start_tick` to `stop_tick − 1` of an agent, and return its state and series.

    A log row is written at every multiple of `log_every` and of `eval_every`, and at the end; an
    evaluation is made at every multiple of `eval_every` and at the end; a checkpoint is saved at
    every multiple of `save_every`, when the last is older than `save_minutes`, and at the end.
    `wm_collect.metrics` describes a row.

    The first Ctrl-C or SIGTERM ends the run after the running chunk, with a checkpoint; the second
    aborts.

    Args:
        algorithm: the agent's functions.
        seeds: one seed, for a run without a seed axis, or a list of S seeds trained side by side.
        stop_tick: absolute tick at which the run ends.
        clock: what a tick means to the user; the periods below are counted in its timesteps.
        log_every: timesteps between log rows.
        extensions: extension objects; see `wm_collect.extensions`.
        initial: the state to go on from; None starts a fresh run. Its buffers are consumed.
        shared: data that all seeds read in their updates, see `wm_collect.loop.make_chunk`; None
            for an agent that has none.
        start_tick: absolute tick of `initial`. Log rows and checkpoints of later ticks, left by a
            run that went further, are removed.
        log_state: what a checkpoint's metadata hold under this name: the sums since the last row.
        evaluate: measures the agent; None for no evaluation.
        eval_every: timesteps between evaluations; None evaluates at the end only.
        checkpoints: where to save; None saves nothing.
        save_every: timesteps between checkpoints; None saves at the end only.
        save_minutes: the oldest that the last checkpoint may become; None for any age.
        metadata: plain values to keep in every checkpoint.
        sinks: where log rows go. They are closed at the end.
        progress: what shows the run; entered and left by the caller.
        resume_hint: how to continue an interrupted run, e.g. a command, for the message.
        max_chunk_ticks: the longest chunk.
        chunk_seconds: how long a chunk should take.

    Returns:
        The state at `stop_tick`, and the columns of the log rows written by this call by name,
        float64 `[n_rows]`, or `[S, n_rows]` for a list of seeds; NaN where a row lacks a value.

    Raises:
        ValueError: an argument does not fit, or `algorithm.check` complains.
        TrainingDiverged: no seed is left that learns, see `wm_collect.health`.
        TrainingInterrupted: Ctrl-C was pressed, or SIGTERM arrived.
    """
    periods = {"log": log_every, "eval": eval_every, "save": save_every}
    _check_arguments(start_tick, stop_tick, periods, initial, checkpoints)
    if save_minutes is not None and not save_minutes > 0:
        raise ValueError(f"save_minutes must be above 0, got {save_minutes}.")
    extensions = ext.check_extensions(extensions, algorithm.supported_phases, algorithm.name)
    progress = progress or RunProgress(clock.timestep(stop_tick), enabled=False)
    seed_keys = randomness.seed_keys(seeds)
    compiled, run_state = programs.prepare(
        algorithm, extensions, evaluate, seed_keys, initial, max_chunk_ticks, progress, shared
    )
    if start_tick > 0:
        for sink in sinks:
            sink.truncate_after(start_tick)
        if checkpoints is not None:
            checkpoints.discard_after(start_tick)
    run = _Run(
        algorithm=algorithm,
        compiled=compiled,
        clock=clock,
        seeds=seeds,
        seed_keys=seed_keys,
        run_state=run_state,
        shared=shared,
        tick=start_tick,
        stop_tick=stop_tick,
        periods={name: every for name, every in periods.items() if every is not None},
        log_state=log_state,
        checkpoints=checkpoints,
        save_seconds=math.inf if save_minutes is None else 60 * save_minutes,
        metadata=metadata or {},
        sinks=sinks,
        progress=progress,
        pace=Pace(
            algorithm.updates_before, target_seconds=chunk_seconds, max_chunk_ticks=max_chunk_ticks
        ),
    )
    try:
        run.go(resume_hint)
    finally:
        for sink in sinks:
            sink.close()
    return run.run_state, run.series.arrays()


class _Run:
    """A run between its first and last tick, and what the host remembers of it."""

    def __init__(
        self,
        *,
        algorithm: Algorithm,
        compiled: programs.Programs,
        clock: Clock,
        seeds: int | Sequence[int],
        seed_keys: jax.Array,
        run_state: RunState,
        shared: Any,
        tick: int,
        stop_tick: int,
        periods: dict[str, int],
        log_state: Mapping[str, Any] | None,
        checkpoints: Checkpoints | None,
        save_seconds: float,
        metadata: Mapping[str, Any],
        sinks: Sequence[Sink],
        progress: RunProgress,
        pace: Pace,
    ) -> None:
        self.algorithm = algorithm
        self.compiled = compiled
        self.clock = clock
        self.seeds = list(seeds) if isinstance(seeds, Sequence) else None
        self.seed_keys = seed_keys
        self.run_state = run_state
        self.shared = shared
        self.tick = tick
        self.stop_tick = stop_tick
        self.periods = periods
        self.due = {name: clock.next_multiple(tick, every) for name, every in periods.items()}
        self.checkpoints = checkpoints
        self.save_seconds = save_seconds
        self.saved_at = time.monotonic()
        self.metadata = metadata
        self.sinks = sinks
        self.progress = progress
        self.pace = pace
        self.series = metrics.Series(seed_keys.shape)
        self.health: health.Health = jax.device_get(run_state.health)
        self.began = time.monotonic()
        if log_state is None:
            self.window = metrics.MetricWindow.empty(algorithm.metric_names, seed_keys.shape)
        else:
            self.window = metrics.MetricWindow.from_plain(log_state["window"])
            self.began -= log_state["elapsed"]

    def go(self, resume_hint: str) -> None:
        """Run all ticks, chunk by chunk."""
        with StopRequest(self._announce_stop) as stop_request:
            self.progress.set_phase(_TRAINING)
            while self.tick < self.stop_tick:
                self._chunk(self.pace.next_stop(self.tick, min(self.stop_tick, *self.due.values())))
                due = self._take_due()
                at_end = self.tick == self.stop_tick
                score = None
                if at_end or due & {"log", "eval"}:
                    score = self._log(evaluate=at_end or "eval" in due)
                stopped_by = None if at_end else stop_request.signal
                overdue = time.monotonic() - self.saved_at >= self.save_seconds
                if at_end or stopped_by is not None or overdue or "save" in due:
                    self._save(score)
                if stopped_by is not None:
                    raise self._interruption(stopped_by, resume_hint)
        self.progress.set_phase("done")

    def _chunk(self, stop: int) -> None:
        """Run the ticks up to `stop`, and check and add up what they report."""
        start = self.tick
        self._announce_chunk(start, stop)
        began = time.monotonic()
        self.run_state, report = self.compiled.chunk(
            self.run_state, self.seed_keys, jnp.int32(start), jnp.int32(stop), self.shared
        )
        wait_until_ready(report.health.tick)
        report = jax.device_get(report)
        self.pace.measured(start, stop, time.monotonic() - began)
        self.tick = stop
        self._look_at(report.health)
        check_counters(self.algorithm, report.counters, self.seeds)
        self.window.add(report.ticks, stop - start, report.health, start)
        self.progress.advance(self.clock.timestep(stop))

    def _look_at(self, found: health.Health) -> None:
        """Tell of the seeds that have newly stopped learning; end the run if none is left.

        Raises:
            TrainingDiverged: none is left.
        """
        already, self.health = self.health, found
        if not found.stopped.any():
            return
        new = np.flatnonzero(np.atleast_1d(found.stopped & ~already.stopped))
        metric_names = [metrics.metric_key(name) for name in self.algorithm.metric_names]
        names = health.sources(metric_names, self.compiled.trained_names)
        told = [health.describe(found, int(index), names, self.seeds) for index in new]
        if found.stopped.all():
            last = told[-1] if told else "every seed had stopped learning before"
            raise TrainingDiverged(
                f"Training diverged: {last}. {self._divergence_remedy()}", int(found.tick.max())
            )
        for sentence in told:
            self.progress.message(
                f"A seed stopped learning: {sentence}. It stays as it was before; the others go on."
            )

    def _announce_chunk(self, start: int, stop: int) -> None:
        """Say so when a tick may keep the user waiting, such as the burst after a seed phase."""
        n_updates = self.pace.n_updates(start, stop)
        if stop - start == 1 and n_updates >= _MANY_UPDATES:
            self.progress.set_phase(f"{n_updates:,} updates in one tick")
        else:
            self.progress.set_phase(_TRAINING)

    def _announce_stop(self) -> None:
        self.progress.message(
            "Stopping after the running chunk; press Ctrl-C again to abort without saving."
        )

    def _take_due(self) -> set[str]:
        """Return what is due at this tick, and look up when it is due next."""
        due = {name for name, tick in self.due.items() if tick == self.tick}
        for name in due:
            self.due[name] = self.clock.next_multiple(self.tick, self.periods[name])
        return due

    def _log(self, *, evaluate: bool) -> float | None:
        """Close the window with a log row; return the score by which checkpoints are compared."""
        row: dict[str, Any] = {
            metrics.TIMESTEP: self.clock.timestep(self.tick),
            metrics.ENV_FRAMES: self.clock.env_frames(self.tick),
            metrics.N_UPDATES: int(self.algorithm.updates_before(self.tick)),
            **self.window.summary(),
        }
        self.window = metrics.MetricWindow.empty(self.algorithm.metric_names, self.seed_keys.shape)
        if evaluate and self.compiled.evaluation is not None:
            self.progress.set_phase("evaluating")
            measured = self.compiled.evaluation(
                self.run_state, self.seed_keys, jnp.int32(self.tick)
            )
            row |= {
                key: np.where(self.health.stopped, np.nan, value) for key, value in measured.items()
            }
            self.progress.set_phase(_TRAINING)
        if np.any(self.health.stopped):
            row |= metrics.stopped_seeds(self.health)
        row[metrics.ELAPSED] = time.monotonic() - self.began
        self.series.append(row)
        plain = {"tick": self.tick, **metrics.sink_row(row, self.seeds)}
        self._write(plain)
        self.progress.log_row(plain)
        judged = metrics.TRAIN_RETURN if self.compiled.evaluation is None else metrics.EVAL_RETURN
        return plain.get(judged)

    def _write(self, row: dict[str, Any]) -> None:
        """Give a row to every sink.

        Raises:
            OSError: one could not write it; what was saved before is as it was.
        """
        for sink in self.sinks:
            try:
                sink.write(row)
            except OSError as error:
                kept = ""
                latest = None if self.checkpoints is None else self.checkpoints.latest_tick()
                if latest is not None:
                    kept = f" The checkpoint of tick {latest} is unharmed: make room and resume."
                raise OSError(
                    f"The log row of tick {self.tick} could not be written: "
                    f"{error.strerror or error}.{kept}"
                ) from error

    def _log_state(self) -> dict[str, Any]:
        return {"window": self.window.to_plain(), "elapsed": time.monotonic() - self.began}

    def _save(self, score: float | None) -> None:
        if self.checkpoints is None:
            return
        self.progress.set_phase("saving a checkpoint")
        own = {
            "tick": self.tick,
            "timestep": self.clock.timestep(self.tick),
            "log_state": self._log_state(),
        }
        self.checkpoints.save(self.tick, self.run_state, {**self.metadata, **own}, score)
        self.saved_at = time.monotonic()
        self.progress.set_phase(_TRAINING)

    def _interruption(self, number: signal.Signals, resume_hint: str) -> TrainingInterrupted:
        timestep = self.clock.timestep(self.tick)
        where = f"Stopped at {timestep:,} {self.clock.unit} (tick {self.tick})"
        if self.checkpoints is None:
            message = (
                f"{where}; nothing is on disk, but this exception's run_state, tick and log_state "
                "can be passed on to continue."
            )
        else:
            message = f"{where} and saved in {self.checkpoints.path(self.tick)}."
        if resume_hint:
            message = f"{message} Continue with: {resume_hint}"
        return TrainingInterrupted(
            message, number, self.run_state, self.tick, self._log_state(), self.series.arrays()
        )

    def _divergence_remedy(self) -> str:
        latest = self.checkpoints.latest_tick() if self.checkpoints is not None else None
        if latest is None:
            return "No checkpoint was saved before; lower the learning rate or try another seed."
        return (
            f"The checkpoint of tick {latest} was saved before; lower the learning rate or try "
            "another seed."
        )


def _check_arguments(
    start_tick: int,
    stop_tick: int,
    periods: dict[str, int | None],
    initial: RunState | None,
    checkpoints: Checkpoints | None,
) -> None:
    if not 0 <= start_tick < stop_tick:
        raise ValueError(
            f"a run goes from start_tick, at least 0, to a later stop_tick; got {start_tick} and "
            f"{stop_tick}."
        )
    for name, every in periods.items():
        if every is not None and every < 1:
            raise ValueError(f"{name}_every must be at least 1 timestep, got {every}.")
    if initial is None and start_tick > 0:
        raise ValueError(f"a run that starts at tick {start_tick} needs its state as initial.")
    if start_tick == 0 and checkpoints is not None and checkpoints.ticks():
        raise ValueError(
            f"{checkpoints.directory} already holds checkpoints of a run: resume it, or give the "
            "new run another folder."
        )
