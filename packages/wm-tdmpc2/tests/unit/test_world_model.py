"""The world model's functions against float64 NumPy written from the formulas."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_tdmpc2 import world_model
from wm_tdmpc2.world_model import bounded_log_std, squashed_gaussian

from .tiny import CONFIG, make_config, moved_learner, random_actions, random_latents

# --- the oracle ----------------------------------------------------------------------------------


def layer_norm(x, params):
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5)
    return x * params["scale"] + params["bias"]


def linear(x, params):
    return x @ params["kernel"] + params["bias"]


def mish(x):
    return x * np.tanh(np.log1p(np.exp(x)))


def mlp(x, params):
    """Two or more normed hidden layers and a plain last one."""
    for i in itertools.count():
        if f"linear_{i}" not in params:
            return linear(x, params["out"])
        x = mish(layer_norm(linear(x, params[f"linear_{i}"]), params[f"norm_{i}"]))


def latent_mlp(x, params, group):
    x = layer_norm(mlp(x, params["trunk"]), params["norm"])
    groups = np.exp(x.reshape(*x.shape[:-1], -1, group))
    return (groups / groups.sum(axis=-1, keepdims=True)).reshape(x.shape)


def member_of(q_params, i):
    return jax.tree.map(lambda p: p[i], q_params)


def doubles(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def inputs(shape):
    obs = jax.random.normal(jax.random.key(9), (*shape, CONFIG.obs_dim))
    return obs, random_latents(shape, seed=10), random_actions(shape, seed=11)


@jax.jit
def every_function(learner, obs, z, action, eps):
    wm = learner.wm_params
    return {
        "encode": world_model.encode(wm, obs, config=CONFIG),
        "next": world_model.next(wm, z, action, config=CONFIG),
        "reward": world_model.reward(wm, z, action, config=CONFIG),
        "q": world_model.q(wm["q"], z, action, jax.random.key(0), config=CONFIG),
        "pi": world_model.pi(learner.pi_params, z, eps, config=CONFIG),
    }


@pytest.mark.parametrize("shape", [(), (4,), (2, 1, 3)], ids=str)
def test_every_function_computes_its_formula_over_any_leading_axes(shape):
    learner = moved_learner()
    obs, z, action = inputs(shape)
    eps = jax.random.normal(jax.random.key(12), action.shape)
    ours = every_function(learner, obs, z, action, eps)

    wm, pi_params = doubles(learner.wm_params), doubles(learner.pi_params)
    za = np.concatenate(doubles([z, action]), axis=-1)
    members = [member_of(wm["q"], i) for i in range(CONFIG.num_q)]
    expected = {
        "encode": latent_mlp(doubles(obs), wm["encoder"], CONFIG.simnorm_dim),
        "next": latent_mlp(za, wm["dynamics"], CONFIG.simnorm_dim),
        "reward": mlp(za, wm["reward"]),
        "q": np.stack([mlp(za, member) for member in members]),
    }
    for name, values in expected.items():
        assert ours[name].shape == values.shape, name
        np.testing.assert_allclose(ours[name], values, rtol=2e-5, atol=1e-5, err_msg=name)

    sample = ours["pi"]
    mean, raw = np.split(mlp(doubles(z), pi_params), 2, axis=-1)
    np.testing.assert_allclose(sample.mean, np.tanh(mean), atol=1e-5)
    log_std = -10 + 6 * (np.tanh(raw) + 1)
    np.testing.assert_allclose(sample.log_std, log_std, atol=5e-5)
    action = np.tanh(mean + doubles(eps) * np.exp(log_std))
    np.testing.assert_allclose(sample.action, action, atol=1e-4)
    assert sample.log_pi.shape == shape


@pytest.mark.parametrize(("num_enc_layers", "hidden"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_the_encoder_has_the_configured_layers_and_at_least_one_hidden(num_enc_layers, hidden):
    config = make_config(num_enc_layers=num_enc_layers)
    params = moved_learner(config).wm_params
    assert len(params["encoder"]["trunk"]) == 2 * hidden + 1
    obs = jax.random.normal(jax.random.key(9), (4, CONFIG.obs_dim))
    expected = latent_mlp(doubles(obs), doubles(params["encoder"]), CONFIG.simnorm_dim)
    ours = jax.jit(functools.partial(world_model.encode, config=config))(params, obs)
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-6)


q_all = jax.jit(functools.partial(world_model.q, config=CONFIG))
q_two = jax.jit(functools.partial(world_model.q_pair, config=CONFIG))


@pytest.mark.parametrize("pair", list(itertools.permutations(range(3), 2)), ids=str)
def test_a_pair_is_the_decoded_values_of_its_two_members(pair):
    q_params, key = moved_learner().wm_params["q"], jax.random.key(1)
    _, z, action = inputs((2, 3))
    everyone = CONFIG.two_hot.mean(q_all(q_params, z, action, key))
    two = q_two(q_params, z, action, jnp.array(pair), key)
    np.testing.assert_allclose(two, everyone[jnp.array(pair)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pair", [(0, 1), (1, 0)], ids=str)
def test_a_pair_of_two_members_is_both_whatever_was_drawn(pair):
    config = make_config(num_q=2)
    q_params, key = moved_learner(config).wm_params["q"], jax.random.key(1)
    _, z, action = inputs((5,))

    @jax.jit
    def both_ways(q_params, pair):
        logits = world_model.q(q_params, z, action, key, config=config)
        two = world_model.q_pair(q_params, z, action, pair, key, config=config)
        return config.two_hot.mean(logits), two

    everyone, two = both_ways(q_params, jnp.array(pair))
    np.testing.assert_allclose(np.sort(two, axis=0), np.sort(everyone, axis=0), rtol=1e-5)


def test_rows_of_a_batch_do_not_affect_each_other():
    learner, key = moved_learner(), jax.random.key(2)
    _, z, action = inputs((6,))
    spoilt_z, spoilt_action = z.at[3].set(jnp.nan), action.at[3].set(jnp.nan)
    clean = q_two(learner.wm_params["q"], z, action, jnp.array([0, 1]), key)
    spoilt = q_two(learner.wm_params["q"], spoilt_z, spoilt_action, jnp.array([0, 1]), key)
    others = np.array([0, 1, 2, 4, 5])
    np.testing.assert_array_equal(spoilt[:, others], clean[:, others])
    assert np.all(np.isnan(spoilt[:, 3]))


# --- the squashed Gaussian -----------------------------------------------------------------------


def test_log_std_covers_its_range():
    raw = jnp.array([-100.0, 0.0, 100.0])
    np.testing.assert_allclose(bounded_log_std(raw, config=CONFIG), [-10, -4, 2], rtol=1e-6)
    config = make_config(log_std_min=-3.0, log_std_max=1.0)
    np.testing.assert_allclose(bounded_log_std(raw, config=config), [-3, -1, 1], rtol=1e-6)


def log_pi_by_hand(mean, log_std, eps):
    """A·(Σ(−½ε² − log σ) − ½ ln 2π) − Σ ln(1 − tanh²u + 1e-6), in float64."""
    n = mean.shape[-1]
    gaussian = np.sum(-0.5 * eps**2 - log_std, axis=-1) - 0.5 * math.log(2 * math.pi)
    room = 1 - np.tanh(mean + eps * np.exp(log_std)) ** 2
    return n * gaussian - np.sum(np.log(room + 1e-6), axis=-1)


triples = st.lists(
    st.tuples(st.floats(-2, 2), st.floats(-4, 0), st.floats(-3, 3)), min_size=3, max_size=3
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(triples)
def test_log_pi_scales_the_gaussian_part_alone_by_the_action_dimension(values):
    mean, log_std, eps = (np.array(x) for x in zip(*values, strict=True))
    sample = squashed_gaussian(*(jnp.float32(x) for x in (mean, log_std, eps)))
    expected = log_pi_by_hand(mean, log_std, eps)
    # A tanh near one rounds 1 - a² by 1e-7 in a room of at least e^-10.
    np.testing.assert_allclose(sample.log_pi, expected, rtol=1e-5, atol=5e-3)
    assert np.all(np.abs(sample.action) <= 1)
    np.testing.assert_allclose(sample.mean, np.tanh(mean), atol=1e-6)


@pytest.mark.parametrize("u", [30.0, -30.0])
def test_a_saturated_action_has_a_finite_log_pi_and_passes_no_gradient(u):
    """tanh is exactly ±1: the correction is −ln 1e-6 per dimension, and its gradient zero."""
    log_std, eps = jnp.zeros(3), jnp.zeros(3)

    def log_pi(mean):
        return squashed_gaussian(mean, log_std, eps).log_pi

    value, gradient = jax.value_and_grad(log_pi)(jnp.full(3, u))
    expected = 3 * -0.5 * math.log(2 * math.pi) - 3 * math.log(1e-6)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_array_equal(gradient, 0)


def test_log_pi_passes_gradient_through_both_of_its_parts():
    """d/d log σ of the Gaussian part is −A per dimension; the rest comes through the tanh."""
    mean, log_std, eps = jnp.full(3, 0.4), jnp.full(3, -0.7), jnp.array([0.5, -1.0, 2.0])
    gradient = jax.grad(lambda s: squashed_gaussian(mean, s, eps).log_pi)(log_std)
    sigma = np.exp(-0.7)
    action = np.tanh(0.4 + np.asarray(eps) * sigma)
    x = 1 - action**2
    through_tanh = 2 * action * x / (x + 1e-6) * np.asarray(eps) * sigma
    np.testing.assert_allclose(gradient, -3 + through_tanh, rtol=1e-4)
