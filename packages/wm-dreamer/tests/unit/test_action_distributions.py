"""The actor's distributions: values of the specification, ranges, draws and densities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_dreamer.action_distributions import (
    CategoricalAction,
    NormalAction,
    action_distribution,
    action_vector,
)

from .tiny import make_config

CONTINUOUS, DISCRETE = make_config(), make_config(discrete=True)
RAW = st.floats(-1e4, 1e4, width=32)


def normal(mean, std):
    outputs = {"mean": jnp.asarray(mean, jnp.float32), "std": jnp.asarray(std, jnp.float32)}
    return action_distribution(outputs, config=CONTINUOUS)


def categorical(logits, config=DISCRETE):
    return action_distribution({"logits": jnp.asarray(logits, jnp.float32)}, config=config)


# --- continuous -----------------------------------------------------------------------------------


def test_mean_deviation_and_density_of_the_specifications_example():
    policy = normal([0.3], [-1.0])
    assert isinstance(policy, NormalAction)
    np.testing.assert_allclose(policy.mean, [0.29131261], rtol=1e-6)
    np.testing.assert_allclose(policy.std, [0.75795275], rtol=1e-6)
    np.testing.assert_allclose(policy.log_prob(jnp.array([1.2])), -1.3604500, rtol=1e-6)


def test_a_zero_output_has_the_specifications_deviation_and_entropy():
    policy = normal([0.0], [0.0])
    np.testing.assert_allclose(policy.std, [0.89271730], rtol=1e-6)
    np.testing.assert_allclose(policy.entropy(), 1.30545321, rtol=1e-6)


@pytest.mark.parametrize(("raw", "entropy"), [(-1e4, -0.88364656), (1e4, 1.41893853)])
def test_entropy_at_the_ends_of_the_range(raw, entropy):
    np.testing.assert_allclose(normal([0.0], [raw]).entropy(), entropy, rtol=1e-6)


@given(mean=RAW, std=RAW)
@settings(max_examples=50, deadline=None)
def test_mean_and_deviation_stay_in_their_ranges(mean, std):
    policy = normal([mean], [std])
    assert abs(policy.mean[0]) <= 1
    assert 0.1 <= policy.std[0] * (1 + 1e-6) and policy.std[0] <= 1 + 1e-6
    assert np.isfinite(policy.log_prob(policy.sample(jnp.array([3.0]))))


def test_a_sample_may_leave_the_action_box():
    policy = normal([3.0, -3.0], [5.0, 5.0])
    np.testing.assert_allclose(
        policy.sample(jnp.array([2.0, -2.0])), policy.mean + policy.std * jnp.array([2.0, -2.0])
    )
    assert policy.sample(jnp.array([2.0, -2.0]))[0] > 2


def test_density_integrates_to_one_and_is_summed_over_dimensions():
    policy = normal([[0.4]], [[-2.0]])
    density = np.exp(np.float64(policy.log_prob(jnp.linspace(-6, 6, 4001)[:, None])))
    np.testing.assert_allclose(np.sum(density) * 12 / 4000, 1, rtol=1e-4)
    entropy = -np.sum(density * np.log(density + 1e-300)) * 12 / 4000
    np.testing.assert_allclose(policy.entropy(), [entropy], rtol=1e-3)
    both, action = normal([0.4, -0.1], [-2.0, 1.0]), jnp.array([0.3, 0.2])
    parts = [normal([m], [s]) for m, s in ((0.4, -2.0), (-0.1, 1.0))]
    np.testing.assert_allclose(
        both.log_prob(action),
        sum(part.log_prob(action[i : i + 1]) for i, part in enumerate(parts)),
        rtol=1e-6,
    )
    np.testing.assert_allclose(both.entropy(), sum(part.entropy() for part in parts), rtol=1e-6)


# --- discrete -------------------------------------------------------------------------------------


def test_probabilities_of_the_specifications_example():
    policy = categorical([1.0, 0.0, -2.0])
    assert isinstance(policy, CategoricalAction)
    expected = [0.70166403, 0.26023486, 0.03810117]
    np.testing.assert_allclose(np.exp(policy.log_probs), expected, rtol=1e-6)
    np.testing.assert_allclose(policy.entropy(), 0.72341651, rtol=1e-6)


def test_log_prob_is_of_the_mixture():
    policy = categorical([[50.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    action = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(policy.log_prob(action), np.log([0.01 / 3, 1 / 3]), rtol=1e-5)


def test_the_actors_mixture_is_its_own_setting():
    pure = categorical([1.0, 0.0, -2.0], make_config(discrete=True, actor_unimix=0.0, unimix=0.5))
    expected = [0.70538455, 0.25949648, 0.03511903]
    np.testing.assert_allclose(np.exp(pure.log_probs), expected, rtol=1e-6)


def test_evenly_spread_noise_draws_actions_in_proportion():
    policy = categorical(jnp.broadcast_to(jnp.array([1.0, 0.0, -2.0]), (10_000, 3)))
    actions = policy.sample((jnp.arange(10_000) + 0.5) / 10_000)
    assert set(np.unique(actions)) == {0.0, 1.0}
    np.testing.assert_array_equal(np.sum(actions, axis=-1), 1)
    counts = np.sum(actions, axis=0)
    np.testing.assert_allclose(counts, 10_000 * np.exp(policy.log_probs[0]), atol=1.1)


def test_an_action_can_be_forced():
    policy = categorical(jnp.zeros((3, 3)))
    np.testing.assert_array_equal(policy.sample(jnp.array([1.0, 2.0, 3.0])), np.eye(3))


def test_samples_carry_no_gradient_of_a_discrete_policy():
    def total(logits):
        return jnp.sum(categorical(logits).sample(jnp.array([0.4])) * jnp.array([[1.0, 2.0, 3.0]]))

    np.testing.assert_array_equal(jax.grad(total)(jnp.zeros((1, 3))), 0)


# --- as the networks read them --------------------------------------------------------------------


def test_indices_become_one_hots_and_vectors_stay():
    indices = jnp.array([[0, 2], [1, 1]], jnp.int32)
    np.testing.assert_array_equal(action_vector(indices, config=DISCRETE), np.eye(3)[indices])
    raw = jnp.array([[5.0, -7.0, 0.1]])
    np.testing.assert_array_equal(action_vector(raw, config=CONTINUOUS), raw)
