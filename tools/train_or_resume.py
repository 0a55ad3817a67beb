"""Train in a run folder through a command line, however far the run is already."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wm_collect.checkpoint import Checkpoints
from wm_collect.metrics import TIMESTEP
from wm_collect.run_folder import RunFolder


def train(
    program: Callable[[Sequence[str]], int],
    subject: Sequence[Any],
    options: Mapping[str, Any],
    folder: Path,
) -> None:
    """Train in a run folder, or resume there, or do nothing if the run is complete.

    Args:
        program: an agent's command line.
        subject: what its `train` takes before the options.
        options: of `train`, n_timesteps included.
        folder: the run's; made by `train`.

    Raises:
        SystemExit: the command failed or was stopped.
    """
    wanted = options["n_timesteps"]
    if not folder.exists():
        given = [text for name, value in options.items() for text in option(name, value)]
        command(
            program, ["train", *subject, *given, "--root", folder.parent, "--name", folder.name]
        )
    elif trained_timesteps(folder) < wanted:
        command(program, ["resume", folder, *option("n_timesteps", wanted)])
    else:
        print(f"{folder} is complete.")


def trained_timesteps(folder: Path) -> int:
    """Return how far a run is: by its log, and by its newest checkpoint where it has any.

    A finished run whose checkpoints were deleted to make room is still finished.
    """
    run = RunFolder(folder)
    rows = run.log_rows()
    logged = int(rows[-1][TIMESTEP]) if rows else 0
    checkpoints = Checkpoints(run.checkpoints)
    tick = checkpoints.latest_tick()
    return logged if tick is None else min(logged, checkpoints.metadata(tick)["timestep"])


def option(name: str, value: Any) -> list[str]:
    """Return an option as the command lines spell it; a tuple is several values."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]


def command(program: Callable[[Sequence[str]], int], args: Sequence[Any]) -> None:
    """Run a command line, and stop if it fails."""
    status = program([str(arg) for arg in args])
    if status:
        raise SystemExit(status)
