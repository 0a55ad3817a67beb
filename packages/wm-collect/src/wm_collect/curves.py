"""A picture of how a run learned, drawn from its log rows."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wm_collect.sinks import read_rows

_TRAIN = "Train/episodic mean reward"
_EVAL = "Eval/episodic mean reward"
_EVAL_STD = "Eval/episodic std reward"
_EVAL_SEED = f"{_EVAL} (seed "
_LOSS = "Loss/"
_COLORS = ("#0b62a4", "#d1495b", "#2e8b57", "#8a5fbf", "#c77c11", "#4c4c4c")

Rows = Sequence[Mapping[str, Any]]


def plot_learning_curve(
    runs: Rows | str | os.PathLike[str] | Mapping[str, Rows | str | os.PathLike[str]],
    path: str | os.PathLike[str],
    title: str = "",
    unit: str = "timesteps",
) -> Path:
    """Draw returns over timesteps, and losses below them if there are any.

    Training returns are thin dots with their running median, evaluations a line, with a band of
    one standard deviation over the episodes where `Eval/episodic std reward` is logged. Of a run
    with several seeds, the mean is bold and each seed is a thin line.

    Args:
        runs: log rows, the path of a `metrics.jsonl`, or a mapping from a label to either, drawn
            over each other.
        path: picture to write; its ending chooses the format.
        title: written above.
        unit: what a timestep is, in the plural, written below.

    Returns:
        The path written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labelled = runs if isinstance(runs, Mapping) else {"": runs}
    tables = {
        label: read_rows(rows) if isinstance(rows, str | os.PathLike) else list(rows)
        for label, rows in labelled.items()
    }
    losses = _loss_names(tables.values())
    figure = Figure(figsize=(8, 7 if losses else 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 if losses else 1, 1, sharex=True, squeeze=False)[:, 0]
    axes[0].set_title(title, loc="left")
    for index, (label, rows) in enumerate(tables.items()):
        _draw_returns(axes[0], rows, label, _COLORS[index % len(_COLORS)])
    axes[0].set_ylabel("episode return")
    if losses:
        _draw_losses(axes[1], tables, losses)
    for axis in axes:
        _finish(axis)
    axes[-1].set_xlabel(unit)
    figure.savefig(path)
    return Path(path)


def _series(rows: Rows, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the timesteps and values of the rows that have a finite value of a metric."""
    points = [
        (row.get("timestep", row.get("tick", i)), row[name])
        for i, row in enumerate(rows)
        if row.get(name) is not None and math.isfinite(row[name])
    ]
    xy = np.asarray(points, np.float64).reshape(-1, 2)
    return xy[:, 0], xy[:, 1]


def _running_median(values: np.ndarray) -> np.ndarray:
    """Return the median of the values around each, over a tenth of the run (at least 5)."""
    half = max(2, len(values) // 20)
    return np.array(
        [np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    )


def _draw_returns(axis: Any, rows: Rows, label: str, color: str) -> None:
    """Draw one run: training grey if it is alone, else dashed in the run's colour."""
    train_color = color if label else "#8c8c8c"
    x, y = _series(rows, _TRAIN)
    if len(x):
        axis.plot(x, y, ".", color=train_color, alpha=0.35, markersize=3)
        axis.plot(
            x,
            _running_median(y),
            "--" if label else "-",
            color=train_color,
            linewidth=1,
            label=f"{label}: training" if label else "training (dots), running median",
        )
    x, y = _series(rows, _EVAL)
    if len(x):
        name = f"{label}: evaluation" if label else "evaluation"
        axis.plot(x, y, "-o", color=color, linewidth=1.8, markersize=4, label=name)
        for seed in dict.fromkeys(key for row in rows for key in row if key.startswith(_EVAL_SEED)):
            axis.plot(*_series(rows, seed), "-", color=color, linewidth=0.7, alpha=0.5)
        with_spread = [row for row in rows if _EVAL_STD in row]
        x, y = _series(with_spread, _EVAL)
        _, std = _series(with_spread, _EVAL_STD)
        if len(std) == len(x):
            axis.fill_between(x, y - std, y + std, color=color, alpha=0.12, linewidth=0)


def _loss_names(tables: Any) -> list[str]:
    names = dict.fromkeys(
        name for rows in tables for row in rows for name in row if name.startswith(_LOSS)
    )
    return [name for name in names if any(len(_series(rows, name)[0]) for rows in tables)]


def _draw_losses(axis: Any, tables: Mapping[str, Rows], names: list[str]) -> None:
    styles = ("-", "--", ":", "-.")
    for n, name in enumerate(names):
        for index, rows in enumerate(tables.values()):
            x, y = _series(rows, name)
            axis.plot(
                x,
                y,
                styles[index % len(styles)],
                color=f"C{n % 10}",
                linewidth=1,
                marker="." if len(x) == 1 else None,
                label=name.removeprefix(_LOSS) if index == 0 else None,
            )
    values = np.concatenate([_series(rows, name)[1] for rows in tables.values() for name in names])
    if np.all(values > 0):
        axis.set_yscale("log")
    else:  # policy losses are negative; the linear part then spans the smallest sizes drawn
        sizes = np.abs(values[values != 0])
        axis.set_yscale("symlog", linthresh=np.quantile(sizes, 0.05) if len(sizes) else 1.0)
    axis.set_ylabel("loss")


def _finish(axis: Any) -> None:
    axis.grid(True, alpha=0.25)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, frameon=False, ncols=2)
    else:
        axis.tick_params(labelbottom=False, labelleft=False)
        axis.text(
            0.5, 0.5, "nothing logged yet", ha="center", va="center", transform=axis.transAxes
        )
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x == round(x) else "")
