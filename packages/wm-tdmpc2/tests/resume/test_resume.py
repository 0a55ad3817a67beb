"""A run in two calls equals the run in one: bit for bit, replay included."""

from functools import partial

import jax
import numpy as np
import pytest

from wm_collect.checkpoint import Checkpoints
from wm_collect.metrics import ELAPSED
from wm_collect.run_folder import RunFolder
from wm_collect.testing import CounterEnv, check_same_state
from wm_tdmpc2 import TDMPC2

from ..smoke.tiny import TINY

TOTAL, FIRST = 80, 44


@pytest.fixture(scope="module")
def agent():
    return TDMPC2(CounterEnv([10], declare_fixed_length=True), seed_steps=30, **TINY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return RunFolder.create(tmp_path_factory.mktemp("runs"), "whole", settings={})


@pytest.fixture(scope="module")
def whole(agent, folder):
    """The uninterrupted run, with a checkpoint every 8 steps, all of them kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wm_collect.agent.Checkpoints", partial(Checkpoints, keep_last=99))
        state, series = agent.train(
            seed=0,
            n_timesteps=TOTAL,
            num_episode_test=0,
            log_frequency=10,
            eval_frequency=TOTAL,
            progress=False,
            folder=folder,
            save_frequency=8,
        )
    return jax.tree.map(np.asarray, state), series


@pytest.fixture(scope="module")
def halves(agent):
    options = {"num_episode_test": 0, "log_frequency": 10, "progress": False}
    state, first = agent.train(seed=0, n_timesteps=FIRST, **options)
    middle = jax.tree.map(np.asarray, state)
    state, second = agent.train(seed=0, n_timesteps=TOTAL - FIRST, initial_state=state, **options)
    return middle, state, first, second


def test_two_calls_end_in_the_state_of_one(whole, halves):
    (expected, _), (_, state, _, _) = whole, halves
    check_same_state(expected, state)


# Episodes take 10 steps, the seed phase takes 30.
@pytest.mark.parametrize(
    "cut", [8, 24, 32, 56], ids=["seed phase", "before the burst", "after it", "mid-episode"]
)
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
        num_episode_test=0,
        log_frequency=10,
        eval_frequency=TOTAL,
        progress=False,
    )
    check_same_state(expected, state)
    for name in set(series) - {ELAPSED}:
        later = series["timestep"] > cut
        np.testing.assert_array_equal(rest[name], series[name][later], err_msg=name)


def test_the_replay_grows_to_the_whole_run(whole, halves):
    (expected, _), (middle, state, _, _) = whole, halves
    assert middle.agent.buffer.reward.shape[0] < expected.agent.buffer.reward.shape[0]
    assert state.agent.buffer.reward.shape == expected.agent.buffer.reward.shape


def test_the_second_call_counts_on(whole, halves):
    (_, series), (_, _, first, second) = whole, halves
    assert first["timestep"][-1] == FIRST
    assert second["timestep"][0] > FIRST
    assert second["timestep"][-1] == TOTAL
    assert second["Train/n_updates"][-1] == series["Train/n_updates"][-1] == TOTAL - 1
    # No second seed phase: updates are made from the first tick on.
    assert np.all(np.diff(second["Train/n_updates"]) > 0)


def test_other_chunks_change_nothing(agent, whole):
    expected, _ = whole
    state, _ = agent.train(
        seed=0,
        n_timesteps=TOTAL,
        num_episode_test=0,
        log_frequency=7,
        progress=False,
        chunk_seconds=1e-9,
    )
    check_same_state(expected, state)
