"""λ-returns: the specification's worked values, limits of λ, and plain loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_dreamer.returns import lambda_return, replay_return

H, N = 5, 3
SEEDS = st.integers(0, 2**31)


def column(*values):
    return jnp.array(values, jnp.float32)[:, None]


def imagined(seed):
    rng = np.random.default_rng(seed)
    reward, value = rng.normal(size=(2, H, N)).astype(np.float32)
    cont = rng.uniform(0, 1, (H, N)).astype(np.float32)
    return reward, cont, value, value[-1]


returns_of = jax.jit(lambda_return)
replayed = jax.jit(replay_return, static_argnames=("gamma", "lam"))


def test_the_specifications_imagined_example():
    value = column(0.4, 0.6, 0.8)
    returns = lambda_return(column(1.0, 0.5, -2.0), column(0.9, 0.8, 0.95), value, value[-1], 0.95)
    np.testing.assert_allclose(returns, column(0.660268, -0.4184, -1.24), rtol=1e-6)


@given(seed=SEEDS, lam=st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_imagined_returns_equal_a_loop_in_float64(seed, lam):
    reward, cont, value, bootstrap = imagined(seed)
    later, expected = np.float64(bootstrap), []
    for r, c, v in zip(reward[::-1], cont[::-1], value[::-1], strict=True):
        later = np.float64(r) + np.float64(c) * ((1 - lam) * np.float64(v) + lam * later)
        expected.append(later)
    returns = returns_of(reward, cont, value, bootstrap, np.float32(lam))
    np.testing.assert_allclose(returns, expected[::-1], rtol=1e-4, atol=1e-5)


def test_one_step_returns_see_the_next_value_only():
    reward, cont, value, bootstrap = imagined(0)
    returns = returns_of(reward, cont, value, bootstrap, np.float32(0.0))
    np.testing.assert_allclose(returns, reward + cont * value, rtol=1e-6)


def test_with_lambda_one_only_the_bootstrap_counts_of_the_values():
    reward, cont, value, bootstrap = imagined(0)
    usual = returns_of(reward, cont, value, bootstrap, np.float32(1.0))
    other = returns_of(reward, cont, value + 7, bootstrap, np.float32(1.0))
    np.testing.assert_array_equal(usual, other)
    moved = returns_of(reward, cont, value, bootstrap + 1, np.float32(1.0))
    np.testing.assert_allclose(moved - usual, np.cumprod(cont[::-1], axis=0)[::-1], rtol=1e-4)


def test_an_end_hides_what_comes_after_it():
    reward, cont, value, bootstrap = imagined(0)
    cont[2] = 0
    usual = returns_of(reward, cont, value, bootstrap, np.float32(0.95))
    np.testing.assert_array_equal(usual[2], reward[2])
    reward[3:], value[2:] = 100, 100
    other = returns_of(reward, cont, value, bootstrap, np.float32(0.95))
    np.testing.assert_array_equal(usual[:3], other[:3])


# --- replayed -------------------------------------------------------------------------------------


def flags(*values):
    return jnp.array(values, bool)[:, None]


def test_the_specifications_replayed_example():
    end = flags(0, 0, 1, 0, 0)
    returns = replay_return(
        column(9.0, 1.0, 0.5, -2.0, 3.0),
        end,
        end,
        column(5.0, 4.0, 3.0, 2.0, 1.0),
        gamma=1 - 1 / 333,
        lam=0.95,
    )
    expected = column(1.67297297, 0.5, 1.88544400, 3.99699700)
    np.testing.assert_allclose(returns, expected, rtol=1e-6)


def test_crossing_into_a_terminal_row_gives_its_reward_alone():
    end = flags(0, 0, 1, 0)
    reward, boot = column(0.0, 1.0, 2.5, 3.0), column(10.0, 20.0, 30.0, 40.0)
    returns = replay_return(reward, end, end, boot, gamma=0.9, lam=0.95)
    assert returns[1, 0] == 2.5


def test_crossing_into_a_cut_off_row_bootstraps_from_its_imagined_return():
    cut, none = flags(0, 0, 1, 0), flags(0, 0, 0, 0)
    reward, boot = column(0.0, 1.0, 2.5, 3.0), column(10.0, 20.0, 30.0, 40.0)
    returns = replay_return(reward, cut, none, boot, gamma=0.9, lam=0.95)
    np.testing.assert_allclose(returns[1, 0], 2.5 + 0.9 * 30.0, rtol=1e-6)


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_replayed_returns_equal_a_loop_in_float64(lam, seed):
    rng = np.random.default_rng(seed)
    n_rows, batch, gamma = 6, 2, 1 - 1 / 333
    reward, boot = rng.normal(size=(2, n_rows, batch)).astype(np.float32)
    is_terminal = rng.random((n_rows, batch)) < 0.2
    is_last = is_terminal | (rng.random((n_rows, batch)) < 0.2)
    later, expected = np.float64(boot[-1]), []
    for t in range(n_rows - 2, -1, -1):
        mix = lam * (1 - is_last[t + 1])
        target = (1 - mix) * boot[t + 1] + mix * later
        later = reward[t + 1] + gamma * (1 - is_terminal[t + 1]) * target
        expected.append(later)
    returns = replayed(reward, is_last, is_terminal, boot, gamma=gamma, lam=lam)
    assert returns.shape == (n_rows - 1, batch)
    np.testing.assert_allclose(returns, expected[::-1], rtol=1e-4, atol=1e-5)


def test_the_first_rows_reward_and_flags_do_not_matter():
    """A return is of what follows a row; how the row itself came about is past."""
    rng = np.random.default_rng(0)
    reward, boot = rng.normal(size=(2, 4, 1)).astype(np.float32)
    none = np.zeros((4, 1), bool)
    usual = replayed(reward, none, none, boot, gamma=0.9, lam=0.95)
    changed, end = reward.copy(), none.copy()
    changed[0], end[0] = 50, True
    np.testing.assert_array_equal(usual, replayed(changed, end, end, boot, gamma=0.9, lam=0.95))
