"""Both agents on small tasks, five seeds each, against criteria that were stated before the runs.

    uv run python tools/learning/small_tasks.py run        # all, 2.5 hours on one core
    uv run python tools/learning/small_tasks.py run pendulum/tdmpc2 --seeds 10 11
    uv run python tools/learning/small_tasks.py judge

`docs/validation.md` states the tasks, the budgets and the criteria of `CELLS` and `EXPECTATION`,
and reports the results, whatever they are. A run goes on where it was interrupted. Its evaluations
are kept in `docs/data/small_tasks.jsonl`; `judge` reads only that file, prints the tables and draws
`docs/images/small_tasks.png`.
"""

import argparse
import dataclasses
import datetime
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from machine import description
from train_or_resume import train

import wm_dreamer.cli
import wm_tdmpc2.cli
from wm_collect.metrics import ELAPSED, EVAL_RETURN, TIMESTEP
from wm_collect.run_folder import RunFolder
from wm_collect.sinks import read_rows

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "data" / "small_tasks.jsonl"
PICTURE = DOCS / "images" / "small_tasks.png"

# Seeds that no earlier run of these settings used.
SEEDS = (10, 11, 12, 13, 14)
EPISODES = 10

AGENTS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "dreamer": ("DreamerV3", wm_dreamer.cli.run),
    "tdmpc2": ("TD-MPC2", wm_tdmpc2.cli.run),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One agent on one task.

    Attributes:
        agent: a key of `AGENTS`.
        env_id: the task.
        n_timesteps: length of each run, in agent steps of the environments together.
        eval_frequency: agent steps between two evaluations of `EPISODES` episodes.
        options: further options of `train`, beside `--protocol quick`.
        learned: the return of the last evaluation that at least `N_LEARNED` seeds must reach.
        level: the return that the median over the seeds of the last evaluation must reach.
    """

    agent: str
    env_id: str
    n_timesteps: int
    eval_frequency: int
    learned: float
    level: float
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


N_LEARNED = 4
_SHORT_BALANCE = {"action_repeat": 2, "episode_length": 500}

CELLS = {
    "pendulum/tdmpc2": Cell("tdmpc2", "Pendulum-v1", 3_000, 500, learned=-400, level=-250),
    "pendulum/dreamer": Cell("dreamer", "Pendulum-v1", 6_000, 500, learned=-400, level=-250),
    "balance/tdmpc2": Cell(
        "tdmpc2", "CartpoleBalance", 5_000, 1_000, learned=300, level=350, options=_SHORT_BALANCE
    ),
    "balance/dreamer": Cell(
        "dreamer", "CartpoleBalance", 6_000, 1_000, learned=300, level=350, options=_SHORT_BALANCE
    ),
    "cartpole/dreamer": Cell("dreamer", "CartPole-v1", 6_000, 500, learned=200, level=400),
}

# The agent that plans reaches the bar on this task in fewer steps: task, bar, sooner, later.
EXPECTATION = ("pendulum", -400.0, "tdmpc2", "dreamer")


def main() -> int:
    """Run the cells asked for, or judge what has run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train, and keep the evaluations")
    running.add_argument("cells", nargs="*", metavar="cell", help=f"of {', '.join(CELLS)}")
    running.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), choices=SEEDS)
    running.add_argument("--root", type=Path, default=Path("runs/small_tasks"))
    commands.add_parser("judge", help="print the tables and draw the curves")
    options = parser.parse_args()
    if options.command == "judge":
        return 0 if judge(kept(RESULTS), PICTURE) else 1
    unknown = sorted(set(options.cells) - set(CELLS))
    if unknown:
        parser.error(f"unknown cell {', '.join(unknown)}; the cells are {', '.join(CELLS)}")
    for name in options.cells or CELLS:
        for seed in options.seeds:
            run(name, CELLS[name], seed, options.root, RESULTS)
    return 0


def run(name: str, cell: Cell, seed: int, root: Path, results: Path) -> None:
    """Train one seed of a cell, or the rest of it, and keep its evaluations in `results`."""
    if any(row["cell"] == name and row["seed"] == seed for row in kept(results)):
        print(f"{name}, seed {seed}: in {results.name} already.")
        return
    folder = root / f"{name.replace('/', '-')}-{seed}"
    settings = dict(cell.options) | {
        "protocol": "quick",
        "seed": seed,
        "n_timesteps": cell.n_timesteps,
        "eval_frequency": cell.eval_frequency,
        "num_episode_test": EPISODES,
        "animation": False,
        "save_frequency": cell.n_timesteps // 6,
    }
    train(AGENTS[cell.agent][1], [cell.env_id], settings, folder)
    rows = read_rows(RunFolder.open(folder).metrics_jsonl)
    evaluated = [row for row in rows if EVAL_RETURN in row]
    if not evaluated or evaluated[-1][TIMESTEP] < cell.n_timesteps:
        raise SystemExit(f"{folder} ended before its last evaluation; run the command again.")
    result = {
        "cell": name,
        "seed": seed,
        "env_id": cell.env_id,
        "settings": settings,
        "timesteps": [row[TIMESTEP] for row in evaluated],
        "returns": [row[EVAL_RETURN] for row in evaluated],
        "train_seconds": rows[-1][ELAPSED],
        "date": datetime.date.today().isoformat(),
    } | description()
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as out:
        out.write(json.dumps(result) + "\n")
    print(f"{name}, seed {seed}: last evaluation {result['returns'][-1]:.1f}.", flush=True)


def kept(results: Path) -> list[dict[str, Any]]:
    """Return the rows of the runs so far."""
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def judge(rows: Sequence[dict[str, Any]], picture: Path) -> bool:
    """Print what each criterion says, draw the curves, and return whether all of them hold."""
    verdicts = []
    print("| task | agent | last evaluation of each seed | reached | median | verdict |")
    print("|---|---|---|---|---|---|")
    for name, cell in CELLS.items():
        _, returns = curves(rows, name)
        if len(returns) < len(SEEDS):
            print(
                f"| {cell.env_id} | {AGENTS[cell.agent][0]} | {len(returns)} seeds so far | | | |"
            )
            verdicts.append(False)
            continue
        last = returns[:, -1]
        n_learned, median = int(np.sum(last >= cell.learned)), float(np.median(last))
        verdicts.append(n_learned >= N_LEARNED and median >= cell.level)
        print(
            f"| {cell.env_id} | {AGENTS[cell.agent][0]} | "
            f"{', '.join(f'{value:.0f}' for value in last)} | "
            f"{n_learned} of {len(last)} reached {cell.learned:g} | "
            f"{median:.0f} (asked: {cell.level:g}) | {'holds' if verdicts[-1] else 'fails'} |"
        )
    task, bar, sooner, later = EXPECTATION
    steps = {
        agent: first_reached(*curves(rows, f"{task}/{agent}"), bar) for agent in (sooner, later)
    }
    verdicts.append(steps[sooner] < steps[later])
    print(
        f"\nThe median over the seeds first reaches {bar:g} on {task} at step {steps[sooner]:g} "
        f"({AGENTS[sooner][0]}) and {steps[later]:g} ({AGENTS[later][0]}): "
        f"{AGENTS[sooner][0]} sooner {'holds' if verdicts[-1] else 'fails'}."
    )
    if rows:
        draw(rows, picture)
    return all(verdicts)


def curves(rows: Sequence[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of the evaluations of a cell, `[n]`, and its returns, `[seeds, n]`."""
    own = sorted((row for row in rows if row["cell"] == name), key=lambda row: row["seed"])
    if not own:
        return np.zeros(0), np.zeros((0, 0))
    return np.array(own[0]["timesteps"]), np.array([row["returns"] for row in own])


def first_reached(timesteps: np.ndarray, returns: np.ndarray, bar: float) -> float:
    """Return the first step at which the median over the seeds reaches a bar, or infinity."""
    if not len(returns):
        return float("inf")
    reached = np.median(returns, axis=0) >= bar
    return float(timesteps[np.argmax(reached)]) if reached.any() else float("inf")


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """Draw the evaluations of every seed, their median and range, one panel per task."""
    run = {row["cell"] for row in rows}
    tasks = list(dict.fromkeys(name.split("/")[0] for name in CELLS if name in run))
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.2 * len(tasks), 3.6), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for agent, color in zip(AGENTS, ("#0b62a4", "#d1495b"), strict=True):
            name = f"{task}/{agent}"
            timesteps, returns = curves(rows, name)
            if not len(returns):
                continue
            axis.plot(timesteps, returns.T, color=color, linewidth=0.7, alpha=0.45)
            axis.fill_between(
                timesteps, returns.min(0), returns.max(0), color=color, alpha=0.12, linewidth=0
            )
            axis.plot(
                timesteps,
                np.median(returns, axis=0),
                "-o",
                color=color,
                markersize=3,
                label=f"{AGENTS[agent][0]}, median of {len(returns)} seeds",
            )
            axis.axhline(CELLS[name].level, color="black", linewidth=0.8, linestyle="dotted")
            axis.set_title(CELLS[name].env_id, fontsize=10)
        axis.set_xlabel("agent steps")
        axis.grid(True, alpha=0.25)
        axis.legend(fontsize=8, frameon=False)
    axes[0][0].set_ylabel(f"mean return of {EPISODES} evaluation episodes")
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
