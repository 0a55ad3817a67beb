"""TD-MPC2's numerics against the original code.

Recorded from nicklashansen/tdmpc2@5f6fade (its arithmetic here is that of b67b21c) on the CPU in
float32: `common/math.py` (symlog, symexp, two_hot, two_hot_inv, soft_ce), `common/scale.py`
(RunningScale) and `common/layers.py` (Mish, NormedLinear). Sizes, bins and the EMA rate come from
the recording. Not covered here, because other packages own it: SimNorm, the Gaussian policy head,
the discount heuristic.

Registered deviations that show up as differences:

* D22, T24: log1p and expm1 instead of log(1 + ·) and exp(·) − 1. The reference's symlog of 1e-8 is
  0 and that of 6e-8 is 1.19e-7: an absolute difference of at most one float32 spacing at 1, 1.2e-7.
* D22, T24: bins are float32 roundings of float64 constants (the reference's torch.linspace is off
  by up to 4.8e-7 and not mirrored), and the expectation is a mirrored sum.
* T25: the moving average is written (1 − tau)·S + tau·v.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_numerics import RunningScale, TwoHot, normal, percentile, symexp, symlog
from wm_numerics.blocks import NormedMLP, mish

from . import recordings

EPS = 2.0**-23  # float32 spacing at 1


@pytest.fixture(scope="module")
def recording(parity_dir):
    return recordings.load_tdmpc2(parity_dir)


@pytest.fixture(scope="module")
def arrays(recording):
    return recording[0]


@pytest.fixture(scope="module")
def two_hot(recording):
    config = recording[1]["config"]
    assert config["vmin"] == -config["vmax"], "only symmetric ranges are supported (T24)"
    return TwoHot.tdmpc2(num_bins=config["num_bins"], limit=config["vmax"])


def position_rounding(two_hot):
    """Return how far a weight may be off because the reference's (x − vmin) / bin_size is float32.

    The position is at most K − 1 and both its steps round, each by half a spacing at K; the
    recorded bins add nothing because encoding does not use them.
    """
    return two_hot.num_bins * EPS


def test_symlog(arrays):
    # Relative 3 EPS for the logarithm's rounding; absolute EPS is the deviation near 0.
    np.testing.assert_allclose(symlog(arrays["targets"]), arrays["symlog"], rtol=3 * EPS, atol=EPS)


def test_symexp(arrays):
    # exp(x) − 1 rounds at exp(x): relative 2 EPS of 1 + abs y, which is the deviation near 0.
    np.testing.assert_allclose(
        symexp(arrays["symexp_in"]), arrays["symexp"], rtol=3 * EPS, atol=2 * EPS
    )


def test_two_hot(arrays, two_hot):
    weights = jax.jit(two_hot.encode)(arrays["targets"][:, 0])
    np.testing.assert_allclose(weights, arrays["two_hot"], rtol=0, atol=position_rounding(two_hot))


def test_two_hot_of_infinities_is_the_outermost_bin(arrays, two_hot):
    weights = two_hot.encode(np.float32([np.inf, -np.inf]))
    np.testing.assert_array_equal(weights, arrays["two_hot_inf"])


def test_two_hot_inverse(arrays, two_hot):
    logits = arrays["logits"]
    value, recorded = jax.jit(two_hot.mean)(logits), arrays["two_hot_inv"][:, 0]
    # In symlog space: recorded bins are off by up to half a spacing at the limit (the middle one
    # is -1.2e-7, not 0), and the mirrored sum stays within half a spacing times 1 + 6·E_p abs b of
    # the plain one (T24). symexp multiplies both by 1 + abs y.
    unnormalised = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probs = unnormalised / unnormalised.sum(axis=-1, keepdims=True)
    of_bins = np.spacing(np.float32(two_hot.limit)) / 2
    of_sum = EPS / 2 * (1 + 6 * (probs * np.abs(two_hot.bins)[None]).sum(axis=-1))
    error_in_symlog = of_bins + of_sum
    assert np.all(np.abs(value - recorded) <= error_in_symlog * (1 + np.abs(recorded)))
    # A uniform row decodes to exactly 0.
    equal = np.all(logits == logits[:, :1], axis=-1)
    assert equal.any() and np.all(np.asarray(value)[equal] == 0)


def test_soft_cross_entropy(arrays, two_hot):
    logits = arrays["logits"][arrays["soft_ce_logit_row"]]
    loss = jax.jit(two_hot.loss)(logits, arrays["targets"][:, 0])
    # A weight error moves probability between two neighbouring logits, whose distance is at most
    # the spread of the row; log-softmax itself rounds at the largest logit.
    spread = np.ptp(logits, axis=-1)
    tolerance = position_rounding(two_hot) * spread + 4 * EPS * (1 + np.abs(logits).max(axis=-1))
    assert np.all(np.abs(loss - arrays["soft_ce"][:, 0]) <= tolerance)


def test_gradient_of_soft_cross_entropy(arrays, two_hot):
    rows = arrays["soft_ce_grad_rows"]
    logits = arrays["logits"][arrays["soft_ce_logit_row"][rows]]
    targets = arrays["targets"][rows, 0]
    gradient = jax.jit(jax.grad(lambda x: two_hot.loss(x, targets).sum()))(logits)
    # softmax − weights: the softmax agrees to a few EPS relative to 1, the weights as above. At
    # logits around 1e4 the reference subtracts a rounded log-sum: relative 1e4·EPS/2 of the
    # probability.
    size = EPS * np.abs(logits).max(axis=-1, keepdims=True) / 2
    tolerance = position_rounding(two_hot) + 4 * EPS + size
    assert np.all(np.abs(gradient - arrays["soft_ce_grad"]) <= tolerance)


def scale_cases(arrays):
    cases = sorted({name.split("/")[0] for name in arrays if name.startswith("scale")})
    assert cases, "the recording holds no RunningScale chain"
    return cases


def test_percentiles_and_running_scale_over_a_chain(recording):
    arrays, meta = recording
    running = RunningScale(tau=meta["config"]["tau"])
    update = jax.jit(running.update)
    for case in scale_cases(arrays):
        batches = arrays[f"{case}/x"]
        state = running.init()
        tolerance = 0.0
        for i, x in enumerate(batches):
            of_percentile = recordings.percentile_tolerance(x)
            np.testing.assert_allclose(
                percentile(jnp.asarray(x), (5.0, 95.0)),
                arrays[f"{case}/percentiles"][i, :, 0],
                rtol=0,
                atol=of_percentile,
            )
            state = update(state, x)
            # The error of both percentiles enters with weight tau and fades with 1 − tau; each of
            # the two ways to write the average (T25) rounds twice.
            recorded = arrays[f"{case}/value"][i]
            tolerance = (1 - running.tau) * tolerance + running.tau * 2 * of_percentile
            np.testing.assert_allclose(
                state.scale, recorded, rtol=2 * (i + 1) * EPS, atol=tolerance
            )
            # The reference multiplies by 1/S, we divide: one more rounding each.
            np.testing.assert_allclose(
                x / state.scale,
                arrays[f"{case}/x_over_scale"][i],
                rtol=(2 * (i + 1) + 2) * EPS + tolerance / recorded,
            )


def test_mish(arrays):
    x = arrays["mish/x"]
    value, gradient = jax.jit(lambda a: jax.jvp(mish, (a,), (jnp.ones_like(a),)))(x)
    # Relative to the size of the value; both sides evaluate an exponential to about 2 EPS.
    np.testing.assert_allclose(value, arrays["mish/y"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(gradient, arrays["mish/grad"], rtol=0, atol=1e-6)


def test_normed_linear_with_mish_forward_and_gradients(arrays):
    name = "normed_linear_mish"
    weight = arrays[f"{name}/weight"]  # [out, in]
    mlp = NormedMLP(
        hidden=(weight.shape[0],),
        activation="mish",
        norm="layer",
        norm_eps=1e-5,
        kernel_init=normal(),
    )
    params = {
        "linear_0": {"kernel": weight.T, "bias": arrays[f"{name}/bias"]},
        "norm_0": {"scale": arrays[f"{name}/ln.weight"], "bias": arrays[f"{name}/ln.bias"]},
    }

    @jax.jit
    def forward_and_gradients(params, x):
        y, pullback = jax.vjp(lambda p, v: mlp.apply({"params": p}, v), params, x)
        return y, *pullback(jnp.asarray(arrays[f"{name}/w"]))

    with jax.default_matmul_precision("highest"):
        y, of_params, of_x = forward_and_gradients(params, arrays[f"{name}/x"])
    np.testing.assert_allclose(y, arrays[f"{name}/y"], rtol=2e-6, atol=2e-6)
    gradients = {
        "grad_weight": of_params["linear_0"]["kernel"].T,
        "grad_bias": of_params["linear_0"]["bias"],
        "grad_ln.weight": of_params["norm_0"]["scale"],
        "grad_ln.bias": of_params["norm_0"]["bias"],
        "grad_x": of_x,
    }
    for key, gradient in gradients.items():
        recorded = arrays[f"{name}/{key}"]
        # Sums of positive and negative terms: rounding is relative to the array's largest entry.
        np.testing.assert_allclose(
            gradient, recorded, rtol=0, atol=3e-6 * np.abs(recorded).max(), err_msg=key
        )
