"""The schedule against a plain Python loop written from its description."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.clocks import Clock
from wm_tdmpc2 import Schedule, schedule_of

from .tiny import make_config


def simulate(schedule, n_ticks):
    """One environment batch after the other, tick after tick; returns what each tick did.

    Every tick either emits the last rows of N episodes or steps N environments. Actions are random
    until the steps of all environments together exceed the seed steps and a round of episodes is
    complete; that tick makes as many updates as there are seed steps; every later stepping tick
    makes N times the updates per step, rounded, at least one.
    """
    steps, row, rounds, seeding = 0, 0, 0, True
    ticks = []
    for _ in range(n_ticks):
        tick = {"held": row == schedule.episode_length, "random": seeding, "before": steps}
        updates = 0
        if tick["held"]:
            row, rounds = 0, rounds + 1
        else:
            row, steps = row + 1, steps + schedule.n_envs
            if not seeding:
                updates = max(1, round(schedule.n_envs * schedule.updates_per_step))
            elif steps > schedule.seed_steps and rounds >= 1:
                updates, seeding = schedule.seed_steps, False
        ticks.append(tick | {"updates": updates})
    return {name: np.array([tick[name] for tick in ticks]) for name in ticks[0]}


# Seed phases shorter than an episode, on and off the episodes' grid, and several episodes long.
CASES = [
    Schedule(length, n_envs, seed_steps, ratio)
    for length, seed_steps in [(1, 4), (5, 3), (5, 5), (10, 23), (25, 50), (25, 111), (10, 1000)]
    for n_envs in (1, 2, 4, 16)
    for ratio in (0.5, 1.0, 2.0)
]


def name_of(case):
    return f"T{case.episode_length}-S{case.seed_steps}-N{case.n_envs}-r{case.updates_per_step}"


@functools.partial(jax.jit, static_argnums=0)
def traced(schedule, ticks):
    return jax.vmap(
        lambda t: {
            "before": schedule.timesteps_before(t),
            "cumulative": schedule.updates_before(t),
            "held": schedule.is_held(t),
            "random": schedule.is_random(t),
        }
    )(ticks)


@pytest.mark.parametrize("schedule", CASES, ids=name_of)
def test_closed_forms_are_those_of_a_plain_loop(schedule):
    n_ticks = schedule.burst_tick + 4 * (schedule.episode_length + 1)
    expected = simulate(schedule, n_ticks)
    cumulative = np.concatenate([[0], np.cumsum(expected["updates"])])
    ticks = range(n_ticks)
    assert [schedule.updates_before(t) for t in range(n_ticks + 1)] == cumulative.tolist()
    assert [schedule.timesteps_before(t) for t in ticks] == expected["before"].tolist()
    assert [schedule.is_held(t) for t in ticks] == expected["held"].tolist()
    # Whether a held tick counts as random does not matter: nobody acts on it.
    acting = [t for t in ticks if not expected["held"][t]]
    assert [schedule.is_random(t) for t in acting] == expected["random"][acting].tolist()
    assert np.flatnonzero(expected["updates"])[0] == schedule.burst_tick


@pytest.mark.parametrize("schedule", CASES[::7], ids=name_of)
def test_traced_ticks_give_the_same_numbers(schedule):
    n_ticks = schedule.burst_tick + 4 * (schedule.episode_length + 1)
    ours = traced(schedule, jnp.arange(n_ticks, dtype=jnp.int32))
    for name, function in (
        ("before", schedule.timesteps_before),
        ("cumulative", schedule.updates_before),
        ("held", schedule.is_held),
        ("random", schedule.is_random),
    ):
        np.testing.assert_array_equal(ours[name], [function(t) for t in range(n_ticks)], name)
    assert ours["cumulative"].dtype == ours["before"].dtype == jnp.int32


@pytest.mark.parametrize("seed_steps", [1000, 1003, 2500])
@pytest.mark.parametrize("length", [10, 500, 1000])
def test_one_environment_is_the_paper_era_trainer(length, seed_steps):
    """S + 1 random actions, S updates after the last of them, k updates after step k later on."""
    schedule = Schedule(length, 1, seed_steps, 1.0)
    assert schedule.timesteps_before(schedule.burst_tick) == seed_steps
    assert schedule.updates_before(schedule.burst_tick) == 0
    assert schedule.updates_before(schedule.burst_tick + 1) == seed_steps
    for step in range(seed_steps, seed_steps + 3 * length):
        assert schedule.updates_before(schedule.tick_of_step(step) + 1) == step


@pytest.mark.parametrize(
    ("n_envs", "ratio", "updates"),
    [(1, 1.0, 1), (1, 0.5, 1), (1, 2.0, 2), (4, 0.5, 2), (4, 0.1, 1), (16, 1.0, 16), (5, 0.3, 2)],
)
def test_updates_of_a_tick_follow_the_environments(n_envs, ratio, updates):
    assert Schedule(10, n_envs, 20, ratio).updates_per_tick == updates


@pytest.mark.parametrize("n_envs", [1, 4, 16])
def test_counts_stay_exact_in_32_bits_for_a_hundred_million_ticks(n_envs):
    schedule = Schedule(500, n_envs, 2500, 1.0)
    ticks = np.array([10**6, 10**7 + 1, 99_999_999, 10**8, 10**8 + 1])
    ours = traced(schedule, jnp.asarray(ticks, jnp.int32))
    expected = [schedule.updates_before(int(t)) for t in ticks]
    assert n_envs * 10**8 > 0.99 * max(expected) and max(expected) < 2**31
    np.testing.assert_array_equal(ours["cumulative"], expected)
    np.testing.assert_array_equal(
        ours["before"], [schedule.timesteps_before(int(t)) for t in ticks]
    )


def test_updates_of_one_tick_are_right_even_where_their_sum_wraps():
    """32 updates a tick pass 2^31 after 67 million ticks; differences of the counts stay exact."""
    schedule = Schedule(500, 16, 2500, 2.0)
    ticks = np.array([10**8, 10**8 + 1, 501 * 199_600 + 500])
    assert schedule.updates_before(int(ticks[0])) > 2**31
    before, after = (
        traced(schedule, jnp.asarray(t, jnp.int32))["cumulative"] for t in (ticks, ticks + 1)
    )
    np.testing.assert_array_equal(after - before, [32, 32, 0])


def ticks_of_a_run(schedule, n_timesteps):
    """Return where the run's clock ends it, as the agent asks for it."""
    steps = schedule.timesteps_before
    return Clock(timestep=steps, env_frames=steps).completed_at(n_timesteps)


@pytest.mark.parametrize(
    ("n_timesteps", "n_ticks"),
    [(1, 1), (9, 9), (10, 11), (11, 12), (19, 20), (20, 22), (100, 110)],
)
def test_a_run_ends_with_the_held_tick_of_an_episode_that_ends_with_it(n_timesteps, n_ticks):
    schedule = Schedule(10, 1, 20, 1.0)
    assert ticks_of_a_run(schedule, n_timesteps) == n_ticks
    assert schedule.timesteps_before(n_ticks) == n_timesteps


def test_a_run_is_rounded_up_to_whole_ticks_of_all_environments():
    schedule = Schedule(10, 4, 20, 1.0)
    assert ticks_of_a_run(schedule, 41) == 12 and schedule.timesteps_before(12) == 44


def test_the_schedule_of_a_configuration():
    config = make_config(n_envs=3, seed_steps=7, updates_per_step=0.5)
    assert schedule_of(config) == Schedule(50, 3, 7, 0.5)
