"""Open-loop predictions: what they read, what they follow from, and the picture."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.evaluate import Trajectory
from wm_dreamer import networks, rssm
from wm_dreamer.open_loop import draw_open_loop, predict_open_loop
from wm_numerics import symexp

from .tiny import CONFIG, DISCRETE, moved_learner

N_ROWS, N_CONTEXT, N_SAMPLES = 9, 4, 3
KEY = jax.random.key(5)


def episode(config, seed=0):
    rng = np.random.default_rng(seed)
    obs = rng.standard_normal((N_ROWS, config.obs_dim)).astype(np.float32)
    if config.discrete:
        return obs, rng.integers(0, config.action_dim, N_ROWS).astype(np.int32)
    return obs, rng.standard_normal((N_ROWS, config.action_dim)).astype(np.float32)


@functools.partial(jax.jit, static_argnames="config")
def predict(params, obs, action, key, *, config):
    return predict_open_loop(
        params, obs, action, key, n_context=N_CONTEXT, n_samples=N_SAMPLES, config=config
    )


@pytest.mark.parametrize("config", [CONFIG, DISCRETE], ids=["continuous", "discrete"])
def test_only_the_context_is_read_and_every_action_matters(config):
    params = moved_learner(config).params
    obs, action = episode(config)
    guess = predict(params, obs, action, KEY, config=config)
    assert guess.obs.shape == (N_SAMPLES, N_ROWS, config.obs_dim)
    assert guess.reward.shape == guess.cont.shape == (N_SAMPLES, N_ROWS)
    assert np.all((guess.cont >= 0) & (guess.cont <= 1))

    unseen = np.array(obs)
    unseen[N_CONTEXT:] = 99.0
    other = predict(params, unseen, action, KEY, config=config)
    jax.tree.map(np.testing.assert_array_equal, guess, other)

    for row in range(N_ROWS - 1):
        changed = np.array(action)
        changed[row] = (changed[row] + 1) % config.action_dim if config.discrete else -changed[row]
        moved = predict(params, obs, changed, KEY, config=config)
        same = np.all(np.asarray(moved.obs) == np.asarray(guess.obs), axis=(0, 2))
        assert same[: row + 1].all() and not same[row + 1]


def test_the_context_is_reconstructed_from_the_posterior():
    params = moved_learner().params
    obs, action = episode(CONFIG)
    guess = predict(params, obs, action, KEY, config=CONFIG)
    # With every latent's draw unknown, only the first row's deterministic state is common to all
    # samples: it follows from zeros.
    state = rssm.initial_state(CONFIG, 1)
    embedding = networks.encode(params["encoder"], jnp.asarray(obs[:1]), config=CONFIG)
    means = []
    for draw in range(200):
        noise = jax.random.uniform(jax.random.key(draw), (1, CONFIG.stoch))
        seen = _first(params, state, embedding, noise)
        means.append(np.asarray(seen))
    low, high = np.min(means, axis=0), np.max(means, axis=0)
    span = high - low
    inside = np.asarray(guess.obs[:, 0])
    assert np.all((inside > low - span) & (inside < high + span))


@jax.jit
def _first(params, state, embedding, noise):
    action, is_first = jnp.zeros((1, CONFIG.action_dim)), jnp.ones(1, bool)
    seen = rssm.observe_step(
        params["rssm"], state, action, embedding, is_first, noise, config=CONFIG
    )
    features = jnp.concatenate([seen.deter, seen.stoch], axis=-1)
    return symexp(networks.apply(networks.decoder(CONFIG), params["decoder"], features))[0]


@pytest.mark.parametrize("n_context", [0, N_ROWS + 1])
def test_a_context_outside_the_episode_is_refused(n_context):
    obs, action = episode(CONFIG)
    with pytest.raises(ValueError, match=f"between 1 and the 9 rows, got {n_context}"):
        predict_open_loop(
            moved_learner().params, obs, action, KEY, n_context=n_context, config=CONFIG
        )


@pytest.mark.parametrize("length", [1, N_ROWS - 1])
def test_a_picture_is_drawn_also_of_a_short_episode(tmp_path, length):
    obs, action = episode(CONFIG)
    trajectory = Trajectory(
        env_state=None,
        obs=obs,
        action=action[:-1],
        reward=np.ones(N_ROWS - 1, np.float32),
        length=np.int32(length),
    )
    path = tmp_path / "open_loop.png"
    draw_open_loop(moved_learner().params, trajectory, path, config=CONFIG)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000
