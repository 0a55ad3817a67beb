"""Categorical latents: the mixture, draws from explicit noise, straight-through, KL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wm_dreamer import latents

C = 6
BELOW_ONE = np.float32(1 - 2.0**-24)


@pytest.fixture(scope="module")
def sample():
    return jax.jit(latents.one_hot_sample)


def mixed(logits, unimix=0.01):
    return latents.mix_uniform(jnp.asarray(logits, jnp.float32), unimix)


# Rows of one shape, so that every example runs the same compiled program.
LOGITS = hnp.arrays(
    np.float32, (4, C), elements=st.floats(-60, 60, width=32, allow_subnormal=False)
)
NOISE = hnp.arrays(
    np.float32,
    (4,),
    elements=st.one_of(
        st.sampled_from([0.0, 2.0**-24, 0.5, float(BELOW_ONE)]),
        st.floats(0, float(BELOW_ONE), width=32, allow_subnormal=False),
    ),
)


# --- mixture --------------------------------------------------------------------------------------


def test_the_mixture_of_the_specifications_example():
    """Logits (1, 0, −2) with 1 % uniform: the original's worked value."""
    log_probs = mixed([1.0, 0.0, -2.0])
    expected = [0.70166403, 0.26023486, 0.03810117]
    np.testing.assert_allclose(np.exp(log_probs), expected, rtol=1e-6)
    np.testing.assert_allclose(latents.entropy(log_probs), 0.72341651, rtol=1e-6)


def test_without_mixture_it_is_the_log_softmax():
    logits = jnp.array([[3.0, -80.0, 0.5]])
    np.testing.assert_allclose(mixed(logits, 0), jax.nn.log_softmax(logits), rtol=1e-6)


@given(logits=LOGITS)
@settings(max_examples=50, deadline=None)
def test_the_mixture_is_normalised_and_has_a_floor(logits):
    probs = np.exp(np.float64(mixed(logits)))
    np.testing.assert_allclose(probs.sum(axis=-1), 1, rtol=1e-6)
    assert probs.min() >= 0.01 / C * (1 - 1e-6)
    assert np.all(np.isfinite(np.asarray(mixed(logits))))


def test_gradients_of_a_saturated_mixture_are_finite():
    gradient = jax.grad(lambda x: jnp.sum(mixed(x) ** 2))(jnp.array([200.0, 0.0, -200.0]))
    assert np.all(np.isfinite(gradient))


# --- draws ----------------------------------------------------------------------------------------


@given(logits=LOGITS, noise=NOISE)
@settings(max_examples=100, deadline=None)
def test_a_draw_inverts_the_cumulative_distribution(sample, logits, noise):
    """Class k is drawn for u in [F(k − 1), F(k)), but for roundings of F."""
    log_probs = mixed(logits)
    _, classes = sample(log_probs, noise)
    assert classes.dtype == jnp.int32
    cumulative = np.cumsum(np.exp(np.float64(log_probs)), axis=-1)
    edges = np.concatenate([np.zeros((4, 1)), cumulative], axis=-1)
    rows, threshold = np.arange(4), noise * cumulative[:, -1]
    assert np.all(edges[rows, classes] <= threshold + 1e-6)
    assert np.all(threshold <= edges[rows, np.asarray(classes) + 1] + 1e-6)


def test_the_ends_of_the_unit_interval_give_the_first_and_the_last_class(sample):
    """Also where those classes have no more than the share of the uniform distribution."""
    for logits in (np.zeros(C), np.array([-50.0, 0, 0, 0, 0, -50.0]), np.eye(C)[2] * 50):
        log_probs = jnp.broadcast_to(mixed(logits), (4, C))
        _, classes = sample(log_probs, jnp.array([0.0, 2.0**-24, 1 - 2.0**-23, BELOW_ONE]))
        np.testing.assert_array_equal(classes, [0, 0, C - 1, C - 1])


def test_evenly_spread_noise_draws_every_class_in_proportion():
    log_probs = mixed([2.0, -1.0, 0.0, 1.0, -6.0, 0.5])
    n = 20_000
    noise = (jnp.arange(n) + 0.5) / n
    classes = latents.sample_classes(jnp.broadcast_to(log_probs, (n, C)), noise)
    counts = np.bincount(np.asarray(classes), minlength=C)
    np.testing.assert_allclose(counts, n * np.exp(log_probs), atol=1.1)


@given(logits=LOGITS, k=st.integers(0, C - 1))
@settings(max_examples=30, deadline=None)
def test_noise_one_plus_k_forces_class_k_whatever_the_probabilities(sample, logits, k):
    _, classes = sample(mixed(logits), np.full(4, 1 + k, np.float32))
    np.testing.assert_array_equal(classes, k)


def test_latents_are_drawn_one_by_one():
    """A latent's draw depends on its own noise and probabilities only."""
    log_probs = mixed(np.random.default_rng(0).normal(size=(2, 3, C)))
    noise = jnp.array([[0.1, 0.6, 0.9], [0.3, 0.2, 0.99]])
    together = latents.sample_classes(log_probs, noise)
    for i in np.ndindex(2, 3):
        assert together[i] == latents.sample_classes(log_probs[i], noise[i])


# --- straight-through -----------------------------------------------------------------------------


@given(logits=LOGITS, noise=NOISE)
@settings(max_examples=50, deadline=None)
def test_the_value_of_a_sample_is_exactly_one_hot(sample, logits, noise):
    one_hot, classes = sample(mixed(logits), noise)
    np.testing.assert_array_equal(one_hot, np.eye(C, dtype=np.float32)[np.asarray(classes)])


def test_the_gradient_of_a_sample_is_that_of_the_mixed_probabilities():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, C)), jnp.float32)
    cotangent = jnp.asarray(np.random.default_rng(1).normal(size=(4, C)), jnp.float32)
    noise = jnp.array([0.1, 0.4, 0.7, 0.95])

    def of_sample(logits):
        return jnp.sum(cotangent * latents.one_hot_sample(mixed(logits), noise)[0])

    def of_probabilities(logits):
        probs = 0.99 * jax.nn.softmax(logits) + 0.01 / C
        return jnp.sum(cotangent * probs)

    expected = jax.grad(of_probabilities)(logits)
    np.testing.assert_allclose(jax.grad(of_sample)(logits), expected, rtol=1e-5, atol=1e-7)


def test_no_gradient_flows_through_the_choice_of_a_class():
    def chosen(log_probs, noise):
        return jnp.sum(latents.sample_classes(log_probs, noise).astype(jnp.float32))

    gradients = jax.grad(chosen, (0, 1))(mixed(np.ones((2, C))), jnp.array([0.2, 0.7]))
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0)


# --- entropy and KL -------------------------------------------------------------------------------


def test_entropy_is_largest_for_equal_probabilities():
    np.testing.assert_allclose(latents.entropy(mixed(np.zeros(C))), np.log(C), rtol=1e-6)
    assert latents.entropy(mixed([3.0, 0, 0, 0, 0, 0])) < np.log(C)


def test_kl_is_summed_over_the_latents_and_not_symmetric():
    rng = np.random.default_rng(0)
    log_p, log_q = (mixed(rng.normal(size=(2, 3, C))) for _ in range(2))
    p, q = (np.exp(np.float64(x)) for x in (log_p, log_q))
    expected = np.sum(p * np.log(p / q), axis=(-2, -1))
    kl = latents.kl_divergence(log_p, log_q)
    assert kl.shape == (2,)
    np.testing.assert_allclose(kl, expected, rtol=1e-5)
    assert np.all(np.abs(kl - latents.kl_divergence(log_q, log_p)) > 1e-3)


@given(logits=LOGITS)
@settings(max_examples=30, deadline=None)
def test_kl_to_itself_is_exactly_zero(logits):
    log_p = mixed(logits)
    assert latents.kl_divergence(log_p, log_p) == 0
