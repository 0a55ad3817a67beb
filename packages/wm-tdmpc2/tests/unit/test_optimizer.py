"""The two optimisers and their clip."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from wm_tdmpc2.optimizer import (
    clip_coefficient,
    policy_optimizer,
    scale_gradients,
    world_model_optimizer,
)

from .tiny import CONFIG, make_config

LR = CONFIG.learning_rate
PARAMS = {"encoder": jnp.zeros(3), "dynamics": jnp.zeros(3), "q": {"kernel": jnp.zeros(3)}}


def adam_by_hand(gradients, learning_rate, eps):
    """Bias-corrected Adam in float64: lr·m̂/(√v̂ + eps), the root taken before eps is added."""
    m = v = np.zeros(gradients.shape[1:])
    total = np.zeros(gradients.shape[1:])
    for t, g in enumerate(np.asarray(gradients, np.float64), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        total -= learning_rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + eps)
    return total


def run(optimizer, params, gradients_of_step):
    state = optimizer.init(params)
    for gradients in gradients_of_step:
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    return params


# Tiny gradients, so that Adam's eps matters.
GRADIENTS = np.array([[1.0, -1e-7, 1e-9], [0.5, 3e-7, 1e-8], [-2.0, 1e-7, 0.0]])


def test_the_world_models_adam_learns_the_encoder_at_its_own_rate():
    steps = [jax.tree.map(lambda _, g=g: jnp.asarray(g, jnp.float32), PARAMS) for g in GRADIENTS]
    params = run(world_model_optimizer(CONFIG), PARAMS, steps)
    rest = adam_by_hand(GRADIENTS, LR, eps=1e-8)
    np.testing.assert_allclose(params["dynamics"], rest, rtol=1e-5)
    np.testing.assert_allclose(params["q"]["kernel"], rest, rtol=1e-5)
    encoder = adam_by_hand(GRADIENTS, CONFIG.enc_lr_scale * LR, eps=1e-8)
    np.testing.assert_allclose(params["encoder"], encoder, rtol=1e-5)


def test_the_policys_adam_has_a_larger_epsilon():
    steps = [jnp.asarray(g, jnp.float32) for g in GRADIENTS]
    params = run(policy_optimizer(CONFIG), jnp.zeros(3), steps)
    np.testing.assert_allclose(params, adam_by_hand(GRADIENTS, LR, eps=1e-5), rtol=1e-5)


def test_a_learning_rate_schedule_follows_the_update_count_in_both():
    config = make_config(learning_rate=lambda count: 0.1 / (1.0 + count))
    ones = jax.tree.map(lambda p: jnp.ones_like(p), PARAMS)
    params = run(world_model_optimizer(config), PARAMS, [ones, ones])
    np.testing.assert_allclose(params["dynamics"], -(0.1 + 0.05), rtol=1e-5)
    np.testing.assert_allclose(params["encoder"], -0.3 * (0.1 + 0.05), rtol=1e-5)
    policy = run(policy_optimizer(config), jnp.zeros(2), [jnp.ones(2), jnp.ones(2)])
    np.testing.assert_allclose(policy, -(0.1 + 0.05), rtol=1e-4)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [(50.0, 20 / (50 + 1e-6)), (20.1, 20 / 20.100001), (19.9, 1.0), (0.0, 1.0)],
)
def test_gradients_are_scaled_only_above_the_clip_norm(norm, expected):
    np.testing.assert_allclose(clip_coefficient(jnp.float32(norm), CONFIG), expected, rtol=1e-6)


def test_scaling_keeps_the_tree():
    scaled = scale_gradients({"a": jnp.ones(2), "b": {"c": jnp.full(3, 4.0)}}, jnp.float32(0.5))
    np.testing.assert_array_equal(scaled["a"], [0.5, 0.5])
    np.testing.assert_array_equal(scaled["b"]["c"], [2, 2, 2])
