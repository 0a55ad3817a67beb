"""Time DreamerV3's update, acting, collection and replay, as a share of the machine's own peak.

    uv run python tools/bench/dreamer_bench.py                     # print a table
    uv run python tools/bench/dreamer_bench.py --cases update/12m  # only cases so named
    uv run python tools/bench/dreamer_bench.py --out FILE          # and append JSON lines
    uv run python tools/bench/dreamer_bench.py --compare FILE      # and show ratios to old rows

Every case is a loop inside one program that works on its state in place, as in training: a single
call would also pay for the pages of its results. Times are per pass of the loop.

The peak is XLA's float32 matrix product, measured in the same run, before and after each case;
the rate counts the matrix products of one pass of the traced program (`matmul_flops`). Compile
times are those of a cold start: the compilation cache is not used.
"""

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parent))

from machine import description, matmul_peak_gflops
from matmul_flops import matmul_flops

from wm_collect.replay import StreamBatch
from wm_collect.testing import CounterEnv
from wm_dreamer import (
    MODEL_SIZES,
    DreamerV3,
    DreamerV3Config,
    act,
    draw_act_noise,
    draw_update_noise,
    init_learner,
    initial_carry,
    update,
)
from wm_dreamer.train import stream_replay

# Walker's and CartPole's.
TASKS: dict[str, dict[str, Any]] = {
    "obs24/act6": {"obs_dim": 24, "action_dim": 6, "discrete": False},
    "obs4/choices2": {"obs_dim": 4, "action_dim": 2, "discrete": True},
}
REPLAY_ROWS = 100_000
COLLECT_ROWS = 20_000
# About how long one call of a loop takes, and the most passes it makes.
_CALL_SECONDS, _MOST_PASSES = 0.5, 10_000


@dataclasses.dataclass(frozen=True)
class Case:
    """One timed loop, `state = body(state, args, i)`.

    Attributes:
        body: one pass; `i` is the number of the pass, `[]` int32.
        state: what the passes work on, in place. It holds all that a pass computes, so that
            nothing is left out.
        args: what every pass reads.
    """

    body: Callable[[Any, Any, jax.Array], Any]
    state: Any
    args: Any


def agent_of(size: str, task: str) -> DreamerV3:
    """Return the paper's agent at a model size, on a task of the given sizes."""
    return DreamerV3(CounterEnv([500], **TASKS[task]), model_size=size)


def update_case(size: str, task: str) -> Case:
    """One update per pass, its latents and metrics kept."""
    config = agent_of(size, task).config
    learner = jax.jit(lambda key: init_learner(key, config=config))(jax.random.key(0))
    batch, key = _batch(config), jax.random.key(2)

    def body(state: Any, args: Any, i: jax.Array) -> Any:
        batch, key = args
        noise = draw_update_noise(jax.random.fold_in(key, i), config=config)
        return update(state[0], batch, noise, config=config)

    made = jax.eval_shape(lambda x: body((x,), (batch, key), jnp.int32(0)), learner)[1:]
    return Case(body, (learner, *_zeros(made)), (batch, key))


def act_case(size: str, task: str) -> Case:
    """One decision for all environments per pass."""
    config = agent_of(size, task).config
    params = jax.jit(lambda key: init_learner(key, config=config).params)(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (config.n_envs, config.obs_dim))

    def body(state: Any, args: Any, i: jax.Array) -> Any:
        params, obs, key = args
        noise = draw_act_noise(jax.random.fold_in(key, i), config.n_envs, config=config)
        is_first = jnp.zeros(config.n_envs, bool)
        decision = act(params, state[0], obs, is_first, noise, config=config)
        return decision.carry, decision.observed.classes

    classes = jnp.zeros((config.n_envs, config.stoch), jnp.int32)
    return Case(body, (initial_carry(config, config.n_envs), classes), (params, obs, _key()))


def collect_case(size: str) -> Case:
    """One tick without updates per pass: policy, environments and the rows stored, of CartPole."""
    algorithm = DreamerV3("CartPole-v1", model_size=size).algorithm(COLLECT_ROWS)
    state = jax.jit(algorithm.init)(jax.random.key(0))

    def body(state: Any, key: Any, i: jax.Array) -> Any:
        return algorithm.collect(state[0], i, jax.random.fold_in(key, i))

    made = jax.eval_shape(lambda x: body((x,), _key(), jnp.int32(0)), state)[1]
    return Case(body, (state, _zeros(made)), _key())


def sample_case(size: str, task: str) -> Case:
    """One batch drawn and read per pass."""
    replay, state, tick = _full_replay(size, task)

    def body(state: Any, key: Any, i: jax.Array) -> Any:
        held, draw, batch = replay.sample(state[0], jax.random.fold_in(key, i), tick)
        return held, draw, batch

    made = jax.eval_shape(lambda x: body((x,), _key(), jnp.int32(0)), state)[1:]
    return Case(body, (state, *_zeros(made)), _key())


def write_back_case(size: str, task: str) -> Case:
    """A draw, and the latents of a batch written per pass."""
    replay, state, tick = _full_replay(size, task)
    windows = (replay.batch_size, replay.batch_length)
    deter = jax.random.normal(jax.random.key(3), (*windows, replay.deter))
    stoch = jnp.ones((*windows, replay.stoch), jnp.int32)

    def body(state: Any, args: Any, i: jax.Array) -> Any:
        deter, stoch, key = args
        state, draw = replay.draw(state, jax.random.fold_in(key, i), tick)
        return replay.write_back(state, draw, deter, stoch)

    return Case(body, state, (deter, stoch, _key()))


def cases(sizes: list[str]) -> dict[str, Callable[[], Case]]:
    """Return what makes each case, by name; the replay's are those of the larger size only."""
    made: dict[str, Callable[[], Case]] = {}
    for size in sizes:
        for task in TASKS:
            made[f"update/{size}/{task}"] = partial(update_case, size, task)
            made[f"act/{size}/{task}"] = partial(act_case, size, task)
        made[f"collect/{size}/CartPole-v1"] = partial(collect_case, size)
    task = next(iter(TASKS))
    made[f"sample/{sizes[-1]}/{task}"] = partial(sample_case, sizes[-1], task)
    made[f"write_back/{sizes[-1]}/{task}"] = partial(write_back_case, sizes[-1], task)
    return made


def measure(case: Case, *, budget_seconds: float) -> dict[str, Any]:
    """Return the figures of one case; its state is used up."""

    def loop(state: Any, args: Any, n: jax.Array) -> Any:
        return jax.lax.fori_loop(0, n, lambda i, state: case.body(state, args, i), state)

    began = time.perf_counter()
    lowered = jax.jit(loop, donate_argnums=0).lower(case.state, case.args, jnp.int32(1))
    compiled = lowered.compile()
    compile_seconds = time.perf_counter() - began
    gflop = 1e-9 * matmul_flops(case.body, case.state, case.args, jnp.int32(0))
    peak_before = matmul_peak_gflops()
    times, passes = _times_of_a_pass(compiled, case, budget_seconds)
    peak = max(peak_before, matmul_peak_gflops())
    memory: Any = compiled.memory_analysis()
    rate = gflop / min(times)
    return {
        "best_ms": 1e3 * min(times),
        "median_ms": 1e3 * statistics.median(times),
        "passes_per_call": passes,
        "gflop": gflop,
        "gflops": rate,
        "peak_gflops": peak,
        "fraction_of_peak": rate / peak,
        "compile_s": compile_seconds,
        "temporary_mb": 1e-6 * memory.temp_size_in_bytes,
        "memory_mb": 1e-6
        * (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
        ),
    }


def replay_bytes(size: str, task: str) -> dict[str, Any]:
    """Return the bytes a replayed row takes, as the agent says and as its arrays have them."""
    agent = agent_of(size, task)
    state = jax.eval_shape(stream_replay(agent.config, REPLAY_ROWS).init)
    actual = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return {
        "replay_rows": REPLAY_ROWS,
        "stated_bytes_per_row": agent.replay_bytes_per_seed(REPLAY_ROWS) / REPLAY_ROWS,
        "actual_bytes_per_row": actual / REPLAY_ROWS,
    }


def main() -> None:
    """Measure every case, print a table, write and compare JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=["1m", "12m"], choices=list(MODEL_SIZES))
    parser.add_argument("--cases", nargs="+", default=[""], help="beginnings of the names of cases")
    parser.add_argument("--budget-seconds", type=float, default=5.0, help="per timed case")
    parser.add_argument("--out", type=Path, help="append the rows to this file")
    parser.add_argument("--compare", type=Path, help="show ratios to the last rows of this file")
    options = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)

    chosen = {
        name: make
        for name, make in cases(options.sizes).items()
        if any(name.startswith(beginning) for beginning in options.cases)
    }
    if not chosen:
        parser.error(
            f"no case's name begins like {options.cases}; the cases are {[*cases(['1m'])]}"
        )
    context = description() | {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["tools/bench/dreamer_bench.py", *sys.argv[1:]]),
    }
    print(", ".join(f"{k} {v}" for k, v in context.items()))
    earlier = _last_rows(options.compare) if options.compare else {}
    print(
        f"{'case':28} {'best':>11} {'median':>11} {'GFLOP':>8} {'GFLOP/s':>8} {'peak':>6} "
        f"{'share':>6} {'compile':>8} {'temporary':>11}"
    )
    rows = []
    for name, make in chosen.items():
        key = f"dreamer/{name}"
        row = {"case": key} | measure(make(), budget_seconds=options.budget_seconds)
        if name.startswith("sample/"):
            row |= replay_bytes(*name.split("/", 2)[1:])
        rows.append(row | context)
        print(_line(row, earlier.get(key)), flush=True)
    if options.out:
        with options.out.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


def _times_of_a_pass(compiled: Any, case: Case, budget_seconds: float) -> tuple[list[float], int]:
    """Return the seconds of a pass in repeated calls, and the passes of a call."""
    state = case.state

    def call(n: int) -> float:
        nonlocal state
        began = time.perf_counter()
        state = jax.block_until_ready(compiled(state, case.args, jnp.int32(n)))
        return (time.perf_counter() - began) / n

    call(2)
    passes = min(max(2, round(_CALL_SECONDS / call(2))), _MOST_PASSES)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - began < budget_seconds:
        times.append(call(passes))
    return times, passes


def _batch(config: DreamerV3Config) -> StreamBatch:
    """Return random rows within one episode."""
    rows = (config.batch_size, config.batch_length + 1)
    keys = jax.random.split(jax.random.key(1), 5)
    if config.discrete:
        action = jax.random.randint(keys[1], rows, 0, config.action_dim, jnp.int32)
    else:
        action = jax.random.normal(keys[1], (*rows, config.action_dim))
    return StreamBatch(
        obs=jax.random.normal(keys[0], (*rows, config.obs_dim)),
        action=action,
        reward=jax.random.normal(keys[2], rows),
        is_first=jnp.zeros(rows, bool).at[:, 0].set(True),
        is_last=jnp.zeros(rows, bool),
        is_terminal=jnp.zeros(rows, bool),
        context_deter=jax.random.normal(keys[3], (config.batch_size, config.deter)),
        context_stoch=jax.random.randint(
            keys[4], (config.batch_size, config.stoch), 0, config.classes, jnp.int32
        ),
    )


def _full_replay(size: str, task: str) -> tuple[Any, Any, int]:
    """Return a replay whose rings are full, its state without pending windows, and the tick."""
    replay = stream_replay(agent_of(size, task).config, REPLAY_ROWS)
    tick = replay.capacity - 1
    n_online = replay.n_envs * (tick // (replay.batch_length + 1))
    return replay, replay.init()._replace(online_popped=jnp.int32(n_online)), tick


def _key() -> jax.Array:
    return jax.random.key(2)


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _line(row: dict[str, Any], earlier: dict[str, Any] | None) -> str:
    name = row["case"].removeprefix("dreamer/")
    text = f"{name:28} {row['best_ms']:8.3f} ms {row['median_ms']:8.3f} ms "
    if row["gflop"]:
        text += (
            f"{row['gflop']:8.3f} {row['gflops']:8.1f} {row['peak_gflops']:6.1f} "
            f"{row['fraction_of_peak']:6.0%}"
        )
    else:
        text += f"{'–':>8} {'–':>8} {row['peak_gflops']:6.1f} {'–':>6}"
    text += f" {row['compile_s']:6.1f} s {row['temporary_mb']:8.1f} MB"
    if earlier is not None:
        # Work per second relative to the peak, not times: both runs may have met a busy machine.
        ratio = earlier["best_ms"] * earlier["peak_gflops"] / row["best_ms"] / row["peak_gflops"]
        text += f"   x{ratio:.2f} of {earlier['date']}"
    if "replay_rows" in row:
        text += (
            f"\n  a replayed row takes {row['actual_bytes_per_row']:,.2f} bytes, as stated "
            f"{row['stated_bytes_per_row']:,.2f}"
        )
    return text


def _last_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the newest row of each case."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["case"]: row for row in rows}


if __name__ == "__main__":
    main()
