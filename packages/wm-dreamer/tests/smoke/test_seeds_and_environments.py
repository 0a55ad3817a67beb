"""Several seeds in one program, both ways of collecting, and what stops a run."""

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.failures import TrainingDiverged
from wm_collect.testing import CounterEnv
from wm_dreamer import DreamerV3

from .tiny import TINY

LENGTH = 8
ROWS = 96
CAPACITY = 72
# The first update comes at 8 x 2 + 4 = 20 rows, then half an update per row.
FIRST_UPDATE = 20
OPTIONS = {"num_episode_test": 0, "log_frequency": 12, "progress": False}


def pendulum(**changes):
    return DreamerV3(
        "Pendulum-v1", **TINY | {"episode_length": LENGTH, "replay_capacity": CAPACITY} | changes
    )


@pytest.fixture(scope="module")
def pair():
    return pendulum().train(seed=[3, 5], n_timesteps=ROWS, **OPTIONS)


@pytest.fixture(scope="module")
def alone():
    return pendulum().train(seed=5, n_timesteps=ROWS, **OPTIONS)


def test_a_list_of_seeds_leads_with_a_seed_axis(pair):
    state, series = pair
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(state))
    assert series["Train/episodic mean reward"].shape[0] == 2
    first, second = series["Train/episodic mean reward"]
    assert not np.array_equal(first, second, equal_nan=True)


def test_a_seed_of_a_list_equals_the_same_seed_alone_to_rounding(pair, alone):
    (pair_state, pair_series), (state, series) = pair, alone
    ours = jax.tree.map(lambda leaf: leaf[1], pair_state.agent)
    for (path, expected), got in zip(
        jax.tree_util.tree_leaves_with_path(state.agent.replay),
        jax.tree.leaves(ours.replay),
        strict=True,
    ):
        name = jax.tree_util.keystr(path)
        if np.issubdtype(expected.dtype, np.floating):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3, err_msg=name)
        else:
            # A sampled latent flips only where its draw is at the edge between two classes.
            assert np.mean(np.asarray(got) != np.asarray(expected)) < 0.01, name
    for name in ("Train/episodic mean reward", "Loss/reconstruction", "Loss/dyn", "Loss/critic"):
        np.testing.assert_allclose(
            pair_series[name][1], series[name], rtol=1e-3, atol=1e-4, err_msg=name
        )


def test_rows_of_all_environments_are_counted(alone):
    state, series = alone
    assert series["timestep"][-1] == ROWS
    np.testing.assert_array_equal(series["env_frames"], series["timestep"])
    assert int(state.agent.collector.rows) == ROWS
    # 48 ticks hold 5 held ones, of the episodes' last rows.
    assert int(state.agent.collector.env_steps) == ROWS - 2 * 5
    assert int(state.agent.learner.updates) == 1 + (ROWS - FIRST_UPDATE) // 2
    assert series["Train/n_updates"][-1] == 39
    assert np.nanmin(series["Train/episodic mean length"]) == LENGTH


def _collected(agent, n_ticks):
    """The replay after `n_ticks` of collecting without learning."""
    algorithm = agent.algorithm(2 * n_ticks)

    @jax.jit
    def run(key):
        def tick(i, state):
            return algorithm.collect(state, i, jax.random.fold_in(key, i))[0]

        return jax.lax.fori_loop(0, n_ticks, tick, algorithm.init(key))

    return run(jax.random.key(7))


def test_both_ways_of_collecting_store_the_same_rows_on_a_task_of_fixed_length():
    n_ticks = 22
    fixed, varying = (
        _collected(pendulum(terminates=terminates), n_ticks) for terminates in (None, True)
    )
    last = np.asarray(fixed.replay.is_last)
    assert last.sum() == 2 * 2
    for name, expected in varying.replay._asdict().items():
        got, expected = np.asarray(getattr(fixed.replay, name)), np.asarray(expected)
        if name in ("deter", "stoch"):
            # What nothing reads: the row after it is a first one, which begins from zeros.
            assert not got[last].any() and expected[last].any()
            got, expected = got[~last], expected[~last]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_learning_is_the_same_however_rows_are_collected(alone):
    _, expected = alone
    _, series = pendulum(terminates=True).train(seed=5, n_timesteps=ROWS, **OPTIONS)
    for name in ("Train/episodic mean reward", "Loss/reconstruction", "Loss/dyn", "Loss/critic"):
        np.testing.assert_allclose(series[name], expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_an_environment_that_breaks_its_fixed_length_stops_the_run():
    env = CounterEnv([8, 5], episode_length=8, declare_fixed_length=True)
    agent = DreamerV3(env, **TINY)
    state = _collected(agent, 20)
    algorithm = agent.algorithm(40)
    counters = {k: int(v) for k, v in algorithm.counters(state).items()}
    assert counters["n_offschedule_dones"] > 0
    assert "pass terminates=True to collect episodes of any length" in algorithm.check(counters)


def test_parameters_that_are_not_finite_stop_the_run(alone):
    state, _ = alone
    learner = state.agent.learner
    params = jax.tree.map(lambda leaf: leaf * jnp.nan, learner.params)
    # Copies, because training consumes the state, which other tests still look at.
    broken = jax.tree.map(
        jnp.copy,
        dataclasses.replace(
            state,
            agent=dataclasses.replace(
                state.agent, learner=dataclasses.replace(learner, params=params)
            ),
        ),
    )
    with pytest.raises(TrainingDiverged, match="diverged"):
        pendulum().train(seed=5, n_timesteps=12, initial_state=broken, **OPTIONS)


# Not imported here: the first import decides how MuJoCo draws, which is the library's to choose.
@pytest.mark.skipif(
    importlib.util.find_spec("mujoco_playground") is None,
    reason="needs wm-dreamer[playground]",
)
def test_a_playground_task_trains():
    agent = DreamerV3(
        "CartpoleBalance",
        **TINY | {"episode_length": 20, "action_repeat": 2, "replay_capacity": CAPACITY},
    )
    assert agent.config.agent_episode_length == 10 and not agent.config.terminates
    state, series = agent.train(seed=0, n_timesteps=64, **OPTIONS)
    assert series["timestep"][-1] == 64 and series["env_frames"][-1] == 128
    assert series["Train/n_updates"][-1] == 23
    assert np.nanmin(series["Train/episodic mean length"]) == 10
    assert np.isfinite(series["Loss/total"][-1])
    assert np.asarray(state.agent.replay.obs).any()
