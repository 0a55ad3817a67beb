"""A picture of how a run learned, drawn from its log rows."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wm_collect.seed_series import Rows, SeedSeries, metric_names, seed_series
from wm_collect.sinks import read_rows

_TRAIN = "Train/episodic mean reward"
_EVAL = "Eval/episodic mean reward"
_EVAL_STD = "Eval/episodic std reward"
_LOSS = "Loss/"
_COLORS = ("#0b62a4", "#d1495b", "#2e8b57", "#8a5fbf", "#c77c11", "#4c4c4c")
# Of two seeds the interquartile mean is the mean.
_MIN_SEEDS_IQM = 3


def plot_learning_curve(
    runs: Rows | str | os.PathLike[str] | Mapping[str, Rows | str | os.PathLike[str]],
    path: str | os.PathLike[str],
    title: str = "",
    unit: str = "timesteps",
) -> Path:
    """Draw returns over timesteps, and losses below them if there are any.

    Training returns are thin dots with their running median, evaluations a line, with a band of
    one standard deviation over the episodes where `Eval/episodic std reward` is logged. Of a run
    with several seeds, the bold line is their mean, the band goes from the lowest to the highest
    seed, each seed is a thin line, and from three seeds on the interquartile mean is dashed.

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
        draw_returns(axes[0], rows, label, _COLORS[index % len(_COLORS)])
    axes[0].set_ylabel("episode return")
    if losses:
        _draw_losses(axes[1], tables, losses)
    for axis in axes:
        _finish(axis)
    axes[-1].set_xlabel(unit)
    figure.savefig(path)
    return Path(path)


def draw_returns(axis: Any, rows: Rows, label: str = "", color: str = _COLORS[0]) -> None:
    """Draw the returns of one run into matplotlib axes.

    Training is grey if the run is alone, else dashed in the run's colour.

    Args:
        axis: the axes.
        rows: its log rows.
        label: names the run in the legend; empty for a run that is alone.
        color: of the evaluation.
    """
    train_color = color if label else "#8c8c8c"
    train = seed_series(rows, _TRAIN)
    if len(train.timestep):
        x = np.broadcast_to(train.timestep, train.values.shape)
        axis.plot(x.ravel(), train.values.ravel(), ".", color=train_color, alpha=0.35, markersize=3)
        axis.plot(
            train.timestep,
            _running_median(train.mean),
            "--" if label else "-",
            color=train_color,
            linewidth=1,
            label=f"{label}: training" if label else "training (dots), running median",
        )
    evaluation = seed_series(rows, _EVAL)
    if not len(evaluation.timestep):
        return
    n_seeds = len(evaluation.seeds)
    name = f"evaluation, mean of {n_seeds} seeds" if n_seeds > 1 else "evaluation"
    name = f"{label}: {name}" if label else name
    axis.plot(
        evaluation.timestep,
        evaluation.mean,
        "-o",
        color=color,
        linewidth=1.8,
        markersize=4,
        label=name,
    )
    if n_seeds > 1:
        _draw_seeds(axis, evaluation, label, color)
    else:
        _draw_episode_spread(axis, rows, color)


def _draw_seeds(axis: Any, series: SeedSeries, label: str, color: str) -> None:
    """Draw each seed, the band from the lowest to the highest, and the interquartile mean."""
    for values in series.values:
        axis.plot(series.timestep, values, "-", color=color, linewidth=0.7, alpha=0.5)
    axis.fill_between(
        series.timestep, series.low, series.high, color=color, alpha=0.12, linewidth=0
    )
    if len(series.seeds) >= _MIN_SEEDS_IQM:
        axis.plot(
            series.timestep,
            series.interquartile_mean,
            "--",
            color=color,
            linewidth=1.4,
            label=f"{label}: interquartile mean" if label else "interquartile mean",
        )


def _draw_episode_spread(axis: Any, rows: Rows, color: str) -> None:
    """Draw the band of one standard deviation over the evaluation episodes, where it is logged."""
    with_spread = [row for row in rows if _EVAL_STD in row]
    mean, std = seed_series(with_spread, _EVAL), seed_series(with_spread, _EVAL_STD)
    if len(std.timestep) == len(mean.timestep):
        low, high = mean.mean - std.mean, mean.mean + std.mean
        axis.fill_between(mean.timestep, low, high, color=color, alpha=0.12, linewidth=0)


def _running_median(values: np.ndarray) -> np.ndarray:
    """Return the median of the values around each, over a tenth of the run (at least 5)."""
    half = max(2, len(values) // 20)
    return np.array(
        [np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    )


def _loss_names(tables: Any) -> list[str]:
    names = dict.fromkeys(name for rows in tables for name in metric_names(rows, _LOSS))
    return [name for name in names if any(len(seed_series(rows, name).timestep) for rows in tables)]


def _draw_losses(axis: Any, tables: Mapping[str, Rows], names: list[str]) -> None:
    styles = ("-", "--", ":", "-.")
    for n, name in enumerate(names):
        for index, rows in enumerate(tables.values()):
            series = seed_series(rows, name)
            axis.plot(
                series.timestep,
                series.mean,
                styles[index % len(styles)],
                color=f"C{n % 10}",
                linewidth=1,
                marker="." if len(series.timestep) == 1 else None,
                label=name.removeprefix(_LOSS) if index == 0 else None,
            )
    set_log_scale(
        axis,
        np.concatenate([seed_series(r, name).mean for r in tables.values() for name in names]),
    )
    axis.set_ylabel("loss")


def set_log_scale(axis: Any, values: np.ndarray) -> None:
    """Give axes a logarithmic ordinate that also shows values of both signs.

    Args:
        axis: matplotlib axes.
        values: all values that are drawn, `[n]`, finite.
    """
    if np.all(values > 0):
        axis.set_yscale("log")
    else:  # policy losses are negative; the linear part then spans the smallest sizes drawn
        sizes = np.abs(values[values != 0])
        axis.set_yscale("symlog", linthresh=np.quantile(sizes, 0.05) if len(sizes) else 1.0)


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
