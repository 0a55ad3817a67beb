"""Time TD-MPC2's update, planning decision and replay, as a share of the machine's roofline.

    uv run python tools/bench/tdmpc2_bench.py                   # print a table
    uv run python tools/bench/tdmpc2_bench.py --cases tdmpc2/update   # only cases so named
    uv run python tools/bench/tdmpc2_bench.py --out FILE        # and append JSON lines
    uv run python tools/bench/tdmpc2_bench.py --compare FILE    # and show ratios to the last rows
    uv run python tools/bench/tdmpc2_bench.py --against CHECKOUT  # alternate with other code

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

from wm_tdmpc2 import (
    MODEL_SIZES,
    Batch,
    TDMPC2Config,
    draw_update_noise,
    init_learner,
    planning_policy,
    update,
)
from wm_tdmpc2.train import ActingParams, initial_mean, replay_of

SIZES = (1, 5)
# (observation, action) dimensions: Pendulum's and Walker's.
SHAPES = ((3, 1), (24, 6))
REPLAY_STEPS = 100_000


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


def update_case(size: int, obs_dim: int, action_dim: int) -> Case:
    """One update per pass, its metrics kept."""
    config = config_of(size, obs_dim, action_dim)
    learner = jax.jit(lambda key: init_learner(key, config=config))(jax.random.key(0))
    h, b = config.horizon, config.batch_size
    keys = jax.random.split(jax.random.key(1), 3)
    batch = Batch(
        obs=jax.random.normal(keys[0], (h + 1, b, config.obs_dim)),
        action=jax.random.uniform(keys[1], (h, b, config.action_dim), minval=-1),
        reward=jax.random.normal(keys[2], (h, b)),
    )

    def body(state: Any, args: Any, i: jax.Array) -> Any:
        batch, key = args
        noise = draw_update_noise(jax.random.fold_in(key, i), config=config)
        return update(state[0], batch, noise, config=config)

    args = (batch, _key())
    made = jax.eval_shape(lambda x: body((x,), args, jnp.int32(0)), learner)[1]
    return Case(body, (learner, zeros(made)), args)


def decision_case(size: int, obs_dim: int, action_dim: int) -> Case:
    """One planned decision for one environment per pass."""
    config = config_of(size, obs_dim, action_dim)
    learner = jax.jit(lambda key: init_learner(key, config=config))(jax.random.key(0))
    params = ActingParams(learner.wm_params, learner.pi_params)
    obs = jax.random.normal(jax.random.key(1), (1, config.obs_dim))

    def body(state: Any, args: Any, i: jax.Array) -> Any:
        params, obs, key = args
        policy = planning_policy(params, config=config, eval_mode=False)
        action, mean, _ = policy(state[1], obs, jnp.zeros(1, bool), jax.random.fold_in(key, i))
        return action, mean

    state = jnp.zeros((1, config.action_dim)), initial_mean(config, 1)
    return Case(body, state, (params, obs, _key()))


def sample_case(size: int, obs_dim: int, action_dim: int) -> Case:
    """One batch drawn and read per pass from a full replay."""
    config = config_of(size, obs_dim, action_dim)
    buffer = replay_of(config, REPLAY_STEPS)
    held = buffer.init()

    def body(state: Any, args: Any, i: jax.Array) -> Any:
        held, key = args
        return buffer.sample(held, jax.random.fold_in(key, i), REPLAY_STEPS, config.batch_size)

    made = jax.eval_shape(lambda: body(None, (held, _key()), jnp.int32(0)))
    return Case(body, zeros(made), (held, _key()), traffic=2 * nbytes(made))


def cases() -> dict[str, Callable[[], Case]]:
    """Return what makes each case, by name."""
    made: dict[str, Callable[[], Case]] = {}
    for size in SIZES:
        for obs, act in SHAPES:
            shape = f"size{size}/obs{obs}/act{act}"
            made[f"tdmpc2/update/{shape}"] = partial(update_case, size, obs, act)
            made[f"tdmpc2/decision/{shape}"] = partial(decision_case, size, obs, act)
    size, (obs, act) = SIZES[-1], SHAPES[-1]
    made[f"tdmpc2/sample/size{size}/obs{obs}/act{act}"] = partial(sample_case, size, obs, act)
    return made


def _key() -> jax.Array:
    return jax.random.key(2)


if __name__ == "__main__":
    sys.exit(run(cases, __file__))
