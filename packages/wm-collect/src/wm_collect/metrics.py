"""Metrics on the host: their names, their means since the last log row, and the series of a run.

One log row summarises a window, the ticks since the row before it:

    timestep, env_frames             the clock at the end of the window
    Train/n_updates                  updates made in the run so far
    Train/n_episodes                 episodes that ended in the window
    Train/episodic mean reward       their mean return; NaN if there was none
    Train/episodic mean length       their mean length in agent steps; NaN if there was none
    Loss/…                           the mean of each metric over the window's updates; NaN without
    Eval/episodic mean reward, …     only in rows where the policy was evaluated; NaN elsewhere
    Health/stopped seeds             how many seeds have stopped learning; absent while none has
    Health/stopped at update         the update in which a seed met a number that is not finite
    Time/elapsed seconds             wall-clock time of the run so far

Of a run with a list of seeds, every value that differs from seed to seed is logged by the seed's
own number, `NAME (seed 7)`, and over the seeds: their mean as `NAME`, their interquartile mean,
lowest and highest as `NAME/iqm`, `NAME/min`, `NAME/max`. From its stop on, a seed has no values.

Sums are float64 and strictly in the order of ticks, so the same run cut into other chunks logs
the same numbers.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from wm_collect.health import Health
from wm_collect.loop import TickRecords

TIMESTEP = "timestep"
ENV_FRAMES = "env_frames"
N_UPDATES = "Train/n_updates"
N_EPISODES = "Train/n_episodes"
TRAIN_RETURN = "Train/episodic mean reward"
TRAIN_LENGTH = "Train/episodic mean length"
EVAL_RETURN = "Eval/episodic mean reward"
EVAL_STD = "Eval/episodic std reward"
EVAL_LENGTH = "Eval/episodic mean length"
ELAPSED = "Time/elapsed seconds"

STOPPED_SEEDS = "Health/stopped seeds"
STOPPED_AT = "Health/stopped at update"

# The same for every seed.
_WHOLE = (TIMESTEP, ENV_FRAMES, N_UPDATES, STOPPED_SEEDS)
_COMMON = (*_WHOLE, ELAPSED)


def metric_key(name: str, group: str = "Loss") -> str:
    """Return the logged name of a metric: `group/name`, unless the name has a group itself."""
    return name if "/" in name else f"{group}/{name}"


@dataclasses.dataclass
class MetricWindow:
    """Sums since the last log row, each `[S]` (`[]` for a run of one seed without a seed axis).

    Attributes:
        n_updates: updates in the window.
        metric_sums: each metric, summed over the window's updates.
        n_episodes: episodes that ended in the window.
        return_sum: their returns, summed.
        length_sum: their lengths, summed.
    """

    n_updates: np.ndarray
    metric_sums: dict[str, np.ndarray]
    n_episodes: np.ndarray
    return_sum: np.ndarray
    length_sum: np.ndarray

    @classmethod
    def empty(cls, metric_names: Iterable[str], seed_shape: tuple[int, ...]) -> "MetricWindow":
        """Return the window of no ticks; `seed_shape` is `(S,)`, or `()` without a seed axis."""

        def zeros() -> np.ndarray:
            return np.zeros(seed_shape)

        return cls(zeros(), {name: zeros() for name in metric_names}, zeros(), zeros(), zeros())

    def add(
        self, ticks: TickRecords, n_ticks: int, health: Health | None = None, start: int = 0
    ) -> None:
        """Add the first `n_ticks` rows of a chunk's records, without those of stopped seeds.

        Args:
            ticks: the records, as NumPy arrays.
            n_ticks: how many of its rows are the chunk's.
            health: the seeds' health after the chunk, as NumPy arrays; None if all are well.
            start: absolute tick of the first row.
        """

        def rows(values: Any, axes: int) -> np.ndarray:
            # The tick axis is the last but `axes`; in front of it there may be a seed axis.
            return np.take(values, range(n_ticks), axis=-1 - axes).astype(np.float64)

        counted = np.ones((*self.n_updates.shape, n_ticks), bool)
        if health is not None:
            before = start + np.arange(n_ticks) < np.asarray(health.tick)[..., None]
            counted = before | ~np.asarray(health.stopped)[..., None]
        finished = rows(ticks.finished, 1) * counted[..., None]
        n_updates = rows(ticks.n_updates, 0) * counted
        self.n_updates = _running_sum(self.n_updates, n_updates)
        self.n_episodes = _running_sum(self.n_episodes, finished.sum(-1))
        returns = np.where(finished > 0, rows(ticks.episode_return, 1), 0.0).sum(-1)
        lengths = np.where(finished > 0, rows(ticks.episode_length, 1), 0.0).sum(-1)
        self.return_sum = _running_sum(self.return_sum, returns)
        self.length_sum = _running_sum(self.length_sum, lengths)
        for name, means in ticks.metrics.items():
            totals = np.where(counted, rows(means, 0), 0.0) * n_updates
            self.metric_sums[name] = _running_sum(self.metric_sums[name], totals)

    def summary(self) -> dict[str, np.ndarray]:
        """Return the window's part of a log row, each value `[S]` or `[]`; NaN where undefined."""
        row = {
            N_EPISODES: self.n_episodes,
            TRAIN_RETURN: _mean(self.return_sum, self.n_episodes),
            TRAIN_LENGTH: _mean(self.length_sum, self.n_episodes),
        }
        for name, total in self.metric_sums.items():
            row[metric_key(name)] = _mean(total, self.n_updates)
        return row

    def to_plain(self) -> dict[str, Any]:
        """Return the sums as plain lists and numbers, for a checkpoint's metadata."""
        plain = {
            field.name: getattr(self, field.name).tolist()
            for field in dataclasses.fields(self)
            if field.name != "metric_sums"
        }
        return plain | {"metric_sums": {k: v.tolist() for k, v in self.metric_sums.items()}}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "MetricWindow":
        """Undo `to_plain`."""
        sums = {name: np.asarray(value, float) for name, value in plain["metric_sums"].items()}
        others = {k: np.asarray(v, float) for k, v in plain.items() if k != "metric_sums"}
        return cls(metric_sums=sums, **others)


class Series:
    """The log rows of one call, column by column."""

    def __init__(self, seed_shape: tuple[int, ...]) -> None:
        """Start without rows; `seed_shape` is `(S,)`, or `()` without a seed axis."""
        self._seed_shape = seed_shape
        self._rows: list[dict[str, np.ndarray]] = []

    def append(self, row: dict[str, Any]) -> None:
        """Add a row; values are scalars or `[S]`."""
        self._rows.append(
            {k: np.broadcast_to(np.asarray(v, float), self._seed_shape) for k, v in row.items()}
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return every column as `[n_rows]` or `[S, n_rows]` float64, NaN where a row lacks it."""
        names = {name: None for row in self._rows for name in row}
        missing = np.full(self._seed_shape, np.nan)
        return {
            name: np.stack([row.get(name, missing) for row in self._rows], axis=-1)
            for name in names
        }


def stopped_seeds(health: Health) -> dict[str, Any]:
    """Return a log row's part about seeds that have stopped learning.

    Args:
        health: the seeds', `[S]` or `[]`, as NumPy arrays.
    """
    update = np.where(health.stopped, np.asarray(health.update) + 1.0, np.nan)
    return {STOPPED_SEEDS: np.sum(health.stopped), STOPPED_AT: update}


def sink_row(row: dict[str, Any], seeds: Sequence[int] | None) -> dict[str, float]:
    """Return a row for the log files: plain numbers, without what is undefined.

    With a list of seeds a value is given seed by seed and over the seeds for which it is defined,
    as the module's description says.

    Args:
        row: scalars, or `[S]` with a list of seeds.
        seeds: the list of seeds; None for a run without a seed axis.
    """
    plain: dict[str, float] = {}
    for name, value in row.items():
        values = np.asarray(value, float)
        defined = values[~np.isnan(values)]
        if not defined.size:
            continue
        mean = float(np.mean(defined))
        plain[name] = int(mean) if name in _WHOLE else mean
        if seeds is None or name in _COMMON:
            continue
        over_seeds = interquartile_mean(defined), float(np.min(defined)), float(np.max(defined))
        plain |= dict(zip(aggregate_columns(name), over_seeds, strict=True))
        per_seed = zip(seeds, values, strict=True)
        plain |= {seed_column(name, k): float(v) for k, v in per_seed if not np.isnan(v)}
    return plain


def aggregate_columns(name: str) -> tuple[str, str, str]:
    """Return the names, beside a metric's own, of its interquartile mean, minimum and maximum."""
    return f"{name}/iqm", f"{name}/min", f"{name}/max"


def seed_column(name: str, seed: int) -> str:
    """Return under which name the log of several seeds has one seed's value of a metric."""
    return f"{name} (seed {seed})"


def interquartile_mean(values: np.ndarray) -> float:
    """Return the mean of the middle half of some values, those at its edges counted in part.

    Of n values in order, n/4 are left out at each end; of 5, for example, the second and the fourth
    count three quarters. R. Agarwal et al., "Deep reinforcement learning at the edge of the
    statistical precipice", 2021, recommend it for few runs.

    Args:
        values: `[n]`, finite, at least one.
    """
    ordered = np.sort(np.asarray(values, float))
    n = ordered.size
    index = np.arange(n)
    # The part of [i, i + 1] inside [n/4, 3n/4].
    weight = np.clip(np.minimum(index + 1, 0.75 * n) - np.maximum(index, 0.25 * n), 0.0, 1.0)
    return float(np.sum(weight * ordered) / np.sum(weight))


def _running_sum(total: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Add `values[..., t]` to `total[...]` one after the other, so that chunking cannot matter."""
    return np.cumsum(np.concatenate([total[..., None], values], axis=-1), axis=-1)[..., -1]


def _mean(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
