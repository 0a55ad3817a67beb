"""The explicit draws: shapes, ranges, and that every field has draws of its own."""

import jax
import numpy as np
import pytest

from wm_dreamer.noise import draw_act_noise, draw_update_noise

from .tiny import CONFIG, DISCRETE, make_config

T, B, H, S = CONFIG.batch_length, CONFIG.batch_size, CONFIG.imag_horizon, CONFIG.stoch
BOTH = pytest.mark.parametrize("config", [CONFIG, DISCRETE], ids=["continuous", "discrete"])


@BOTH
def test_shapes_of_an_updates_draws(config):
    noise = draw_update_noise(jax.random.key(0), config=config)
    action = (H, T * B) if config.discrete else (H, T * B, config.action_dim)
    assert noise.posterior.shape == (T, B, S)
    assert noise.action.shape == action
    assert noise.prior.shape == (H, T * B, S)
    assert {x.dtype for x in noise} == {np.dtype(np.float32)}


@BOTH
def test_shapes_of_a_decisions_draws(config):
    noise = draw_act_noise(jax.random.key(0), 4, config=config)
    assert noise.posterior.shape == (4, S)
    assert noise.action.shape == ((4,) if config.discrete else (4, config.action_dim))


def quantiles_are_uniform(x):
    x = np.sort(np.asarray(x).reshape(-1))
    assert 0 <= x[0] and x[-1] < 1
    expected = (np.arange(x.size) + 0.5) / x.size
    # Kolmogorov and Smirnov: exceeded by one sample in a million.
    return np.abs(x - expected).max() < 2.7 / np.sqrt(x.size)


def test_categorical_draws_are_uniform_and_continuous_ones_normal():
    config = make_config(batch_size=8, batch_length=32, imag_horizon=6)
    noise = draw_update_noise(jax.random.key(3), config=config)
    assert quantiles_are_uniform(noise.posterior)
    assert quantiles_are_uniform(noise.prior)
    z = np.asarray(noise.action).reshape(-1)
    assert abs(z.mean()) < 5 / np.sqrt(z.size) and abs(z.std() - 1) < 5 / np.sqrt(2 * z.size)
    assert z.min() < -2.5 and z.max() > 2.5
    discrete = make_config(discrete=True, batch_size=8, batch_length=32)
    assert quantiles_are_uniform(draw_update_noise(jax.random.key(3), config=discrete).action)


@BOTH
def test_the_same_key_repeats_every_draw_and_another_none(config):
    for draw in (draw_update_noise, lambda key, config: draw_act_noise(key, 4, config=config)):
        first, again, other = (draw(jax.random.key(k), config=config) for k in (5, 5, 6))
        for a, b, c in zip(first, again, other, strict=True):
            np.testing.assert_array_equal(a, b)
            assert not np.any(np.asarray(a) == np.asarray(c))


def test_fields_do_not_share_draws():
    """With discrete actions all three are uniform; none repeats another's numbers."""
    noise = draw_update_noise(jax.random.key(0), config=DISCRETE)
    values = np.concatenate([np.asarray(x).reshape(-1) for x in noise])
    # Uniform float32 numbers have 23 bits: a few of some hundred may coincide by chance.
    assert len(np.unique(values)) >= values.size - 2
