"""The multi-task pipeline for real: single-task runs, one dataset, one agent for all tasks.

    uv run python tools/multitask_pipeline.py                # everything, about an hour on 2 cores
    uv run python tools/multitask_pipeline.py --stage sources

Trains TD-MPC2 on three tasks of different sizes, exports each run with its full history, pools the
episodes, checks the dataset, trains `TDMPC2MultiTask` on it offline, and evaluates the one agent
against each source agent, and against random actions, on the same number of fresh episodes. The
one agent must reach at least half of each source agent's return.

Every stage goes through the command lines, keeps what it made under `--root`, and is skipped when
that is there; an interrupted training resumes. The result is written to
`docs/data/multitask_pipeline.json` and drawn into `docs/images/multitask_pipeline.png`.
"""

import argparse
import dataclasses
import datetime
import json
import math
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parent / "bench"))

from machine import description
from train_or_resume import command, train

import wm_multitask.cli
import wm_tdmpc2.cli
from wm_collect import cli as agent_cli
from wm_collect.cli_runs import per_seed, restore
from wm_collect.collector import random_policy
from wm_collect.evaluate import evaluate_policy
from wm_collect.quiet import quiet_xla

DOCS = Path(__file__).parents[1] / "docs"
SMALL_NETWORKS = {"model_size": 1, "enc_dim": 64, "mlp_dim": 128, "latent_dim": 64}
SHARE = 0.5
# Panels of a picture beside each other.
COLUMNS = 5


@dataclasses.dataclass(frozen=True)
class Source:
    """One single-task run.

    Attributes:
        env_id: the task.
        options: options of `wm-tdmpc2 train`, n_timesteps included.
        name: name of its run folder; empty for the task's.
    """

    env_id: str
    options: Mapping[str, Any]
    name: str = ""

    @property
    def folder(self) -> str:
        """Return the name of its run folder."""
        return self.name or self.env_id


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """What is run.

    Attributes:
        sources: the single-task runs, in the order of the tasks' ids.
        multitask: options of `wm-multitask train`.
        episodes: evaluation episodes of each task and agent.
    """

    sources: tuple[Source, ...]
    multitask: Mapping[str, Any]
    episodes: int = 10


PIPELINE = Pipeline(
    sources=(
        Source(
            "CartpoleBalance",
            SMALL_NETWORKS
            | {
                "num_samples": 256,
                "action_repeat": 2,
                "episode_length": 500,
                "n_timesteps": 5_000,
            },
        ),
        Source(
            "PointMass",
            SMALL_NETWORKS
            | {
                "num_samples": 256,
                "action_repeat": 2,
                "episode_length": 500,
                "n_timesteps": 5_000,
            },
        ),
        Source(
            "WalkerStand",
            SMALL_NETWORKS
            | {
                "num_samples": 256,
                "action_repeat": 2,
                "episode_length": 500,
                "n_timesteps": 6_000,
            },
        ),
    ),
    multitask=SMALL_NETWORKS
    | {"num_samples": 256, "batch_size": 256, "task_dim": 16, "n_timesteps": 10_000},
)


def main() -> int:
    """Run the stages asked for and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("runs/multitask_pipeline"))
    parser.add_argument("--stage", choices=["sources", "dataset", "train", "evaluate"])
    parser.add_argument("--task", help="only this source, in the stage sources")
    options = parser.parse_args()
    stages: dict[str, Callable[[], Any]] = {
        "sources": lambda: train_sources(PIPELINE, options.root, options.task),
        "dataset": lambda: make_dataset(PIPELINE, options.root),
        "train": lambda: train_multitask(PIPELINE, options.root),
        "evaluate": lambda: report(measure(PIPELINE, options.root), DOCS),
    }
    outcome = None
    for stage in [options.stage] if options.stage else stages:
        outcome = stages[stage]()
    return 0 if outcome is None or outcome else 1


def train_sources(pipeline: Pipeline, root: Path, only: str | None = None) -> None:
    """Train every source, or the rest of it."""
    for source in pipeline.sources:
        if only in (None, source.env_id):
            train(
                wm_tdmpc2.cli.run,
                [source.env_id],
                {"num_episode_test": 5, "animation": False} | source.options,
                root / source.folder,
            )


def make_dataset(pipeline: Pipeline, root: Path) -> None:
    """Export, pool and check."""
    files = []
    for source in pipeline.sources:
        files.append(root / f"{source.folder}.npz")
        command(wm_multitask.cli.run, ["export", root / source.folder, files[-1]])
    command(wm_multitask.cli.run, ["pool", *files, "--out", root / "dataset.npz"])
    command(wm_multitask.cli.run, ["check", root / "dataset.npz"])


def train_multitask(pipeline: Pipeline, root: Path) -> None:
    """Train the one agent, or the rest of it."""
    train(
        wm_multitask.cli.run,
        [root / "dataset.npz"],
        {"num_episode_test": 5} | pipeline.multitask,
        root / "multitask",
    )


def measure(pipeline: Pipeline, root: Path) -> list[dict[str, Any]]:
    """Evaluate the one agent, each source agent and random actions, and return a row per task."""
    folder, together = wm_multitask.cli.open_run(root / "multitask")
    state, _ = restore(together, folder)
    measured = together.evaluate(state, n_episodes=pipeline.episodes, seed=1)
    rows = []
    for source in pipeline.sources:
        folder, alone = agent_cli.open_run(wm_tdmpc2.cli.COMMAND, root / source.folder)
        state, _ = restore(alone, folder)
        own = [
            alone.evaluate(one, n_episodes=pipeline.episodes, seed=1).episode_return
            for _, one in per_seed(folder.settings["run"]["seed"], state)
        ]
        act = random_policy(alone.env.spec)
        with quiet_xla():
            aimless = jax.jit(
                lambda key, env=alone.env, act=act: evaluate_policy(
                    env, act, None, pipeline.episodes, key
                )
            )(jax.random.key(1))
        returns = {
            "random": aimless.episode_return,
            "source": np.concatenate(own),
            "multitask": measured[source.env_id].episode_return,
        }
        spec = alone.env.spec
        rows.append(
            {
                "task": source.env_id,
                "obs_dim": spec.obs_dim,
                "action_dim": spec.action_dim,
                "episode_length": spec.episode_length,
                "source_options": dict(source.options),
                "multitask_options": dict(pipeline.multitask),
                "returns": {name: np.asarray(r).tolist() for name, r in returns.items()},
                "means": {name: float(np.mean(r)) for name, r in returns.items()},
            }
        )
    return rows


def report(rows: Sequence[dict[str, Any]], docs: Path) -> bool:
    """Write, draw and print the result; return whether every task reaches its share."""
    stamped = {
        "date": datetime.date.today().isoformat(),
        "host": platform.system(),
        **description(),
        "share": SHARE,
        "tasks": list(rows),
    }
    (docs / "data").mkdir(parents=True, exist_ok=True)
    (docs / "data" / "multitask_pipeline.json").write_text(json.dumps(stamped, indent=1) + "\n")
    draw(rows, docs / "images" / "multitask_pipeline.png")
    reached = []
    print("| task | obs, action | random | source agent | one agent | share |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        means = row["means"]
        share = means["multitask"] / means["source"]
        reached.append(share >= SHARE)
        print(
            f"| {row['task']} | {row['obs_dim']}, {row['action_dim']} | {means['random']:.1f} | "
            f"{means['source']:.1f} | {means['multitask']:.1f} | {share:.2f} |"
        )
    return all(reached)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw every episode's return, agent by agent, one panel per task."""
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = {"random": "random", "source": "source agent", "multitask": "one agent"}
    columns = min(COLUMNS, len(rows))
    lines = math.ceil(len(rows) / columns)
    size = (3.2 * columns, 3.1 * lines + 0.3)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False)
    for axis in axes.flat[len(rows) :]:
        axis.set_axis_off()
    for axis, row in zip(axes.flat, rows, strict=False):
        for place, name in enumerate(labels):
            returns = np.asarray(row["returns"][name])
            spread = np.linspace(-0.15, 0.15, len(returns))
            axis.scatter(place + spread, returns, s=14, alpha=0.6, color=f"C{place}")
            axis.hlines(returns.mean(), place - 0.25, place + 0.25, color=f"C{place}")
        axis.axhline(
            SHARE * row["means"]["source"], color="black", linewidth=0.8, linestyle="dotted"
        )
        axis.set_title(row["task"], fontsize=10)
        axis.set_xticks(range(len(labels)), labels.values(), fontsize=8)
        axis.set_xlim(-0.5, len(labels) - 0.5)
    for line in axes:
        line[0].set_ylabel("episode return")
    figure.suptitle(
        "Dots: episodes. Lines: means. Dotted: half of the source agent's mean", fontsize=9
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
