"""Train the runs that are compared with published curves, one task after the other.

    uv run python tools/validation/run.py dreamerv3 --dry-run      # the plan, with its memory
    uv run python tools/validation/run.py dreamerv3
    uv run python tools/validation/run.py tdmpc2 --tasks CheetahRun WalkerWalk

Each task is trained with all of its seeds side by side, in a run folder below `--root`, by the
agent's own `train` and `resume`. Start the same command again after an interruption of any kind: it
goes on with what is not finished. A task that fails is reported, and the others go on.

`--chunk-timesteps N` trains every unfinished task to its next multiple of N timesteps and ends, so
that all tasks advance together over several calls. `report.py` compares the runs with the published
curves.
"""

import argparse
import contextlib
import dataclasses
import functools
import gc
import io
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import jax
from train_or_resume import train, trained_timesteps

from validation.protocols import ROOT, VALIDATIONS, Validation
from validation.provenance import record_sitting
from wm_collect import cli
from wm_collect.checkpoint import CheckpointError
from wm_collect.forecast import size

# Of an exit status: the run was stopped by Ctrl-C or SIGTERM.
_SIGNALLED = 128
# The three newest checkpoints, the best one, and one that is being written.
_CHECKPOINTS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What the runner is asked to train.

    Attributes:
        validation: the protocol.
        root: folder of all validation runs.
        tasks: ids of the tasks' environments.
        seeds: the seeds of each task.
        overrides: settings to change; such runs are off the protocol and never judged.
        chunk: train a task to its next multiple of so many timesteps; None trains to the end.
    """

    validation: Validation
    root: Path
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    chunk: int | None = None

    def __post_init__(self) -> None:
        """Check what was asked for.

        Raises:
            ValueError: a task or setting is unknown, or the chunk does not fit the log.
        """
        known = self.validation.budgets
        unknown = [task for task in self.tasks if task not in known]
        if unknown:
            raise ValueError(
                f"{', '.join(unknown)} has no published curve; the tasks are {', '.join(known)}."
            )
        settings = {field.name for field in dataclasses.fields(self.validation.registered)}
        for name in self.overrides:
            if name not in settings:
                raise ValueError(
                    f"--set {name} is no setting; they are {', '.join(sorted(settings))}."
                )
        # Elsewhere a chunk would end with log rows that an uninterrupted run does not have.
        every = max(self.validation.run[name] for name in ("log_frequency", "eval_frequency"))
        if self.chunk is not None and (self.chunk < 1 or self.chunk % every):
            raise ValueError(
                f"--chunk-timesteps must be a multiple of {every:,}, the timesteps between two "
                f"evaluations, got {self.chunk:,}."
            )

    def folder(self, task: str) -> Path:
        """Return the run folder of a task."""
        name = "-".join([task, "seeds", *map(str, self.seeds)])
        name += "".join(f"-{key}={value}" for key, value in self.overrides.items())
        return self.root / self.validation.name / name.replace("/", "-")

    def options(self, task: str, n_timesteps: int) -> dict[str, Any]:
        """Return the options of `train`."""
        v = self.validation
        given = {"protocol": v.protocol, **v.settings, **self.overrides, **v.run}
        return given | {"seed": self.seeds, "n_timesteps": n_timesteps}


def train_all(job: Job) -> dict[str, str]:
    """Train every task, or the rest of it.

    Returns:
        What went wrong, a sentence by task.

    Raises:
        SystemExit: Ctrl-C was pressed or SIGTERM arrived; the running task is saved.
    """
    failures = {}
    for i, task in enumerate(job.tasks, 1):
        print(f"[{i}/{len(job.tasks)}] {task}", flush=True)
        failure = attempt(functools.partial(_train_one, job, task))
        if failure is not None:
            failures[task] = failure
        # The next task has other programs; these hold memory of the device.
        jax.clear_caches()
        gc.collect()
    return failures


def _train_one(job: Job, task: str) -> None:
    """Train one task, or the rest of it, or a chunk."""
    folder, wanted = job.folder(task), job.validation.n_timesteps(task)
    done = trained_timesteps(folder)
    if done >= wanted:
        print(f"{folder} is complete.")
        return
    # A run may end a few timesteps beyond a multiple, so the next one is not `done + chunk`.
    target = wanted if job.chunk is None else min(wanted, (done // job.chunk + 1) * job.chunk)
    record_sitting(folder)
    program = functools.partial(cli.main, job.validation.command)
    train(program, [task], job.options(task, target), folder)


def attempt(action: Callable[[], Any]) -> str | None:
    """Do something; return in a sentence what went wrong, if anything did.

    Raises:
        SystemExit: Ctrl-C was pressed or SIGTERM arrived.
    """
    heard = _Heard(sys.stderr)
    try:
        with contextlib.redirect_stderr(heard):
            action()
    except SystemExit as stopped:
        if isinstance(stopped.code, int) and stopped.code > _SIGNALLED:
            raise
        return heard.last_line or f"it ended with status {stopped.code}"
    except (ValueError, OSError, CheckpointError) as error:
        return str(error)
    except Exception as error:
        # Whatever it is, the other tasks can still be trained.
        traceback.print_exc()
        return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
    return None


class _Heard(io.TextIOBase):
    """Passes on what is written, and remembers the last line that was not empty."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.last_line = ""

    def write(self, text: str) -> int:
        """Pass a text on."""
        lines = [line for line in text.splitlines() if line.strip()]
        self.last_line = lines[-1] if lines else self.last_line
        return self._stream.write(text)

    def flush(self) -> None:
        """Pass the request on."""
        self._stream.flush()


def print_plan(job: Job) -> None:
    """Print what would be trained: timesteps, how much is done, memory and disk."""
    v = job.validation
    print(
        f"{v.command.agent.name} by the protocol {v.protocol}, seeds "
        f"{', '.join(map(str, job.seeds))} side by side, in {job.root / v.name}"
    )
    if job.overrides:
        changed = ", ".join(f"{name}={value}" for name, value in job.overrides.items())
        print(f"Off the protocol, so never judged: {changed}")
    columns = "{:<22} {:>11} {:>11} {:>11} {:>10} {:>12}"
    print(columns.format("task", "frames", "timesteps", "done", "memory", "checkpoints"))
    for task in job.tasks:
        n_timesteps = v.n_timesteps(task)
        agent = v.command.agent.from_protocol(v.protocol, task, **_settings(job))
        memory = agent.forecast(n_timesteps, n_seeds=len(job.seeds))
        saved = _CHECKPOINTS * memory.n_seeds * (memory.replay + memory.learner)
        numbers = (v.budgets[task], n_timesteps, trained_timesteps(job.folder(task)))
        texts = (*(f"{number:,}" for number in numbers), size(memory.total), size(saved))
        print(columns.format(task, *texts), flush=True)
        try:
            memory.check()
        except ValueError as error:
            print(f"  {error}")
    print("Memory is an estimate, of one task at a time. Checkpoints are the most a task keeps.")


def _settings(job: Job) -> dict[str, Any]:
    """Return the settings of the plan, overrides in the types of the values they replace."""
    registered = job.validation.registered
    parsed: dict[str, Any] = {}
    for name, text in job.overrides.items():
        value = getattr(registered, name)
        # Widths follow from the model size where they are None.
        kind = int if value is None else type(value)
        parsed[name] = text == "True" if kind is bool else kind(text)
    return {**job.validation.settings, **parsed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or print the plan, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Start the same command again to go on after an interruption.",
    )
    parser.add_argument("validation", choices=list(VALIDATIONS), help="which published curves")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="ids of Playground; all if none")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the registered ones")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of all validation runs")
    parser.add_argument(
        "--chunk-timesteps",
        type=int,
        metavar="N",
        help="train each task to its next multiple of N, and end",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a setting; the run is then off the protocol and never judged",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print the plan")
    options = parser.parse_args(arguments)
    validation = VALIDATIONS[options.validation]
    pairs = [text.partition("=") for text in options.set]
    if not all(name and value for name, _, value in pairs):
        parser.error("--set needs NAME=VALUE, such as --set train_ratio=64")
    try:
        job = Job(
            validation=validation,
            root=options.root,
            tasks=tuple(options.tasks or validation.budgets),
            seeds=tuple(options.seeds or validation.seeds),
            overrides={name: value for name, _, value in pairs},
            chunk=options.chunk_timesteps,
        )
    except ValueError as error:
        parser.error(str(error))
    if options.dry_run:
        print_plan(job)
        return 0
    failures = train_all(job)
    for task, sentence in failures.items():
        print(f"{task} failed: {sentence}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
