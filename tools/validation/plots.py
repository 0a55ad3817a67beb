"""Pictures: our curves above the published ones, one panel per task."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from validation.acceptance import window_start
from validation.curves import Curves

OURS, THEIRS, BAR = "#0b62a4", "#8c8c8c", "#d1495b"
_COLUMNS = 5


def draw_curves(
    panels: Mapping[str, tuple[Curves | None, Curves]],
    budgets: Mapping[str, int],
    bars: Mapping[str, float],
    words: Mapping[str, str],
    path: Path,
) -> None:
    """Draw our curves and the reference's of each task.

    A thin line is a seed, a thick one the mean; the band goes from our lowest to our highest seed.
    The bar is drawn over the window in which the scores are taken.

    Args:
        panels: ours and the reference's curves, by task; ours is None where there is no run.
        budgets: environment frames of each task's run.
        bars: what our mean over the window has to reach, by task.
        words: what is written beside each task's name.
        path: picture to write.
    """
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(3.1 * columns, 2.5 * rows + 0.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (task, (ours, reference)) in zip(axes, panels.items(), strict=False):
        _draw_panel(axis, ours, reference, budgets[task], bars[task])
        axis.set_title(f"{task}: {words[task]}", fontsize=9, loc="left")
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis in axes[::columns]:
        axis.set_ylabel("episode return", fontsize=8)
    # One legend for all panels, of the one that shows most.
    labelled: dict[str, Any] = {}
    for axis in axes[: len(panels)]:
        handles, labels = axis.get_legend_handles_labels()
        labelled |= dict(zip(labels, handles, strict=True))
    figure.legend(
        labelled.values(), labelled.keys(), loc="outside upper center", ncols=4, fontsize=9
    )
    figure.supxlabel("environment frames", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_panel(
    axis: Axes, ours: Curves | None, reference: Curves, budget: int, bar: float
) -> None:
    _draw_seeds(axis, reference, THEIRS, "published: seeds and mean")
    if ours is not None and ours.frames.size:
        _draw_seeds(axis, ours, OURS, "ours: seeds and mean")
        # A place without any value has no band.
        filled = np.isfinite(ours.returns).any(axis=0)
        values = ours.returns[:, filled]
        low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        axis.fill_between(
            ours.frames[filled], low, high, color=OURS, alpha=0.15, linewidth=0, label="ours: range"
        )
    axis.hlines(
        bar, window_start(budget), budget, color=BAR, linewidth=2, zorder=3, label="bar for ours"
    )
    axis.set_xlim(0, budget * 1.02)
    axis.set_ylim(-60, 1050)
    axis.tick_params(labelsize=7)
    axis.xaxis.set_major_locator(_ticks(budget))
    axis.xaxis.set_major_formatter(lambda x, _: _short(x))


def _draw_seeds(axis: Axes, curves: Curves, color: str, label: str) -> None:
    for values in curves.returns:
        known = np.isfinite(values)
        axis.plot(curves.frames[known], values[known], color=color, linewidth=0.6, alpha=0.7)
    known = np.isfinite(curves.returns).any(axis=0)
    mean = np.nanmean(curves.returns[:, known], axis=0)
    axis.plot(curves.frames[known], mean, color=color, linewidth=1.8, label=label)


def _ticks(budget: int) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator([0, budget / 2, budget])


def _short(frames: float) -> str:
    """Return a number of frames for an axis, such as 250K or 4M."""
    for factor, unit in ((1_000_000, "M"), (1_000, "K")):
        if frames >= factor:
            return f"{frames / factor:g}{unit}"
    return f"{frames:g}"
