"""What a user sees of a run: its description before, its pictures and its summary after."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from wm_collect import metrics
from wm_collect.agent import Trainer
from wm_collect.curves import plot_learning_curve
from wm_collect.environment import Environment
from wm_collect.evaluate import Evaluation
from wm_collect.render import render_episode, save_animation
from wm_collect.run_folder import RunFolder

# More frames make a large file without showing more.
_MAX_FRAMES = 250


def print_description(description: Mapping[str, str], *, title: str) -> None:
    """Print labels and texts as a table."""
    table = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for label, text in description.items():
        table.add_row(label, text)
    Console(highlight=False).print(table)


def draw_run(trainer: Trainer, folder: RunFolder) -> None:
    """Draw the learning curve of a run folder."""
    title = f"{trainer.name} on {trainer.subject}"
    plot_learning_curve(folder.metrics_jsonl, folder.learning_curve, title, trainer.clock.unit)


def draw_episode(env: Environment, evaluation: Evaluation, path: Path) -> None:
    """Write an animation of an evaluation's first episode.

    Raises:
        ValueError: the evaluation was made without `record=True`.
    """
    if evaluation.trajectory is None:
        raise ValueError("the evaluation has no trajectory; evaluate with record=True")
    every = math.ceil(env.spec.episode_length / _MAX_FRAMES)
    save_animation(render_episode(env, evaluation.trajectory, every=every), path)


def print_summary(
    folder: RunFolder, series: dict[str, np.ndarray], shown: Callable[[Path], str]
) -> None:
    """Print the last returns of a run and where its files are.

    Args:
        folder: the run folder.
        series: what training returned.
        shown: turns a path into the text to print.
    """
    for label, name in (
        ("last training episodes", metrics.TRAIN_RETURN),
        ("last evaluation", metrics.EVAL_RETURN),
    ):
        last = _last_finite(series.get(name))
        if last is not None:
            texts = ", ".join(f"{value:.1f}" for value in last)
            print(f"Mean return of the {label}: {texts}")
    pictures = (folder.learning_curve, folder.open_loop, folder.evaluation_gif)
    for path in (*pictures, folder.metrics_csv):
        if path.exists():
            print(f"  {shown(path)}")


def _last_finite(values: Any) -> list[float] | None:
    """Return each seed's last finite value, or None where there is none."""
    if values is None:
        return None
    rows = np.atleast_2d(values)
    kept = [row[np.isfinite(row)] for row in rows]
    return [float(row[-1]) for row in kept] if all(row.size for row in kept) else None
