"""Whole row streams against a plain Python loop over episodes, for both reset modes.

The loop below knows the rules of collection and of the counting environment from their
descriptions; from the package it takes the two lists of random numbers alone (which episode a reset
draws, and the policy's noise), because those are defined by the keys.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.collector import collect_dynamic, collect_static, init_collector
from wm_collect.row import Row
from wm_collect.testing import CounterEnv, check_rows

N_TICKS = 45
INIT_KEY, RUN_KEY = jax.random.key(11), jax.random.key(12)


def memory_policy(discrete):
    """A policy that counts its calls since the last reset row, and adds noise to the count."""

    def policy(carry, obs, is_first, key):
        calls = jnp.where(is_first, 0, carry + 1)
        noise = jax.random.uniform(key, calls.shape)
        if discrete:
            action = calls % 3
        else:
            action = jnp.stack([noise, calls + obs[:, 1]], axis=1)
        return action, calls, {"calls": calls, "noise": noise}

    return policy


def collected(env, n_envs, static):
    """Run the collector, and return everything it put out, stacked over ticks."""
    collect = collect_static if static else collect_dynamic
    policy = memory_policy(env.spec.discrete)

    @jax.jit
    def run():
        def one_tick(state, tick):
            key = jax.random.fold_in(RUN_KEY, tick)
            state, row, extras, record = collect(env, state, tick, key, policy)
            return state, (row, extras, record)

        state = init_collector(env, n_envs, INIT_KEY, jnp.zeros(n_envs, jnp.int32))
        return jax.lax.scan(one_tick, state, jnp.arange(N_TICKS, dtype=jnp.int32))

    return jax.tree.map(np.asarray, run())


@functools.cache
def random_numbers(n_envs):
    """The episodes that resets draw at the start and on each tick, and the policy's noise."""

    def episodes(key):
        keys = jax.random.split(jax.random.fold_in(key, 2), n_envs)
        return jax.vmap(CounterEnv.episode_of)(keys)

    def of_tick(tick):
        key = jax.random.fold_in(RUN_KEY, tick)
        return episodes(key), jax.random.uniform(jax.random.fold_in(key, 0), (n_envs,))

    numbers = jax.jit(lambda: (episodes(INIT_KEY), *jax.vmap(of_tick)(jnp.arange(N_TICKS))))()
    return jax.tree.map(np.asarray, numbers)


def simulated(env, n_envs, static):
    """What should come out: one environment after the other, one episode after the other."""
    first_episode, next_episode, noise = random_numbers(n_envs)
    spec, T = env.spec, env.spec.episode_length
    shape = (N_TICKS, n_envs)
    out = {
        "obs": np.zeros((*shape, spec.obs_dim), np.float32),
        "action": np.zeros(shape if spec.discrete else (*shape, spec.action_dim), np.float32),
        **{name: np.zeros(shape, np.float32) for name in ("reward", "return", "noise")},
        **{name: np.zeros(shape, int) for name in ("length", "calls")},
        **{name: np.zeros(shape, bool) for name in ("is_first", "is_last", "is_terminal")},
    }
    counts = {"env_steps": 0, "terminations": 0, "offschedule": 0}
    for n in range(n_envs):
        episode, row, calls, total = first_episode[n], 0, 0, 0.0
        came_with = 0.0  # first entry of the action that led to this row
        for tick in range(N_TICKS):
            length = env.lengths[episode % len(env.lengths)]
            dies = env.terminates[episode % len(env.lengths)]
            reward = 0.0 if row == 0 else 1000 * row + episode % 1000
            done = row > 0 and row >= length
            is_last = row == T if static else done
            out["obs"][tick, n, :3] = (episode, row, came_with)
            out["reward"][tick, n] = reward
            out["is_first"][tick, n] = row == 0
            out["is_last"][tick, n] = is_last
            out["is_terminal"][tick, n] = is_last and done and dies
            total = reward if row == 0 else total + reward
            if row > 0:
                counts["terminations"] += done and dies
                counts["offschedule"] += static and done != is_last
            if not (static and is_last):
                calls = 0 if row == 0 else calls + 1
                out["calls"][tick, n] = calls
                out["noise"][tick, n] = noise[tick, n]
            if is_last:
                out["return"][tick, n] = total
                out["length"][tick, n] = row
                episode, row, came_with = next_episode[tick, n], 0, 0.0
                continue
            counts["env_steps"] += 1
            if spec.discrete:
                out["action"][tick, n] = came_with = calls % 3
            else:
                out["action"][tick, n] = (noise[tick, n], calls + row)
                came_with = noise[tick, n]
            row += 1
        # The row still pending after the last tick was already counted by the step that made it.
        if row > 0:
            length = env.lengths[episode % len(env.lengths)]
            done = row >= length
            counts["terminations"] += done and env.terminates[episode % len(env.lengths)]
            counts["offschedule"] += static and done != (row == T)
    return out, counts


FIXED = dict(lengths=(4,))
MIXED = dict(lengths=(3, 7, 1, 5), terminates=(True, False, True, True))
CASES = {
    "static": (FIXED, True),
    "static-discrete": (dict(lengths=(4,), discrete=True, action_dim=3), True),
    "static-one-step-episodes": (dict(lengths=(1,)), True),
    "static-some-end-early": (dict(lengths=(2, 4), declare_fixed_length=True), True),
    "static-never-ends": (dict(lengths=(9,), episode_length=4, declare_fixed_length=True), True),
    "static-terminates-on-schedule": (
        dict(lengths=(4,), terminates=(True,), declare_fixed_length=True),
        True,
    ),
    "static-terminates-early": (
        dict(lengths=(3, 5), terminates=(True, False), declare_fixed_length=True),
        True,
    ),
    "dynamic-fixed": (FIXED, False),
    "dynamic-mixed": (MIXED, False),
    "dynamic-mixed-discrete": (dict(**MIXED, discrete=True, action_dim=3), False),
}


@pytest.mark.parametrize(
    ("case", "n_envs"), [*((case, 4) for case in CASES), ("static", 1), ("dynamic-mixed", 1)]
)
def test_rows_are_those_of_a_plain_loop_over_episodes(case, n_envs):
    script, static = CASES[case]
    env = CounterEnv(**{"obs_dim": 4, **script})
    state, (row, extras, record) = collected(env, n_envs, static)
    expected, counts = simulated(env, n_envs, static)

    for field in dataclasses.fields(Row):
        got, want = getattr(row, field.name), expected[field.name]
        np.testing.assert_array_equal(got, want, err_msg=field.name)
    np.testing.assert_array_equal(record.finished, expected["is_last"])
    np.testing.assert_array_equal(record.episode_return, expected["return"])
    np.testing.assert_array_equal(record.episode_length, expected["length"])
    np.testing.assert_array_equal(extras["calls"], expected["calls"])
    np.testing.assert_array_equal(extras["noise"], expected["noise"])
    assert state.env_steps == counts["env_steps"]
    assert state.rows == N_TICKS * n_envs
    assert state.n_terminations == counts["terminations"]
    assert state.n_offschedule_dones == counts["offschedule"]

    check_rows(row)
    keeps_its_word = env.spec.terminates or set(env.lengths) == {env.spec.episode_length}
    if keeps_its_word and not any(env.terminates):
        assert state.n_offschedule_dones == state.n_terminations == 0


def test_cases_cover_what_their_names_say():
    """The scripts are drawn by key, so see that the run really contains the mixed endings."""
    env = CounterEnv(**{"obs_dim": 4, **MIXED})
    expected, counts = simulated(env, 4, static=False)
    assert set(expected["length"][expected["is_last"]]) == {1, 3, 5, 7}
    assert (expected["is_last"] & ~expected["is_terminal"]).sum() > 3
    early = CASES["static-some-end-early"][0]
    _, counts = simulated(CounterEnv(**{"obs_dim": 4, **early}), 4, static=True)
    assert counts["offschedule"] > 3


def test_both_modes_give_the_same_rows_of_fixed_length_episodes():
    env = CounterEnv(obs_dim=4, **FIXED)
    _, (static_row, _, static_record) = collected(env, 3, static=True)
    _, (dynamic_row, _, dynamic_record) = collected(env, 3, static=False)
    jax.tree.map(np.testing.assert_array_equal, static_row, dynamic_row)
    jax.tree.map(np.testing.assert_array_equal, static_record, dynamic_record)


def test_consecutive_episodes_and_environments_start_from_different_states():
    env = CounterEnv(obs_dim=4, **FIXED)
    _, (row, _, _) = collected(env, 4, static=True)
    episodes = row.obs[..., 0][row.is_first]
    assert len(set(episodes.tolist())) == episodes.size == 4 * 9
