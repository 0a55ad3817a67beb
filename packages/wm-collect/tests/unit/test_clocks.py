"""Moments of a run as functions of the absolute tick."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_collect.clocks import Clock

from .counting_agent import CLOCK, steps


def held_clock(episode_length, n_envs):
    def timestep(tick):
        return n_envs * (tick - tick // (episode_length + 1))

    return Clock(timestep=timestep, env_frames=timestep)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    episode_length=st.integers(1, 7),
    n_envs=st.integers(1, 5),
    every=st.integers(1, 30),
    tick=st.integers(0, 60),
)
def test_multiples_are_completed_where_counting_by_hand_says(episode_length, n_envs, every, tick):
    clock = held_clock(episode_length, n_envs)
    boundaries = []
    for t in range(1, 400):
        crossed = clock.timestep(t) // every > clock.timestep(t - 1) // every
        if crossed:
            while clock.timestep(t + 1) == clock.timestep(t):
                t += 1
            boundaries.append(t)
    assert clock.next_multiple(tick, every) == min(t for t in boundaries if t > tick)


def test_a_log_row_waits_for_the_held_tick_that_records_the_episode():
    # Three agent steps and a held tick an episode, two environments: 6 env steps after tick 3,
    # still 6 after the held tick.
    assert (steps(3), steps(4)) == (6, 6)
    assert CLOCK.completed_at(6) == 4
    assert CLOCK.completed_at(7) == 5
    assert CLOCK.next_multiple(0, 6) == 4
    assert CLOCK.next_multiple(3, 6) == 4
    assert CLOCK.next_multiple(4, 6) == 8


def test_a_period_shorter_than_a_tick_is_due_at_every_counting_tick():
    rows = Clock(timestep=lambda tick: 16 * tick, env_frames=lambda tick: 32 * tick)
    assert [rows.next_multiple(t, 5) for t in range(4)] == [1, 2, 3, 4]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(timestep=st.integers(0, 500))
def test_ticks_of_a_timestep_are_found(timestep):
    first, last = CLOCK.first_tick_at(timestep), CLOCK.last_tick_at(timestep)
    assert steps(first) >= timestep and (first == 0 or steps(first - 1) < timestep)
    assert steps(last) <= timestep < steps(last + 1)


def test_a_clock_that_stands_still_is_an_error():
    clock = Clock(timestep=lambda tick: min(tick, 3), env_frames=lambda tick: tick)
    with pytest.raises(ValueError, match="never counts more than 5 env steps"):
        clock.next_multiple(0, 5)
