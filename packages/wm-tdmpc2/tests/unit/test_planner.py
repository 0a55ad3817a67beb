"""The planner: values from the world model, what each draw does, and what it withstands."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_tdmpc2 import draw_plan_noise, plan, planning_policy, world_model

from .tiny import make_config, moved_learner

# A plan's weights amplify the rounding of batched products.
pytestmark = pytest.mark.full_optimisation

# Plans are unrolled over the horizon; a short one compiles faster.
CONFIG = make_config(horizon=2)
PREV_MEAN = jnp.zeros((CONFIG.horizon, CONFIG.action_dim))
OBS = jnp.array([0.3, -1.0, 0.5, 2.0, -0.2])


@functools.cache
def planner(config=CONFIG, eval_mode=False):
    return jax.jit(functools.partial(plan, config=config, eval_mode=eval_mode))


def decide(obs=OBS, prev_mean=PREV_MEAN, t0=True, noise=None, eval_mode=False, wm_params=None):
    learner = moved_learner(CONFIG)
    noise = draw(0) if noise is None else noise
    wm_params = learner.wm_params if wm_params is None else wm_params
    decision = planner(eval_mode=eval_mode)(
        wm_params, learner.pi_params, obs, prev_mean, jnp.array(t0), noise
    )
    return jax.tree.map(np.asarray, decision)


@functools.cache
def draw(seed):
    return draw_plan_noise(jax.random.key(seed), config=CONFIG)


@jax.jit
def values_from_the_world_model(learner, obs, candidates, terminal_eps, q_pair, key):
    """Σ γ^t R(z_t, a_t) + γ^H·½(Q_i + Q_j)(z_H, π(z_H)), one candidate `[H, A]` after the other."""
    z = world_model.encode(learner.wm_params, obs, config=CONFIG)
    z = jnp.broadcast_to(z, (CONFIG.num_samples, CONFIG.latent_dim))
    total = jnp.zeros(CONFIG.num_samples)
    for t in range(CONFIG.horizon):
        logits = world_model.reward(learner.wm_params, z, candidates[t], config=CONFIG)
        total += CONFIG.gamma**t * CONFIG.two_hot.mean(logits)
        z = world_model.next(learner.wm_params, z, candidates[t], config=CONFIG)
    action = world_model.pi(learner.pi_params, z, terminal_eps, config=CONFIG).action
    two = world_model.q_pair(learner.wm_params["q"], z, action, q_pair, key, config=CONFIG)
    return total + CONFIG.gamma**CONFIG.horizon * jnp.mean(two, axis=0)


def candidates_of_iteration(decision, noise, iteration):
    """Policy trajectories first, then samples around the mean before the iteration."""
    if iteration == 0:
        mean, std = np.zeros_like(decision.mean), np.full_like(decision.mean, CONFIG.max_std)
    else:
        mean, std = decision.trace.mean[iteration - 1], decision.trace.std[iteration - 1]
    sampled = np.clip(mean[:, None] + std[:, None] * noise.mppi_eps[iteration], -1, 1)
    return np.concatenate([decision.trace.pi_actions, sampled], axis=1)


@pytest.mark.parametrize("iteration", range(CONFIG.iterations))
def test_values_are_those_of_the_world_models_functions(iteration):
    """The planner shares first layers between networks and candidates; the numbers stay."""
    decision, noise = decide(), draw(0)
    candidates = candidates_of_iteration(decision, noise, iteration)
    values = values_from_the_world_model(
        moved_learner(CONFIG),
        OBS,
        jnp.asarray(candidates),
        noise.terminal_eps[iteration],
        noise.q_pair[iteration],
        noise.dropout[iteration],
    )
    np.testing.assert_allclose(decision.trace.value[iteration], values, rtol=1e-4, atol=1e-4)


def test_refitting_follows_its_formula():
    """In float64 from the trace: elites by value, exp(τΔV), weighted mean and biased deviation."""
    decision, noise = decide(), draw(0)
    for i in range(CONFIG.iterations):
        value = decision.trace.value[i].astype(np.float64)
        elites = np.argsort(-value)[: CONFIG.num_elites]
        np.testing.assert_array_equal(decision.trace.elite_idx[i], elites)
        score = np.exp(CONFIG.temperature * (value[elites] - value.max()))
        score /= score.sum()
        np.testing.assert_allclose(decision.trace.score[i], score, rtol=1e-5)
        actions = candidates_of_iteration(decision, noise, i)[:, elites]
        mean = np.einsum("e,hea->ha", score, actions)
        np.testing.assert_allclose(decision.trace.mean[i], mean, atol=1e-5)
        variance = np.einsum("e,hea->ha", score, (actions - mean[:, None]) ** 2)
        std = np.clip(np.sqrt(variance), CONFIG.min_std, CONFIG.max_std)
        np.testing.assert_allclose(decision.trace.std[i], std, atol=1e-5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**31),
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=5, max_size=5),
    st.booleans(),
)
def test_actions_stay_in_the_unit_box_and_deviations_in_their_range(seed, obs, t0):
    noise = draw_plan_noise(jax.random.key(seed), config=CONFIG)
    prev_mean = jnp.tanh(noise.mppi_eps[0, :, 0])
    decision = decide(jnp.array(obs, jnp.float32), prev_mean, t0, noise)
    assert np.all(np.abs(decision.action) <= 1) and np.all(np.abs(decision.mean) <= 1 + 1e-6)
    std = decision.trace.std
    assert np.all((std >= CONFIG.min_std) & (std <= CONFIG.max_std))
    np.testing.assert_allclose(decision.trace.score.sum(axis=1), 1, rtol=1e-5)


def test_eval_mode_leaves_out_the_final_noise_and_nothing_else():
    noise = draw(0)
    noisy, clean = decide(eval_mode=False), decide(eval_mode=True)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), noisy.trace, clean.trace)
    expected = np.clip(clean.action + clean.trace.std[-1, 0] * noise.final_eps, -1, 1)
    np.testing.assert_allclose(noisy.action, expected, atol=1e-6)
    silent = decide(noise=noise._replace(final_eps=jnp.zeros(CONFIG.action_dim)))
    np.testing.assert_allclose(silent.action, clean.action, atol=1e-6)
    # The rest stays random in eval mode.
    assert np.any(decide(noise=draw(1), eval_mode=True).action != clean.action)


def test_the_mean_starts_at_zero_or_at_the_previous_one_shifted():
    warm = jnp.tanh(jax.random.normal(jax.random.key(3), PREV_MEAN.shape))
    start = decide(t0=True)
    np.testing.assert_array_equal(decide(prev_mean=warm, t0=True).mean, start.mean)
    np.testing.assert_array_equal(decide(prev_mean=PREV_MEAN * 0, t0=False).mean, start.mean)
    shifted = decide(prev_mean=warm, t0=False)
    assert np.any(shifted.mean != start.mean)
    # The first row is the step that has been taken: it drops out.
    other = warm.at[0].set(0.9)
    np.testing.assert_array_equal(decide(prev_mean=other, t0=False).mean, shifted.mean)
    assert np.any(decide(prev_mean=warm.at[1].set(0.9), t0=False).mean != shifted.mean)


@pytest.mark.parametrize("chosen", range(CONFIG.num_elites))
def test_the_executed_elite_is_drawn_by_inverse_cdf_in_order_of_value(chosen):
    """A uniform number in the middle of an elite's share of the scores draws that elite."""
    score = decide(eval_mode=True).trace.score[-1].astype(np.float64)
    u = (np.cumsum(score)[chosen] - score[chosen] / 2) / score.sum()
    noise = draw(0)._replace(elite_uniform=jnp.float32(u))
    decision = decide(noise=noise, eval_mode=True)
    candidates = candidates_of_iteration(decision, noise, CONFIG.iterations - 1)
    first_action = candidates[0, decision.trace.elite_idx[-1, chosen]]
    np.testing.assert_allclose(decision.action, first_action, atol=1e-5)


def test_the_largest_uniform_number_still_draws_an_elite():
    noise = draw(0)._replace(elite_uniform=jnp.float32(1 - 2.0**-24))
    decision = decide(noise=noise, eval_mode=True)
    candidates = candidates_of_iteration(decision, noise, CONFIG.iterations - 1)
    first_actions = candidates[0, decision.trace.elite_idx[-1]]
    assert np.abs(first_actions - decision.action).max(axis=1).min() < 1e-5


@pytest.mark.parametrize("eval_mode", [False, True])
def test_values_that_are_not_numbers_count_as_zero(eval_mode):
    """A broken reward head cannot make the action NaN: all candidates are then equally good."""
    wm_params = moved_learner(CONFIG).wm_params
    broken = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), wm_params["reward"])
    decision = decide(wm_params=wm_params | {"reward": broken}, eval_mode=eval_mode)
    np.testing.assert_array_equal(decision.trace.value, 0)
    np.testing.assert_allclose(decision.trace.score, 1 / CONFIG.num_elites, rtol=1e-6)
    assert np.all(np.isfinite(decision.action)) and np.all(np.isfinite(decision.mean))


def test_planning_works_without_policy_trajectories():
    config = make_config(horizon=2, num_pi_trajs=0)
    learner = moved_learner(config)
    noise = draw_plan_noise(jax.random.key(0), config=config)
    decision = planner(config)(
        learner.wm_params, learner.pi_params, OBS, PREV_MEAN, jnp.array(True), noise
    )
    assert decision.trace.pi_actions.shape == (2, 0, 3)
    assert np.all(np.isfinite(decision.action))


# --- environments side by side --------------------------------------------------------------------


@jax.jit
def act(learner, prev_mean, obs, is_first, key):
    policy = planning_policy(learner, config=CONFIG, eval_mode=False)
    return policy(prev_mean, obs, is_first, key)


def three_environments():
    obs = jax.random.normal(jax.random.key(5), (3, CONFIG.obs_dim))
    mean = jnp.tanh(jax.random.normal(jax.random.key(6), (3, *PREV_MEAN.shape)))
    return mean, obs, jnp.array([False, True, False])


def test_environments_plan_apart_from_each_other():
    mean, obs, is_first = three_environments()
    key = jax.random.key(7)
    actions, means, extras = act(moved_learner(CONFIG), mean, obs, is_first, key)
    assert actions.shape == (3, 3) and means.shape == (3, *PREV_MEAN.shape) and extras is None
    spoilt = act(
        moved_learner(CONFIG), mean.at[1].set(jnp.nan), obs.at[2].set(jnp.nan), is_first, key
    )
    # The second environment begins an episode, so that it does not read its mean.
    np.testing.assert_array_equal(spoilt[0][:2], actions[:2])
    np.testing.assert_array_equal(spoilt[1][:2], means[:2])


def test_environments_with_equal_inputs_draw_differently():
    mean, obs, _ = three_environments()
    equal_obs, equal_mean = obs.at[1:].set(obs[0]), mean.at[1:].set(mean[0])
    actions, _, _ = act(
        moved_learner(CONFIG), equal_mean, equal_obs, jnp.zeros(3, bool), jax.random.key(8)
    )
    assert np.any(actions[0] != actions[1]) and np.any(actions[1] != actions[2])


def test_a_batch_of_environments_plans_as_each_would_alone_with_the_same_pairs():
    """Deviation T28: in one tick all environments use the pairs of the first."""
    mean, obs, is_first = three_environments()
    key = jax.random.key(9)
    actions, means, _ = act(moved_learner(CONFIG), mean, obs, is_first, key)
    draws = [draw_plan_noise(k, config=CONFIG) for k in jax.random.split(key, 3)]
    moved = []
    for i, noise in enumerate(draws):
        alone = decide(obs[i], mean[i], is_first[i], noise._replace(q_pair=draws[0].q_pair))
        np.testing.assert_allclose(actions[i], alone.action, atol=1e-5)
        np.testing.assert_allclose(means[i], alone.mean, atol=1e-5)
        with_own_pair = decide(obs[i], mean[i], is_first[i], noise)
        moved.append(np.max(np.abs(with_own_pair.mean - alone.mean)))
    assert max(moved) > 4e-4
