"""An episode of any environment as curves of its observations and rewards, with a moving cursor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from wm_collect.render.canvas import ACCENT, INK, MUTED, SECOND, Canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Beyond this many dimensions curves hide each other; a heat map takes their place.
_MAX_CURVES = 6
_CURSOR = (47, 52, 55)


def draw(
    obs: np.ndarray, reward: np.ndarray, steps: np.ndarray, width: int, height: int
) -> Iterator[np.ndarray]:
    """Yield one picture per step, showing what happened up to it.

    Args:
        obs: observations of the whole episode, `[L + 1, O]`.
        reward: reward received on entering each of them, `[L + 1]`.
        steps: the steps to draw, `[n]`.
        width: of a picture, in pixels.
        height: likewise.

    Yields:
        Pictures, uint8 `[height, width, 3]`.
    """
    canvas = Canvas(width, height)
    panels = canvas.figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    canvas.figure.subplots_adjust(left=0.15, right=0.97, top=0.93, bottom=0.13, hspace=0.16)
    last = max(len(obs) - 1, 1)
    _observations(panels[0], obs)
    panels[1].plot(reward, color=ACCENT, lw=1.4)
    panels[1].set_ylabel("reward", fontsize=9, color=INK)
    panels[1].set_xlabel("agent step", fontsize=9, color=INK)
    for panel in panels:
        panel.set_facecolor("#ffffff")
        panel.tick_params(labelsize=8, colors=INK, length=3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(MUTED)
        panel.set_xlim(0, last)
    canvas.figure.align_ylabels(panels)

    # Two drawings are enough: past from the clear one, future from the faded one.
    clear = canvas.pixels()
    for panel in panels:
        panel.axvspan(0, last, color="#ffffff", alpha=0.86, lw=0, zorder=4)
    faded = canvas.pixels()
    for step in steps:
        column = round(panels[0].transData.transform((float(step), 0.0))[0])
        picture = np.concatenate([clear[:, :column], faded[:, column:]], axis=1)
        for panel in panels:
            box = panel.get_window_extent()
            rows = slice(height - round(box.y1), height - round(box.y0))
            picture[rows, column : column + 2] = _CURSOR
        yield picture


def _observations(panel: Axes, obs: np.ndarray) -> None:
    """Draw few dimensions as curves, many as a heat map, each dimension in its own range."""
    n_dims = obs.shape[1]
    if n_dims <= _MAX_CURVES:
        colors = (SECOND, ACCENT, "#4f8a5b", "#8a6fae", "#c29a3b", "#5d6264")
        for dimension in range(n_dims):
            panel.plot(obs[:, dimension], color=colors[dimension], lw=1.3, label=str(dimension))
        panel.set_ylabel("observation", fontsize=9, color=INK)
        panel.legend(
            ncols=n_dims, fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.97)
        )
        return
    finite = np.where(np.isfinite(obs), obs, 0.0)
    low, high = finite.min(axis=0), finite.max(axis=0)
    scaled = (finite - low) / np.where(high > low, high - low, 1.0)
    panel.imshow(
        scaled.T,
        aspect="auto",
        cmap="cividis",
        interpolation="nearest",
        extent=(0, max(len(obs) - 1, 1), n_dims - 0.5, -0.5),
    )
    panel.set_ylabel("observation dimension", fontsize=9, color=INK)
