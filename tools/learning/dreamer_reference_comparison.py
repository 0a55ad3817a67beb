"""Train DreamerV3 on the small protocol of the recorded reference runs and compare statistics.

    uv run python tools/learning/dreamer_reference_comparison.py run cartpole --seeds 0 1 2
    uv run python tools/learning/dreamer_reference_comparison.py run pendulum --seeds 0 1
    uv run python tools/learning/dreamer_reference_comparison.py plot

`run` trains one seed after the other and writes `docs/data/comparison/dreamerv3/`;
`plot` draws them over the reference's curves (`docs/data/reference_runs/dreamerv3`, runs of the
original code in float32, driven without threads) into
`docs/images/dreamer_reference_comparison_<task>.png` and prints the table of
`docs/performance.md`. Seeds do not correspond: distributions are compared.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from wm_dreamer import DreamerV3

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = DOCS / "data" / "reference_runs" / "dreamerv3"
OURS = DOCS / "data" / "comparison" / "dreamerv3"

TASKS = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}
SMALL = {
    "n_envs": 4,
    "units": 32,
    "hidden": 32,
    "deter": 128,
    "stoch": 16,
    "classes": 8,
    "train_ratio": 512.0,
}
ROWS = 6_000
# The reference summarised windows of this many rows.
WINDOW = 250

# Our series, and the reference's metric that means the same.
SERIES = {
    "Loss/reconstruction": "vector_loss",
    "Loss/reward": "reward_loss",
    "Loss/continue": "cont_loss",
    "Loss/dyn": "dyn_loss",
    "Loss/rep": "rep_loss",
    "Loss/actor": "actor_loss",
    "Loss/critic": "critic_loss",
    "Loss/replay_critic": "replay_critic_loss",
    "Loss/total": "opt_loss",
    "Train/grad_norm": "opt_grad_norm",
    "Train/param_norm": "opt_param_norm",
    "Train/policy_entropy": "ent/action/mean",
    "Train/prior_entropy": "prior_ent/mean",
    "Train/posterior_entropy": "post_ent/mean",
    "Train/imagined_reward": "rew/mean",
    "Train/imagined_return": "ret/mean",
    "Train/replay_return": "replay_ret/mean",
    "Train/value": "val/mean",
    "Train/td_error": "td_error",
    "Train/retnorm_low": "retnorm/low",
    "Train/retnorm_high": "retnorm/high",
}
RETURN, N_EPISODES = "Train/episodic mean reward", "Train/n_episodes"
# Statistics that are drawn on a logarithmic axis.
LOGARITHMIC = ("Loss/reconstruction", "Train/grad_norm")


def run(task: str, seed: int) -> None:
    """Train one seed and write its series."""
    agent = DreamerV3(TASKS[task], **SMALL)
    began = time.perf_counter()
    _, series = agent.train(
        seed=seed, n_timesteps=ROWS, num_episode_test=0, log_frequency=WINDOW, progress=False
    )
    names = ("timestep", "Train/n_updates", RETURN, N_EPISODES, *SERIES)
    result = {
        "task": task,
        "seed": seed,
        "seconds": time.perf_counter() - began,
        "settings": SMALL,
        "series": {
            name: [None if np.isnan(v) else float(v) for v in series[name]] for name in names
        },
    }
    OURS.mkdir(parents=True, exist_ok=True)
    (OURS / f"{task}_seed{seed}.json").write_text(json.dumps(result, indent=1) + "\n")
    last = [v for v in result["series"][RETURN] if v is not None][-1]
    print(f"{task}, seed {seed}: last window's return {last:.1f}, {result['seconds']:.0f} s")


def plot(task: str) -> None:
    """Draw our runs of a task over the reference's, and print the comparison as a table."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = (
        ("original code", _reference_runs(task), "#d1495b"),
        ("this library", _our_runs(task), "#0b62a4"),
    )
    names = (RETURN, *SERIES)
    figure = Figure(figsize=(16, 15), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(6, 4).ravel()
    for axis, name in zip(axes, names, strict=False):
        for label, runs, color in groups:
            curves = [(run["rows"], run[name]) for run in runs]
            for rows, values in curves:
                axis.plot(rows, values, color=color, alpha=0.35, linewidth=0.8)
            rows, mean = _mean_curve(curves)
            axis.plot(rows, mean, color=color, linewidth=2, label=f"{label}, {len(runs)} seed(s)")
        axis.set_title(name, loc="left", fontsize=10)
        axis.set_xlabel("rows", fontsize=8)
        if name in LOGARITHMIC:
            axis.set_yscale("log")
        axis.grid(alpha=0.25)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=8)
    picture = DOCS / "images" / f"dreamer_reference_comparison_{task}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture)
    print(f"{picture}\n")
    _print_table(groups[0][1], groups[1][1])


def _print_table(reference: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    print("| rows | statistic | original (range) | this library (range) | ranges overlap |")
    print("|---|---|---|---|---|")
    # Windows of the same index end within one tick of the same row.
    for window in (1, 2, 3, 7, 11, 15, 19, 23):
        for name in (RETURN, *SERIES):
            cells, ranges = [], []
            for runs in (reference, ours):
                values = np.array([run[name][window] for run in runs])
                values = values[np.isfinite(values)]
                if values.size:
                    ranges.append((values.min(), values.max()))
                    cells.append(f"{values.mean():.3g} ({values.min():.3g} to {values.max():.3g})")
                else:
                    cells.append("none")
            overlap = "–"
            if len(ranges) == 2:
                overlap = "yes" if max(r[0] for r in ranges) <= min(r[1] for r in ranges) else "no"
            print(f"| {(window + 1) * WINDOW} | {name} | {cells[0]} | {cells[1]} | {overlap} |")


def _reference_runs(task: str) -> list[dict[str, Any]]:
    runs = []
    for path in sorted(REFERENCE.glob(f"{task}_seed*.json")):
        windows = json.loads(path.read_text())["windows"]
        run = {"rows": np.array([w["rows_end"] for w in windows])}
        run[RETURN] = _floats([w["episode_return"] for w in windows])
        for name, theirs in SERIES.items():
            run[name] = _floats([w["mean"].get(theirs) for w in windows])
        runs.append(run)
    return runs


def _our_runs(task: str) -> list[dict[str, Any]]:
    runs = []
    for path in sorted(OURS.glob(f"{task}_seed*.json")):
        series = json.loads(path.read_text())["series"]
        run = {name: _floats(series[name]) for name in (RETURN, *SERIES)}
        runs.append({"rows": np.array(series["timestep"]), **run})
    if not runs:
        raise SystemExit(f"no run of {task} in {OURS}: make them with the command run first.")
    return runs


def _mean_curve(curves: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over seeds at each window, where any seed has a value."""
    values = np.stack([values for _, values in curves])
    present = np.isfinite(values).any(axis=0)
    return curves[0][0][present], np.nanmean(values[:, present], axis=0)


def _floats(values: list[float | None]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values], float)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="train seeds of one task")
    runner.add_argument("task", choices=sorted(TASKS))
    runner.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    commands.add_parser("plot", help="draw all tasks and print their tables")
    options = parser.parse_args()
    if options.command == "run":
        for seed in options.seeds:
            run(options.task, seed)
    else:
        for task in TASKS:
            plot(task)


if __name__ == "__main__":
    main()
