"""Single functions against nicklashansen/tdmpc2@5f6fade, common/math.py and common/layers.py.

The recording `numerics.npz` holds inputs chosen to be awkward (saturated, zero, huge) with the
original's outputs and gradients. Two-hot coding, running scale and Mish are compared in
wm-numerics; whole networks in test_update_parity.py.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from wm_tdmpc2.networks import LatentMLP, simnorm
from wm_tdmpc2.world_model import bounded_log_std, squashed_gaussian

# A few roundings of float32 (1.2e-7).
ROUNDING = 1e-6


def test_bounded_log_std_matches_5f6fade(numerics_recording):
    raw = jnp.asarray(numerics_recording["log_std/raw"])
    ours = bounded_log_std(raw, config=numerics_recording.config)
    np.testing.assert_allclose(ours, numerics_recording["log_std/out"], rtol=0, atol=2e-6)


@jax.jit
def gaussian_with_gradients(mean, log_std, eps):
    def total_log_pi(mean, log_std):
        return jnp.sum(squashed_gaussian(mean, log_std, eps).log_pi)

    return squashed_gaussian(mean, log_std, eps), jax.grad(total_log_pi, (0, 1))(mean, log_std)


def gaussian(recording):
    names = ("gauss/mu", "gauss/log_std", "gauss/eps")
    inputs = (jnp.asarray(recording[name]) for name in names)
    return jax.tree.map(np.asarray, gaussian_with_gradients(*inputs))


def room_of(recording):
    """Return 1 - a², and how far the last bits of a saturated a can move it."""
    action = recording["gauss/squashed_action"].astype(np.float64)
    return np.maximum(1 - action**2, 0), 6e-7


def test_squashed_mean_and_action_match_5f6fade(numerics_recording):
    sample, _ = gaussian(numerics_recording)
    mean, action = (numerics_recording[f"gauss/squashed_{n}"] for n in ("mean", "action"))
    np.testing.assert_allclose(sample.mean, mean, rtol=0, atol=ROUNDING)
    # The sum before the tanh is rounded at the size of its terms.
    size = np.abs(numerics_recording["gauss/pre_tanh"]) + np.abs(numerics_recording["gauss/mu"])
    room, _ = room_of(numerics_recording)
    error = np.abs(sample.action - action)
    assert np.all(error <= ROUNDING + 2 * ROUNDING * room * size)


def test_log_pi_matches_5f6fade_up_to_the_rounding_of_a_saturated_tanh(numerics_recording):
    sample, _ = gaussian(numerics_recording)
    theirs = numerics_recording["gauss/log_pi"][:, 0]
    room, bits = room_of(numerics_recording)
    saturation = np.sum(bits / (np.maximum(room - bits, 0) + 1e-6), axis=-1)
    # Before the tanh the correction follows 2u, rounded at the size of u.
    size = np.abs(numerics_recording["gauss/logprob"][:, 0]) + np.abs(
        numerics_recording["gauss/pre_tanh"]
    ).sum(axis=-1)
    assert np.all(np.abs(sample.log_pi - theirs) <= 2 * ROUNDING * size + saturation)


def test_gaussian_part_of_log_pi_is_the_originals(numerics_recording):
    """Where nothing saturates, adding the squash correction in float64 gives `gaussian_logprob`."""
    sample, _ = gaussian(numerics_recording)
    room = 1 - sample.action.astype(np.float64) ** 2
    smooth = room.min(axis=-1) > 1e-2
    assert smooth.sum() > 5
    logprob = sample.log_pi + np.sum(np.log(np.maximum(room, 0) + 1e-6), axis=-1)
    theirs = numerics_recording["gauss/logprob"][:, 0]
    np.testing.assert_allclose(logprob[smooth], theirs[smooth], rtol=2e-6, atol=1e-4)


def test_gradients_of_log_pi_match_5f6fade(numerics_recording):
    """Through both parts, and exactly zero through the relu of a saturated action.

    The correction's slope is 2a·x/(x + 1e-6), where x = 1 - a² is rounded above and below the line.
    """
    _, (grad_mu, grad_log_std) = gaussian(numerics_recording)
    room, bits = room_of(numerics_recording)
    slope_error = 2 * ROUNDING + 2 * bits / (np.maximum(room - bits, 0) + 1e-6)
    theirs = numerics_recording["gauss/grad_mu"]
    assert np.all(np.abs(grad_mu - theirs) <= slope_error + 2 * ROUNDING)
    stretch = np.abs(numerics_recording["gauss/eps"]) * np.exp(numerics_recording["gauss/log_std"])
    theirs = numerics_recording["gauss/grad_log_std"]
    tolerance = slope_error * stretch + 2 * ROUNDING * (1 + np.abs(theirs))
    assert np.all(np.abs(grad_log_std - theirs) <= tolerance)


def test_simnorm_and_its_gradient_match_5f6fade(numerics_recording):
    x, w = (jnp.asarray(numerics_recording[f"simnorm/{n}"]) for n in ("x", "w"))
    group = numerics_recording.config.simnorm_dim
    y, pullback = jax.vjp(lambda v: simnorm(v, group), x)
    np.testing.assert_allclose(y, numerics_recording["simnorm/y"], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        pullback(w)[0], numerics_recording["simnorm/grad"], rtol=1e-5, atol=ROUNDING
    )


def last_layer(module: LatentMLP, x):
    """The end of encoder and dynamics: Linear → LayerNorm → SimNorm."""
    return simnorm(module.norm(module.trunk.out(x)), module.simnorm_dim)


def test_last_layer_of_encoder_and_dynamics_matches_5f6fade(numerics_recording):
    group = numerics_recording.group("normed_linear_simnorm/")
    latent_dim, width = group["weight"].shape
    module = LatentMLP((width,), latent_dim, numerics_recording.config.simnorm_dim)
    variables = module.init(jax.random.key(0), jnp.zeros(width))
    params = variables["params"]
    params["trunk"]["out"] = {
        "kernel": jnp.asarray(group["weight"].T),
        "bias": jnp.asarray(group["bias"]),
    }
    params["norm"] = {
        "scale": jnp.asarray(group["ln.weight"]),
        "bias": jnp.asarray(group["ln.bias"]),
    }

    def apply(params, x):
        return nn.apply(last_layer, module)({"params": params}, x)

    y, pullback = jax.vjp(apply, params, jnp.asarray(group["x"]))
    np.testing.assert_allclose(y, group["y"], rtol=2e-5, atol=ROUNDING)
    grad_params, grad_x = pullback(jnp.asarray(group["w"]))
    ours = {
        "grad_x": grad_x,
        "grad_weight": grad_params["trunk"]["out"]["kernel"].T,
        "grad_bias": grad_params["trunk"]["out"]["bias"],
        "grad_ln.weight": grad_params["norm"]["scale"],
        "grad_ln.bias": grad_params["norm"]["bias"],
    }
    for name, gradient in ours.items():
        theirs = group[name]
        np.testing.assert_allclose(
            gradient, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max(), err_msg=name
        )
