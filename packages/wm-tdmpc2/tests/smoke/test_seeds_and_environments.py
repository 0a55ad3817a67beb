"""Several seeds in one program, several environments per seed, and what a run refuses."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.failures import TrainingDiverged
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


@pytest.mark.parametrize(
    ("lengths", "terminates", "sentence"),
    [
        ([8, 8], [False, True], r"terminated \d+ episode"),
        ([8, 5], [False, False], "off schedule"),
    ],
    ids=["terminates after all", "off schedule"],
)
def test_an_environment_that_is_not_what_it_declares_stops_the_run(lengths, terminates, sentence):
    """Collected without learning, which `wm_collect` stops for any agent that complains."""
    env = CounterEnv(lengths, terminates=terminates, episode_length=8, declare_fixed_length=True)
    algorithm = TDMPC2(env, seed_steps=30, **TINY).algorithm(29)

    @jax.jit
    def run(key):
        def tick(i, state):
            return algorithm.collect(state, i, jax.random.fold_in(key, i))[0]

        return algorithm.counters(jax.lax.fori_loop(0, 29, tick, algorithm.init(key)))

    counters = {name: int(count) for name, count in run(jax.random.key(0)).items()}
    assert re.search(sentence, algorithm.check(counters))


# One program for the tests that go on from two trained seeds.
FURTHER = {"seed": [3, 5], "n_timesteps": 16, "num_episode_test": 2, "progress": False}


def with_lost_encoders(state, seeds):
    """A copy of a state, which training may consume, with an encoder of NaN for these seeds."""

    def lost(path, leaf):
        name = jax.tree_util.keystr(path)
        if "encoder" in name and "wm_params" in name:
            return leaf.at[np.array(seeds)].set(np.nan)
        return leaf.copy()

    return jax.tree_util.tree_map_with_path(lost, state)


def test_a_run_stops_when_no_seed_is_finite(agent, pair):
    with pytest.raises(TrainingDiverged, match="diverged"):
        agent.train(initial_state=with_lost_encoders(pair[0], [0, 1]), **FURTHER)


def test_a_seed_that_is_not_finite_stops_alone(agent, pair):
    state, _ = pair
    well, well_series = agent.train(initial_state=jax.tree.map(jnp.copy, state), **FURTHER)
    after, series = agent.train(initial_state=with_lost_encoders(state, [1]), **FURTHER)
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
