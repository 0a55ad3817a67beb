"""Everything once more in float64, against NumPy written from the formulas.

In float64 a wrong formula cannot hide behind rounding. Bins are the float32 values in both (they
are constants of the method). Inputs are random with values at, between and beyond the bins.
"""

import jax
import numpy as np
import pytest

from wm_numerics import (
    ReturnNormalizer,
    ReturnNormalizerState,
    RunningScale,
    RunningScaleState,
    TwoHot,
    percentile,
)

two_hots = pytest.mark.parametrize(
    "two_hot",
    [
        TwoHot.dreamerv3(),
        TwoHot.dreamerv3(num_bins=33, limit=7.0),
        TwoHot.tdmpc2(),
        TwoHot.tdmpc2(num_bins=18, limit=4.0),
    ],
    ids=lambda t: f"{t.bin_space}-{t.num_bins}",
)


def to_bin_space(two_hot, y):
    return np.sign(y) * np.log1p(np.abs(y)) if two_hot.bin_space == "symlog" else y


def oracle_weights(two_hot, y):
    """Return two-hot weights by looking up each target's interval, one at a time."""
    bins = np.asarray(two_hot.bins, np.float64)
    weights = np.zeros((len(y), len(bins)))
    for row, x in zip(weights, to_bin_space(two_hot, y), strict=True):
        x = min(max(x, bins[0]), bins[-1])
        k = max(i for i in range(len(bins) - 1) if bins[i] <= x)
        row[k + 1] = (x - bins[k]) / (bins[k + 1] - bins[k])
        row[k] = 1 - row[k + 1]
    return weights


@two_hots
def test_two_hot(two_hot):
    rng = np.random.default_rng(0)
    bins = np.asarray(two_hot.bins, np.float64)
    raw_bins = bins if two_hot.bin_space == "raw" else np.sign(bins) * np.expm1(np.abs(bins))
    y = np.concatenate([raw_bins, [0, 1e12, -1e12], rng.normal(size=20), rng.normal(size=20) * 300])
    logits = 3 * rng.normal(size=(len(y), len(bins)))
    weights = oracle_weights(two_hot, y)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expectation = (probs * bins).sum(-1)
    loss = -(weights * np.log(probs)).sum(-1)
    with jax.enable_x64(True):
        ours = jax.jit(
            lambda z, t: (
                two_hot.encode(t),
                two_hot.loss(z, t),
                jax.grad(lambda a: two_hot.loss(a, t).sum())(z),
                two_hot.mean(z),
                two_hot.decode(jax.nn.softmax(z)),
            )
        )(logits, y)
    encoded, our_loss, gradient, mean, decoded = (np.asarray(a) for a in ours)
    np.testing.assert_allclose(encoded, weights, atol=1e-13)
    np.testing.assert_allclose(our_loss, loss, rtol=1e-12)
    np.testing.assert_allclose(gradient, probs - weights, atol=1e-13)
    for value in (mean, decoded):
        np.testing.assert_allclose(
            to_bin_space(two_hot, value), expectation, rtol=1e-12, atol=1e-14 * bins[-1]
        )


@pytest.mark.parametrize("n", [1, 2, 21, 256, 1000])
def test_percentile(n):
    x = np.random.default_rng(n).normal(size=n)
    ordered = sorted(x)
    expected = []
    for q in (0.0, 5.0, 33.3, 95.0, 100.0):
        position = q / 100 * (n - 1)
        low = int(position)
        high = min(low + 1, n - 1)
        expected.append(ordered[low] + (position - low) * (ordered[high] - ordered[low]))
    with jax.enable_x64(True):
        ours = percentile(jax.numpy.asarray(x), (0.0, 5.0, 33.3, 95.0, 100.0))
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-13)


def test_moving_averages():
    rng = np.random.default_rng(1)
    retnorm, running = ReturnNormalizer(rate=0.1), RunningScale(tau=0.2)
    low, high, scale = 0.0, 0.0, 1.0
    with jax.enable_x64(True):
        of_returns = ReturnNormalizerState(np.float64(0), np.float64(0))
        of_values = RunningScaleState(np.float64(1))
        update = jax.jit(lambda r, s, x: (retnorm.update(r, x), running.update(s, x)))
        for size in (0.01, 5.0, 300.0, 1.0):
            x = size * rng.normal(size=(6, 4)) + 1
            p5, p95 = np.percentile(x, [5, 95])
            low, high = 0.9 * low + 0.1 * p5, 0.9 * high + 0.1 * p95
            scale = 0.8 * scale + 0.2 * max(1.0, p95 - p5)
            of_returns, of_values = update(of_returns, of_values, x)
            np.testing.assert_allclose(
                [of_returns.low, of_returns.high, of_values.scale], [low, high, scale], rtol=1e-12
            )
            np.testing.assert_allclose(retnorm.scale(of_returns), max(1.0, high - low), rtol=1e-12)
