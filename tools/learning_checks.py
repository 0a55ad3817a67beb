"""Learning checks: does an agent learn a real task to the expected return?

    uv run python tools/learning_checks.py                      # every check (about an hour)
    uv run python tools/learning_checks.py tdmpc2-pendulum      # one check

Each check trains several seeds, evaluates each, and fails if a seed stays below the bar. Results
are appended to `docs/data/learning_checks.jsonl`; `docs/performance.md` reports them.
"""

import argparse
import dataclasses
import datetime
import json
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "bench"))

from machine import description

from wm_tdmpc2 import TDMPC2

RESULTS = Path(__file__).parents[1] / "docs" / "data" / "learning_checks.jsonl"


@dataclasses.dataclass(frozen=True)
class Check:
    """One task, and the mean evaluation return every seed must exceed."""

    env_id: str
    settings: Mapping[str, Any]
    n_timesteps: int
    seeds: tuple[int, ...]
    bar: float
    episodes: int = 10


CHECKS = {
    "tdmpc2-pendulum": Check(
        env_id="Pendulum-v1",
        settings={"model_size": 1},
        n_timesteps=6_000,
        seeds=(0, 1),
        bar=-250.0,
    ),
    "tdmpc2-cartpole-balance": Check(
        env_id="CartpoleBalance",
        settings={
            "model_size": 1,
            "enc_dim": 64,
            "mlp_dim": 128,
            "latent_dim": 64,
            "num_samples": 256,
            "action_repeat": 2,
        },
        n_timesteps=12_000,
        seeds=(0, 1),
        bar=900.0,
        episodes=10,
    ),
}


def run(name: str, check: Check, seed: int) -> bool:
    """Train and evaluate one seed; return whether it passed."""
    agent = TDMPC2(check.env_id, **check.settings)
    began = time.perf_counter()
    state, series = agent.train(
        seed=seed,
        n_timesteps=check.n_timesteps,
        num_episode_test=0,
        log_frequency=agent.config.agent_episode_length,
    )
    seconds = time.perf_counter() - began
    returns = np.asarray(agent.evaluate(state, n_episodes=check.episodes).episode_return)
    passed = bool(returns.mean() > check.bar)
    row = {
        "check": name,
        "seed": seed,
        "passed": passed,
        "mean_return": float(returns.mean()),
        "returns": returns.tolist(),
        "bar": check.bar,
        "train_returns": series["Train/episodic mean reward"].tolist(),
        "n_timesteps": check.n_timesteps,
        "settings": dict(check.settings),
        "train_seconds": seconds,
        "date": datetime.date.today().isoformat(),
        "host": platform.system(),
    } | description()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")
    print(
        f"{name}, seed {seed}: mean return {returns.mean():.1f} over {check.episodes} episodes "
        f"(bar {check.bar:g}), trained in {seconds:.0f} s: {'passed' if passed else 'FAILED'}",
        flush=True,
    )
    return passed


def main() -> int:
    """Run the named checks, or all of them, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="check", help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of each check's own")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(CHECKS))
    if unknown:
        parser.error(f"unknown check {', '.join(unknown)}; the checks are {', '.join(CHECKS)}")
    outcomes = [
        run(name, CHECKS[name], seed)
        for name in options.names or CHECKS
        for seed in options.seeds or CHECKS[name].seeds
    ]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
