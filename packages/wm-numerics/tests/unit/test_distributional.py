"""Symlog, symexp and two-hot: what the docstrings promise, at the edges where it could break."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_numerics import TwoHot, symexp, symlog

properties = settings(max_examples=40, deadline=None, derandomize=True)
any_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
DREAMERV3 = TwoHot.dreamerv3()
TDMPC2 = TwoHot.tdmpc2()
both_agents = pytest.mark.parametrize("two_hot", [DREAMERV3, TDMPC2], ids=["dreamerv3", "tdmpc2"])
both_agents_and_parities = pytest.mark.parametrize(
    "two_hot",
    [DREAMERV3, TwoHot.dreamerv3(num_bins=32), TDMPC2, TwoHot.tdmpc2(num_bins=6, limit=3.0)],
    ids=["dreamerv3", "dreamerv3-even", "tdmpc2", "tdmpc2-even"],
)
both_widths = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@functools.partial(jax.jit, static_argnums=0)
def encode(two_hot, y):
    return two_hot.encode(y)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(two_hot, logits, y):
    return two_hot.loss(logits, y), jax.grad(lambda x: two_hot.loss(x, y).sum())(logits)


@functools.partial(jax.jit, static_argnums=0)
def mean_and_gradient(two_hot, logits):
    return two_hot.mean(logits), jax.grad(lambda x: two_hot.mean(x).sum())(logits)


@jax.jit
def round_trip(x):
    return symlog(x), jax.vmap(jax.grad(symlog))(x), symexp(symlog(x))


def edge_targets(two_hot):
    """Zero, both neighbours of every bin in raw units, beyond both ends, and huge values."""
    bins = np.asarray(two_hot.bins, np.float64)
    raw = bins if two_hot.bin_space == "raw" else np.sign(bins) * np.expm1(np.abs(bins))
    raw = raw.astype(np.float32)
    below, above = np.nextafter(raw, np.float32(-np.inf)), np.nextafter(raw, np.float32(np.inf))
    extra = np.float32([0, -0.0, 1e-45, -1e-38, 1e-12, 3e9, -3e9, 1e30, -1e30, 3.4e38, -3.4e38])
    return np.concatenate([raw, below, above, extra])


# --- symlog and symexp ---------------------------------------------------------------------------


def test_symlog_and_symexp_have_known_values():
    np.testing.assert_allclose(symlog(jnp.array([0.0, 1.0, -99.0])), [0, np.log(2), -np.log(100)])
    np.testing.assert_allclose(symexp(jnp.array([0.0, 1.0, -2.0])), [0, np.e - 1, 1 - np.e**2])


@pytest.mark.parametrize("function", [symlog, symexp])
def test_slope_at_zero_is_one(function):
    assert jax.grad(function)(0.0) == 1.0
    assert jax.grad(function)(-0.0) == 1.0


def test_small_values_are_not_lost():
    tiny = np.float32([1e-30, -1e-12, 1e-8])
    np.testing.assert_allclose(symlog(tiny), tiny, rtol=1e-6)
    np.testing.assert_allclose(symexp(tiny), tiny, rtol=1e-6)


@properties
@given(st.lists(st.floats(-(2.0**126), 2.0**126, width=32), min_size=8, max_size=8))
def test_symexp_undoes_symlog_and_gradients_are_finite(values):
    x = np.float32(values)
    y, slope, back = (np.asarray(a) for a in round_trip(x))
    assert np.all(np.sign(y) == np.sign(x) * (np.abs(y) > 0))
    # symlog(x) near 88 has an ulp of 7.6e-6, which symexp turns into a relative error.
    np.testing.assert_allclose(back, x, rtol=2e-5, atol=1e-37)
    assert np.all(np.isfinite(slope)) and np.all((slope >= 0) & (slope <= 1))


def test_non_finite_values_stay_visible():
    x = np.float32([np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(symlog(x), x)
    np.testing.assert_array_equal(symexp(x), x)
    np.testing.assert_array_equal(symexp(np.float32([100, -100])), [np.inf, -np.inf])


# --- bins ----------------------------------------------------------------------------------------


@both_agents_and_parities
def test_bins_are_float32_increasing_and_exactly_mirrored(two_hot):
    bins = np.asarray(two_hot.bins)
    assert bins.dtype == np.float32 and bins.shape == (two_hot.num_bins,)
    np.testing.assert_array_equal(bins, -bins[::-1])
    assert np.all(np.diff(bins) >= 0)
    # Only DreamerV3's even count repeats a bin: the two zeros in the middle.
    repeats = two_hot.bin_space == "raw" and two_hot.num_bins % 2 == 0
    assert np.sum(np.diff(bins) == 0) == int(repeats)
    assert not np.any(np.signbit(bins[bins == 0]))


def test_dreamerv3_bins_are_symexp_of_equally_spaced_points():
    points = np.linspace(-20, 20, 255)
    np.testing.assert_array_equal(
        DREAMERV3.bins, (np.sign(points) * np.expm1(np.abs(points))).astype(np.float32)
    )


def test_tdmpc2_bins_are_equally_spaced():
    np.testing.assert_array_equal(TDMPC2.bins, ((np.arange(101) - 50) / 5).astype(np.float32))


# --- encode --------------------------------------------------------------------------------------


def test_encode_interpolates_raw_values_for_dreamerv3():
    weights = np.asarray(encode(DREAMERV3, np.float32([1.0, 0.1, 100.0, -3.7])))
    expected = [  # bins and weights worked out by hand from the bins' formula
        (131, 0.61732968, 0.38267032),
        (127, 0.41368844, 0.58631156),
        (156, 0.71053020, 0.28946979),
        (117, 0.81556680, 0.18443320),
    ]
    for row, (k, low, high) in zip(weights, expected, strict=True):
        np.testing.assert_allclose(row[[k, k + 1]], [low, high], atol=2e-6)
        assert np.count_nonzero(row) == 2


def test_encode_interpolates_symlog_values_for_tdmpc2():
    row = np.asarray(encode(TDMPC2, jnp.float32(1.0)))
    position = (np.log(2) + 10) / 0.2
    np.testing.assert_allclose(row[[53, 54]], [54 - position, position - 53], atol=3e-6)
    assert np.count_nonzero(row) == 2


@both_agents_and_parities
def test_values_on_a_bin_get_exactly_one_weight(two_hot):
    if two_hot.bin_space == "raw":
        weights = np.asarray(encode(two_hot, two_hot.bins))
        expected = np.eye(two_hot.num_bins)
        if two_hot.num_bins % 2 == 0:  # of two zero bins the upper one is used
            middle = two_hot.num_bins // 2
            expected[middle - 1] = expected[middle]
        np.testing.assert_array_equal(weights, expected)
    else:
        # Raw values whose symlog is exactly a bin: 0 and everything beyond the ends.
        ends = np.asarray(encode(two_hot, np.float32([1e9, -1e9])))
        np.testing.assert_array_equal(ends, np.eye(two_hot.num_bins)[[-1, 0]])
    if two_hot.num_bins % 2:
        zero = np.asarray(encode(two_hot, jnp.float32(0.0)))
        np.testing.assert_array_equal(zero, np.eye(two_hot.num_bins)[two_hot.num_bins // 2])


def check_two_hot(two_hot, y, weights):
    weights = np.asarray(weights, np.float64)
    assert np.all((weights >= 0) & (weights <= 1))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=2.5e-7)
    first = np.argmax(weights > 0, axis=-1)
    last = weights.shape[-1] - 1 - np.argmax(weights[:, ::-1] > 0, axis=-1)
    # Two neighbours; around the two zero bins of an even DreamerV3 grid, no more either.
    assert np.all(last - first <= 1)
    x = np.asarray(y, np.float64)
    if two_hot.bin_space == "symlog":
        x = np.sign(x) * np.log1p(np.abs(x))
    bins = np.asarray(two_hot.bins, np.float64)
    x = np.clip(x, bins[0], bins[-1])
    # The expectation undoes the encoding, up to rounding of the weights times the bins.
    scale = np.abs(bins)[np.minimum(first + 1, len(bins) - 1)] + np.abs(bins)[first]
    assert np.all(np.abs((weights * bins).sum(-1) - x) <= 5e-7 * scale + 1e-30)


@both_agents_and_parities
def test_weights_are_two_neighbours_at_every_edge(two_hot):
    y = edge_targets(two_hot)
    check_two_hot(two_hot, y, encode(two_hot, y))


@both_agents_and_parities
@properties
@given(y=st.lists(any_float32, min_size=8, max_size=8))
def test_weights_are_two_neighbours_for_any_target(two_hot, y):
    check_two_hot(two_hot, y, encode(two_hot, np.float32(y)))


@both_agents
def test_infinite_targets_clip_to_the_ends_and_nan_stays_nan(two_hot):
    weights = np.asarray(encode(two_hot, np.float32([np.inf, -np.inf, np.nan])))
    np.testing.assert_array_equal(weights[:2], np.eye(two_hot.num_bins)[[-1, 0]])
    assert np.all(np.isnan(weights[2]))
    loss, _ = loss_and_gradient(
        two_hot, jnp.zeros((3, two_hot.num_bins)), np.float32([np.inf, -np.inf, np.nan])
    )
    np.testing.assert_allclose(loss, [np.log(two_hot.num_bins)] * 2 + [np.nan], rtol=1e-6)


# --- decode, mean, mode --------------------------------------------------------------------------


@both_agents_and_parities
@pytest.mark.parametrize("compiled", [False, True])
def test_uniform_probabilities_decode_to_exactly_zero(two_hot, compiled):
    wrap = jax.jit if compiled else lambda f: f
    k = two_hot.num_bins
    assert np.all(np.asarray(wrap(two_hot.decode)(jnp.full((3, k), 1 / k))) == 0)
    logits = jnp.broadcast_to(jnp.float32([0.0, 1.0, -7.3, 1e4, 1e-9])[:, None], (5, k))
    assert np.all(np.asarray(wrap(two_hot.mean)(logits)) == 0)
    softmaxed = wrap(lambda x: two_hot.decode(jax.nn.softmax(x)))(logits)
    assert np.all(np.asarray(softmaxed) == 0)


@both_agents
def test_decode_undoes_encode(two_hot):
    y = np.float32([0, 1e-3, -0.5, 1, -3.7, 42, 1e3, -2e4])
    np.testing.assert_allclose(two_hot.decode(encode(two_hot, y)), y, rtol=1e-5, atol=1e-6)


@both_agents
def test_mean_is_decode_of_softmax(two_hot):
    logits = 3 * jax.random.normal(jax.random.key(0), (4, two_hot.num_bins))
    mean, _ = mean_and_gradient(two_hot, logits)
    # Float32 rounding of a sum that cancels: relative to Σ p·abs b, times the slope of symexp.
    probs = np.asarray(jax.nn.softmax(logits), np.float64)
    size = (probs * np.abs(np.asarray(two_hot.bins, np.float64))).sum(-1)
    slope = 1 + np.abs(mean) if two_hot.bin_space == "symlog" else 1
    decoded = jax.jit(two_hot.decode)(probs.astype(np.float32))
    error = np.abs(np.asarray(mean) - np.asarray(decoded))
    assert np.all(error <= 1e-6 * size * slope)


@both_agents
def test_gradient_of_the_mean_is_the_softmax_formula(two_hot):
    logits = jax.random.normal(jax.random.key(1), (4, two_hot.num_bins))
    _, gradient = mean_and_gradient(two_hot, logits)
    x = np.asarray(logits, np.float64)
    probs = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    bins = np.asarray(two_hot.bins, np.float64)
    mean = (probs * bins).sum(-1, keepdims=True)
    expected = probs * (bins - mean)
    if two_hot.bin_space == "symlog":
        expected *= np.exp(np.abs(mean))
    np.testing.assert_allclose(gradient, expected, atol=3e-6 * np.abs(expected).max())


def test_mode_is_the_most_probable_bin_in_raw_units():
    logits = jnp.zeros((2, 101)).at[0, 60].set(1.0).at[1, 3].set(0.1)
    np.testing.assert_allclose(TDMPC2.mode(logits), [np.expm1(2.0), -np.expm1(9.4)], rtol=1e-6)
    logits = jnp.zeros((1, 255)).at[0, 130].set(1.0)
    np.testing.assert_array_equal(DREAMERV3.mode(logits), DREAMERV3.bins[130:131])


# --- loss ----------------------------------------------------------------------------------------


@both_agents
def test_loss_of_equal_logits_is_log_of_the_bin_count(two_hot):
    y = edge_targets(two_hot)
    loss, _ = loss_and_gradient(two_hot, jnp.full((len(y), two_hot.num_bins), 3.3), y)
    np.testing.assert_allclose(loss, np.log(two_hot.num_bins), rtol=1e-6)


def test_loss_has_the_worked_values_of_dreamerv3():
    logits = jnp.broadcast_to(jnp.sin(0.1 * jnp.arange(255)), (4, 255))
    loss, _ = loss_and_gradient(DREAMERV3, logits, np.float32([0, 1, -3.7, 1e9]))
    np.testing.assert_allclose(loss, [5.6425972, 5.2352476, 6.5251864, 5.5117407], rtol=1e-6)


@both_agents
def test_gradient_of_the_loss_is_softmax_minus_weights(two_hot):
    y = edge_targets(two_hot)
    logits = 5 * jax.random.normal(jax.random.key(2), (len(y), two_hot.num_bins))
    _, gradient = loss_and_gradient(two_hot, logits, y)
    expected = np.asarray(jax.nn.softmax(logits)) - np.asarray(encode(two_hot, y))
    np.testing.assert_allclose(gradient, expected, atol=3e-7)


@both_agents
@both_widths
@properties
@given(
    y=st.lists(any_float32, min_size=2, max_size=2),
    peaks=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=4, max_size=4),
)
def test_loss_mean_and_gradients_are_finite_for_any_target(two_hot, dtype, y, peaks):
    with jax.enable_x64(dtype == np.float64):
        logits = np.zeros((2, two_hot.num_bins), dtype)
        logits[:, [0, two_hot.num_bins // 2]] = np.reshape(peaks, (2, 2))
        results = loss_and_gradient(two_hot, logits, np.asarray(y, dtype))
        results += mean_and_gradient(two_hot, logits)
    for result in results:
        assert result.dtype == dtype
        assert np.all(np.isfinite(result))
    assert np.all(np.asarray(results[0]) >= -1e-6)


@both_agents
def test_no_gradient_flows_into_the_target(two_hot):
    logits = jax.random.normal(jax.random.key(3), (3, two_hot.num_bins))
    slope = jax.jit(jax.grad(lambda y: two_hot.loss(logits, y).sum()))
    gradient = slope(jnp.array([0.0, 1.5, -20.0]))
    np.testing.assert_array_equal(gradient, np.zeros(3))


# --- the object ----------------------------------------------------------------------------------


@both_agents
def test_rows_do_not_affect_each_other(two_hot):
    logits = jax.random.normal(jax.random.key(4), (2, 3, two_hot.num_bins))
    y = jnp.array([[0.0, 1.0, -5.0], [7.0, 1e5, 0.2]])
    together, _ = loss_and_gradient(two_hot, logits, y)
    alone = jax.jit(jax.vmap(jax.vmap(two_hot.loss)))(logits, y)
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    np.testing.assert_array_equal(encode(two_hot, y)[1, 2], encode(two_hot, y[1, 2]))


@both_agents
@both_widths
def test_dtypes_are_kept(two_hot, dtype):
    with jax.enable_x64(dtype == np.float64):
        logits = np.zeros((2, two_hot.num_bins), dtype)
        y = np.zeros(2, dtype)
        results = [
            jax.eval_shape(symlog, y),
            jax.eval_shape(symexp, y),
            jax.eval_shape(two_hot.encode, y),
            jax.eval_shape(two_hot.loss, logits, y),
            jax.eval_shape(two_hot.decode, logits),
            jax.eval_shape(two_hot.mean, logits),
            jax.eval_shape(two_hot.mode, logits),
        ]
    assert {result.dtype for result in results} == {np.dtype(dtype)}


def test_two_hot_is_a_hashable_value():
    assert TwoHot.tdmpc2() == TDMPC2 and hash(TwoHot.tdmpc2()) == hash(TDMPC2)
    assert TwoHot.tdmpc2(num_bins=51) != TDMPC2
    assert TwoHot.dreamerv3(num_bins=101, limit=10.0) != TDMPC2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((1, 10.0, "raw"), "num_bins must be at least 2, got 1"),
        ((101, 0.0, "raw"), "limit must be above 0 and at most 88 .* got 0.0"),
        ((101, 89.0, "symlog"), "limit must be above 0 and at most 88 .* got 89.0"),
        ((101, 10.0, "log"), "bin_space must be 'raw' or 'symlog', got 'log'"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        TwoHot(*arguments)


@pytest.mark.parametrize("method", ["decode", "mean", "mode"])
def test_a_wrong_number_of_bins_is_refused(method):
    with pytest.raises(ValueError, match=r"\[\.\.\., 101\], one entry per bin, got \(2, 100\)"):
        getattr(TDMPC2, method)(jnp.zeros((2, 100)))


def test_targets_with_a_trailing_axis_are_refused_instead_of_broadcast():
    with pytest.raises(ValueError, match=r"\(4,\), got \(4, 1\).*y\[\.\.\., 0\]"):
        TDMPC2.loss(jnp.zeros((4, 101)), jnp.zeros((4, 1)))
    with pytest.raises(ValueError, match=r"logits must have shape \[\.\.\., 101\]"):
        TDMPC2.loss(jnp.zeros((4, 102)), jnp.zeros(4))
