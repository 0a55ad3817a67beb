"""Networks: initial values, groups of the latent, ensemble and its dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_tdmpc2 import world_model
from wm_tdmpc2.networks import simnorm

from .tiny import CONFIG, fresh_learner, make_config, moved_learner, random_actions, random_latents


def test_simnorm_is_a_softmax_over_groups_of_neighbouring_features():
    x = jnp.array([[0.0, np.log(3.0), 5.0, 5.0]])
    np.testing.assert_allclose(simnorm(x, 2), [[0.25, 0.75, 0.5, 0.5]], rtol=1e-6)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=12, max_size=12),
    st.sampled_from([2, 4, 6, 12]),
)
def test_simnorm_makes_probability_vectors_of_anything(values, group):
    y = np.asarray(simnorm(jnp.array(values, jnp.float32), group))
    assert np.all(y >= 0)
    np.testing.assert_allclose(y.reshape(-1, group).sum(axis=1), 1, rtol=1e-5)


def test_simnorm_ignores_a_shift_of_a_group_and_keeps_leading_axes():
    x = jax.random.normal(jax.random.key(0), (2, 3, 12))
    shift = jnp.repeat(jnp.array([5.0, -2.0, 0.5]), 4)
    shifted = x + jnp.broadcast_to(shift, x.shape)
    np.testing.assert_allclose(simnorm(shifted, 4), simnorm(x, 4), rtol=2e-5, atol=1e-7)


def paths_and_leaves(tree):
    return [
        ("/".join(k.key for k in path), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def test_fresh_networks_have_small_weights_zero_biases_unit_scales_and_zero_last_weights():
    """Of reward and Q the last weights are zero, of the policy they are not."""
    learner = fresh_learner()
    everything = {"wm": learner.wm_params, "pi": learner.pi_params}
    for path, leaf in paths_and_leaves(everything):
        if path in ("wm/reward/out/kernel", "wm/q/out/kernel") or path.endswith("bias"):
            assert np.all(leaf == 0), path
        elif path.endswith("scale"):
            assert np.all(leaf == 1), path
        else:
            assert 0.01 < leaf.std() < 0.03 and np.abs(leaf.mean()) < 0.01, path


def test_a_fresh_learner_has_the_counts_of_its_layers():
    """By hand for O 5, A 3, E 10, M 14, Z 12, K 9, three members."""
    sizes = {name: 0 for name in ("encoder", "dynamics", "reward", "q")}
    for name in sizes:
        sizes[name] = sum(
            leaf.size for _, leaf in paths_and_leaves(fresh_learner().wm_params[name])
        )
    policy = sum(leaf.size for _, leaf in paths_and_leaves(fresh_learner().pi_params))
    assert sizes == {"encoder": 236, "dynamics": 694, "reward": 625, "q": 3 * 625}
    assert policy == 538 and sum(sizes.values()) + policy == 3968


def test_fresh_target_is_a_copy_and_members_differ():
    learner = fresh_learner()
    q = learner.wm_params["q"]
    jax.tree.map(np.testing.assert_array_equal, q, learner.target_q_params)
    kernel = q["linear_0"]["kernel"]
    assert np.all(kernel[0] != kernel[1]) and np.all(kernel[1] != kernel[2])


def test_fresh_heads_predict_exactly_zero():
    @jax.jit
    def predict(wm_params, z, action):
        reward = world_model.reward(wm_params, z, action, config=CONFIG)
        q = world_model.q(wm_params["q"], z, action, jax.random.key(0), config=CONFIG)
        return CONFIG.two_hot.mean(reward), CONFIG.two_hot.mean(q)

    predictions = predict(fresh_learner().wm_params, random_latents((4,)), random_actions((4,)))
    for values in predictions:
        np.testing.assert_array_equal(values, 0)


# --- dropout of the ensemble ---------------------------------------------------------------------

WIDTH = 200


def mask_config(rate):
    """As many bins as hidden units, so that a logit can stand for a unit."""
    return make_config(mlp_dim=WIDTH, num_bins=WIDTH, num_q=3, dropout=rate)


@functools.partial(jax.jit, static_argnums=(1, 2))
def dropped(key, config, n_rows):
    """Return which hidden units an ensemble drops, `[Nq, n_rows, M]` bool.

    All units of the first layer have the same value, and the later layers hand every unit through:
    the normalisation then leaves two values, and the lower one belongs to dropped units.
    """
    shape = (config.num_q, WIDTH, WIDTH)
    identity = jnp.broadcast_to(jnp.eye(WIDTH), shape)
    ones, zeros = jnp.ones(shape[:2]), jnp.zeros(shape[:2])
    norm = {"scale": ones, "bias": zeros}
    n_inputs = config.latent_dim + config.action_dim
    q_params = {
        "linear_0": {"kernel": jnp.zeros((config.num_q, n_inputs, WIDTH)), "bias": ones},
        "norm_0": norm,
        "linear_1": {"kernel": identity, "bias": zeros},
        "norm_1": norm,
        "out": {"kernel": identity, "bias": zeros},
    }
    z, action = jnp.zeros((n_rows, config.latent_dim)), jnp.zeros((n_rows, config.action_dim))
    logits = world_model.q(q_params, z, action, key, config=config)
    highest = jnp.max(logits, axis=-1, keepdims=True)
    return logits < highest - 1e-3


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_dropout_drops_units_at_its_rate_in_every_member_and_row(rate):
    n_rows = 400
    masks = np.asarray(dropped(jax.random.key(0), mask_config(rate), n_rows))
    deviation = np.sqrt(rate * (1 - rate) / masks.size)
    assert abs(masks.mean() - rate) < 5 * deviation
    for axes, n in (((1, 2), 3), ((0, 2), n_rows), ((0, 1), WIDTH)):
        shares = masks.mean(axis=axes)
        assert np.all(np.abs(shares - rate) < 5.5 * deviation * np.sqrt(n))


def test_dropout_masks_are_independent_between_members_and_rows():
    rate = 0.3
    masks = np.asarray(dropped(jax.random.key(1), mask_config(rate), 400))
    for first, second in (
        (masks[0], masks[1]),
        (masks[1], masks[2]),
        (masks[:, :-1], masks[:, 1:]),
        (masks[..., :-1], masks[..., 1:]),
    ):
        both = np.mean(first & second)
        assert abs(both - rate**2) < 5 * np.sqrt(rate**2 / first.size)


def test_dropout_follows_the_key_and_is_absent_at_rate_zero():
    config = mask_config(0.3)
    first, again, other = (dropped(jax.random.key(seed), config, 5) for seed in (2, 2, 3))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert not np.any(dropped(jax.random.key(2), mask_config(0.0), 5))


def test_the_two_members_of_a_drawn_pair_have_masks_of_their_own():
    config = make_config(dropout=0.3)
    q_pair = jax.jit(functools.partial(world_model.q_pair, config=config))
    equal = jax.tree.map(
        lambda p: jnp.broadcast_to(p[:1], p.shape), moved_learner(config).wm_params["q"]
    )
    z, action = random_latents((8,)), random_actions((8,))
    values = q_pair(equal, z, action, jnp.array([0, 2]), jax.random.key(4))
    assert np.all(values[0] != values[1])
