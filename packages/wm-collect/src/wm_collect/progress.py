"""What a person sees while a run trains: one live panel on a terminal, plain lines elsewhere.

Both are one object, `RunProgress`. It is the only writer of the terminal: on a terminal, text that
other code prints appears above the panel; in a pipe or a file, one readable line per log row is
written.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_WINDOW_SECONDS = 30.0
_SHOWN = (
    ("train return", "Train/episodic mean reward"),
    ("eval return", "Eval/episodic mean reward"),
    ("updates", "Train/n_updates"),
)


class RunProgress:
    """Live progress of one run, used as a context manager.

    Args:
        total: environment steps at the end of the run.
        start: environment steps already done (a resumed run).
        title: name shown on the panel.
        stream: where to write; None is standard output.
        enabled: False shows nothing.
    """

    def __init__(
        self,
        total: int,
        *,
        start: int = 0,
        title: str = "training",
        stream: TextIO | None = None,
        enabled: bool = True,
    ) -> None:
        self.total = total
        self.step = start
        self.title = title
        self.phase = ""
        self._values: dict[str, float] = {}
        self._marks: deque[tuple[float, int]] = deque()  # (seconds, steps) of recent advances
        self._last_mark: float | None = None
        self._phases_printed: set[str] = set()
        self._console = Console(file=stream or sys.stdout, quiet=not enabled, highlight=False)
        self._live: Live | None = None
        self._phase_began = time.monotonic()

    def __enter__(self) -> "RunProgress":
        """Start the display."""
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(
                get_renderable=self._panel,
                console=self._console,
                refresh_per_second=4,
                vertical_overflow="crop",
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last state on the screen and give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def set_phase(self, text: str) -> None:
        """Say what the run is doing, like "compiling"; plain output says each text once."""
        if text == self.phase:
            return
        self.phase = text
        self._phase_began = time.monotonic()
        self._last_mark = time.monotonic()  # evaluating or saving does not count in the speed
        if self._live is None and text and text not in self._phases_printed:
            self._phases_printed.add(text)
            self._console.print(Text(text))

    def advance(self, step: int) -> None:
        """Set the environment steps done so far."""
        now = time.monotonic()
        if self._last_mark is not None:
            self._marks.append((now - self._last_mark, step - self.step))
        self._last_mark = now
        self.step = step
        while len(self._marks) > 1 and sum(t for t, _ in self._marks) > _WINDOW_SECONDS:
            self._marks.popleft()

    def log_row(self, row: Mapping[str, Any]) -> None:
        """Take the numbers of a log row; plain output writes its line."""
        for _, key in _SHOWN:
            if key in row:
                self._values[key] = float(row[key])
        if "timestep" in row:
            self.step = int(row["timestep"])
        if self._live is None:
            self._console.print(Text(self._line()), soft_wrap=True)

    def message(self, text: str) -> None:
        """Write a line that stays, above the panel if there is one."""
        self._console.print(Text(text), soft_wrap=True)

    # What is shown.

    @property
    def rate(self) -> float:
        """Return environment steps per second over the last half minute spent on them, or NaN."""
        seconds = sum(t for t, _ in self._marks)
        return sum(n for _, n in self._marks) / seconds if seconds > 0 else math.nan

    def _line(self) -> str:
        return " · ".join([self._position(), *self._numbers()])

    def _position(self) -> str:
        parts = [f"step {self.step:,}/{self.total:,}"]
        if self.rate > 0:
            eta = (self.total - self.step) / self.rate
            parts += [f"{format_number(self.rate)} steps/s", f"eta {format_duration(eta)}"]
        return " · ".join(parts)

    def _numbers(self) -> list[str]:
        return [
            f"{label} {format_number(self._values[key])}"
            for label, key in _SHOWN
            if key in self._values
        ]

    def _panel(self) -> Panel:
        lines = Table.grid(expand=True)  # rows, because a bar alone does not end its line
        lines.add_row(Text(self._position()))
        lines.add_row(ProgressBar(total=max(self.total, 1), completed=self.step))
        lines.add_row(Text(" · ".join(self._numbers())))
        since = format_duration(time.monotonic() - self._phase_began)
        lines.add_row(Text(f"{self.phase} ({since})" if self.phase else "", style="italic"))
        return Panel(lines, title=Text(self.title), title_align="left")


def format_number(value: float) -> str:
    """Return a number in at most four significant digits, or whole with thousands separators.

    >>> format_number(1199.0), format_number(-425.31), format_number(0.01234)
    ('1,199', '−425.3', '0.01234')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    text = f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "−", 1) if value < 0 else text


def format_duration(seconds: float) -> str:
    """Return a duration as `m:ss` or `h:mm:ss`.

    >>> format_duration(41.2), format_duration(3725)
    ('0:41', '1:02:05')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
