"""Two probe environments whose right answers are known: a value and an action.

The stock probes of model-free agents end after a step or two; TD-MPC2 needs episodes of fixed
length without terminations, so these run to a time limit and bootstrap through it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.testing import ActionRewardEnv, ConstantRewardEnv
from wm_tdmpc2 import TDMPC2, world_model

from .tiny import TINY

GAMMA = 0.5
VALUE = 1 / (1 - GAMMA)
# A fast target network and a larger step: the answer, not the pace, is what is checked.
SETTINGS = TINY | {"gamma": GAMMA, "tau": 0.1, "learning_rate": 3e-3, "seed_steps": 50}


def _values(agent: TDMPC2, state, action: float) -> np.ndarray:
    """Every Q network's value of one action at the probe's only observation."""
    config, learner = agent.config, state.agent.learner
    z = world_model.encode(learner.wm_params, jnp.ones((1, config.obs_dim)), config=config)
    logits = world_model.q(
        learner.wm_params["q"],
        z,
        jnp.full((1, config.action_dim), action),
        jax.random.key(0),
        config=config,
    )
    return np.asarray(config.two_hot.mean(logits))


@pytest.fixture(scope="module")
def constant():
    agent = TDMPC2(ConstantRewardEnv(1.0, episode_length=10), **SETTINGS)
    state, series = agent.train(seed=0, n_timesteps=450, num_episode_test=0, progress=False)
    return agent, state, series


@pytest.fixture(scope="module")
def action():
    agent = TDMPC2(ActionRewardEnv(episode_length=10), **SETTINGS)
    state, series = agent.train(
        seed=0, n_timesteps=450, num_episode_test=4, log_frequency=10, progress=False
    )
    return agent, state, series


def test_constant_reward_is_worth_its_discounted_sum_through_the_time_limit(constant):
    agent, state, _ = constant
    values = _values(agent, state, 0.3)
    # Stopping at the time limit instead of bootstrapping would give at most 1 at the last step.
    np.testing.assert_allclose(values, VALUE, atol=0.25)


def test_the_planner_finds_the_rewarded_action(action):
    agent, state, series = action
    result = agent.evaluate(state, n_episodes=4)
    # Ten steps of reward = action: 10 is perfect.
    assert np.min(result.episode_return) > 9.0
    assert series["Eval/episodic mean reward"][-1] > 9.0
    assert np.nanmax(series["Train/episodic mean reward"][-3:]) > 7.0


def test_values_rank_actions_by_what_they_earn(action):
    agent, state, _ = action
    low, high = _values(agent, state, -1.0), _values(agent, state, 1.0)
    # The two differ by the first reward, 2, under the same continuation.
    assert np.all(high - low > 1.0)


def test_a_finished_run_reports_its_series(action):
    _, _, series = action
    assert series["timestep"][-1] == 450
    np.testing.assert_array_equal(series["env_frames"], series["timestep"])
    # One update per step after the burst: k updates after step number k (counted from 0).
    assert series["Train/n_updates"][-1] == 449
    assert {f"Loss/{n}" for n in ("consistency_loss", "reward_loss", "value_loss", "pi_loss")} <= (
        set(series)
    )
    learnt = series["Train/n_updates"] > 0
    assert np.all(np.isfinite(series["Loss/total_loss"][learnt]))
    assert series["Loss/total_loss"][learnt][-1] < series["Loss/total_loss"][learnt][0]
    assert np.nanmin(series["Train/episodic mean length"]) == 10
