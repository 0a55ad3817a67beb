"""DreamerV3's numerics against the original code.

Recorded from danijar/dreamerv3@29eb964 on the CPU in float32: `jaxutils.py` (symlog, symexp,
TwoHotDist, Moments) and `nets.py` (Norm, Initializer). Sizes come from the recording; the rate
and the floor of the return normaliser are the reference's defaults, with which it was recorded. Not
covered here, because other packages own it: optimizer, slow critic, block-linear layer, output
heads other than the two-hot, KL.

Registered deviations that show up as differences:

* D22: bins are float32 roundings of float64 constants. The reference computes them in float32 and
  is up to `BINS` relative away from them.
* D22: the mean is one mirrored sum of products. The reference adds pairs first (`mean`), or takes
  no care (`mode`, which is a plain expectation, and `mean_jit`, whose multiply-adds are fused).
* D23: the initialiser's constant is exact (1.13684723 instead of 1.1368).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_numerics import (
    ReturnNormalizer,
    TwoHot,
    fan_in_truncated_normal,
    percentile,
    symexp,
    symlog,
)
from wm_numerics.blocks import normalization

from . import recordings

EPS = 2.0**-23  # float32 spacing at 1
# linspace(−20, 0) in float32 rounds by up to half a spacing at 20, 9.5e-7, which symexp turns into
# a relative error; expm1 adds its own rounding.
BINS = 1.5e-6


@pytest.fixture(scope="module")
def arrays(parity_dir):
    return recordings.load_dreamerv3(parity_dir)


def two_hot_for(bins):
    """Return our two-hot with as many bins, reaching as far, as the recorded ones."""
    limit = np.log1p(np.float64(bins[-1]))
    return TwoHot.dreamerv3(num_bins=len(bins), limit=round(limit, 3))


@pytest.fixture(scope="module")
def two_hot(arrays):
    return two_hot_for(arrays["twohot/bins"])


def weight_tolerance(two_hot):
    """Return how far a weight moves when both bins around a target move by `BINS`, relative.

    Bins are a factor exp(step) apart, so the width between two is at least (1 − exp(−step)) of the
    outer one.
    """
    step = 2 * two_hot.limit / (two_hot.num_bins - 1)
    return 2 * BINS / (1 - np.exp(-step)) + 2 * EPS


@pytest.mark.parametrize(("name", "function"), [("symlog", symlog), ("symexp", symexp)])
@pytest.mark.parametrize("mode", ["y", "y_jit"])
def test_symlog_and_symexp(arrays, name, function, mode):
    # Same formula, other versions of log1p and expm1: rounding only. Infinities in the same places.
    np.testing.assert_allclose(
        jax.jit(function)(arrays[f"{name}/x"]), arrays[f"{name}/{mode}"], rtol=3 * EPS
    )


@pytest.mark.parametrize("name", ["bins", "bins_even"])
def test_bins(arrays, name):
    recorded = arrays[f"twohot/{name}"]
    bins = two_hot_for(recorded).bins
    assert bins.shape == recorded.shape
    np.testing.assert_allclose(bins, recorded, rtol=BINS)


def test_weights(arrays, two_hot):
    weights = jax.jit(two_hot.encode)(arrays["twohot/targets"])
    np.testing.assert_allclose(
        weights, arrays["twohot/weights"], rtol=0, atol=weight_tolerance(two_hot)
    )


def probabilities(arrays):
    logits = arrays["twohot/logits"].astype(np.float64)
    unnormalised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return unnormalised / unnormalised.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("name", ["mean", "mode", "mean_jit"])
def test_mean(arrays, two_hot, name):
    mean = jax.jit(two_hot.mean)(arrays["twohot/logits"])
    # Terms of size p·abs b cancel: bins are BINS apart relative to each, and float32 sums of K such
    # terms round at their total size.
    size = (probabilities(arrays) * np.abs(arrays["twohot/bins"])).sum(axis=-1)
    assert np.all(np.abs(mean - arrays[f"twohot/{name}"]) <= (BINS + 8 * EPS) * size)


def test_mean_of_uniform_logits_is_exactly_zero(arrays, two_hot):
    logits = arrays["twohot/logits"]
    uniform = np.all(logits == logits[:, :1], axis=-1)
    assert uniform.any()
    for mean in (two_hot.mean(logits), jax.jit(two_hot.mean)(logits)):
        assert np.all(np.asarray(mean)[uniform] == 0)
    assert np.all(arrays["twohot/mean"][uniform] == 0)


def test_log_prob(arrays, two_hot):
    logits = arrays["twohot/logits"]
    loss = jax.jit(two_hot.loss)(logits, arrays["twohot/targets"])
    # A weight error moves probability between neighbouring logits.
    spread = np.ptp(logits, axis=-1)
    tolerance = weight_tolerance(two_hot) * spread + 4 * EPS * (1 + np.abs(logits).max(axis=-1))
    assert np.all(np.abs(loss + arrays["twohot/log_prob"]) <= tolerance)


def test_gradient_of_log_prob(arrays, two_hot):
    targets = arrays["twohot/targets"]
    gradient = jax.jit(jax.grad(lambda x: -two_hot.loss(x, targets).sum()))
    np.testing.assert_allclose(
        gradient(arrays["twohot/logits"]),
        arrays["twohot/grad_log_prob"],
        rtol=0,
        atol=weight_tolerance(two_hot) + 4 * EPS,
    )


def test_gradient_of_mean(arrays, two_hot):
    gradient = jax.jit(jax.grad(lambda x: two_hot.mean(x).sum()))(arrays["twohot/logits"])
    recorded = arrays["twohot/grad_mean"]
    # p·(b − mean): relative to the largest p·b of the row, because the mean is shared by the row.
    largest = (probabilities(arrays) * np.abs(arrays["twohot/bins"])).max(axis=-1, keepdims=True)
    assert np.all(np.abs(gradient - recorded) <= (BINS + 8 * EPS) * largest)


def test_percentiles_of_short_inputs(arrays):
    lengths = sorted({int(n.split("/")[1]) for n in arrays if n.startswith("percentile/")})
    assert lengths, "the recording holds no percentiles"
    for n in lengths:
        x = arrays[f"percentile/{n}/x"]
        np.testing.assert_allclose(
            percentile(jnp.asarray(x), (5.0, 95.0)),
            arrays[f"percentile/{n}/q5_q95"],
            rtol=0,
            atol=recordings.percentile_tolerance(x),
            err_msg=f"{n} elements",
        )


def test_return_normalizer_over_a_chain(arrays):
    retnorm = ReturnNormalizer()
    update = jax.jit(retnorm.update)
    state, tolerance = retnorm.init(), 0.0
    for i, x in enumerate(arrays["retnorm/inputs"]):
        state = update(state, x)
        # A percentile's error enters with weight `rate`; the averages round at their own size.
        tolerance += retnorm.rate * recordings.percentile_tolerance(x)
        size = np.abs([arrays["retnorm/low"][i], arrays["retnorm/high"][i]]).max()
        for name, value in {
            "low": state.low,
            "high": state.high,
            "offset": retnorm.offset(state),
            "scale": retnorm.scale(state),
        }.items():
            np.testing.assert_allclose(
                value,
                arrays[f"retnorm/{name}"][i],
                rtol=0,
                atol=2 * tolerance + 4 * EPS * size,
                err_msg=f"{name} after {i + 1} updates",
            )


def test_rms_norm(arrays):
    scale = arrays["rms/scale"]
    y = normalization("rms", 1e-4).apply({"params": {"scale": scale}}, arrays["rms/x"])
    # A mean over the axis, a root and two products: a few roundings.
    np.testing.assert_allclose(y, arrays["rms/y"], rtol=6 * EPS)


@pytest.mark.parametrize("name", ["dense", "block"])
def test_initializer_has_the_recorded_spread(arrays, name):
    shape = tuple(int(n) for n in arrays[f"init/{name}/shape"])
    weights = fan_in_truncated_normal()(jax.random.key(0), shape, jnp.float32)
    weights = np.asarray(weights, np.float64)
    # Two samples of n values: the standard deviation of each is known to about 0.63/sqrt(n) (less
    # tail than a normal); five times that for the difference. The constants differ by 4.2e-5 (D23).
    noise = 5 * np.sqrt(2) * 0.63 / np.sqrt(weights.size) + 4.2e-5
    np.testing.assert_allclose(weights.std(), arrays[f"init/{name}/std"], rtol=noise)
    # The truncation is at 2·1.1368/sqrt(fan_in) on both sides and both samples come close to it.
    bound = 2 / 0.87962566 / np.sqrt(np.prod(shape[:-1]))
    assert np.abs(weights).max() <= bound * (1 + 2 * EPS)
    np.testing.assert_allclose(np.abs(weights).max(), arrays[f"init/{name}/max"], rtol=0.01)
