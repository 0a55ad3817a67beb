"""The progress display: plain lines in a pipe, one panel on a terminal."""

import io
import math

import pytest
from rich.console import Console

from wm_collect.progress import RunProgress, format_duration, format_number

ROW = {
    "timestep": 1200,
    "Train/episodic mean reward": -425.04,
    "Eval/episodic mean reward": -180.0,
    "Train/n_updates": 1199,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("wm_collect.progress.time.monotonic", lambda: now[0])
    return now


def test_a_pipe_gets_one_readable_line_per_row(clock: list[float]) -> None:
    out = io.StringIO()
    with RunProgress(3000, stream=out) as progress:
        progress.set_phase("training")
        for step in (400, 800, 1200):
            clock[0] += 1.0
            progress.advance(step)
        progress.log_row(ROW)
        progress.log_row({"timestep": 1200})
    first, second, third = out.getvalue().splitlines()
    assert first == "training"
    assert second == (
        "step 1,200/3,000 · 400 steps/s · eta 0:04 · train return −425 · eval return −180 · "
        "updates 1,199"
    )
    assert third == second  # what is known stays shown


def test_a_long_line_is_not_wrapped_and_markup_is_not_interpreted() -> None:
    out = io.StringIO()
    with RunProgress(10, stream=out) as progress:
        progress.message("[red]" + "x" * 300)
    assert out.getvalue() == "[red]" + "x" * 300 + "\n"


def test_each_phase_is_said_once_in_a_pipe() -> None:
    out = io.StringIO()
    with RunProgress(10, stream=out) as progress:
        for phase in ("training", "evaluating", "training", "evaluating", "done"):
            progress.set_phase(phase)
    assert out.getvalue().split() == ["training", "evaluating", "done"]


def test_time_spent_evaluating_does_not_slow_the_rate(clock: list[float]) -> None:
    progress = RunProgress(1000, stream=io.StringIO())
    progress.set_phase("training")
    clock[0] += 1.0
    progress.advance(100)
    progress.set_phase("evaluating")
    clock[0] += 500.0
    progress.set_phase("training")
    assert progress.rate == 100.0
    clock[0] += 1.0
    progress.advance(200)
    assert progress.rate == 100.0


def test_the_rate_follows_a_change_of_speed_and_starts_unknown(clock: list[float]) -> None:
    progress = RunProgress(10**6, start=500, stream=io.StringIO())
    assert math.isnan(progress.rate)
    progress.set_phase("training")
    for second in range(100):
        clock[0] += 1.0
        progress.advance(progress.step + (1000 if second < 50 else 10))
    assert progress.rate == 10.0


def test_a_terminal_gets_one_panel_and_its_cursor_back() -> None:
    out = Terminal()
    with pytest.raises(KeyboardInterrupt), RunProgress(3000, title="a run", stream=out) as progress:
        progress.set_phase("burst: 1000 updates")
        progress.message("compiled in 8.1 s")
        progress.log_row(ROW)
        raise KeyboardInterrupt
    text = out.getvalue()
    assert text.count("compiled in 8.1 s") == 1
    last = text[text.rindex("╭") :]
    for part in ("a run", "step 1,200/3,000", "━", "eval return −180", "burst: 1000 updates"):
        assert part in last
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is shown again


def test_the_panel_fits_a_narrow_terminal() -> None:
    progress = RunProgress(3000, stream=io.StringIO())
    progress.log_row(ROW)
    console = Console(file=io.StringIO(), width=30)
    with console.capture() as captured:
        console.print(progress._panel())
    assert max(map(len, captured.get().splitlines())) <= 30


def test_a_disabled_display_writes_nothing() -> None:
    out = Terminal()
    with RunProgress(10, stream=out, enabled=False) as progress:
        progress.set_phase("training")
        progress.message("hello")
        progress.log_row(ROW)
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-180.0, "−180"),
        (1199, "1,199"),
        (-12345.6, "−12,346"),
        (0.012345, "0.01235"),
        (math.nan, "NaN"),
        (-math.inf, "−∞"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (90061, "25:01:01")]
)
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
