"""The draws of an update and of a decision: shapes, distributions, independence."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_tdmpc2 import draw_plan_noise, draw_update_noise
from wm_tdmpc2.noise import draw_q_pair

from .tiny import CONFIG, make_config

# Enough numbers of each kind to see a wrong deviation.
LARGE = make_config(batch_size=700, num_samples=300, iterations=4)
update_noise = jax.jit(functools.partial(draw_update_noise, config=LARGE))
plan_noise = jax.jit(functools.partial(draw_plan_noise, config=LARGE))


def test_update_noise_has_the_shapes_of_its_uses():
    """H 3, B 6, A 3."""
    noise = jax.eval_shape(functools.partial(draw_update_noise, config=CONFIG), jax.random.key(0))
    assert noise.td_eps.shape == (3, 6, 3) and noise.pi_eps.shape == (4, 6, 3)
    for pair in (noise.td_q_pair, noise.pi_q_pair):
        assert pair.shape == (2,) and pair.dtype == jnp.int32
    for key in (noise.td_dropout, noise.value_dropout, noise.pi_dropout):
        assert key.shape == () and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


def test_plan_noise_has_the_shapes_of_its_uses():
    """I 2, H 3, N 24, P 7, A 3."""
    noise = jax.eval_shape(functools.partial(draw_plan_noise, config=CONFIG), jax.random.key(0))
    assert noise.traj_eps.shape == (3, 7, 3)
    assert noise.mppi_eps.shape == (2, 3, 17, 3)
    assert noise.terminal_eps.shape == (2, 24, 3)
    assert noise.dropout.shape == (2,) and noise.q_pair.shape == (2, 2)
    assert noise.elite_uniform.shape == () and noise.final_eps.shape == (3,)


@pytest.mark.parametrize(
    "values",
    [
        lambda: update_noise(jax.random.key(0)).td_eps,
        lambda: update_noise(jax.random.key(0)).pi_eps,
        lambda: plan_noise(jax.random.key(0)).mppi_eps,
        lambda: plan_noise(jax.random.key(0)).terminal_eps,
    ],
    ids=["td_eps", "pi_eps", "mppi_eps", "terminal_eps"],
)
def test_normal_draws_are_standard_normal(values):
    x = np.asarray(values(), np.float64).ravel()
    assert x.size > 3000
    assert abs(x.mean()) < 5 / np.sqrt(x.size)
    assert abs(x.std() - 1) < 5 / np.sqrt(2 * x.size)
    # Beyond two deviations lie 4.55 %.
    assert abs(np.mean(np.abs(x) > 2) - 0.0455) < 5 * np.sqrt(0.0455 / x.size)


@functools.partial(jax.jit, static_argnums=1)
def many_pairs(key, num_q):
    return jax.vmap(lambda k: draw_q_pair(k, num_q))(jax.random.split(key, 12_000))


@pytest.mark.parametrize("num_q", [2, 3, 5, 8])
def test_pairs_are_distinct_and_every_unordered_pair_is_equally_likely(num_q):
    pairs = np.sort(np.asarray(many_pairs(jax.random.key(1), num_q)), axis=1)
    assert np.all(pairs[:, 0] < pairs[:, 1]) and pairs.min() == 0 and pairs.max() == num_q - 1
    counts = np.bincount(pairs[:, 0] * num_q + pairs[:, 1], minlength=num_q**2)
    expected = len(pairs) / (num_q * (num_q - 1) / 2)
    drawn = counts[counts > 0]
    assert len(drawn) == num_q * (num_q - 1) // 2
    chi_square = np.sum((drawn - expected) ** 2 / expected)
    degrees = max(len(drawn) - 1, 1)
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees)


def test_the_elite_draw_is_uniform_in_the_unit_interval():
    draw = jax.jit(jax.vmap(lambda k: draw_plan_noise(k, config=CONFIG).elite_uniform))
    u = np.asarray(draw(jax.random.split(jax.random.key(2), 4000)))
    assert u.min() >= 0 and u.max() < 1
    counts = np.histogram(u, bins=10, range=(0, 1))[0]
    assert np.sum((counts - 400) ** 2 / 400) < 9 + 5 * np.sqrt(18)


def test_the_parts_of_a_draw_are_independent():
    noise = update_noise(jax.random.key(3))
    shared = noise.pi_eps[: LARGE.horizon]
    assert abs(np.corrcoef(noise.td_eps.ravel(), shared.ravel())[0, 1]) < 0.07
    keys = [jax.random.key_data(k) for k in (noise.td_dropout, noise.value_dropout)]
    assert np.any(keys[0] != keys[1])
    # Every iteration of a decision has draws of its own.
    plan = plan_noise(jax.random.key(3))
    assert abs(np.corrcoef(plan.mppi_eps[0].ravel(), plan.mppi_eps[1].ravel())[0, 1]) < 0.1
    assert len(np.unique(jax.random.key_data(plan.dropout), axis=0)) == LARGE.iterations


def test_the_key_decides_the_draw():
    first, again, other = (update_noise(jax.random.key(seed)).td_eps for seed in (4, 4, 5))
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)
