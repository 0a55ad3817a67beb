"""One metric of a log over time, seed by seed where the log tells the seeds apart.

With several seeds, log rows hold the mean over seeds under a metric's name and each seed's own
value under `NAME (seed K)`.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wm_collect.metrics import aggregate_columns, interquartile_mean, seed_column

Rows = Sequence[Mapping[str, Any]]

_SEED = re.compile(r"^(?P<name>.*) \(seed (?P<seed>-?\d+)\)$")


@dataclasses.dataclass(frozen=True)
class SeedSeries:
    """The values of one metric at the rows that have any.

    Attributes:
        timestep: `[n]`.
        values: `[S, n]`, NaN where a seed has none; S = 1 where the log has one value for all.
        seeds: the seeds, `[S]`; empty where the log does not tell them apart.
    """

    timestep: np.ndarray
    values: np.ndarray
    seeds: tuple[int, ...]

    @property
    def mean(self) -> np.ndarray:
        """Return the mean over seeds, `[n]`."""
        return np.nanmean(self.values, axis=0)

    @property
    def low(self) -> np.ndarray:
        """Return the lowest seed's value, `[n]`."""
        return np.nanmin(self.values, axis=0)

    @property
    def high(self) -> np.ndarray:
        """Return the highest seed's value, `[n]`."""
        return np.nanmax(self.values, axis=0)

    @property
    def interquartile_mean(self) -> np.ndarray:
        """Return the mean of the middle half of the seeds, `[n]`, as the log's `NAME/iqm`."""
        columns = (column[np.isfinite(column)] for column in self.values.T)
        return np.asarray([interquartile_mean(column) for column in columns])


def seed_series(rows: Rows, name: str) -> SeedSeries:
    """Return a metric's values from log rows; rows without a finite value are left out."""
    seeds = sorted({seed for row in rows for seed in _seeds_of(row, name)})
    columns = [seed_column(name, seed) for seed in seeds] or [name]
    points = []
    for i, row in enumerate(rows):
        values = [_finite(row.get(column)) for column in columns]
        if not np.isnan(values).all():
            points.append([row.get("timestep", row.get("tick", i)), *values])
    table = np.asarray(points, np.float64).reshape(-1, 1 + len(columns))
    return SeedSeries(table[:, 0], table[:, 1:].T, tuple(seeds))


def metric_names(rows: Rows, prefix: str = "") -> list[str]:
    """Return the names of the metrics in log rows, in their order, without the seeds' own columns.

    Args:
        rows: log rows.
        prefix: what the names begin with.
    """
    names = dict.fromkeys(key for row in rows for key in row if key.startswith(prefix))
    derived = {column for name in names for column in aggregate_columns(name)}
    return [name for name in names if not _SEED.match(name) and name not in derived]


def _seeds_of(row: Mapping[str, Any], name: str) -> list[int]:
    matches = (_SEED.match(key) for key in row if key.startswith(name))
    return [int(match["seed"]) for match in matches if match and match["name"] == name]


def _finite(value: Any) -> float:
    return math.nan if value is None or not math.isfinite(value) else float(value)
