"""Percentiles and the two moving averages built on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_numerics import (
    ReturnNormalizer,
    ReturnNormalizerState,
    RunningScale,
    RunningScaleState,
    percentile,
)

properties = settings(max_examples=40, deadline=None, derandomize=True)


def test_percentile_interpolates_between_neighbours():
    x = jnp.array([[30.0, 10.0], [20.0, 40.0]])
    assert percentile(x, 50) == 25.0
    np.testing.assert_allclose(percentile(x, (0, 5, 95, 100)), [10, 11.5, 38.5, 40], rtol=1e-6)


def test_positions_of_a_batch_of_256():
    # 0.05·255 = 12.75 and 0.95·255 = 242.25.
    x = jax.random.permutation(jax.random.key(0), jnp.arange(256.0))
    np.testing.assert_allclose(percentile(x, (5.0, 95.0)), [12.75, 242.25], rtol=1e-6)


@properties
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=7, max_size=7), st.floats(0, 100))
def test_percentile_is_numpys(values, q):
    x = np.float32(values)
    tolerance = 1e-6 * max(1e-30, np.abs(x).max())
    expected = np.percentile(x.astype(np.float64), q)
    np.testing.assert_allclose(percentile(x, q), expected, rtol=0, atol=tolerance)


def test_percentile_of_one_element_is_that_element():
    np.testing.assert_array_equal(percentile(jnp.float32(3.5), (5.0, 95.0)), [3.5, 3.5])


def test_nan_stays_visible_and_infinities_do_not_spread():
    x = jnp.arange(21.0)
    assert np.all(np.isnan(percentile(x.at[3].set(jnp.nan), (5.0, 95.0))))
    # 5 and 95 percent of 21 values fall exactly on elements 1 and 19: the infinite neighbours
    # are not read.
    spiked = x.at[0].set(-jnp.inf).at[20].set(jnp.inf)
    np.testing.assert_array_equal(percentile(spiked, (5.0, 95.0)), [1, 19])
    assert percentile(spiked, 100) == np.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_percentile_keeps_the_dtype(dtype):
    with jax.enable_x64(dtype == np.float64):
        assert percentile(jnp.arange(5, dtype=dtype), 5.0).dtype == dtype


@pytest.mark.parametrize(
    ("x", "q", "sentence"),
    [
        (jnp.zeros((0,)), 5.0, r"at least one element, got shape \(0,\)"),
        (jnp.arange(3), 5.0, "must be floating, got int32"),
        (jnp.zeros(3), 101.0, r"must lie in \[0, 100\], got 101.0"),
        (jnp.zeros(3), (5.0, -1.0), r"must lie in \[0, 100\], got \(5.0, -1.0\)"),
    ],
)
def test_percentile_refuses_bad_input_with_a_sentence(x, q, sentence):
    with pytest.raises(ValueError, match=sentence):
        percentile(x, q)


def test_return_normalizer_starts_at_zero_and_is_not_debiased():
    retnorm = ReturnNormalizer()
    state = retnorm.init()
    assert state == ReturnNormalizerState(low=0.0, high=0.0)
    assert retnorm.scale(state) == 1.0
    # Percentiles of 0..100 are 5 and 95.
    state = retnorm.update(state, jnp.arange(101.0))
    np.testing.assert_allclose([state.low, state.high], [0.05, 0.95], rtol=1e-6)
    assert retnorm.scale(state) == 1.0  # the range 0.9 is below the floor
    state = retnorm.update(state, jnp.arange(101.0))
    np.testing.assert_allclose(
        [state.low, state.high], [0.99 * 0.05 + 0.05, 0.99 * 0.95 + 0.95], rtol=1e-6
    )
    np.testing.assert_allclose(retnorm.scale(state), 1.99 * 0.9, rtol=1e-6)
    assert retnorm.offset(state) == state.low


def test_return_normalizer_uses_its_settings():
    retnorm = ReturnNormalizer(rate=0.5, limit=10.0, low_percentile=0.0, high_percentile=100.0)
    state = retnorm.update(retnorm.init(), jnp.array([-8.0, 0.0, 4.0]))
    np.testing.assert_allclose([state.low, state.high], [-4.0, 2.0])
    assert retnorm.scale(state) == 10.0


def test_running_scale_follows_the_range_and_never_falls_below_one():
    running = RunningScale()
    state = running.init()
    assert state == RunningScaleState(scale=1.0)
    state = running.update(state, jnp.full((6, 1), 7.0))  # no spread: the floor
    np.testing.assert_allclose(state.scale, 1.0, rtol=1e-6)
    state = running.update(state, jnp.arange(101.0))  # spread 90
    np.testing.assert_allclose(state.scale, 0.99 + 0.9, rtol=1e-6)
    for _ in range(3):
        state = running.update(state, jnp.zeros(4))
    assert state.scale >= 1.0


def test_running_scale_shows_a_broken_batch():
    running = RunningScale(tau=0.5)
    state = running.update(running.init(), jnp.array([1.0, jnp.nan, 2.0]))
    assert np.isnan(state.scale)


@pytest.mark.parametrize("normaliser", [ReturnNormalizer(), RunningScale()])
def test_updates_are_pure_vmap_and_let_no_gradient_through(normaliser):
    batch = jnp.stack([jnp.arange(9.0), 100 * jnp.arange(9.0)])
    states = jax.vmap(lambda _: normaliser.init())(jnp.arange(2))
    update = jax.jit(jax.vmap(normaliser.update))
    together = update(states, batch)
    for seed in range(2):
        alone = normaliser.update(normaliser.init(), batch[seed])
        for one, many in zip(alone, together, strict=True):
            np.testing.assert_allclose(one, many[seed], rtol=1e-6)
            assert one.dtype == jnp.float32 and one.shape == ()
    assert jax.tree.structure(together) == jax.tree.structure(states)
    gradient = jax.grad(lambda x: sum(normaliser.update(normaliser.init(), x)))(batch[0])
    np.testing.assert_array_equal(gradient, np.zeros(9))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ReturnNormalizer(rate=0.0), r"rate .* must lie in \(0, 1\], got 0.0"),
        (lambda: ReturnNormalizer(limit=0.0), "limit must be above 0, got 0.0"),
        (
            lambda: ReturnNormalizer(low_percentile=95.0, high_percentile=5.0),
            "0 <= low < high <= 100, got 95.0 and 5.0",
        ),
        (lambda: RunningScale(tau=1.5), r"tau .* must lie in \(0, 1\], got 1.5"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
