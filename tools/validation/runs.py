"""Runs of a validation as they lie on the disk: what they scored, and what they departed from."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from validation.curves import Curves
from validation.protocols import Validation
from validation.provenance import sittings
from wm_collect.cli_options import EnvOptions
from wm_collect.metrics import TIMESTEP
from wm_collect.protocol import changes
from wm_collect.run_folder import RunFolder
from wm_collect.seed_series import seed_series


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run folder.

    Attributes:
        folder: where it is.
        env_id: its task.
        seeds: its seeds.
        curves: the scored returns over environment frames.
        timesteps: how far it was trained, by its log.
        departures: what differs from the registered protocol, each as a clause.
        config: its `config.json`.
        sittings: when and on what it was trained, see `validation.provenance`.
    """

    folder: Path
    env_id: str
    seeds: tuple[int, ...]
    curves: Curves
    timesteps: int
    departures: tuple[str, ...]
    config: dict[str, Any]
    sittings: tuple[dict[str, Any], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskRuns:
    """All runs of one task that follow the registered protocol.

    Attributes:
        env_id: the task.
        runs: the runs, of different seeds.
        curves: of all their seeds together; None without a run.
        unjudged: why the task cannot be judged, each reason as a clause; empty if it can.
    """

    env_id: str
    runs: tuple[Run, ...]
    curves: Curves | None
    unjudged: tuple[str, ...]


def run_folders(root: Path) -> list[Path]:
    """Return the run folders in a folder."""
    return sorted(path.parent for path in root.glob("*/config.json"))


def read_run(validation: Validation, folder: Path) -> Run:
    """Read a run folder.

    Raises:
        ValueError: it is not one of this agent, or its configuration or log is damaged.
    """
    run = RunFolder.open(folder)
    stored = run.settings
    if stored.get("agent") != validation.command.short_name:
        raise ValueError(
            f"{folder} was trained by {stored.get('agent')!r}, not by "
            f"{validation.command.short_name!r}."
        )
    rows = run.log_rows()
    seeds = tuple(stored["run"]["seed"])
    return Run(
        folder=folder,
        env_id=stored["env_id"],
        seeds=seeds,
        curves=_scored(validation, stored, rows, seeds),
        timesteps=int(rows[-1][TIMESTEP]) if rows else 0,
        departures=tuple(departures(validation, stored)),
        config=run.config,
        sittings=tuple(sittings(folder)),
    )


def departures(validation: Validation, stored: dict[str, Any]) -> list[str]:
    """Return what a run's stored settings depart from the registered protocol in."""
    try:
        settings = validation.command.settings(**stored["settings"])
        env = EnvOptions(**stored["env"])
    except (TypeError, ValueError) as error:
        return [f"its settings are of another version: {error}"]
    found = changes(settings, validation.registered, "registered")
    found += changes(env, EnvOptions(), "registered")
    found += [
        f"{name} {stored['run'][name]} (registered: {value})"
        for name, value in validation.registered_run.items()
        if stored["run"][name] != value
    ]
    if stored["env_id"] not in validation.budgets:
        found.append(f"the task {stored['env_id']} has no published curve")
    return found


def gather(validation: Validation, env_id: str, runs: Sequence[Run]) -> TaskRuns:
    """Put the runs of a task that follow the protocol together, and say whether it can be judged.

    Args:
        validation: the protocol.
        env_id: the task.
        runs: runs of any task; those of others, and those with departures, are left out.
    """
    own = tuple(run for run in runs if run.env_id == env_id and not run.departures)
    reasons = []
    wanted = validation.n_timesteps(env_id)
    for run in own:
        if run.timesteps < wanted:
            reasons.append(f"{run.folder.name} has {run.timesteps:,} of {wanted:,} timesteps")
    seeds = [seed for run in own for seed in run.seeds]
    repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if repeated:
        reasons.append(f"seed {', '.join(map(str, repeated))} was trained more than once")
    if not own:
        reasons.append("no run follows the protocol")
    elif len(set(seeds)) < len(validation.seeds):
        reasons.append(f"{len(set(seeds))} of at least {len(validation.seeds)} seeds were trained")
    reasons += [
        f"seed {seed} of {run.folder.name} stopped learning or has no return at the end"
        for run in own
        if run.timesteps >= wanted
        for seed, values in zip(run.curves.seeds, run.curves.returns, strict=True)
        if not values.size or math.isnan(values[-1])
    ]
    curves = _together([run.curves for run in own]) if own else None
    return TaskRuns(env_id=env_id, runs=own, curves=curves, unjudged=tuple(reasons))


def _scored(
    validation: Validation,
    stored: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    seeds: tuple[int, ...],
) -> Curves:
    """Return the scored returns at the marks they are due at, multiples of so many frames.

    A mark is passed by at most one tick, which takes a timestep per environment; values elsewhere,
    of a run that ended between two marks, are left out.
    """
    every, n_envs = validation.score_every, stored["settings"]["n_envs"]
    series = seed_series(rows, validation.score)
    due = series.timestep % every < n_envs
    marks = series.timestep[due].astype(np.int64) // every * every
    columns = dict(zip(series.seeds or seeds, series.values[:, due], strict=True))
    missing = np.full(marks.size, np.nan)
    return Curves(
        frames=marks * stored["settings"]["action_repeat"],
        returns=np.stack([columns.get(seed, missing) for seed in seeds]),
        seeds=seeds,
    )


def _together(parts: Sequence[Curves]) -> Curves:
    """Return the curves of several runs over the union of their x-axes."""
    frames = np.unique(np.concatenate([part.frames for part in parts]))
    returns = []
    for part in parts:
        rows = np.full((len(part.seeds), frames.size), np.nan)
        rows[:, np.searchsorted(frames, part.frames)] = part.returns
        returns.append(rows)
    seeds = tuple(seed for part in parts for seed in part.seeds)
    return Curves(frames=frames, returns=np.concatenate(returns), seeds=seeds)
