"""The test environments do what they say, and the row checks find each kind of broken row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.environment import Environment
from wm_collect.testing import (
    ActionRewardEnv,
    ConstantRewardEnv,
    CounterEnv,
    check_rows,
    check_same_state,
    collect_rows,
)

KEY = jax.random.key(5)


def changed(rows, field, tick, env, value):
    array = getattr(rows, field).copy()
    array[tick, env] = value
    return dataclasses.replace(rows, **{field: array})


@pytest.fixture(scope="module")
def counter():
    return CounterEnv((3, 5), terminates=(True, False), action_dim=2)


@pytest.fixture(scope="module")
def rows(counter):
    return collect_rows(counter, n_envs=2, n_ticks=40, key=KEY)


def test_counter_rows_name_their_episode_row_and_previous_action(rows, counter):
    check_rows(rows, counter.spec)
    for n in range(2):
        row_index = 0
        for tick in range(1, 40):
            now, before = rows.obs[tick, n], rows.obs[tick - 1, n]
            if rows.is_first[tick, n]:
                row_index = 0
                assert now[0] != before[0] and rows.reward[tick, n] == 0
            else:
                row_index += 1
                assert now[0] == before[0]
                assert now[2] == rows.action[tick - 1, n, 0]
                assert rows.reward[tick, n] == 1000 * row_index + now[0] % 1000
            assert now[1] == row_index
            if rows.is_last[tick, n]:
                nth = int(now[0]) % 2
                assert row_index == (3, 5)[nth]
                assert rows.is_terminal[tick, n] == (nth == 0)


@pytest.mark.parametrize(
    ("field", "tick", "value", "message"),
    [
        ("obs", 4, np.nan, "an observation or a reward is not finite: tick 4, environment 1"),
        ("reward", 0, 1.0, "reward of a reset row is not 0: tick 0"),
        ("reward", 2, np.inf, "not finite"),
        ("is_first", 0, False, "does not begin with a reset row: tick 0"),
        ("is_first", 1, True, "the reward of a reset row is not 0: tick 1"),
        ("is_last", 1, True, "the action of a last row is not 0: tick 1"),
        ("is_last", 0, True, "both the first and the last"),
        ("is_terminal", 1, True, "terminal but not the last"),
    ],
)
def test_each_broken_rule_is_found(rows, field, tick, value, message):
    with pytest.raises(AssertionError, match=message):
        check_rows(changed(rows, field, tick, 1, value))


def test_a_reset_row_that_joins_the_previous_episode_is_found(rows):
    tick = int(np.flatnonzero(rows.is_last[:, 0])[0]) + 1
    with pytest.raises(AssertionError, match=f"not followed by a reset row: tick {tick}, env"):
        check_rows(changed(rows, "is_first", tick, 0, False))
    broken = changed(changed(rows, "is_last", tick - 1, 0, False), "is_terminal", tick - 1, 0, 0)
    with pytest.raises(AssertionError, match=f"does not follow a last row: tick {tick}, env"):
        check_rows(broken)


def test_rows_that_contradict_the_spec_are_found(rows, counter):
    spec = counter.spec
    with pytest.raises(AssertionError, match="goes on after 4 agent steps"):
        check_rows(rows, dataclasses.replace(spec, episode_length=4))
    with pytest.raises(AssertionError, match="shorter than 5 agent steps"):
        check_rows(rows, dataclasses.replace(spec, terminates=False))
    with pytest.raises(AssertionError, match=r"rows have obs \(3,\)"):
        check_rows(rows, dataclasses.replace(spec, obs_dim=4))
    with pytest.raises(AssertionError, match="is_last has dtype float32, not bool"):
        check_rows(dataclasses.replace(rows, is_last=rows.is_last.astype(np.float32)))
    with pytest.raises(AssertionError, match=r"reward has shape \(40, 2, 1\)"):
        check_rows(dataclasses.replace(rows, reward=rows.reward[..., None]))
    discrete = dataclasses.replace(spec, discrete=True, action_dim=3)
    choices = np.where(rows.is_last, 0, 1).astype(np.int32)
    check_rows(dataclasses.replace(rows, action=choices), discrete)
    with pytest.raises(AssertionError, match="none of the choices: tick 0, environment 0"):
        check_rows(dataclasses.replace(rows, action=choices * 3), discrete)


STATE = {"key": jax.random.key(3), "n": jnp.int32(4), "x": np.array([0.0, np.nan, 2.0])}


def test_a_state_is_the_same_as_itself_with_its_keys_and_nans():
    check_same_state(STATE, jax.tree.map(lambda leaf: leaf.copy(), STATE))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.array([-0.0, np.nan, 2.0])}, r"\['x'\] differs in 1 of 3 entries"),
        ({"x": np.array([1.0, np.nan, 3.0])}, r"\['x'\] differs in 2 of 3 entries"),
        ({"x": STATE["x"].astype(np.float32)}, r"\['x'\] is float64\[3\] .* float32\[3\]"),
        ({"n": jnp.ones(1, jnp.int32)}, r"\['n'\] is int32\[\] in one state, int32\[1\]"),
        ({"key": jax.random.key(4)}, r"\['key'\] differs"),
        ({"more": 1}, "differ in structure"),
    ],
    ids=["sign of zero", "values", "dtype", "shape", "key", "structure"],
)
def test_states_that_differ_are_told_apart(changes, message):
    with pytest.raises(AssertionError, match=message):
        check_same_state(STATE, STATE | changes)


def test_the_spec_tells_the_truth_unless_told_otherwise():
    assert CounterEnv((4,)).spec.fixed_length
    assert not CounterEnv((4,), terminates=(True,)).spec.fixed_length
    assert not CounterEnv((4, 3)).spec.fixed_length
    assert not CounterEnv((4,), episode_length=5).spec.fixed_length
    lying = CounterEnv((4, 3), declare_fixed_length=True).spec
    assert lying.fixed_length and lying.episode_length == 4


@pytest.mark.parametrize(
    "env", [CounterEnv((3,)), ConstantRewardEnv(), ActionRewardEnv()], ids=lambda e: e.spec.env_id
)
def test_test_environments_keep_the_environment_protocol(env):
    assert isinstance(env, Environment)
    state, obs = jax.eval_shape(env.reset, KEY)
    action = jnp.zeros(env.spec.action_dim)
    moved = jax.eval_shape(env.step, KEY, state, action)
    assert moved.state == state and moved.obs == obs
    assert obs.shape == (env.spec.obs_dim,) and obs.dtype == jnp.float32
    assert (moved.reward.shape, moved.reward.dtype) == ((), jnp.float32)
    assert moved.terminated.dtype == moved.truncated.dtype == bool


def test_the_constant_reward_is_worth_its_geometric_sum_through_the_time_limit():
    env = ConstantRewardEnv(0.5, episode_length=3)
    rows = collect_rows(env, n_envs=1, n_ticks=12, key=KEY)
    check_rows(rows, env.spec)
    np.testing.assert_array_equal(rows.reward[:, 0], np.where(rows.is_first[:, 0], 0, 0.5))
    assert not rows.is_terminal.any() and rows.is_last.sum() == 3
    # V = 0.5 / (1 − γ) solves V = r + γ V on every step, the last one included.
    value, gamma = 0.5 / (1 - 0.9), 0.9
    entered = ~rows.is_first[:, 0]
    targets = rows.reward[entered, 0] + gamma * (1 - rows.is_terminal[entered, 0]) * value
    np.testing.assert_allclose(targets, value, rtol=1e-6)


def test_the_action_reward_is_the_mean_of_the_clipped_action():
    env = ActionRewardEnv(action_dim=2)
    state, _ = env.reset(KEY)
    for action, reward in (([1.0, 1.0], 1.0), ([0.5, -0.25], 0.125), ([7.0, -3.0], 0.0)):
        assert env.step(KEY, state, jnp.array(action)).reward == reward


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (dict(lengths=()), "lengths must be whole numbers of at least 1"),
        (dict(lengths=(3, 0)), "lengths must be whole numbers of at least 1"),
        (dict(lengths=(3, 4, 5), terminates=(True, False)), "one for each of the 3 lengths"),
        (dict(lengths=(3,), obs_dim=2), "obs_dim must be at least 3, got 2"),
    ],
)
def test_scripts_that_make_no_sense_are_refused(script, message):
    with pytest.raises(ValueError, match=message):
        CounterEnv(**script)
