"""Several seeds in one program, several environments per seed, and what a run refuses."""

import dataclasses

import jax
import numpy as np
import pytest

from wm_collect.testing import ActionRewardEnv, CounterEnv
from wm_tdmpc2 import TDMPC2

from .tiny import TINY

STEPS = 96


@pytest.fixture(scope="module")
def agent():
    return TDMPC2(ActionRewardEnv(episode_length=8), n_envs=2, seed_steps=40, **TINY)


@pytest.fixture(scope="module")
def pair(agent):
    return agent.train(
        seed=[3, 5], n_timesteps=STEPS, num_episode_test=0, log_frequency=16, progress=False
    )


@pytest.fixture(scope="module")
def alone(agent):
    return agent.train(
        seed=5, n_timesteps=STEPS, num_episode_test=0, log_frequency=16, progress=False
    )


def test_a_list_of_seeds_leads_with_a_seed_axis(pair):
    state, series = pair
    leaves = jax.tree.leaves(state)
    assert all(leaf.shape[0] == 2 for leaf in leaves)
    assert series["Train/episodic mean reward"].shape[0] == 2
    first, second = series["Train/episodic mean reward"]
    assert not np.array_equal(first, second, equal_nan=True)


def test_a_seed_of_a_list_equals_the_same_seed_alone(pair, alone):
    (pair_state, pair_series), (state, series) = pair, alone
    assert all(
        a.shape == b.shape[1:]
        for a, b in zip(*map(jax.tree.leaves, (state, pair_state)), strict=True)
    )
    # The random phase has no networks in it: exactly equal.
    np.testing.assert_array_equal(
        series["Train/episodic mean reward"][:2], pair_series["Train/episodic mean reward"][1, :2]
    )
    # Batched kernels round differently, and planning amplifies it slowly.
    losses = series["Loss/consistency_loss"]
    learnt = np.isfinite(losses)
    assert learnt.any()
    first = np.flatnonzero(learnt)[0]
    np.testing.assert_allclose(
        losses[first], pair_series["Loss/consistency_loss"][1, first], rtol=2e-3
    )


def test_steps_of_all_environments_are_counted(agent, alone):
    state, series = alone
    assert series["timestep"][-1] == STEPS
    assert int(state.agent.collector.env_steps) == STEPS
    # Two updates per tick of two environments, after a burst of 40 at 42 steps.
    assert series["Train/n_updates"][-1] == 40 + (STEPS - 42)


def test_an_environment_that_terminates_after_all_stops_the_run():
    env = CounterEnv([8, 5], terminates=[False, True], episode_length=8, declare_fixed_length=True)
    agent = TDMPC2(env, seed_steps=30, **TINY)
    with pytest.raises(ValueError, match=r"terminated \d+ episode"):
        agent.train(seed=0, n_timesteps=29, num_episode_test=0, progress=False)


def test_an_environment_off_its_schedule_stops_the_run():
    env = CounterEnv([8, 5], episode_length=8, declare_fixed_length=True)
    agent = TDMPC2(env, seed_steps=30, **TINY)
    with pytest.raises(ValueError, match="off schedule"):
        agent.train(seed=0, n_timesteps=29, num_episode_test=0, progress=False)


def test_parameters_that_are_not_finite_stop_the_run(agent):
    diverging = dataclasses.replace(agent.config, learning_rate=1e30)
    broken = TDMPC2(ActionRewardEnv(episode_length=8), n_envs=2, seed_steps=40, **TINY)
    broken.config = diverging
    with pytest.raises(RuntimeError, match="diverged"):
        broken.train(seed=0, n_timesteps=STEPS, num_episode_test=0, progress=False)


def test_a_seed_that_is_not_finite_stops_alone(agent, pair):
    state, _ = pair

    def poisoned(path, leaf):
        if "encoder" in jax.tree_util.keystr(path) and "wm_params" in jax.tree_util.keystr(path):
            return leaf.at[1].set(np.nan)
        return leaf.copy()  # training consumes the state

    options = {"seed": [3, 5], "n_timesteps": 16, "num_episode_test": 2, "progress": False}
    sick = jax.tree_util.tree_map_with_path(poisoned, state)
    well, well_series = agent.train(initial_state=jax.tree.map(jax.numpy.copy, state), **options)
    after, series = agent.train(initial_state=sick, **options)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(well), jax.tree.leaves(after), strict=True
    ):
        np.testing.assert_array_equal(a[0], b[0], err_msg=jax.tree_util.keystr(path))
    np.testing.assert_array_equal(
        well_series["Eval/episodic mean reward"][0], series["Eval/episodic mean reward"][0]
    )
    assert np.isnan(series["Eval/episodic mean reward"][1]).all()
    assert np.isnan(series["Loss/total_loss"][1]).all()
    assert after.health.stopped.tolist() == [False, True]
    # What was finite stays as it was.
    for a, b in zip(
        jax.tree.leaves(state.agent.learner.pi_params),
        jax.tree.leaves(after.agent.learner.pi_params),
        strict=True,
    ):
        np.testing.assert_array_equal(a[1], b[1])
