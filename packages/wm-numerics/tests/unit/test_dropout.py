"""The dropout mask is one independent Bernoulli draw per unit, however it is produced."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_numerics.dropout import dropout, dropped_units

# Drawn by gaps and drawn unit by unit.
both_ways = pytest.mark.parametrize("rate", [0.07, 0.3], ids=["gaps", "unit by unit"])


@functools.partial(jax.jit, static_argnums=(1, 2))
def mask(key, rate, size):
    return dropped_units(key, rate, size)


@functools.partial(jax.jit, static_argnums=2)
def value_and_gradient(x, key, rate):
    y, pullback = jax.vjp(lambda v: dropout(v, key, rate), x)
    return y, pullback(jnp.ones_like(y))[0]


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def many_masks(key, rate, size, n_keys):
    return jax.vmap(lambda k: dropped_units(k, rate, size))(jax.random.split(key, n_keys))


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1, 0.25])
def test_the_share_of_dropped_units_is_the_rate(rate):
    size = 200_000
    masks = np.asarray(many_masks(jax.random.key(0), rate, size, 4))
    sigma = np.sqrt(rate * (1 - rate) / size)
    np.testing.assert_allclose(masks.mean(axis=1), rate, rtol=0, atol=4.5 * sigma)
    # No thinning towards the end: the last tenth has the same rate as the whole.
    tail = masks[:, -size // 10 :].mean()
    np.testing.assert_allclose(tail, rate, rtol=0, atol=4.5 * sigma * np.sqrt(10 / 4))


@both_ways
def test_every_pattern_of_three_units_has_the_probability_of_independent_draws(rate):
    n = 40_000
    masks = np.asarray(many_masks(jax.random.key(1), rate, 3, n))
    counts = np.bincount(masks @ [1, 2, 4], minlength=8)
    n_dropped = np.array([bin(pattern).count("1") for pattern in range(8)])
    expected = n * rate**n_dropped * (1 - rate) ** (3 - n_dropped)
    chi_square = np.sum((counts - expected) ** 2 / expected)
    assert chi_square < 29.9  # 7 degrees of freedom, p = 1e-4


@both_ways
def test_units_are_uncorrelated_at_every_position(rate):
    n, size = 30_000, 24
    masks = np.asarray(many_masks(jax.random.key(2), rate, size, n)).astype(np.float64)
    np.testing.assert_allclose(
        masks.mean(axis=0), rate, rtol=0, atol=4.5 * np.sqrt(rate * (1 - rate) / n)
    )
    correlation = np.corrcoef(masks.T) - np.eye(size)
    assert np.abs(correlation).max() < 5 / np.sqrt(n)


def test_gaps_between_dropped_units_are_geometric():
    rate, size = 0.02, 500_000
    positions = np.flatnonzero(many_masks(jax.random.key(3), rate, size, 1)[0])
    gaps = np.diff(positions) - 1  # kept units in between, from 0
    # Twenty classes of equal probability under P(gap >= g) = (1 - rate)^g, as far as integers go.
    edges = np.unique(np.floor(np.log1p(-np.arange(1, 20) / 20) / np.log1p(-rate)).astype(int))
    survival = np.concatenate([[1.0], (1 - rate) ** edges, [0.0]])
    expected = len(gaps) * -np.diff(survival)
    counts = np.histogram(gaps, bins=np.concatenate([[0], edges, [size]]))[0]
    chi_square = np.sum((counts - expected) ** 2 / expected)
    assert chi_square < len(expected) + 5 * np.sqrt(2 * len(expected))
    # Successive gaps do not know each other.
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 5 / np.sqrt(len(gaps))


def test_keys_decide_the_mask_and_members_differ():
    key = jax.random.key(4)
    np.testing.assert_array_equal(mask(key, 0.05, 5_000), mask(key, 0.05, 5_000))
    keys = jax.random.split(key, 2)
    members = many_masks(key, 0.05, 5_000, 2)
    np.testing.assert_array_equal(members[1], mask(keys[1], 0.05, 5_000))
    # Two members share dropped units only by chance: 5,000·0.05² = 12.5.
    assert int(jnp.sum(members[0] & members[1])) < 35


@both_ways
def test_dropout_scales_what_it_keeps_and_so_does_its_gradient(rate):
    key = jax.random.key(5)
    x = jax.random.normal(key, (6, 50, 7))
    dropped = np.asarray(mask(key, rate, x.size)).reshape(x.shape)
    assert 0 < dropped.sum() < dropped.size
    y, gradient = value_and_gradient(x, key, rate)
    np.testing.assert_allclose(y, np.where(dropped, 0, x / (1 - rate)), rtol=1e-6)
    np.testing.assert_allclose(gradient, np.where(dropped, 0, 1 / (1 - rate)), rtol=1e-6)
    assert y.dtype == x.dtype


def test_dropout_works_per_seed_and_per_member():
    keys = jax.random.split(jax.random.key(6), (2, 3))
    x = jnp.ones((2, 3, 40, 10))
    y = jax.jit(jax.vmap(jax.vmap(lambda v, k: dropout(v, k, 0.1))))(x, keys)
    for seed, member in np.ndindex(2, 3):
        np.testing.assert_array_equal(
            y[seed, member], value_and_gradient(x[seed, member], keys[seed, member], 0.1)[0]
        )


def test_rate_zero_is_the_identity():
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(dropout(x, jax.random.key(7), 0.0), x)
    assert not np.any(dropped_units(jax.random.key(7), 0.0, 6))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_is_kept(dtype):
    with jax.enable_x64(dtype == np.float64):
        y, gradient = value_and_gradient(jnp.ones(64, dtype), jax.random.key(8), 0.05)
    assert y.dtype == gradient.dtype == dtype


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_outside_its_range_is_refused_with_a_sentence(rate):
    with pytest.raises(ValueError, match=rf"in \[0, 1\); got {rate}"):
        dropped_units(jax.random.key(9), rate, 4)
    with pytest.raises(ValueError, match=rf"in \[0, 1\); got {rate}"):
        dropout(jnp.ones(4), jax.random.key(9), rate)
