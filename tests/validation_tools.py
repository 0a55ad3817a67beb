"""What the tests of `tools/validation` share: the modules, and run folders that look trained."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wm_collect.cli_options import EnvOptions
from wm_collect.metrics import ENV_FRAMES, TIMESTEP, sink_row
from wm_collect.run_folder import RunFolder
from wm_collect.sinks import JsonlSink

from . import workspace

sys.path[:0] = [str(workspace.ROOT / "tools"), str(workspace.ROOT / "tools" / "bench")]

import train_or_resume  # noqa: E402
from validation import (  # noqa: E402
    acceptance,
    curves,
    multitask,
    protocols,
    report,
    run,
    runs,
    tasks,
)

__all__ = [
    "acceptance",
    "curves",
    "multitask",
    "protocols",
    "report",
    "run",
    "runs",
    "tasks",
    "train_or_resume",
    "write_run",
]


def write_run(
    validation: protocols.Validation,
    root: Path,
    env_id: str,
    returns: np.ndarray,
    seeds: Sequence[int],
    *,
    name: str = "",
    settings: Mapping[str, Any] | None = None,
    env: EnvOptions | None = None,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Write the folder of a run whose score was `returns`, `[S, n]`, at its first n marks.

    Args:
        validation: the protocol.
        root: folder of all validation runs.
        env_id: the task.
        returns: NaN where a seed has no value.
        seeds: the seeds, `[S]`.
        name: of the folder.
        settings: settings that depart from the protocol.
        env: options of the environment that depart from it.
        options: options of `train` that depart from it.
    """
    registered = dataclasses.replace(validation.registered, **(settings or {}))
    stored = {
        "agent": validation.command.short_name,
        "env_id": env_id,
        "env": dataclasses.asdict(env or EnvOptions()),
        "protocol": validation.protocol,
        "settings": dataclasses.asdict(registered),
        "run": {**validation.run, "seed": list(seeds), **(options or {})},
    }
    name = name or f"{env_id}-seeds-{'-'.join(map(str, seeds))}"
    folder = RunFolder.create(root / validation.name, name, settings=stored)
    sink = JsonlSink(folder.metrics_jsonl)
    n_envs = registered.n_envs
    for i, values in enumerate(returns.T, 1):
        # The first tick at which the mark is passed.
        timestep = -(-i * validation.score_every // n_envs) * n_envs
        row = {
            TIMESTEP: timestep,
            ENV_FRAMES: timestep * registered.action_repeat,
            validation.score: values if len(seeds) > 1 else values[0],
        }
        plain = sink_row(row, list(seeds) if len(seeds) > 1 else None)
        sink.write({"tick": timestep // n_envs, **plain})
    sink.close()
    return folder.path
