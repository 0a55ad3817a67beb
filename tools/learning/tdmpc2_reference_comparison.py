"""Train TD-MPC2 on the small protocol of the recorded reference runs and compare statistics.

    uv run python tools/learning/tdmpc2_reference_comparison.py run --seeds 0 1 2 3 4
    uv run python tools/learning/tdmpc2_reference_comparison.py plot

`run` trains one seed after the other and writes `docs/data/comparison/tdmpc2/seed<k>.json`; `plot`
draws them over the reference's curves (`docs/data/reference_runs/tdmpc2`, runs of the original
PyTorch code) into `docs/images/tdmpc2_reference_comparison.png` and prints the table of
`docs/performance.md`. Seeds do not correspond: distributions are compared.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect import driver
from wm_collect.compile_cache import enable_compile_cache
from wm_collect.loop import RunState
from wm_collect.quiet import quiet_xla
from wm_tdmpc2 import TDMPC2
from wm_tdmpc2.update import METRIC_NAMES

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = DOCS / "data" / "reference_runs" / "tdmpc2"
OURS = DOCS / "data" / "comparison" / "tdmpc2"
PICTURE = DOCS / "images" / "tdmpc2_reference_comparison.png"

SMALL = {
    "model_size": 1,
    "enc_dim": 64,
    "mlp_dim": 128,
    "latent_dim": 64,
    "num_samples": 256,
}
# The reference counts steps from 0: after its step k, k + 1 steps and k updates are done.
EVALUATED_STEPS = (1000, 1400, 1800, 2200, 2600, 3000)
EPISODES = 5
BLOCK = 100
# Below this a Pendulum episode hung at the static balance (the reference's README).
HANGING = -1000.0


class UpdateHistory:
    """Keeps every statistic of every update, `[n_updates, n_metrics]`."""

    def __init__(self, n_updates: int) -> None:
        self.n_updates = n_updates

    def init_state(self, agent: Any, key: jax.Array) -> jax.Array:
        """Return the empty table."""
        return jnp.zeros((self.n_updates, len(METRIC_NAMES)))

    def post_update(
        self, agent: Any, carry: jax.Array, key: jax.Array, step: jax.Array, metrics: Any
    ) -> tuple[Any, jax.Array]:
        """Write the update's row."""
        return agent, carry.at[step].set(jnp.stack([metrics[name] for name in METRIC_NAMES]))


def run(seed: int) -> None:
    """Train one seed, evaluating where the reference did, and write what was measured."""
    last = EVALUATED_STEPS[-1]
    agent = TDMPC2("Pendulum-v1", **SMALL, extensions=(UpdateHistory(last),))
    algorithm = agent.algorithm(last + 1)
    began = time.perf_counter()
    state: RunState | None = None
    tick, evaluations, train_episodes = 0, [], []
    for step in EVALUATED_STEPS:
        stop = agent.schedule.tick_of_step(step) + 1
        state, series = driver.train(
            algorithm,
            seeds=seed,
            stop_tick=stop,
            clock=agent.clock,
            log_every=agent.config.agent_episode_length,
            extensions=agent.extensions,
            initial=state,
            start_tick=tick,
        )
        tick = stop
        for at, value in zip(series["timestep"], series["Train/episodic mean reward"], strict=True):
            if np.isfinite(value):
                train_episodes.append({"step": int(at), "return": float(value)})
        # New starts at every evaluation: returns depend strongly on them.
        evaluation = agent.evaluate(state, n_episodes=EPISODES, seed=1000 * seed + step)
        returns = np.asarray(evaluation.episode_return)
        evaluations.append({"step": step, "returns": returns.tolist()})
        print(f"seed {seed}, step {step}: evaluation {returns.mean():.1f}", flush=True)
    table = np.asarray(state.extensions[0])
    blocks = table.reshape(-1, BLOCK, len(METRIC_NAMES)).mean(axis=1)
    result = {
        "seed": seed,
        "seconds": time.perf_counter() - began,
        "settings": SMALL,
        "evaluations": evaluations,
        "train_episodes": train_episodes,
        "update_blocks": [
            {
                "last_update": (i + 1) * BLOCK,
                "mean": dict(zip(METRIC_NAMES, row.tolist(), strict=True)),
            }
            for i, row in enumerate(blocks)
        ],
        "first_updates": [dict(zip(METRIC_NAMES, row.tolist(), strict=True)) for row in table[:20]],
    }
    OURS.mkdir(parents=True, exist_ok=True)
    (OURS / f"seed{seed}.json").write_text(json.dumps(result, indent=1) + "\n")


def plot() -> None:
    """Draw our runs over the reference's, and print the comparison as a table."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    reference = [json.loads(p.read_text()) for p in sorted(REFERENCE.glob("pendulum_small_*"))]
    ours = [json.loads(p.read_text()) for p in sorted(OURS.glob("seed*.json"))]
    figure = Figure(figsize=(13, 10), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, 3).ravel()
    groups = (("original PyTorch", reference, "#d1495b"), ("this library", ours, "#0b62a4"))
    for axis, name in zip(axes, METRIC_NAMES, strict=False):
        for label, runs, color in groups:
            x, y = _blocks(runs, name)
            axis.plot(x, y.T, color=color, alpha=0.35, linewidth=0.8)
            axis.plot(x, y.mean(0), color=color, linewidth=2, label=f"{label}, {len(runs)} seeds")
        axis.set_title(name, loc="left", fontsize=10)
        axis.set_xlabel("updates")
        if name == "consistency_loss":
            axis.set_yscale("log")
        axis.grid(alpha=0.25)
    axes[0].legend(fontsize=8)
    for axis, series, title in (
        (axes[7], _evaluations, "evaluation episodes and their median"),
        (axes[8], _train_episodes, "training episodes and their median"),
    ):
        for offset, (_, runs, color) in zip((-25, 25), groups, strict=True):
            x, y = series(runs)
            for at, values in zip(x, y, strict=True):
                axis.scatter(
                    np.full(len(values), at + offset), values, s=9, color=color, alpha=0.45
                )
            axis.plot(x + offset, [np.median(v) for v in y], color=color, linewidth=2)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlabel("environment steps")
        axis.grid(alpha=0.25)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE)
    print(f"{PICTURE}\n")
    _print_tables(reference, ours)


def _print_tables(reference: list[Any], ours: list[Any]) -> None:
    print("| update | statistic | original (range) | this library (range) | ranges overlap |")
    print("|---|---|---|---|---|")
    for at in (100, 200, 300, 500, 1000, 1500, 2000, 3000):
        for name in METRIC_NAMES:
            (x, theirs), (_, mine) = _blocks(reference, name), _blocks(ours, name)
            a, b = theirs[:, x == at].ravel(), mine[:, x == at].ravel()
            overlap = a.min() <= b.max() and b.min() <= a.max()
            cells = [f"{v.mean():.3g} ({v.min():.3g} to {v.max():.3g})" for v in (a, b)]
            print(f"| {at} | {name} | {cells[0]} | {cells[1]} | {'yes' if overlap else 'no'} |")
    print("\n| step | original: median, share hanging | this library: median, share hanging |")
    print("|---|---|---|")
    (steps, theirs), (_, mine) = _evaluations(reference), _evaluations(ours)
    for step, a, b in zip(steps, theirs, mine, strict=True):
        cells = [f"{np.median(v):.0f}, {np.sum(np.less(v, HANGING))} of {len(v)}" for v in (a, b)]
        print(f"| {int(step)} | {cells[0]} | {cells[1]} |")


def _blocks(runs: list[Any], name: str) -> tuple[np.ndarray, np.ndarray]:
    x = np.array([block["last_update"] for block in runs[0]["update_blocks"]])
    return x, np.array([[b["mean"][name] for b in run["update_blocks"]] for run in runs])


def _evaluations(runs: list[Any]) -> tuple[np.ndarray, list[list[float]]]:
    values: dict[int, list[float]] = {step: [] for step in EVALUATED_STEPS}
    for one in runs:
        for evaluation in one["evaluations"]:
            values[evaluation["step"]] += evaluation["returns"]
    return np.array(list(values)), list(values.values())


def _train_episodes(runs: list[Any]) -> tuple[np.ndarray, list[list[float]]]:
    values: dict[int, list[float]] = {}
    for one in runs:
        for episode in one["train_episodes"]:
            values.setdefault(episode["step"], []).append(episode["return"])
    steps = sorted(values)
    return np.array(steps), [values[step] for step in steps]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    commands.add_parser("plot")
    options = parser.parse_args()
    if options.command == "plot":
        plot()
        return
    enable_compile_cache()
    with quiet_xla():
        for seed in options.seeds:
            run(seed)


if __name__ == "__main__":
    main()
