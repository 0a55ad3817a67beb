"""The pictures of a report, as PNG data: transparent, in an ink that reads on light and on dark.

Each is drawn for a phone's width; on a wider screen two stand side by side.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wm_collect.curves import draw_returns, set_log_scale
from wm_collect.diagnostics import (
    Continuations,
    HorizonErrors,
    LogPanel,
    RewardPredictions,
    Values,
    calibration,
)
from wm_collect.seed_series import Rows, seed_series

# Between black and white, so that it stands out from both.
_INK = "#7d838a"
_COLORS = ("#2f81c7", "#d8604f", "#2e9b57", "#9a6fd0", "#c58a1b", "#3aa6a6")
_MODEL, _BASELINE = _COLORS[:2]
_SIZE = (5.0, 3.2)
_DPI = 150
# Values that span more than this ratio are drawn on a logarithmic scale.
_LOG_RATIO = 30


def learning_picture(rows: Rows, unit: str) -> bytes:
    """Draw the returns of training and evaluation, see `wm_collect.curves.draw_returns`."""

    def draw(axis: Any) -> None:
        draw_returns(axis, rows, color=_MODEL)
        axis.set(xlabel=unit, ylabel="episode return")
        _count_timesteps(axis)

    return _picture(draw)


def log_picture(rows: Rows, panel: LogPanel, names: Sequence[str], unit: str) -> bytes:
    """Draw metrics over time: the mean over seeds, and the band from the lowest to the highest.

    Args:
        rows: log rows.
        panel: what they are drawn under.
        names: those of its metrics that the log has.
        unit: what a timestep is, in the plural.
    """

    def draw(axis: Any) -> None:
        drawn = []
        for color, name in zip(_COLORS * len(names), names, strict=False):
            series = seed_series(rows, name)
            marker = "." if len(series.timestep) == 1 else None
            label = name.partition("/")[2]
            axis.plot(series.timestep, series.mean, color=color, label=label, marker=marker)
            if len(series.seeds) > 1:
                axis.fill_between(
                    series.timestep, series.low, series.high, color=color, alpha=0.2, linewidth=0
                )
            drawn.append(series.mean)
        values = np.concatenate(drawn)
        positive = values[values > 0]
        if len(positive) == len(values) and positive.max() > _LOG_RATIO * positive.min():
            set_log_scale(axis, values)
        axis.set(xlabel=unit)
        _count_timesteps(axis)

    return _picture(draw)


def horizon_picture(errors: HorizonErrors) -> bytes:
    """Draw the errors of model and persistence over the steps ahead."""

    def draw(axis: Any) -> None:
        steps = np.arange(1, len(errors.model) + 1)
        axis.plot(steps, errors.model, "-o", color=_MODEL, markersize=3, label="model")
        axis.plot(steps, errors.persistence, "-", color=_BASELINE, label="persistence")
        axis.axvline(errors.relied_on, color=_INK, linestyle=":", label="as far as the agent looks")
        axis.set(xlabel="agent steps ahead", ylabel=f"error, {errors.unit}")
        axis.set_ylim(bottom=0)

    return _picture(draw)


def rewards_picture(rewards: RewardPredictions) -> bytes:
    """Draw predicted over real rewards."""
    return _scatter(rewards.real, rewards.predicted, "real reward", "predicted one step before")


def values_picture(values: Values) -> bytes:
    """Draw expected over realised returns."""
    return _scatter(values.realised, values.expected, "realised discounted return", values.name)


def continuations_picture(continuations: Continuations) -> bytes:
    """Draw how often episodes went on over the probability they were given."""
    mean, frequency, count = calibration(continuations.probability, continuations.went_on)

    def draw(axis: Any) -> None:
        _diagonal(axis, 0.0, 1.0)
        axis.plot(mean, frequency, "-", color=_MODEL, alpha=0.5)
        sizes = 12 + 60 * np.log10(count) / max(np.log10(count.max()), 1.0)
        axis.scatter(mean, frequency, sizes, color=_MODEL, label="bin, its number of steps")
        for x, y, n in zip(mean, frequency, count, strict=True):
            right = x > 0.5
            axis.annotate(
                f"{n:,}",
                (x, y),
                (-7 if right else 7, 0),
                textcoords="offset points",
                ha="right" if right else "left",
                va="center",
                fontsize=7.5,
                color=_INK,
            )
        axis.set(xlabel="predicted probability of going on", ylabel="share that went on")

    return _picture(draw)


def _scatter(x: np.ndarray, y: np.ndarray, x_label: str, y_label: str) -> bytes:
    def draw(axis: Any) -> None:
        low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
        # Where all numbers are nearly one, noise is not blown up to the whole picture.
        margin = max(0.04 * (high - low), 0.02 * max(abs(low), abs(high)), 1e-6)
        _diagonal(axis, low - margin, high + margin)
        alpha = float(np.clip(60 / np.sqrt(len(x)) / 8, 0.12, 0.8))
        axis.plot(x, y, "o", color=_MODEL, markersize=3, alpha=alpha, markeredgewidth=0)
        axis.set(xlabel=x_label, ylabel=y_label)
        axis.ticklabel_format(useOffset=False)

    return _picture(draw)


def _count_timesteps(axis: Any) -> None:
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x == round(x) else "")


def _diagonal(axis: Any, low: float, high: float) -> None:
    axis.plot([low, high], [low, high], "--", color=_INK, linewidth=1, label="exactly right")


def _picture(draw: Callable[[Any], None]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.patch.set_alpha(0)
    axis = figure.subplots()
    axis.patch.set_alpha(0)
    draw(axis)
    axis.grid(True, color=_INK, alpha=0.25)
    axis.tick_params(colors=_INK, labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(_INK)
    for label in (axis.xaxis.label, axis.yaxis.label):
        label.set(color=_INK, fontsize=9)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, frameon=False, labelcolor=_INK)
    data = io.BytesIO()
    figure.savefig(data, format="png", transparent=True)
    return data.getvalue()
