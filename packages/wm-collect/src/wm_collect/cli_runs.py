"""What the command lines do with run folders, whatever the agent: train in one, restore from one.

Also how a command ends: which exit status, and what a user's mistake looks like.
"""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wm_collect.agent import Frequencies, Trainer
from wm_collect.checkpoint import CheckpointError, Checkpoints
from wm_collect.failures import TrainingDiverged, TrainingInterrupted
from wm_collect.loop import RunState
from wm_collect.run_folder import RunFolder
from wm_collect.sinks import Sink, TensorBoardSink, WandbSink

_COMPLETE = 0
_FAILED = 1
_SIGNALLED = 128  # plus the signal's number


def exit_status(prog: str, action: Callable[[], int | None]) -> int:
    """Run a command and return its exit status.

    It is what the command returns, or 0 if that is None. User errors end with one sentence on
    standard error and status 1, a run stopped by Ctrl-C with status 130, by SIGTERM with 143.
    """
    try:
        status = action()
    except TrainingInterrupted as stopped:
        print(stopped, file=sys.stderr)
        return _SIGNALLED + stopped.signal
    except (ValueError, TypeError, OSError, ImportError, CheckpointError, TrainingDiverged) as e:
        if isinstance(e, TypeError) and e.__traceback__ is not None and _inside_library(e):
            raise
        print(f"{prog}: {e}", file=sys.stderr)
        return _FAILED
    return _COMPLETE if status is None else status


def _inside_library(error: BaseException) -> bool:
    """Return whether an error was raised outside our own checks: then its traceback is wanted."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or not trace.tb_frame.f_globals.get("__name__", "").startswith("wm_")


def run_settings(options: Any) -> dict[str, Any]:
    """Return the options of `train` as plain values, its frequencies resolved, for a run folder.

    Args:
        options: a dataclass with the fields of `wm_collect.cli_options.RunOptions`; further ones
            are kept.
    """
    frequencies = Frequencies.resolve(
        options.n_timesteps,
        options.log_frequency,
        options.eval_frequency,
        options.save_frequency,
    )
    return dataclasses.asdict(options) | {
        "root": str(options.root),
        "seed": list(options.seed),
        "log_frequency": frequencies.log,
        "eval_frequency": frequencies.eval,
        "save_frequency": frequencies.save,
    }


def train_in_folder(
    trainer: Trainer,
    folder: RunFolder,
    state: RunState | None,
    n_timesteps: int,
    log_state: dict[str, Any],
    *,
    prog: str,
) -> tuple[RunState, dict[str, np.ndarray]]:
    """Train in a run folder, with the frequencies and logs that its settings ask for.

    Args:
        trainer: the agent.
        folder: its run folder.
        state: the state to go on from; None starts afresh.
        n_timesteps: how much further to train.
        log_state: what the checkpoint of `state` stored under this name, or empty.
        prog: the command that resumes the run.

    Returns:
        What `Trainer.train` returns.
    """
    run = folder.settings["run"]
    return trainer.train(
        seed=seed_argument(run["seed"]),
        n_timesteps=n_timesteps,
        initial_state=state,
        num_episode_test=run["num_episode_test"],
        log_frequency=run["log_frequency"],
        eval_frequency=run["eval_frequency"],
        save_frequency=run["save_frequency"],
        save_minutes=run.get("save_minutes"),
        folder=folder,
        sinks=_extra_sinks(folder, run),
        log_state=log_state or None,
        resume_hint=f"{prog} resume {shlex.quote(relative(folder.path))}",
    )


def _extra_sinks(folder: RunFolder, run: Mapping[str, Any]) -> list[Sink]:
    sinks: list[Sink] = []
    if run["tensorboard"]:
        sinks.append(TensorBoardSink(folder.path / "tensorboard"))
    if run["wandb"]:
        sinks.append(
            WandbSink(
                run["wandb"],
                folder.path.name,
                folder.path / "wandb",
                config=folder.settings,
                run_id=folder.path.name,
            )
        )
    return sinks


def continue_run(
    trainer: Trainer, folder: RunFolder, n_timesteps: int | None, *, fallback: bool
) -> tuple[RunState | None, int, dict[str, Any]]:
    """Return the state to go on from, how much further to train, and the sums for the next log row.

    A run without a checkpoint starts again, its log emptied.

    Args:
        trainer: the agent.
        folder: its run folder.
        n_timesteps: where the run is to end; None keeps what it was started with.
        fallback: use the checkpoint before a damaged one.

    Raises:
        ValueError: the run is complete.
        CheckpointError: the checkpoint cannot be read.
    """
    run = folder.settings["run"]
    planned = run["n_timesteps"] if n_timesteps is None else n_timesteps
    if Checkpoints(folder.checkpoints).latest_tick() is None:
        print("No checkpoint was saved yet: starting from the beginning.")
        for log in (folder.metrics_jsonl, folder.metrics_csv):
            log.unlink(missing_ok=True)
        return None, planned, {}
    state, metadata = restore(trainer, folder, fallback=fallback)
    done = metadata["timestep"]
    if done >= planned:
        raise ValueError(
            f"the run is complete with {done:,} timesteps; train it further with "
            f"--n-timesteps and a larger number."
        )
    print(f"Resuming {relative(folder.path)} at {done:,} of {planned:,} timesteps.")
    folder.record_resume(done, planned)
    return state, planned - done, metadata["log_state"]


def restore(
    trainer: Trainer,
    folder: RunFolder,
    *,
    best: bool = False,
    tick: int | None = None,
    fallback: bool = False,
) -> tuple[RunState, dict[str, Any]]:
    """Read a checkpoint of a run; the replay's size follows from the length the run then had.

    Args:
        trainer: the agent.
        folder: its run folder.
        best: the checkpoint with the best evaluation, if there was one.
        tick: the checkpoint of this tick; None takes the newest, unless `best` is asked for.
        fallback: use the checkpoint before a damaged one.

    Returns:
        The state and the checkpoint's metadata.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    checkpoints = Checkpoints(folder.checkpoints)
    if tick is None and best:
        tick = checkpoints.best_tick()
    if tick is None:
        tick = checkpoints.latest_tick()
        if tick is None:
            raise CheckpointError(f"{folder.checkpoints} has no checkpoint to restore")
    try:
        planned = checkpoints.metadata(tick)["n_timesteps"]
    except CheckpointError as error:
        if not fallback or error.fallback_tick is None:
            raise
        return restore(trainer, folder, tick=error.fallback_tick, fallback=True)
    template = trainer.state_like(seed_argument(folder.settings["run"]["seed"]), planned)
    return checkpoints.restore(template, tick, fallback=fallback)


def seed_argument(seeds: Sequence[int]) -> int | list[int]:
    """Return one seed as a number, which trains without a seed axis, or several as a list."""
    return seeds[0] if len(seeds) == 1 else list(seeds)


def per_seed(seeds: Sequence[int], state: RunState) -> Iterator[tuple[int, RunState]]:
    """Yield each seed with its own state, without a seed axis."""
    if len(seeds) == 1:
        yield seeds[0], state
        return
    for i, seed in enumerate(seeds):
        yield seed, jax.tree.map(lambda leaf, i=i: leaf[i], state)


def report_command(prog: str, folder: RunFolder) -> str:
    """Return the command that reports on a run."""
    return f"{prog} report {shlex.quote(relative(folder.path))}"


def relative(path: Path) -> str:
    """Return the path as a user in this folder would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
