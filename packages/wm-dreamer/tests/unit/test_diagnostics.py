"""Diagnostics: what each prediction reads, and how predictions are paired with what happened."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.diagnostics import Grade
from wm_collect.evaluate import Trajectory
from wm_dreamer import diagnostics, networks, open_loop
from wm_dreamer.action_distributions import action_vector
from wm_dreamer.diagnostics import EpisodePredictions, diagnose, predict_episode

from .tiny import CONFIG, moved_learner

N_ROWS, N_AHEAD = 9, 4
STARTS = jnp.array([1, 6])
KEY = jax.random.key(5)


def episode():
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((N_ROWS, CONFIG.obs_dim)).astype(np.float32)
    return obs, rng.standard_normal((N_ROWS - 1, CONFIG.action_dim)).astype(np.float32)


def predict(obs, action):
    learner = moved_learner()
    guess = predict_episode(
        learner.params,
        learner.slow_critic,
        obs,
        action,
        STARTS,
        KEY,
        n_ahead=N_AHEAD,
        config=CONFIG,
    )
    return jax.tree.map(np.asarray, guess)


def test_predictions_read_the_past_and_the_actions_up_to_the_row_they_are_about():
    obs, action = episode()
    guess = predict(obs, action)
    assert guess.obs.shape == (2, N_AHEAD, CONFIG.obs_dim)
    assert guess.value.shape == guess.imagined_return.shape == (N_ROWS,)
    assert np.all((guess.next_cont >= 0) & (guess.next_cont <= 1))

    other_obs = np.array(obs)
    other_obs[3:] = 9.0
    seen = predict(other_obs, action)
    for name in ("obs", "reward"):
        same = [
            np.array_equal(*pair)
            for pair in zip(getattr(guess, name), getattr(seen, name), strict=True)
        ]
        assert same == [True, False], name
    for name in ("value", "next_reward", "next_cont", "imagined_return"):
        same = np.asarray(getattr(guess, name) == getattr(seen, name))
        assert same[:3].all() and not same[3:].any(), name

    other_action = np.array(action)
    other_action[2] = -action[2]
    acted = predict(obs, other_action)
    # Row 1 is followed by the actions 1 and 2: the second of its predictions is the first to move.
    assert (guess.reward[0] == acted.reward[0]).tolist() == [True, False, False, False]
    assert (guess.value == acted.value).tolist() == [True] * 3 + [False] * 6
    assert (guess.next_reward == acted.next_reward).tolist() == [True] * 2 + [False] * 6


def test_values_are_the_critics_of_the_filtered_rows():
    obs, action = episode()
    params = moved_learner().params
    vectors = action_vector(jnp.concatenate([action, action[:1]]), config=CONFIG)

    @jax.jit
    def critic(key):
        observed = open_loop.filter_rows(params, obs, vectors, key, n_samples=200, config=CONFIG)
        features = open_loop.features_of(observed)
        logits = networks.apply(networks.critic(CONFIG), params["critic"], features)
        return CONFIG.two_hot.mean(logits)

    # Latents are sampled, so the numbers agree as far as 8 samples tell.
    many = np.asarray(critic(jax.random.key(0)))
    tolerance = 5 * many.std(1) / np.sqrt(8) + 1e-6
    assert np.all(np.abs(predict(obs, action).value - many.mean(1)) < tolerance)


@functools.cache
def counted(length, terminated):
    """An episode whose observation and reward at row k are k, padded with 99 to 12 steps."""
    rows = np.arange(13.0)
    rows[length + 1 :] = 99.0
    return Trajectory(
        env_state=None,
        obs=np.repeat(rows[:, None], CONFIG.obs_dim, 1).astype(np.float32),
        action=np.zeros((12, CONFIG.action_dim), np.float32),
        reward=rows[1:].astype(np.float32),
        length=np.int32(length),
        terminated=np.bool_(terminated),
    )


def knowing(*, offset):
    """A stand-in for `predict_episode` that knows counted episodes, up to an offset."""

    def predict(params, slow_critic, obs, action, starts, key, *, n_ahead, config):
        ahead = np.asarray(starts)[:, None] + 1.0 + np.arange(n_ahead) + offset
        rows = np.arange(13.0)
        return EpisodePredictions(
            obs=np.repeat(ahead[..., None], config.obs_dim, -1),
            reward=ahead,
            next_reward=rows[1:] + offset,
            next_cont=np.where(rows[1:] == 6, 0.1, 0.9),
            value=rows,
            imagined_return=rows + 1,
        )

    return predict


def test_a_model_that_knows_what_happens_is_told_to_be_right(monkeypatch):
    monkeypatch.setattr(diagnostics, "predict_episode", knowing(offset=0.0))
    found = diagnose(moved_learner(), [counted(6, True), counted(9, False)], KEY, config=CONFIG)
    for errors in found.open_loop:
        assert np.nanmax(errors.model) == 0 and errors.verdict.grade == Grade.GOOD
        assert np.nanmin(errors.persistence) > 0
    assert found.rewards.error == 0 and len(found.rewards.real) == 6 + 9
    # The stand-in expects every episode to end on row 6: the first does, the second goes on.
    assert "1 of 1 termination(s)" in found.continuations.verdict.text
    assert "1 false alarm(s)" in found.continuations.verdict.text
    assert [len(values.expected) for values in found.values] == [6, 6]
    np.testing.assert_array_equal(found.values[0].expected, np.arange(6))
    gammas = CONFIG.gamma ** np.arange(6)
    assert found.values[1].realised[0] == pytest.approx(np.sum(gammas * np.arange(1, 7)))


def test_a_model_that_is_one_row_late_is_not(monkeypatch):
    monkeypatch.setattr(diagnostics, "predict_episode", knowing(offset=-1.0))
    found = diagnose(moved_learner(), [counted(9, False)], KEY, config=CONFIG)
    assert found.rewards.error == 1
    np.testing.assert_allclose(found.open_loop[1].model[:3], 1.0)
