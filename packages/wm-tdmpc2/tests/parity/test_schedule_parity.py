"""A whole run against nicklashansen/tdmpc2@b67b21c, trainer/online_trainer.py, common/buffer.py.

The recordings `control_flow_*.npz` come from the original's own trainer and replay on an
environment that counts, with episodes of 10 and 25 steps, seed phases on and off the episodes'
grid, and one buffer that evicts. Here the collector, the schedule and the replay repeat the run
(see control_flow.py).

Deviations checked here: T29 (slices may start one row later), T30 (⌈steps/T⌉ episodes are kept,
where the original keeps ⌊steps/T⌋). Evaluation is no part of this: it has environments of its own
(T39). The original draws a batch one update ahead, so that its draw may miss the newest episode
(T40).
"""

import numpy as np
import pytest

from wm_tdmpc2 import resolve_config

from .control_flow import (
    PLANNED,
    PLANNED_FIRST,
    drawn_episodes,
    environment,
    repeat,
    settings_of,
)


def stepping(run):
    """The ticks on which the environment is stepped, one per recorded environment step."""
    return np.flatnonzero(run.row < run.buffer.episode_length)


def test_every_environment_step_comes_in_the_recorded_order(control_flow_recording):
    run = repeat(control_flow_recording)
    ticks = stepping(run)
    n_steps = len(control_flow_recording["step/index"])
    assert len(ticks) == n_steps
    np.testing.assert_array_equal(control_flow_recording["step/index"], np.arange(n_steps))
    np.testing.assert_array_equal(run.row[ticks] + 1, control_flow_recording["step/row_after"])
    # Evaluation episodes take numbers in the original, so only the changes of episode count.
    theirs = np.cumsum(np.diff(control_flow_recording["step/episode"], prepend=-1) != 0) - 1
    np.testing.assert_array_equal(run.episode[ticks], theirs)


def test_the_same_steps_are_planned_and_random(control_flow_recording):
    run = repeat(control_flow_recording)
    planned = run.action[stepping(run)] > 1
    np.testing.assert_array_equal(planned, control_flow_recording["step/planned"] == 1)
    n_random = control_flow_recording.meta["seed_steps"] + 1
    assert not planned[:n_random].any() and planned[n_random:].all()


def test_the_planner_is_told_of_the_same_episode_starts(control_flow_recording):
    run = repeat(control_flow_recording)
    actions = run.action[stepping(run)]
    steps = np.flatnonzero(actions > 1)
    training = control_flow_recording["acts"][control_flow_recording["acts"][:, 2] == 0]
    np.testing.assert_array_equal(steps, training[:, 0])
    told = np.where(training[:, 1] == 1, PLANNED_FIRST, PLANNED)
    np.testing.assert_array_equal(actions[steps], told)


def test_episodes_end_on_the_same_steps(control_flow_recording):
    run = repeat(control_flow_recording)
    ticks = stepping(run)
    done = run.row[ticks] + 1 == run.buffer.episode_length
    np.testing.assert_array_equal(done, control_flow_recording["step/done"] == 1)


def test_episodes_are_added_before_the_same_steps_with_all_their_rows(control_flow_recording):
    """Ours are committed on the held tick, which is before the environment step that follows it."""
    run = repeat(control_flow_recording)
    held = np.flatnonzero(run.row == run.buffer.episode_length)
    next_step = [run.schedule.timesteps_before(int(tick)) for tick in held]
    adds = control_flow_recording["adds"]
    np.testing.assert_array_equal(next_step, adds[:, 0])
    np.testing.assert_array_equal(adds[:, 2], run.buffer.episode_length + 1)


def test_as_many_episodes_can_be_sampled_at_every_step(control_flow_recording):
    """Up to the capacity, which is one episode larger here where T does not divide it (T30)."""
    run = repeat(control_flow_recording)
    theirs = control_flow_recording["step/episodes_in_buffer"]
    capacity = run.buffer.n_rounds - 1
    np.testing.assert_array_equal(run.n_committed[stepping(run)], np.minimum(theirs, capacity))
    kept = control_flow_recording.meta["capacity"]
    case = control_flow_recording.meta["case"]
    size = min(case.get("buffer_size", np.inf), case["steps"])
    assert kept == size // case["T"] and capacity == -(-size // case["T"])


def test_the_same_updates_follow_every_step(control_flow_recording):
    run = repeat(control_flow_recording)
    ticks = stepping(run)
    theirs = control_flow_recording["step/num_updates"]
    np.testing.assert_array_equal(run.n_updates[ticks], theirs)
    assert run.n_updates.sum() == theirs.sum()  # none on held ticks
    # One by one: the step of every update, and the episodes added by then.
    step_of_update = np.repeat(np.arange(len(ticks)), run.n_updates[ticks])
    np.testing.assert_array_equal(step_of_update, control_flow_recording["update/step"])
    added = [(t + 1) // (run.buffer.episode_length + 1) for t in ticks[step_of_update]]
    np.testing.assert_array_equal(added, control_flow_recording["update/episodes_added"])


def test_default_seed_phase_is_the_originals_formula(control_flow_recording):
    if "seed_steps" in control_flow_recording.meta["case"]:
        pytest.skip("this run was made with seed steps of its own")
    settings = settings_of(control_flow_recording, seed_steps=None)
    config = resolve_config(settings, environment(control_flow_recording).spec)
    assert config.seed_steps == control_flow_recording.meta["seed_steps"]


def test_recorded_draws_gather_exactly_the_recorded_slices(control_flow_recording):
    """The original's draws, read from our ring: same episodes, same rows."""
    recording = control_flow_recording
    run = repeat(recording)
    slices = recording["update/slices"]
    n_burst = len(run.gathered_burst.obs)
    later = np.flatnonzero((np.arange(len(run.row)) > run.schedule.burst_tick) & run.n_updates)
    later = later[: len(slices) - n_burst]
    assert n_burst > 0 and n_burst + len(later) == len(slices)
    obs = np.concatenate([run.gathered_burst.obs, run.gathered.obs[later]])
    # The original's numbers of its training episodes, in order; evaluations take numbers too.
    training = recording["adds"][:, 1]
    ours_of = {number: index for index, number in enumerate(training)}
    expected = np.vectorize(ours_of.__getitem__)(slices[..., 0])
    np.testing.assert_array_equal(expected, drawn_episodes(recording))
    # A draw made one update early may pick the episode that has since left a ring of equal size.
    added = recording["update/episodes_added"][: len(slices)]
    held = expected >= (added - (run.buffer.n_rounds - 1))[:, None]
    assert np.all(held | (np.diff(added, prepend=added[0]) > 0)[:, None])
    np.testing.assert_array_equal(obs[:, 0, :, 0][held], run.numbers[expected][held])
    np.testing.assert_array_equal(obs[:, 0, :, 1][held], slices[..., 1][held])
    check_slices(np.moveaxis(obs, 1, 0)[:, held])


def check_slices(obs):
    """Rows of one slice, leading axis, follow one another in one episode."""
    assert np.all(np.diff(obs[..., 1], axis=0) == 1)
    assert np.all(obs[..., 0] == obs[:1, ..., 0])


def test_our_slices_obey_the_originals_constraints(control_flow_recording):
    """Whole windows of complete episodes among the newest, aligned with actions and rewards."""
    recording, run = control_flow_recording, repeat(control_flow_recording)
    updating = np.flatnonzero(run.n_updates)
    sampled = [np.moveaxis(x[updating], 1, 0) for x in run.sampled]
    obs, action, reward = sampled
    check_slices(obs)
    # CounterEnv: the row after an action shows its first entry; rewards are 1000·row + episode.
    np.testing.assert_array_equal(obs[1:, ..., 2], action[..., 0])
    np.testing.assert_array_equal(reward, 1000 * obs[1:, ..., 1] + obs[1:, ..., 0] % 1000)
    number = {value: index for index, value in enumerate(run.numbers)}
    episode = np.vectorize(number.__getitem__)(obs[0, ..., 0])
    complete = ((updating + 1) // (run.buffer.episode_length + 1))[:, None]
    assert np.all(episode < complete)
    assert np.all(episode >= complete - (run.buffer.n_rounds - 1))
    # So do the original's; its draws may lag one episode behind.
    theirs = drawn_episodes(recording)
    added = recording["update/episodes_added"][: len(theirs), None]
    assert np.all(theirs < added) and np.all(theirs >= added - recording.meta["capacity"] - 1)


def test_our_offsets_are_uniform_and_reach_one_row_further_than_the_originals(
    control_flow_recording,
):
    """0 … T−H here, 0 … T−H−1 there (T29)."""
    recording, run = control_flow_recording, repeat(control_flow_recording)
    n_offsets = run.buffer.episode_length - run.buffer.horizon + 1
    theirs = recording["offset_histogram"]
    assert np.all(theirs[n_offsets - 1 :] == 0) and theirs.sum() > 0
    assert recording["draw/offset_max_seen"] <= n_offsets - 2

    offsets = run.sampled.obs[run.n_updates > 0, 0, :, 1].astype(int)
    ours = np.bincount(offsets.ravel(), minlength=n_offsets)
    assert len(ours) == n_offsets
    expected = ours.sum() / n_offsets
    assert expected > 5
    chi_square = np.sum((ours - expected) ** 2 / expected)
    # Mean n − 1, deviation √(2(n − 1)); five of them.
    assert chi_square < n_offsets - 1 + 5 * np.sqrt(2 * (n_offsets - 1))
