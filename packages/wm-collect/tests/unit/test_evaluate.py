"""Evaluation against a plain Python loop over single environments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.evaluate import evaluate_policy
from wm_collect.testing import CounterEnv

N_EPISODES = 6
UNEVEN = CounterEnv((3, 5, 1), terminates=(True, False, True), episode_length=7)
EVEN = CounterEnv((4,))
KEY = jax.random.key(8)


def policy(carry, obs, is_first, key):
    """Act by the number of calls since the episode's start, and by a random number."""
    count = jnp.where(is_first, 0, carry + 1)
    first = count.astype(jnp.float32) + obs[:, 1]
    second = jax.random.uniform(key, first.shape)
    return jnp.stack([first, second], axis=-1), count, {"seen": obs}


def evaluate(env, key, record=False):
    stale = jnp.full(N_EPISODES, 99)
    return evaluate_policy(env, policy, stale, N_EPISODES, key, record=record)


@pytest.fixture(scope="module", params=[UNEVEN, EVEN], ids=["uneven", "fixed-length"])
def measured(request):
    env = request.param
    evaluation = jax.jit(lambda key: evaluate(env, key, record=True))(jax.random.key(4))
    return env, jax.device_get(evaluation)


def python_episode(env, key):
    """Step one environment to its end; a plain loop over Python numbers."""
    state, obs = env.reset(key)
    total, observations, rewards = 0.0, [obs], []
    for count in range(100):
        action = jnp.array([count + obs[1], 0.0])
        moved = env.step(key, state, action)
        state, obs, total = moved.state, moved.obs, total + float(moved.reward)
        observations.append(obs)
        rewards.append(float(moved.reward))
        if moved.terminated or moved.truncated:
            return total, observations, rewards
    raise AssertionError("the episode did not end")


def test_returns_and_lengths_are_those_of_a_python_loop(measured):
    env, evaluation = measured
    reset_keys = jax.random.split(jax.random.fold_in(jax.random.key(4), 0), N_EPISODES)
    for index in range(N_EPISODES):
        total, _, rewards = python_episode(env, reset_keys[index])
        assert evaluation.episode_return[index] == total
        assert evaluation.episode_length[index] == len(rewards)


def test_the_episodes_of_the_uneven_task_do_differ_in_length():
    lengths = jax.jit(lambda key: evaluate(UNEVEN, key).episode_length)(jax.random.key(4))
    assert len(set(np.asarray(lengths).tolist())) > 1


def test_the_recorded_trajectory_is_the_first_episode(measured):
    env, evaluation = measured
    trajectory, key = evaluation.trajectory, jax.random.fold_in(jax.random.key(4), 0)
    _, observations, rewards = python_episode(env, jax.random.split(key, N_EPISODES)[0])
    n = len(rewards)
    assert trajectory.length == n
    np.testing.assert_array_equal(trajectory.obs[: n + 1], observations)
    np.testing.assert_array_equal(trajectory.reward[:n], rewards)
    # The policy started afresh, whatever its first carry, and was told so once: its call count
    # grows by one a step, as the environment's own count does.
    np.testing.assert_array_equal(trajectory.action[:n, 0], 2 * np.arange(n))
    assert len(set(trajectory.action[:n, 1].tolist())) == n, "the noise repeats"
    np.testing.assert_array_equal(trajectory.env_state.steps[: n + 1], np.arange(n + 1))
    assert trajectory.obs.shape[0] == env.spec.episode_length + 1


def test_a_termination_is_recorded_and_a_time_limit_is_not():
    record = jax.jit(lambda key: evaluate(UNEVEN, key, record=True).trajectory)
    seen = {int(t.length): bool(t.terminated) for t in map(record, jax.random.split(KEY, 12))}
    assert seen == {3: True, 5: False, 1: True}


def test_without_recording_the_numbers_are_the_same_and_there_is_no_trajectory(measured):
    env, evaluation = measured
    plain = jax.jit(lambda key: evaluate(env, key))(jax.random.key(4))
    np.testing.assert_array_equal(plain.episode_return, evaluation.episode_return)
    assert plain.trajectory is None


def test_seeds_side_by_side_are_the_seeds_alone():
    keys = jnp.stack([jax.random.key(4), jax.random.key(5)])
    together = jax.jit(jax.vmap(lambda key: evaluate(UNEVEN, key)))(keys)
    alone = jax.jit(lambda key: evaluate(UNEVEN, key))
    for index, key in enumerate(keys):
        np.testing.assert_array_equal(together.episode_return[index], alone(key).episode_return)


def test_every_evaluation_starts_from_fresh_states():
    run = jax.jit(lambda key: evaluate(EVEN, key).episode_return)
    one, other = run(jax.random.key(1)), run(jax.random.key(2))
    assert not np.any(one == other)
    assert len(set(np.asarray(one).tolist())) == N_EPISODES


def test_the_environment_is_traced_not_called_step_by_step():
    env = CounterEnv((50,))
    jax.jit(lambda key: evaluate(env, key))(jax.random.key(0))
    assert env.n_step_calls <= 2 and env.n_reset_calls <= 2


def test_no_episodes_are_refused():
    with pytest.raises(ValueError, match="n_episodes must be at least 1, got 0"):
        evaluate_policy(EVEN, policy, jnp.zeros(0, int), 0, jax.random.key(0))
