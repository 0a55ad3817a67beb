"""Learning checks: does an agent learn a real task to the expected return?

    uv run python tools/learning_checks.py                      # every check (many hours)
    uv run python tools/learning_checks.py tdmpc2-pendulum      # one check

Each check trains several seeds, judges each, and fails if a seed stays below the bar. Results are
appended to `docs/data/learning_checks.jsonl`; `docs/performance.md` reports them. A seed is trained
in a run folder under `--root`, where an interrupted check goes on when it is started again; a
folder that holds the whole run is only judged.

TD-MPC2 is judged by evaluation episodes, DreamerV3, as in its paper, by the training episodes at
the end of the run.
"""

import argparse
import dataclasses
import datetime
import json
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "bench"))
sys.path.insert(0, str(Path(__file__).parent / "learning"))

from hidden_velocities import hidden_velocities
from machine import description

from wm_collect.agent import Agent
from wm_collect.checkpoint import Checkpoints
from wm_collect.cli_runs import continue_run, restore, train_in_folder
from wm_collect.metrics import ELAPSED, N_EPISODES, TIMESTEP, TRAIN_RETURN
from wm_collect.run_folder import RunFolder
from wm_collect.sinks import read_rows
from wm_dreamer import DreamerV3
from wm_dreamer.protocols import PROTOCOLS
from wm_tdmpc2 import TDMPC2

RESULTS = Path(__file__).parents[1] / "docs" / "data" / "learning_checks.jsonl"

LOG_ROWS = 50
SAVES = 20


@dataclasses.dataclass(frozen=True)
class Check:
    """One task, and the mean return every seed must exceed.

    Attributes:
        agent: the agent's class.
        env: id of the environment, or a function that makes it.
        settings: the agent's settings.
        n_timesteps: length of the run, in the agent's timesteps.
        seeds: training seeds.
        bar: the mean return each seed must exceed.
        last_timesteps: judge by the training episodes that ended in so many last timesteps; None
            judges by `episodes` evaluation episodes.
        episodes: evaluation episodes.
    """

    agent: type[Agent]
    env: str | Callable[[], Any]
    settings: Mapping[str, Any]
    n_timesteps: int
    seeds: tuple[int, ...]
    bar: float
    last_timesteps: int | None = None
    episodes: int = 10


CHECKS = {
    "tdmpc2-pendulum": Check(
        agent=TDMPC2,
        env="Pendulum-v1",
        settings={"model_size": 1},
        n_timesteps=6_000,
        seeds=(0, 1),
        bar=-250.0,
    ),
    "tdmpc2-cartpole-balance": Check(
        agent=TDMPC2,
        env="CartpoleBalance",
        settings={
            "model_size": 1,
            "enc_dim": 64,
            "mlp_dim": 128,
            "latent_dim": 64,
            "num_samples": 256,
            "action_repeat": 2,
        },
        n_timesteps=20_000,
        seeds=(0, 1),
        bar=900.0,
    ),
    # Episodes terminate: the pole falls, or does not for 200 steps.
    "tdmpc2-episodic-inverted-pendulum": Check(
        agent=TDMPC2,
        env="inverted_pendulum",
        settings={
            "model_size": 1,
            "enc_dim": 64,
            "mlp_dim": 128,
            "latent_dim": 64,
            "num_samples": 256,
            "episode_length": 200,
            "episodic": True,
            "rho": 0.7,
        },
        n_timesteps=12_000,
        seeds=(0, 1),
        bar=150.0,
    ),
    "dreamer-cartpole": Check(
        agent=DreamerV3,
        env="CartPole-v1",
        settings={"model_size": "1m", "n_envs": 4},
        n_timesteps=20_000,
        seeds=(0, 1),
        bar=400.0,
        last_timesteps=2_000,
    ),
    "dreamer-pendulum": Check(
        agent=DreamerV3,
        env="Pendulum-v1",
        settings={"model_size": "1m", "n_envs": 4},
        n_timesteps=20_000,
        seeds=(0, 1),
        bar=-400.0,
        last_timesteps=2_000,
    ),
    # Memory: without velocities one observation does not say which way the pole is falling.
    "dreamer-cartpole-hidden-velocities": Check(
        agent=DreamerV3,
        env=lambda: hidden_velocities("CartPole-v1", visible=(0, 2)),
        settings=PROTOCOLS["quick"].settings | {"learning_rate": 4e-4},
        n_timesteps=12_000,
        seeds=(0, 1),
        bar=150.0,
        last_timesteps=2_000,
    ),
}


def run(name: str, check: Check, seed: int, root: Path) -> bool:
    """Train and judge one seed; return whether it passed."""
    env = check.env if isinstance(check.env, str) else check.env()
    agent = check.agent(env, **check.settings)
    folder = trained(agent, f"{name}-{seed}", check.n_timesteps, seed, root)
    rows = read_rows(folder.metrics_jsonl)
    if check.last_timesteps is None:
        state, _ = restore(agent, folder)
        evaluation = agent.evaluate(state, n_episodes=check.episodes)
        returns = np.asarray(evaluation.episode_return)
        score, judged = float(returns.mean()), f"{check.episodes} evaluation episodes"
        measured = {"returns": returns.tolist()}
    else:
        first = check.n_timesteps - check.last_timesteps
        late = [row for row in rows if row[TIMESTEP] > first and TRAIN_RETURN in row]
        n_episodes = int(sum(row[N_EPISODES] for row in late))
        score = float(sum(row[TRAIN_RETURN] * row[N_EPISODES] for row in late) / n_episodes)
        judged = f"the {n_episodes} episodes of the last {check.last_timesteps:,} steps"
        measured = {"last_timesteps": check.last_timesteps, "n_episodes": n_episodes}
    seconds = rows[-1][ELAPSED]
    passed = score > check.bar
    result = {
        "check": name,
        "seed": seed,
        "passed": passed,
        "mean_return": score,
        **measured,
        "bar": check.bar,
        "timesteps": [row[TIMESTEP] for row in rows],
        "train_returns": [row.get(TRAIN_RETURN) for row in rows],
        "n_timesteps": check.n_timesteps,
        "settings": dict(check.settings),
        "train_seconds": seconds,
        "date": datetime.date.today().isoformat(),
        "host": platform.system(),
    } | description()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as out:
        out.write(json.dumps(result) + "\n")
    print(
        f"{name}, seed {seed}: mean return {score:.1f} over {judged} (bar {check.bar:g}), "
        f"trained in {seconds:.0f} s: {'passed' if passed else 'FAILED'}",
        flush=True,
    )
    return passed


def trained(agent: Agent, name: str, n_timesteps: int, seed: int, root: Path) -> RunFolder:
    """Return the folder of a whole run, trained now as far as it was not before."""
    if (root / name).exists():
        folder = RunFolder.open(root / name)
        done = Checkpoints(folder.checkpoints).latest_tick()
        if done is not None and agent.clock.timestep(done) >= n_timesteps:
            return folder
    else:
        settings = {
            "seed": [seed],
            "n_timesteps": n_timesteps,
            "num_episode_test": 0,
            "log_frequency": n_timesteps // LOG_ROWS,
            "eval_frequency": n_timesteps,
            "save_frequency": n_timesteps // SAVES,
            "tensorboard": False,
            "wandb": None,
        }
        folder = RunFolder.create(root, name, settings={"run": settings})
    state, further, log_state = continue_run(agent, folder, n_timesteps, fallback=False)
    train_in_folder(agent, folder, state, further, log_state, prog="learning_checks.py")
    return folder


def main() -> int:
    """Run the named checks, or all of them, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="check", help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of each check's own")
    parser.add_argument("--root", type=Path, default=Path("runs/learning_checks"))
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(CHECKS))
    if unknown:
        parser.error(f"unknown check {', '.join(unknown)}; the checks are {', '.join(CHECKS)}")
    outcomes = [
        run(name, CHECKS[name], seed, options.root)
        for name in options.names or CHECKS
        for seed in options.seeds or CHECKS[name].seeds
    ]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
