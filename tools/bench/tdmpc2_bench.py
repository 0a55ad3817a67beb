"""Time TD-MPC2's update and planning decision, as a fraction of the machine's own peak.

    uv run python tools/bench/tdmpc2_bench.py                 # print a table
    uv run python tools/bench/tdmpc2_bench.py --out FILE      # and append JSON lines
    uv run python tools/bench/tdmpc2_bench.py --compare FILE  # and show ratios to the last rows

The peak is XLA's float32 matrix product, measured in the same run, before and after each case;
the rate counts the matrix products of the traced program (`matmul_flops`). Compile times are
those of a cold start: the compilation cache is not used.
"""

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parent))

from machine import description, matmul_peak_gflops, seconds_per_call
from matmul_flops import matmul_flops

from wm_tdmpc2 import (
    MODEL_SIZES,
    Batch,
    LearnerState,
    TDMPC2Config,
    draw_update_noise,
    init_learner,
    planning_policy,
    update,
)
from wm_tdmpc2.train import initial_mean

# (observation, action) dimensions: Pendulum's and Walker's.
SHAPES = ((3, 1), (24, 6))


@dataclasses.dataclass(frozen=True)
class Case:
    """One timed function."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]


def config_of(size: int, obs_dim: int, action_dim: int) -> TDMPC2Config:
    """Return the paper's configuration at a model size."""
    return TDMPC2Config(
        obs_dim=obs_dim,
        action_dim=action_dim,
        agent_episode_length=500,
        gamma=0.99,
        seed_steps=2_500,
        model_size=size,
        **MODEL_SIZES[size],
    )


def cases(config: TDMPC2Config) -> list[Case]:
    """Return the update, and the decision for one environment."""
    learner = init_learner(jax.random.key(0), config=config)
    h, b = config.horizon, config.batch_size
    keys = jax.random.split(jax.random.key(1), 3)
    batch = Batch(
        obs=jax.random.normal(keys[0], (h + 1, b, config.obs_dim)),
        action=jax.random.uniform(keys[1], (h, b, config.action_dim), minval=-1),
        reward=jax.random.normal(keys[2], (h, b)),
    )

    def one_update(learner: LearnerState, batch: Batch, key: jax.Array) -> Any:
        return update(learner, batch, draw_update_noise(key, config=config), config=config)

    def one_decision(learner: LearnerState, obs: jax.Array, key: jax.Array) -> Any:
        policy = planning_policy(learner, config=config, eval_mode=False)
        carry = initial_mean(config, obs.shape[0])
        return policy(carry, obs, jnp.zeros(obs.shape[0], bool), key)[:2]

    key = jax.random.key(2)
    obs = jax.random.normal(key, (1, config.obs_dim))
    return [
        Case("update", one_update, (learner, batch, key)),
        Case("decision", one_decision, (learner, obs, key)),
    ]


def measure(case: Case, *, budget_seconds: float) -> dict[str, Any]:
    """Return the figures of one case."""
    began = time.perf_counter()
    compiled = jax.jit(case.function).lower(*case.args).compile()
    compile_seconds = time.perf_counter() - began
    gflop = 1e-9 * matmul_flops(case.function, *case.args)
    peak_before = matmul_peak_gflops()
    times = seconds_per_call(compiled, *case.args, budget_seconds=budget_seconds)
    peak = max(peak_before, matmul_peak_gflops())
    memory = compiled.memory_analysis()
    rate = gflop / min(times)
    return {
        "best_ms": 1e3 * min(times),
        "median_ms": 1e3 * statistics.median(times),
        "gflop": gflop,
        "gflops": rate,
        "peak_gflops": peak,
        "fraction_of_peak": rate / peak,
        "compile_s": compile_seconds,
        "memory_mb": 1e-6
        * (memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes),
    }


def main() -> None:
    """Measure every case, print a table, write and compare JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 5], choices=list(MODEL_SIZES))
    parser.add_argument("--budget-seconds", type=float, default=5.0, help="per timed case")
    parser.add_argument("--out", type=Path, help="append the rows to this file")
    parser.add_argument("--compare", type=Path, help="show ratios to the last rows of this file")
    options = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)

    context = description() | {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["tools/bench/tdmpc2_bench.py", *sys.argv[1:]]),
    }
    print(", ".join(f"{k} {v}" for k, v in context.items()))
    earlier = _last_rows(options.compare) if options.compare else {}
    print(
        f"{'case':32} {'best':>9} {'median':>9} {'GFLOP':>7} {'GFLOP/s':>8} {'peak':>6} "
        f"{'share':>6} {'compile':>8} {'memory':>9}"
    )
    rows = []
    for size in options.sizes:
        for obs_dim, action_dim in SHAPES:
            for case in cases(config_of(size, obs_dim, action_dim)):
                key = f"tdmpc2/{case.name}/size{size}/obs{obs_dim}/act{action_dim}"
                row = {"case": key} | measure(case, budget_seconds=options.budget_seconds)
                rows.append(row | context)
                print(_line(row, earlier.get(key)), flush=True)
    if options.out:
        with options.out.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


def _line(row: dict[str, Any], earlier: dict[str, Any] | None) -> str:
    name = row["case"].removeprefix("tdmpc2/")
    text = (
        f"{name:32} {row['best_ms']:6.1f} ms {row['median_ms']:6.1f} ms {row['gflop']:7.2f} "
        f"{row['gflops']:8.1f} {row['peak_gflops']:6.1f} {row['fraction_of_peak']:6.0%} "
        f"{row['compile_s']:6.1f} s {row['memory_mb']:6.1f} MB"
    )
    if earlier is None:
        return text
    # Shares of the peak are compared, not times: both runs may have met a busy machine.
    ratio = row["fraction_of_peak"] / earlier["fraction_of_peak"] * earlier["gflop"] / row["gflop"]
    return f"{text}   x{ratio:.2f} of {earlier['date']}"


def _last_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the newest row of each case."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["case"]: row for row in rows}


if __name__ == "__main__":
    main()
