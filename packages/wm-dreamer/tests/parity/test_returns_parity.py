"""Returns and their normaliser against danijar/dreamerv3@29eb964, `Agent.loss`.

The recordings `returns*.npz` hold three chained calls in which the means of the heads were replaced
by random numbers of growing size, so that returns, normaliser and advantages are judged without a
network. Sums of a few products each: the tolerances count roundings at the size of the result.

Not covered: the weights, which ours computes together with the heads (test_train_parity.py); the
recorded ones only serve to check what we feed.
"""

import functools

import jax
import numpy as np
import pytest

from wm_dreamer.losses import return_normalizer
from wm_dreamer.returns import lambda_return, replay_return

from .comparison import EPS, assert_near, assert_near_largest
from .recordings import config, load

pytestmark = pytest.mark.recordings("dreamerv3/returns*.npz")

# A recursion of H steps, each with a handful of roundings that are damped by the discount.
RETURNS = 1e-6


@functools.cache
def calls(path):
    """Return per call what was recorded, and our returns, normaliser and advantages."""
    recording = load(path)
    settings = config(recording)
    normalizer = return_normalizer(settings)

    @jax.jit
    def ours(state, given):
        reward, cont, value = (given[f"{n}_mean"].T for n in ("rew", "con", "critic"))
        returns = lambda_return(reward[1:], cont[1:], value[1:], value[-1], settings.lam)
        state = normalizer.update(state, returns)
        rows = {n: given[n].T for n in ("reward", "is_last", "is_terminal")}
        batch = rows["reward"].shape[1]
        replayed = replay_return(
            **rows,
            bootstrap=returns[0].reshape(batch, -1).T,
            gamma=settings.gamma,
            lam=settings.repval_lam,
        )
        advantage = (returns - value[:-1]) / normalizer.scale(state)
        normed = (returns - normalizer.offset(state)) / normalizer.scale(state)
        result = {"ret": returns, "replay_ret": replayed, "adv": advantage, "ret_normed": normed}
        return state, {name: x.T for name, x in result.items()}

    state, result = normalizer.init(), []
    for n in sorted({int(k.split("/")[1]) for k in recording.arrays if k.startswith("out/")}):
        given = recording.group(f"in/{n}")
        state, found = ours(state, given)
        result.append((given, recording.group(f"out/{n}"), state, found))
    return result


def test_lambda_returns(recording):
    for _, theirs, _, ours in calls(recording):
        assert_near_largest(ours["ret"], theirs["ret"], RETURNS)


def test_replayed_returns_bootstrap_from_the_imagined_ones(recording):
    for _, theirs, _, ours in calls(recording):
        assert_near_largest(ours["replay_ret"], theirs["replay_ret"], RETURNS)


def test_normalizer(recording):
    """Its averages round at the size of their values, which grows from call to call."""
    for _, theirs, state, _ in calls(recording):
        largest = np.abs(theirs["ret"]).max()
        assert_near(state.low, theirs["retnorm_low"], RETURNS * largest * 0.1)
        assert_near(state.high, theirs["retnorm_high"], RETURNS * largest * 0.1)


@pytest.mark.parametrize("name", ["adv", "ret_normed"])
def test_advantages_and_normalised_returns(recording, name):
    for _, theirs, _, ours in calls(recording):
        size = np.abs(theirs["ret"]).max() + np.abs(theirs["val"]).max()
        scale = max(1.0, float(theirs["retnorm_high"] - theirs["retnorm_low"]))
        assert_near(ours[name], theirs[name], 2 * RETURNS * size / scale, name)


def test_what_the_returns_are_made_of(recording):
    """Rewards and continuations of the start come from the data, and values are the critic's."""
    for given, theirs, _, _ in calls(recording):
        np.testing.assert_array_equal(theirs["val"], given["critic_mean"])
        np.testing.assert_array_equal(theirs["rew"][:, 1:], given["rew_mean"][:, 1:])
        np.testing.assert_array_equal(theirs["rew"][:, 0], given["reward"].reshape(-1))
        alive = 1 - given["is_terminal"].reshape(-1, 1).astype(np.float32)
        cont = np.concatenate([alive, given["con_mean"][:, 1:]], axis=1)
        weight = np.cumprod(np.float64(cont), axis=1)
        assert_near(weight, theirs["weight"], 20 * EPS)
