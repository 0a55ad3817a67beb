"""A short run of the episodic agent on a task that terminates, whole, in pieces and resumed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.testing import CounterEnv, check_same_state
from wm_tdmpc2 import TDMPC2

from .tiny import TINY

LENGTHS, N_ENVS = (9, 4, 6, 1), 2
LONGEST = max(LENGTHS)
# A short horizon compiles faster.
SETTINGS = TINY | {"n_envs": N_ENVS, "seed_steps": 30, "horizon": 2, "episodic": True}
TOTAL, FIRST = 120, 48
OPTIONS = {"num_episode_test": 0, "log_frequency": 10, "progress": False}


def environment():
    """All but the longest episodes terminate; the shortest have one row less than a slice."""
    return CounterEnv(LENGTHS, terminates=(False, True, True, True))


@pytest.fixture(scope="module")
def agent():
    return TDMPC2(environment(), **SETTINGS)


@pytest.fixture(scope="module")
def whole(agent):
    return agent.train(seed=0, n_timesteps=TOTAL, **OPTIONS)


@pytest.fixture(scope="module")
def halves(agent):
    state, _ = agent.train(seed=0, n_timesteps=FIRST, **OPTIONS)
    middle = jax.tree.map(np.asarray, state)
    state, series = agent.train(seed=0, n_timesteps=TOTAL - FIRST, initial_state=state, **OPTIONS)
    return middle, state, series


def test_timesteps_are_rows_and_updates_follow_them(agent, whole):
    state, series = whole
    assert series["timestep"].tolist() == list(range(10, 121, 10))
    np.testing.assert_array_equal(series["env_frames"], series["timestep"])
    # 30 updates on the tick that brings the rows to 32, then 2 for every 2 rows.
    assert series["Train/n_updates"].tolist() == [0, 0, 0, *range(38, 119, 10)]
    # One row of every environment and tick; no step is taken from the last one of an episode.
    assert state.agent.buffer.obs.shape == (N_ENVS, TOTAL // N_ENVS, 3)
    episode, row = np.moveaxis(np.asarray(state.agent.buffer.obs)[..., :2], -1, 0)
    n_last = np.sum(row == np.array(LENGTHS)[episode.astype(int) % 4])
    assert n_last > 8 and state.agent.collector.env_steps == TOTAL - n_last


def test_losses_are_finite_and_the_terminations_among_them(whole):
    state, series = whole
    learnt = series["Train/n_updates"] > 0
    names = [name for name in series if name.startswith("Loss/")]
    terminations = {f"Loss/termination_{what}" for what in ("loss", "rate", "f1")}
    assert terminations < set(names)
    for name in names:
        assert np.isfinite(series[name][learnt]).all() and np.isnan(series[name][~learnt]).all()
    # At their end, of the 8, 3 and 5 slices of an episode, one of the two shorter kinds.
    rate = series["Loss/termination_rate"][learnt]
    assert np.all((rate > 0.02) & (rate < 0.9))
    assert np.all(series["Loss/termination_f1"][learnt] >= 0)
    losses = series["Loss/termination_loss"][learnt]
    assert losses[-1] < losses[0] < 1.0
    assert int(state.agent.n_starved_updates) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.agent.learner.wm_params))


def test_the_replay_holds_the_terminations_that_happened(whole):
    state, _ = whole
    buffer = jax.tree.map(np.asarray, state.agent.buffer)
    episode, row = buffer.obs[..., 0].astype(int), buffer.obs[..., 1]
    length = np.array(LENGTHS)[episode % 4]
    np.testing.assert_array_equal(buffer.is_terminal, (row == length) & (length < LONGEST))
    # Complete episodes that hold a slice of 3 rows.
    assert buffer.n_added == np.sum((row == length) & (length >= 2)) > 0
    assert buffer.n_expired == 0


def test_episodes_end_early_in_the_log(whole):
    _, series = whole
    lengths = series["Train/episodic mean length"]
    assert 1 <= np.nanmin(lengths) < LONGEST and np.nanmax(lengths) <= LONGEST


def test_other_chunks_change_nothing(agent, whole):
    expected, _ = whole
    options = OPTIONS | {"log_frequency": 14}
    state, _ = agent.train(seed=0, n_timesteps=TOTAL, chunk_seconds=1e-9, **options)
    check_same_state(expected, state)


def test_a_resumed_run_that_grows_its_ring_ends_in_the_state_of_one_run(whole, halves):
    (expected, whole_series), (middle, state, series) = whole, halves
    assert middle.agent.buffer.reward.shape == (N_ENVS, FIRST // N_ENVS)
    check_same_state(expected, state)
    assert series["timestep"][-1] == TOTAL
    assert series["Train/n_updates"][-1] == whole_series["Train/n_updates"][-1]


def test_an_evaluation_plays_episodes_to_their_ends(agent, whole):
    result = agent.evaluate(whole[0], n_episodes=6)
    lengths = np.asarray(result.episode_length)
    assert lengths.shape == (6,) and set(lengths.tolist()) <= set(LENGTHS)
    assert len(set(lengths.tolist())) > 1
    # Rewards of the rows of episode e: 1000 k + e mod 1000.
    low = 1000 * lengths * (lengths + 1) / 2
    assert np.all((result.episode_return >= low) & (result.episode_return < low + 1000 * lengths))


def test_without_episodic_the_same_task_is_refused():
    with pytest.raises(ValueError, match=r"counter may terminate early; set episodic=True"):
        TDMPC2(environment(), **SETTINGS | {"episodic": False})


def test_updates_without_an_episode_to_learn_from_stop_the_run(agent, halves):
    """Here the replay is told to forget all it has; so it is where every episode is too short."""
    middle, _, _ = halves
    held = middle.agent.buffer
    assert held.n_added > 0
    emptied = held._replace(
        n_expired=held.n_added, first_tick=np.full_like(held.first_tick, FIRST // N_ENVS)
    )
    forgetful = dataclasses.replace(middle.agent, buffer=emptied)
    state = jax.tree.map(jnp.asarray, dataclasses.replace(middle, agent=forgetful))
    with pytest.raises(ValueError, match=r"no stored episode of counter is long enough"):
        agent.train(seed=0, n_timesteps=TOTAL - FIRST, initial_state=state, **OPTIONS)
