"""Flax layers: parameter names, the order of operations, and numbers that stay finite."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_numerics import fan_in_truncated_normal, normal, zeros
from wm_numerics.blocks import NormedMLP, activation, linear, mish, normalization, silu
from wm_numerics.dropout import dropout

TDMPC2_STYLE = functools.partial(
    NormedMLP, activation="mish", norm="layer", norm_eps=1e-5, kernel_init=normal(0.5)
)
DREAMERV3_STYLE = functools.partial(
    NormedMLP, activation="silu", norm="rms", norm_eps=1e-4, kernel_init=fan_in_truncated_normal()
)
both_styles = pytest.mark.parametrize(
    "mlp_of", [TDMPC2_STYLE, DREAMERV3_STYLE], ids=["tdmpc2", "dreamerv3"]
)


@jax.jit
def mish_and_slope(x):
    return jax.jvp(mish, (x,), (jnp.ones_like(x),))


@functools.partial(jax.jit, static_argnums=(0, 4))
def run(module, params, x, key=None, method=None):
    return (
        module.apply(params, x, method=method)
        if key is None
        else module.apply(params, x, key, method=method)
    )


@functools.partial(jax.jit, static_argnums=0)
def init(module, x, dropout_key=None):
    return module.init(jax.random.key(0), x, dropout_key)


def mish_float64(x):
    """x·tanh(softplus(x)) and its derivative, in float64."""
    softplus = np.logaddexp(0, x)
    gate = np.tanh(softplus)
    sigmoid = np.exp(-np.logaddexp(0, -x))
    # 1 − tanh² = sech², written so that it does not cancel.
    sech2 = 4 * np.exp(-2 * softplus) / (1 + np.exp(-2 * softplus)) ** 2
    return x * gate, gate + x * sech2 * sigmoid


# --- activations ---------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(-100, 100, width=32), min_size=8, max_size=8))
def test_mish_and_its_derivative_match_float64(values):
    x = np.float32(values)
    value, slope = mish_float64(x.astype(np.float64))
    y, dy = mish_and_slope(x)
    # exp(x) below 1.2e-38 is flushed to 0, which costs at most 88·1.2e-38.
    np.testing.assert_allclose(y, value, rtol=1e-6, atol=2e-36)
    np.testing.assert_allclose(dy, slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", [mish, silu])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16, np.float16])
def test_activations_are_finite_everywhere_and_keep_the_dtype(function, dtype):
    with jax.enable_x64(dtype == np.float64):
        largest = 6e4 if dtype == np.float16 else 1e30
        x = jnp.asarray([-largest, -104.0, -20.0, -0.0, 0.0, 20.0, 89.0, largest], dtype)
        value, slope = jax.jit(lambda a: jax.jvp(function, (a,), (jnp.ones_like(a),)))(x)
    assert value.dtype == slope.dtype == dtype
    x, value, slope = (np.asarray(a).astype(np.float64) for a in (x, value, slope))
    assert np.all(np.isfinite(value))
    np.testing.assert_array_equal(value[[0, 3, 4, 6, 7]], np.maximum(x, 0)[[0, 3, 4, 6, 7]])
    np.testing.assert_allclose(slope[[0, 1, 6, 7]], [0, 0, 1, 1], atol=1e-6)
    # sigmoid(0) = 1/2 and tanh(ln 2) = 3/5.
    np.testing.assert_allclose(slope[[3, 4]], 0.5 if function is silu else 0.6, rtol=4e-3)


def test_mish_in_float64_is_exact_around_its_saturation():
    with jax.enable_x64(True):
        x = np.linspace(-45, 45, 181)
        value, slope = mish_float64(x)
        y, dy = mish_and_slope(x)
    np.testing.assert_allclose(y, value, rtol=1e-14)
    np.testing.assert_allclose(dy, slope, rtol=1e-13, atol=1e-30)


def test_activations_are_found_by_name():
    assert activation("mish") is mish and activation("silu") is silu
    with pytest.raises(ValueError, match="activation must be 'mish' or 'silu', got 'relu'"):
        activation("relu")


# --- linear and norms ----------------------------------------------------------------------------


def test_linear_multiplies_adds_and_names():
    layer = linear(3, kernel_init=normal(1.0))
    params = layer.init(jax.random.key(0), jnp.ones((2, 4)))["params"]
    assert params["kernel"].shape == (4, 3) and not np.any(params["bias"])
    without = linear(3, kernel_init=normal(1.0), use_bias=False)
    assert set(without.init(jax.random.key(0), jnp.ones((2, 4)))["params"]) == {"kernel"}


def norm_float64(kind, x, eps, scale, bias=None):
    x = np.asarray(x, np.float64)
    if kind == "rms":
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + eps) * scale
    centred = x - x.mean(-1, keepdims=True)
    variance = np.mean(centred**2, -1, keepdims=True)
    return centred / np.sqrt(variance + eps) * scale + bias


@pytest.mark.parametrize(("kind", "eps"), [("layer", 1e-5), ("rms", 1e-4)])
def test_norms_match_float64_also_with_a_large_mean(kind, eps):
    key = jax.random.key(1)
    x = jax.random.normal(key, (4, 16)) + jnp.array([[0.0], [1e-3], [300.0], [3000.0]])
    x = jnp.concatenate([x, jnp.zeros((1, 16))])
    layer = normalization(kind, eps)
    params = layer.init(key, x)["params"]
    names = {"scale"} if kind == "rms" else {"scale", "bias"}
    assert set(params) == names
    params = {n: 0.5 + jax.random.normal(jax.random.key(2), (16,)) for n in names}
    expected = norm_float64(kind, x, eps, **{n: np.asarray(p) for n, p in params.items()})
    # At a mean of 3000 the float32 input itself resolves 2.4e-4; E[x²] − E[x]² would be off by 1.
    np.testing.assert_allclose(layer.apply({"params": params}, x), expected, atol=5e-4)
    np.testing.assert_allclose(layer.apply({"params": params}, x[:2]), expected[:2], atol=3e-6)


def test_an_unknown_norm_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match="norm must be 'layer' or 'rms', got 'batch'"):
        normalization("batch", 1e-5)


# --- NormedMLP -----------------------------------------------------------------------------------


@both_styles
def test_parameter_names_and_shapes_are_fixed(mlp_of):
    mlp = mlp_of(hidden=(6, 5), out_features=3)
    params = init(mlp, jnp.ones((2, 4)))["params"]
    norm = {"scale"} if mlp.norm == "rms" else {"scale", "bias"}
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes == {
        "linear_0": {"kernel": (4, 6), "bias": (6,)},
        "norm_0": dict.fromkeys(norm, (6,)),
        "linear_1": {"kernel": (6, 5), "bias": (5,)},
        "norm_1": dict.fromkeys(norm, (5,)),
        "out": {"kernel": (5, 3), "bias": (3,)},
    }


@both_styles
@pytest.mark.parametrize("out_features", [None, 3])
def test_layers_run_linear_norm_activation(mlp_of, out_features):
    mlp = mlp_of(hidden=(6, 5), out_features=out_features)
    x = jax.random.normal(jax.random.key(1), (2, 7, 4))
    params = init(mlp, x)["params"]
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(3), len(leaves))
    leaves = [p + 0.3 * jax.random.normal(k, p.shape) for p, k in zip(leaves, keys, strict=True)]
    params = jax.tree.unflatten(structure, leaves)
    h = np.asarray(x, np.float64)
    for i in range(2):
        layer, norm = params[f"linear_{i}"], params[f"norm_{i}"]
        h = h @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"])
        h = norm_float64(mlp.norm, h, mlp.norm_eps, **jax.tree.map(np.asarray, norm))
        h = mish_float64(h)[0] if mlp.activation == "mish" else h / (1 + np.exp(-h))
    if out_features is not None:
        h = h @ np.asarray(params["out"]["kernel"], np.float64) + np.asarray(params["out"]["bias"])
    np.testing.assert_allclose(run(mlp, {"params": params}, x), h, atol=5e-6)


@both_styles
def test_the_two_halves_make_the_whole(mlp_of):
    mlp = mlp_of(hidden=(6, 5), out_features=3, dropout=0.2)
    x, key = jax.random.normal(jax.random.key(4), (8, 4)), jax.random.key(5)
    params = init(mlp, x, key)
    h = run(mlp, params, x, None, "preactivation")
    first = params["params"]["linear_0"]
    np.testing.assert_allclose(h, x @ first["kernel"] + first["bias"][None], rtol=1e-6, atol=1e-6)
    rest = run(mlp, params, h, key, "from_preactivation")
    np.testing.assert_allclose(rest, run(mlp, params, x, key), rtol=1e-6, atol=1e-6)


def test_dropout_sits_before_the_first_norm_and_nowhere_else():
    rate, key = 0.2, jax.random.key(7)
    with_dropout = TDMPC2_STYLE(hidden=(30, 20), out_features=3, dropout=rate)
    without = TDMPC2_STYLE(hidden=(30, 20), out_features=3)
    h = jax.random.normal(jax.random.key(8), (5, 30))
    params = init(without, jnp.ones((5, 4)))
    masked = dropout(h, key, rate)
    expected = run(without, params, masked, None, "from_preactivation")
    dropped = run(with_dropout, params, h, key, "from_preactivation")
    np.testing.assert_allclose(dropped, expected, rtol=1e-5, atol=1e-6)
    plain = run(without, params, h, None, "from_preactivation")
    assert np.abs(dropped - plain).max() > 1e-2


def test_members_and_seeds_get_their_own_masks():
    mlp = TDMPC2_STYLE(hidden=(64,), out_features=2, dropout=0.1)
    x = jnp.ones((3, 4))
    params = init(mlp, x, jax.random.key(0))
    keys = jax.random.split(jax.random.key(11), (2, 5))
    apply = lambda k: mlp.apply(params, x, k)  # noqa: E731
    outputs = jax.jit(jax.vmap(jax.vmap(apply)))(keys)
    assert outputs.shape == (2, 5, 3, 2)
    np.testing.assert_allclose(outputs[1, 4], run(mlp, params, x, keys[1, 4]), rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.asarray(outputs)[..., 0])) == 2 * 5 * 3  # rows differ, too


def test_a_missing_dropout_key_is_refused_with_a_sentence():
    mlp = TDMPC2_STYLE(hidden=(4,), dropout=0.01)
    with pytest.raises(ValueError, match=r"dropout=0\.01 needs a dropout_key in every call"):
        mlp.init(jax.random.key(0), jnp.ones((1, 2)))


def test_output_layers_may_have_their_own_initial_weights():
    mlp = TDMPC2_STYLE(hidden=(6,), out_features=3, out_kernel_init=zeros)
    x = jax.random.normal(jax.random.key(12), (2, 4))
    params = init(mlp, x)
    assert np.any(params["params"]["linear_0"]["kernel"])
    np.testing.assert_array_equal(run(mlp, params, x), np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden": ()}, "hidden must name at least one width"),
        ({"norm": "batch"}, "norm must be 'layer' or 'rms', got 'batch'"),
        ({"activation": "elu"}, "activation must be 'mish' or 'silu', got 'elu'"),
        ({"dropout": 1.0}, r"in \[0, 1\); got 1\.0"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(changes, sentence):
    mlp = TDMPC2_STYLE(**({"hidden": (4,)} | changes))
    with pytest.raises(ValueError, match=sentence):
        mlp.init(jax.random.key(0), jnp.ones((1, 2)), jax.random.key(1))


# --- linear --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 4, 3)])
def test_linear_and_its_derivatives_are_those_of_the_plain_product(shape):
    layer = linear(4, kernel_init=normal(0.5))
    x = jax.random.normal(jax.random.key(0), shape)
    params = layer.init(jax.random.key(1), x)

    def plain(params, x):
        product = jnp.matmul(x, params["params"]["kernel"])
        return product + jnp.broadcast_to(params["params"]["bias"], product.shape)

    def scalar(function):
        return lambda params, x: jnp.sum(jnp.sin(function(params, x)))

    np.testing.assert_allclose(layer.apply(params, x), plain(params, x), rtol=1e-6, atol=1e-6)
    tangents = jax.tree.map(jnp.cos, (params, x))
    for derivative in (
        lambda f: jax.grad(scalar(f), argnums=(0, 1))(params, x),
        lambda f: jax.grad(scalar(f))(params, x),  # with respect to one side only
        lambda f: jax.grad(scalar(f), argnums=1)(params, x),
        lambda f: jax.jvp(f, (params, x), tangents),
        lambda f: jax.hessian(scalar(f), argnums=1)(params, x),
        lambda f: jax.vmap(jax.grad(scalar(f)), in_axes=(None, 0))(params, jnp.stack([x, 2 * x])),
    ):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
            derivative(layer.apply),
            derivative(plain),
        )


def test_the_gradient_of_a_linear_layer_by_its_kernel_alone_makes_one_product():
    layer = linear(4, kernel_init=normal(0.5))
    x = jnp.ones((5, 3))
    params = layer.init(jax.random.key(1), x)
    gradient = jax.make_jaxpr(jax.grad(lambda p: layer.apply(p, x).sum()))(params)
    # One forward, one for the kernel; none for x, of which nothing depends.
    assert str(gradient).count("dot_general[") == 2
