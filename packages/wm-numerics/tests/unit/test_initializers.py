"""Distributions of initial weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_numerics import fan_in_truncated_normal, normal, zeros


@pytest.mark.parametrize(
    ("shape", "fan_in"),
    [((200, 300), 200), ((8, 100, 60), 800)],
    ids=["dense", "block-linear counts its full input width"],
)
def test_fan_in_truncated_normal_has_variance_one_over_fan_in(shape, fan_in):
    weights = np.asarray(fan_in_truncated_normal()(jax.random.key(0), shape, jnp.float32))
    # The standard deviation of 50,000 draws is known to about 0.3 %.
    np.testing.assert_allclose(weights.std(), fan_in**-0.5, rtol=0.012)
    assert abs(weights.mean()) < 5 * fan_in**-0.5 / np.sqrt(weights.size)
    # Truncated at two standard deviations of the normal before truncation.
    bound = 2 / 0.87962566 * fan_in**-0.5
    assert 0.98 * bound < np.abs(weights).max() <= bound * (1 + 1e-6)


def test_outscale_is_a_factor_and_zero_gives_exact_zeros():
    key, shape = jax.random.key(1), (5, 7)
    full = fan_in_truncated_normal()(key, shape, jnp.float32)
    np.testing.assert_allclose(
        fan_in_truncated_normal(0.1)(key, shape, jnp.float32), 0.1 * full, rtol=1e-6
    )
    np.testing.assert_array_equal(
        fan_in_truncated_normal(0.0)(key, shape, jnp.float32), np.zeros(shape)
    )


def test_normal_is_not_truncated():
    weights = np.asarray(normal()(jax.random.key(2), (400, 300), jnp.float32))
    np.testing.assert_allclose(weights.std(), 0.02, rtol=0.01)
    # Of 120,000 normal draws about 5,500 lie beyond two standard deviations, and 7 beyond four.
    assert 0.042 < np.mean(np.abs(weights) > 0.04) < 0.049
    assert np.abs(weights).max() > 0.08
    assert normal(0.5)(jax.random.key(2), (400, 300), jnp.float32).std() > 0.49


def test_zeros_and_dtypes():
    for initializer in (fan_in_truncated_normal(), normal(), zeros):
        weights = initializer(jax.random.key(3), (3, 4), jnp.bfloat16)
        assert weights.shape == (3, 4) and weights.dtype == jnp.bfloat16
    assert not np.any(zeros(jax.random.key(4), (3, 4), jnp.float32))


def test_negative_scales_are_refused_with_a_sentence():
    with pytest.raises(ValueError, match=r"outscale must be at least 0, got -1\.0"):
        fan_in_truncated_normal(-1.0)
    with pytest.raises(ValueError, match=r"stddev must be at least 0, got -0\.02"):
        normal(-0.02)
