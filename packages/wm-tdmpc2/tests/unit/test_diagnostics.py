"""Diagnostics: the world model's own functions, paired with what happened."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.diagnostics import Grade
from wm_collect.evaluate import Trajectory
from wm_tdmpc2 import diagnostics, world_model
from wm_tdmpc2.diagnostics import EpisodePredictions, diagnose, predict_episode

from .tiny import CONFIG, make_config, moved_learner

N_STEPS, N_AHEAD = 6, 3
STARTS, PLAN_ROWS = jnp.array([0, 4]), jnp.array([2, 2])
EPISODIC = make_config(episodic=True)


def episode(seed=0):
    rng = np.random.default_rng(seed)
    obs = rng.standard_normal((N_STEPS + 1, CONFIG.obs_dim)).astype(np.float32)
    return obs, rng.uniform(-1, 1, (N_STEPS, CONFIG.action_dim)).astype(np.float32)


def expected(learner, obs, action):
    """Return what the world model says, function by function: latents, rewards, Q, ends, rollout.

    Without dropout the draws of the ensemble do not matter.
    """
    wm, mean = learner.wm_params, EPISODIC.two_hot.mean
    latent = world_model.encode(wm, obs, config=EPISODIC)
    q = world_model.q(wm["q"], latent[:-1], action, jax.random.key(9), config=EPISODIC)
    following = world_model.next(wm, latent[:-1], action, config=EPISODIC)
    z, rollout, rewards = latent[0], [], []
    for step in range(N_AHEAD):
        rewards.append(mean(world_model.reward(wm, z, action[step], config=EPISODIC)))
        z = world_model.next(wm, z, action[step], config=EPISODIC)
        rollout.append(z)
    return {
        "latent": latent,
        "next_reward": mean(world_model.reward(wm, latent[:-1], action, config=EPISODIC)),
        "q": mean(q).mean(0),
        "next_terminated": jax.nn.sigmoid(world_model.termination(wm, following, config=EPISODIC)),
        "latent_ahead": jnp.stack(rollout),
        "reward_ahead": jnp.stack(rewards),
    }


def test_predictions_are_those_of_the_world_model():
    learner, (obs, action) = moved_learner(EPISODIC), episode()
    guess = predict_episode(
        learner.wm_params,
        learner.pi_params,
        obs,
        action,
        jnp.int32(N_STEPS),
        STARTS,
        PLAN_ROWS,
        jax.random.key(1),
        n_ahead=N_AHEAD,
        config=EPISODIC,
    )
    told = jax.jit(expected)(learner, jnp.asarray(obs), jnp.asarray(action))
    for name, value in told.items():
        given = getattr(guess, name)
        given = given[0] if name.endswith("ahead") else given
        np.testing.assert_allclose(given, value, rtol=2e-4, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(guess.reward_ahead[1, 0], told["next_reward"][4], rtol=2e-4)
    # Two plans from one row differ by their draws only.
    assert np.isfinite(guess.planned).all() and guess.planned[0] != guess.planned[1]


def counted(length, terminated):
    """An episode whose reward on entering row k is k, padded with 99 to 30 steps."""
    rows = np.arange(31.0)
    rows[length + 1 :] = 99.0
    return Trajectory(
        env_state=None,
        obs=np.repeat(rows[:, None], CONFIG.obs_dim, 1).astype(np.float32),
        action=np.zeros((30, CONFIG.action_dim), np.float32),
        reward=rows[1:].astype(np.float32),
        length=np.int32(length),
        terminated=np.bool_(terminated),
    )


def knowing(wm_params, pi_params, obs, action, last_row, starts, plan_rows, key, **settings):
    """A stand-in for `predict_episode` that knows counted episodes; values name their row."""
    rows, size = np.arange(31.0), settings["config"].latent_dim
    ahead = np.asarray(starts)[:, None] + 1.0 + np.arange(settings["n_ahead"])
    return EpisodePredictions(
        latent=np.repeat(rows[:, None], size, 1),
        latent_ahead=np.repeat(ahead[..., None], size, -1),
        reward_ahead=ahead,
        next_reward=rows[1:],
        next_terminated=np.where(rows[1:] == 20, 0.9, 0.1),
        q=rows[:-1],
        last_value=1000.0,
        planned=100.0 + np.asarray(plan_rows),
    )


def test_a_model_that_knows_what_happens_is_told_to_be_right(monkeypatch):
    monkeypatch.setattr(diagnostics, "predict_episode", knowing)
    episodes = [counted(20, True), counted(3, True)]
    found = diagnose(
        moved_learner(EPISODIC), episodes, jax.random.key(0), terminates=True, config=EPISODIC
    )
    for errors in found.open_loop:
        assert np.nanmax(errors.model) == 0 and errors.verdict.grade == Grade.GOOD
        assert np.nanmin(errors.persistence) > 0
    assert found.rewards.error == 0 and len(found.rewards.real) == 23
    assert "1 of 2 termination(s)" in found.continuations.verdict.text
    q, planned = found.values
    np.testing.assert_array_equal(q.expected, [*range(20), *range(3)])
    np.testing.assert_array_equal(planned.expected, [*range(100, 120), 100, 101, 102])
    np.testing.assert_array_equal(q.realised, planned.realised)
    gammas = EPISODIC.gamma ** np.arange(3)
    assert q.realised[20] == pytest.approx(np.sum(gammas * [1, 2, 3]))


def test_a_time_limit_is_bridged_by_the_value_of_the_last_row(monkeypatch):
    monkeypatch.setattr(diagnostics, "predict_episode", knowing)
    found = diagnose(
        moved_learner(), [counted(20, False)], jax.random.key(0), terminates=False, config=CONFIG
    )
    assert found.continuations is None
    gammas = CONFIG.gamma ** np.arange(21)
    expected = np.sum(gammas * [*range(1, 21), 1000.0])
    assert found.values[0].realised[0] == pytest.approx(expected)
