"""Three probe tasks whose right answers are known: a value, a continuous and a discrete action.

The answers are read where the agent acts: at the posterior states of a filtered trajectory.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.environment import EnvSpec, EnvState, Transition
from wm_collect.testing import ActionRewardEnv, ConstantRewardEnv
from wm_dreamer import DreamerV3, act, draw_act_noise, initial_carry, networks

from .tiny import TINY

# A discount of 1/2: the answers are known after a step or two.
HORIZON, GAMMA = 2.0, 0.5
# Large steps and a fast slow critic: the answer, not the pace, is what is checked.
SETTINGS = TINY | {
    "return_horizon": HORIZON,
    "learning_rate": 3e-3,
    "slow_rate": 0.1,
    "train_ratio": 32,
    "warmup": 10,
}
ROWS = 500
OPTIONS = {"log_frequency": 50, "progress": False}


class SignEnv:
    """Two steps: the first shows a sign, ±1; the second pays 1 for naming it, and terminates.

    Observations are 0 at the reset, then the sign, then 0.5. Under the best policy the value is γ
    at the reset and 1 where the sign is seen.
    """

    spec = EnvSpec(
        env_id="sign",
        backend="testing",
        obs_dim=1,
        action_dim=2,
        discrete=True,
        episode_length=5,
        action_repeat=1,
        terminates=True,
        reset_ignores_key=False,
        action_low=(),
        action_high=(),
    )

    def reset(self, key):
        sign = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        return EnvState(inner=sign, steps=jnp.zeros((), jnp.int32)), jnp.zeros(1)

    def step(self, key, state, action):
        sign, steps = state.inner, state.steps + 1
        over = steps == 2
        named = action == jnp.where(sign > 0, 1, 0)
        return Transition(
            state=EnvState(inner=sign, steps=steps),
            obs=jnp.where(over, 0.5, sign)[None],
            reward=jnp.where(over & named, 1.0, 0.0),
            terminated=over,
            truncated=jnp.zeros((), bool),
        )


def _filtered(agent, state, observations, actions=None, n_draws=64):
    """Filter observations `[T, O]`; return the value and the policy at each, per draw.

    `actions` `[T]` or `[T, A]` are remembered as the ones taken, instead of the sampled ones.
    """
    config, params = agent.config, state.agent.learner.params

    @jax.jit
    def decide(carry, obs, is_first, key):
        noise = draw_act_noise(key, n_draws, config=config)
        decision = act(params, carry, obs, is_first, noise, config=config)
        features = jnp.concatenate([decision.observed.deter, decision.observed.stoch], axis=-1)
        logits = networks.apply(networks.critic(config), params["critic"], features)
        return decision.carry, config.two_hot.mean(logits), decision.policy

    carry, made = initial_carry(config, n_draws), []
    for t, obs in enumerate(np.asarray(observations, np.float32)):
        obs = jnp.tile(obs, (n_draws, 1))
        is_first = jnp.full(n_draws, t == 0)
        carry, value, policy = decide(carry, obs, is_first, jax.random.key(t))
        if actions is not None:
            carry = carry._replace(action=jnp.full_like(carry.action, actions[t]))
        made.append((value, policy))
    return SimpleNamespace(
        value=np.stack([value for value, _ in made]), policy=[policy for _, policy in made]
    )


@pytest.fixture(scope="module")
def constant():
    agent = DreamerV3(ConstantRewardEnv(1.0, episode_length=10), **SETTINGS)
    state, _ = agent.train(seed=0, n_timesteps=ROWS, num_episode_test=0, **OPTIONS)
    return agent, state


@pytest.fixture(scope="module")
def action():
    agent = DreamerV3(ActionRewardEnv(episode_length=10), **SETTINGS)
    state, series = agent.train(seed=0, n_timesteps=ROWS, num_episode_test=4, **OPTIONS)
    return agent, state, series


@pytest.fixture(scope="module")
def sign():
    agent = DreamerV3(SignEnv(), **SETTINGS)
    state, series = agent.train(seed=0, n_timesteps=2 * ROWS, num_episode_test=0, **OPTIONS)
    return agent, state, series


def test_constant_reward_is_worth_its_discounted_sum_through_the_time_limit(constant):
    agent, state = constant
    values = _filtered(agent, state, np.ones((11, 2))).value
    # Stopping at the time limit instead of bootstrapping would give 0 at the last of the rows.
    np.testing.assert_allclose(values.mean(axis=1), HORIZON, atol=0.1)


def test_the_policy_finds_the_rewarded_action(action):
    _, _, series = action
    # Ten steps of reward = action, clipped: 10 is perfect, 0 is chance.
    assert series["Eval/episodic mean reward"][-1] > 8.5
    assert np.nanmean(series["Train/episodic mean reward"][-3:]) > 8.5


def test_the_policy_s_mean_and_value_are_those_of_the_rewarded_action(action):
    agent, state, _ = action
    filtered = _filtered(agent, state, np.ones((11, 2)))
    means = np.stack([policy.mean for policy in filtered.policy])
    assert means[1:].mean() > 0.9
    value = filtered.value[1:].mean()
    assert 0.75 * HORIZON < value < 1.1 * HORIZON


def test_a_finished_run_reports_its_series(action):
    _, _, series = action
    assert series["timestep"][-1] == ROWS
    assert series["Train/n_updates"][-1] == 1 + ROWS - 20
    learnt = series["Train/n_updates"] > 0
    assert np.all(np.isfinite(series["Loss/total"][learnt]))
    assert series["Loss/reconstruction"][learnt][-1] < series["Loss/reconstruction"][learnt][0]
    assert series["Train/policy_entropy"][-1] < series["Train/policy_entropy"][0]
    assert np.nanmin(series["Train/episodic mean length"]) == 10


@pytest.mark.parametrize("shown", [-1.0, 1.0])
def test_a_discrete_policy_names_what_it_sees(sign, shown):
    agent, state, _ = sign
    filtered = _filtered(agent, state, [[0.0], [shown]])
    probabilities = np.exp(filtered.policy[1].log_probs)
    assert probabilities[:, int(shown > 0)].mean() > 0.9
    # One percent of a uniform choice is always mixed in.
    assert probabilities.max() <= 0.995 + 1e-6


def test_reward_is_discounted_and_a_termination_is_worth_nothing(sign):
    agent, state, series = sign
    values = np.stack(
        [_filtered(agent, state, [[0.0], [shown]]).value.mean(axis=1) for shown in (-1.0, 1.0)]
    )
    # Bootstrapping through the termination would add GAMMA squared and more.
    np.testing.assert_allclose(values[:, 1], 1.0, atol=0.1)
    np.testing.assert_allclose(values[:, 0], GAMMA, atol=0.1)
    assert np.nanmean(series["Train/episodic mean reward"][-5:]) > 0.9
    assert np.nanmax(series["Train/episodic mean length"]) == 2
