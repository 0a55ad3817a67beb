"""Time DreamerV3's update, acting, collection and replay, as a share of the machine's roofline.

    uv run python tools/bench/dreamer_bench.py                       # print a table
    uv run python tools/bench/dreamer_bench.py --cases dreamer/update/12m  # only cases so named
    uv run python tools/bench/dreamer_bench.py --out FILE            # and append JSON lines
    uv run python tools/bench/dreamer_bench.py --compare FILE        # and show ratios to old rows
    uv run python tools/bench/dreamer_bench.py --against CHECKOUT    # alternate with other code

`harness` says how cases are timed and what the columns are.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parent))

from harness import Case, nbytes, run, zeros

from wm_collect.replay import StreamBatch
from wm_collect.testing import CounterEnv
from wm_dreamer import (
    DreamerV3,
    DreamerV3Config,
    act,
    draw_act_noise,
    draw_update_noise,
    init_learner,
    initial_carry,
    update,
)
from wm_dreamer.policy import acting_params
from wm_dreamer.train import stream_replay

SIZES = ("1m", "12m")
# Walker's and CartPole's.
TASKS: dict[str, dict[str, Any]] = {
    "obs24/act6": {"obs_dim": 24, "action_dim": 6, "discrete": False},
    "obs4/choices2": {"obs_dim": 4, "action_dim": 2, "discrete": True},
}
REPLAY_ROWS = 100_000
COLLECT_ROWS = 20_000


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
    return Case(body, (learner, *zeros(made)), (batch, key))


def act_case(size: str, task: str) -> Case:
    """One decision for all environments per pass."""
    config = agent_of(size, task).config
    params = jax.jit(lambda key: init_learner(key, config=config).params)(jax.random.key(0))
    params = acting_params(params)
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
    # Of the state, a tick reads what acting needs and writes one row.
    traffic = nbytes(acting_params(state.learner.params))
    return Case(body, (state, zeros(made)), _key(), traffic=traffic)


def sample_case(size: str, task: str) -> Case:
    """One batch drawn and read per pass."""
    replay, state, tick = _full_replay(size, task)

    def body(state: Any, key: Any, i: jax.Array) -> Any:
        held, draw, batch = replay.sample(state[0], jax.random.fold_in(key, i), tick)
        return held, draw, batch

    made = jax.eval_shape(lambda x: body((x,), _key(), jnp.int32(0)), state)[1:]
    traffic, facts = 2 * nbytes(made), replay_bytes(size, task)
    return Case(body, (state, *zeros(made)), _key(), traffic=traffic, facts=facts)


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

    return Case(body, state, (deter, stoch, _key()), traffic=2 * nbytes((deter, stoch)))


def replay_bytes(size: str, task: str) -> dict[str, Any]:
    """Return the bytes a replayed row takes, as the agent says and as its arrays have them."""
    agent = agent_of(size, task)
    state = jax.eval_shape(stream_replay(agent.config, REPLAY_ROWS).init)
    return {
        "replay_rows": REPLAY_ROWS,
        "stated_bytes_per_row": agent.replay_bytes_per_seed(REPLAY_ROWS) / REPLAY_ROWS,
        "actual_bytes_per_row": nbytes(state) / REPLAY_ROWS,
    }


def cases() -> dict[str, Callable[[], Case]]:
    """Return what makes each case, by name."""
    made: dict[str, Callable[[], Case]] = {}
    for size in SIZES:
        for task in TASKS:
            made[f"dreamer/update/{size}/{task}"] = partial(update_case, size, task)
            made[f"dreamer/act/{size}/{task}"] = partial(act_case, size, task)
        made[f"dreamer/collect/{size}/CartPole-v1"] = partial(collect_case, size)
    size, task = SIZES[-1], next(iter(TASKS))
    made[f"dreamer/sample/{size}/{task}"] = partial(sample_case, size, task)
    made[f"dreamer/write_back/{size}/{task}"] = partial(write_back_case, size, task)
    return made


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


if __name__ == "__main__":
    sys.exit(run(cases, __file__))
