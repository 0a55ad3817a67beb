"""Drawing with matplotlib into arrays, without pyplot and its global figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # matplotlib takes a third of a second to import
    from matplotlib.axes import Axes

BACKGROUND = "#f6f5f2"
INK = "#2f3437"
MUTED = "#b9bcbc"
ACCENT = "#c8553d"
SECOND = "#3d6f8e"
GOAL = "#4f8a5b"

_DPI = 100


class Canvas:
    """A figure of a fixed size in pixels.

    Attributes:
        figure: the matplotlib figure to draw on.
    """

    def __init__(self, width: int, height: int) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._shape = width / height
        self.figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor=BACKGROUND)
        self._canvas = FigureCanvasAgg(self.figure)

    def scene(self, x: tuple[float, float], y: tuple[float, float]) -> Axes:
        """Return axes that fill the figure, in equal units, and show no frame.

        Args:
            x: lowest and highest abscissa that must be visible.
            y: lowest and highest ordinate that must be visible.

        Returns:
            The axes; wider than asked for where the figure's shape requires it.
        """
        axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        half_height = max(y[1] - y[0], (x[1] - x[0]) / self._shape) / 2
        half_width = half_height * self._shape
        middle_x, middle_y = sum(x) / 2, sum(y) / 2
        axes.set_xlim(middle_x - half_width, middle_x + half_width)
        axes.set_ylim(middle_y - half_height, middle_y + half_height)
        axes.axis("off")
        return axes

    def pixels(self) -> np.ndarray:
        """Return the drawing, uint8 `[height, width, 3]`."""
        self._canvas.draw()
        return np.array(self._canvas.buffer_rgba())[..., :3]
