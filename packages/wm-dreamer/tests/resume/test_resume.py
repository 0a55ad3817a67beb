"""A run in two calls equals the run in one: bit for bit, replay and latents included."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from wm_collect.checkpoint import Checkpoints
from wm_collect.metrics import ELAPSED
from wm_collect.run_folder import RunFolder
from wm_collect.testing import CounterEnv, check_same_state
from wm_dreamer import DreamerV3

from ..smoke.tiny import TINY

# Rows. Each length of a run has rings of its own size, and so a program of its own.
TOTAL, SHORTER, FIRST = 96, 64, 32
OPTIONS = {
    "num_episode_test": 0,
    "log_frequency": 8,
    "eval_frequency": 96,
    "progress": False,
}


@pytest.fixture(scope="module")
def agent():
    return DreamerV3(CounterEnv([4, 7], terminates=[True, False]), **TINY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return RunFolder.create(tmp_path_factory.mktemp("runs"), "whole", settings={})


@pytest.fixture(scope="module")
def whole(agent, folder):
    """The uninterrupted run, with a checkpoint every 8 rows, all of them kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wm_collect.agent.Checkpoints", partial(Checkpoints, keep_last=99))
        state, series = agent.train(
            seed=0, n_timesteps=TOTAL, folder=folder, save_frequency=8, **OPTIONS
        )
    return jax.tree.map(np.asarray, state), series


@pytest.fixture(scope="module")
def halves(agent):
    """The run in two calls, of which the first did not know that another would follow."""
    state, first = agent.train(seed=0, n_timesteps=SHORTER, **OPTIONS)
    middle = jax.tree.map(np.asarray, state)
    state, second = agent.train(seed=0, n_timesteps=TOTAL - SHORTER, initial_state=state, **OPTIONS)
    return middle, jax.tree.map(np.asarray, state), first, second


@pytest.fixture
def interrupted(agent, folder, whole):
    """What a run planned for `TOTAL` rows had saved after `FIRST`, and the log state with it."""
    ticks = agent.clock.first_tick_at(FIRST)
    return Checkpoints(folder.checkpoints).restore(agent.state_like(0, TOTAL), ticks)


def test_two_calls_end_in_the_state_of_one(whole, halves):
    check_same_state(whole[0], halves[1])


# The first update is made at 20 rows; episodes end at rows that are not multiples of 8.
@pytest.mark.parametrize("cut", [8, 16, 24, 72])
def test_a_run_cut_anywhere_goes_on_as_if_it_had_not_been(agent, folder, whole, cut):
    expected, series = whole
    tick = agent.clock.first_tick_at(cut)
    state, metadata = Checkpoints(folder.checkpoints).restore(agent.state_like(0, TOTAL), tick)
    assert metadata["timestep"] == cut
    state, rest = agent.train(
        seed=0,
        n_timesteps=TOTAL - cut,
        initial_state=state,
        log_state=metadata["log_state"],
        **OPTIONS,
    )
    check_same_state(expected, state)
    for name in set(series) - {ELAPSED}:
        later = series["timestep"] > cut
        np.testing.assert_array_equal(rest[name], series[name][later], err_msg=name)


def test_the_rings_grow_to_the_whole_run(whole, halves):
    middle, state, _, _ = halves
    assert middle.agent.replay.reward.shape == (2, SHORTER // 2)
    assert state.agent.replay.reward.shape == (2, TOTAL // 2)
    # Growing keeps what was stored; the rest of the run wrote latents over some of it.
    n_ticks = SHORTER // 2
    check_same_state(middle.agent.replay.obs, state.agent.replay.obs[:, :n_ticks])
    assert not np.array_equal(middle.agent.replay.deter, state.agent.replay.deter[:, :n_ticks])


def test_the_second_call_counts_on(whole, halves):
    (_, series), (_, _, first, second) = whole, halves
    assert first["timestep"][-1] == SHORTER
    assert second["timestep"][0] > SHORTER
    # The first update at 8 x 2 + 4 = 20 rows, then half an update per row.
    assert second["Train/n_updates"][-1] == series["Train/n_updates"][-1] == 1 + (TOTAL - 20) // 2
    assert np.all(np.diff(second["Train/n_updates"]) > 0)
    for name in ("Loss/total", "Train/episodic mean reward", "Train/retnorm_high"):
        joined = np.concatenate([first[name], second[name]])
        np.testing.assert_array_equal(joined, series[name], err_msg=name)


def test_other_chunks_change_nothing(agent, whole):
    state, _ = agent.train(
        seed=0,
        n_timesteps=TOTAL,
        num_episode_test=0,
        log_frequency=14,
        progress=False,
        chunk_seconds=1e-9,
    )
    check_same_state(whole[0], state)


def test_an_interrupted_run_goes_on_from_its_checkpoint(agent, whole, interrupted):
    state, metadata = interrupted
    assert metadata["timestep"] == FIRST
    state, _ = agent.train(seed=0, n_timesteps=TOTAL - FIRST, initial_state=state, **OPTIONS)
    check_same_state(whole[0], state)


def test_an_interrupted_run_can_end_earlier_than_planned(agent, halves, interrupted):
    state, _ = interrupted
    assert state.agent.replay.reward.shape == (2, TOTAL // 2)
    state, _ = agent.train(seed=0, n_timesteps=SHORTER - FIRST, initial_state=state, **OPTIONS)
    check_same_state(halves[0], state)


@pytest.fixture
def two_seeds(agent):
    """A state of two seeds whose rows have numbers in them, 16 ticks into a run of `SHORTER`."""
    shapes = agent.state_like([0, 1], SHORTER)
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    replay = state.agent.replay
    replay = replay._replace(obs=rng.normal(size=replay.obs.shape).astype(np.float32))
    collector = dataclasses.replace(state.agent.collector, rows=np.full(2, 32, np.int32))
    return dataclasses.replace(
        state, agent=dataclasses.replace(state.agent, replay=replay, collector=collector)
    )


def test_the_rings_of_several_seeds_change_their_size_alike(agent, two_seeds):
    grown = agent.resized(two_seeds, TOTAL).agent.replay
    assert jax.tree.map(np.shape, grown) == jax.tree.map(
        lambda leaf: leaf.shape, agent.state_like([0, 1], TOTAL).agent.replay
    )
    check_same_state(two_seeds.agent.replay.obs, grown.obs[:, :, : SHORTER // 2])
    assert not np.asarray(grown.obs[:, :, SHORTER // 2 :]).any()


def test_a_run_of_the_same_length_keeps_its_state(agent, two_seeds):
    assert agent.resized(two_seeds, SHORTER) is two_seeds


def test_seeds_that_are_not_equally_far_are_refused(agent, two_seeds):
    collector = dataclasses.replace(two_seeds.agent.collector, rows=np.array([32, 34], np.int32))
    uneven = dataclasses.replace(
        two_seeds, agent=dataclasses.replace(two_seeds.agent, collector=collector)
    )
    with pytest.raises(ValueError, match=r"equally far, got \[32, 34\] rows"):
        agent.ticks_done(uneven)
