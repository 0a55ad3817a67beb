"""The learning-curve picture: drawn from any log, and showing what is in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wm_collect.curves import plot_learning_curve
from wm_collect.sinks import JsonlSink

ROWS = [
    {
        "tick": 11 * i,
        "timestep": 10 * i,
        "Train/episodic mean reward": -100.0 + i,
        **({"Eval/episodic mean reward": -90.0 + i} if i % 5 == 0 else {}),
        "Loss/value": 1.0 / (i + 1),
    }
    for i in range(20)
]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def coloured(path: Path, rgb: tuple[int, int, int]) -> int:
    return int(np.sum(np.abs(pixels(path) - rgb).max(-1) < 30))


BLUE, RED, GREEN = (0x0B, 0x62, 0xA4), (0xD1, 0x49, 0x5B), (0x2E, 0x8B, 0x57)


def test_the_evaluation_line_is_drawn_from_the_file(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    for row in ROWS:
        sink.write(row)
    sink.close()
    made = plot_learning_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png", "a run")
    assert made == tmp_path / "curve.png"
    assert coloured(made, BLUE) > 300


def test_runs_are_drawn_over_each_other_in_their_own_colours(tmp_path: Path) -> None:
    runs = {
        f"seed {s}": [{k: v + 3 * s if "reward" in k else v for k, v in r.items()} for r in ROWS]
        for s in range(3)
    }
    path = plot_learning_curve(runs, tmp_path / "c.png")
    assert all(coloured(path, rgb) > 300 for rgb in (BLUE, RED, GREEN))
    alone = plot_learning_curve(ROWS, tmp_path / "alone.png")
    assert coloured(alone, RED) < 100 < coloured(alone, BLUE)


def test_the_losses_get_a_panel_only_if_there_are_any(tmp_path: Path) -> None:
    with_losses = plot_learning_curve(ROWS, tmp_path / "a.png")
    without = [{k: v for k, v in row.items() if not k.startswith("Loss")} for row in ROWS]
    assert (
        pixels(plot_learning_curve(without, tmp_path / "b.png")).shape[0]
        < pixels(with_losses).shape[0]
    )


def test_the_band_of_several_seeds_goes_from_the_lowest_to_the_highest(tmp_path: Path) -> None:
    def rows(spread: float) -> list[dict[str, Any]]:
        name = "Eval/episodic mean reward"
        seeds = {f"{name} (seed {k})": spread * (k - 2) for k in range(5)}
        return [{"tick": i, "timestep": i, name: 0.0, **seeds} for i in range(3)]

    # The axis spans what is drawn, so the band fills it whatever its size, unless there is none.
    pale = (0xE2, 0xEC, 0xF4)
    wide = plot_learning_curve(rows(10.0), tmp_path / "wide.png")
    narrow = plot_learning_curve(rows(0.0), tmp_path / "narrow.png")
    assert coloured(wide, pale) > 100_000
    assert coloured(wide, BLUE) > coloured(narrow, BLUE)


NAN = float("nan")
ODD_LOGS: dict[str, list[dict[str, Any]]] = {
    "empty": [],
    "one row": ROWS[:1],
    "no returns": [{"tick": 1, "timestep": 1, "Loss/q": 0.0}],
    "nothing but nan": [
        {"tick": 1, "timestep": 1, "Eval/episodic mean reward": NAN, "Loss/q": NAN}
    ],
    "negative loss": [{"tick": i, "timestep": i, "Loss/pi": -float(i)} for i in range(4)],
    "per seed": [
        {
            "tick": i,
            "timestep": i,
            **{f"Eval/episodic mean reward{s}": i for s in ("", " (seed 7)")},
        }
        for i in range(4)
    ],
    "spread": [
        {"tick": i, "timestep": i, "Eval/episodic mean reward": i, "Eval/episodic std reward": 1.0}
        for i in range(4)
    ],
}


@pytest.mark.parametrize("name", ODD_LOGS)
def test_an_odd_log_still_makes_a_picture(name: str, tmp_path: Path) -> None:
    path = plot_learning_curve(ODD_LOGS[name], tmp_path / "c.png", name)
    assert pixels(path).min() < 100  # something is written on it


def test_pyplot_is_not_touched(tmp_path: Path) -> None:
    from matplotlib import pyplot

    plot_learning_curve(ROWS, tmp_path / "c.png")
    assert pyplot.get_fignums() == []
