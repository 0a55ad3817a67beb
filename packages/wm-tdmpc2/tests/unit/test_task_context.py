"""What several tasks add, piece by piece; parity tests cover whole updates and decisions."""

import dataclasses
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_tdmpc2 import (
    Batch,
    TaskContext,
    draw_plan_noise,
    draw_update_noise,
    plan,
    task_context,
    update,
    world_model,
)
from wm_tdmpc2.networks import init_params, parameter_counts
from wm_tdmpc2.task_context import bind_task, renormalised
from wm_tdmpc2.world_model import squashed_gaussian

from .tiny import CONFIG, moved_learner

N_TASKS, DIM = 3, 7
MANY = dataclasses.replace(CONFIG, n_tasks=N_TASKS, task_dim=DIM)


@given(
    rows=st.lists(
        st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4), min_size=3, max_size=3
    ),
    tasks=st.lists(st.integers(0, 2), min_size=1, max_size=5),
)
@settings(max_examples=50, deadline=None)
def test_only_long_rows_of_the_given_tasks_are_shrunk(rows, tasks):
    table = np.array(rows, np.float32)
    ours = np.asarray(renormalised(jnp.asarray(table), jnp.asarray(tasks, jnp.int32)))
    norm = np.linalg.norm(table.astype(np.float64), axis=1)
    for task, row in enumerate(table):
        if task not in tasks or norm[task] < 1 - 1e-6:
            np.testing.assert_array_equal(ours[task], row)
        elif norm[task] > 1 + 1e-6:
            # Numbers below the smallest normal one may become 0.
            np.testing.assert_allclose(
                ours[task], row / (norm[task] + 1e-7), rtol=1e-6, atol=1.2e-38
            )


def test_a_row_is_shrunk_just_into_the_ball_and_then_stays():
    table = jnp.full((2, 5), 2.0)
    once = renormalised(table, jnp.int32(1))
    assert 0.999999 < np.linalg.norm(once[1]) <= 1
    np.testing.assert_array_equal(renormalised(once, jnp.int32(1)), once)


@pytest.fixture(scope="module")
def networks():
    """Networks of several tasks, every parameter moved off its initial value."""
    key = jax.random.key(0)
    wm, pi = jax.jit(partial(init_params, config=MANY))(key)

    def moved(tree):
        leaves, structure = jax.tree.flatten(tree)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        noisy = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
        return jax.tree.unflatten(structure, noisy)

    return moved(wm), moved(pi)


def test_a_bound_task_gives_the_networks_of_its_embedding(networks):
    wm, pi = networks
    embedding = wm["task_emb"][1]
    bound_wm, bound_pi = bind_task(
        wm, pi, embedding, obs_dim=MANY.obs_dim, latent_dim=MANY.latent_dim
    )
    assert "task_emb" not in bound_wm
    keys = jax.random.split(jax.random.key(2), 4)
    obs = jax.random.normal(keys[0], (6, MANY.obs_dim))
    z = jax.nn.softmax(jax.random.normal(keys[1], (6, MANY.latent_dim)))
    action = jax.random.uniform(keys[2], (6, MANY.action_dim), minval=-1)
    eps = jax.random.normal(keys[3], (6, MANY.action_dim))
    rows = jnp.broadcast_to(embedding, (6, DIM))
    shown, drop = {"config": MANY, "embedding": rows}, jax.random.key(3)
    pairs = [
        (world_model.encode(wm, obs, **shown), world_model.encode(bound_wm, obs, config=MANY)),
        (
            world_model.next(wm, z, action, **shown),
            world_model.next(bound_wm, z, action, config=MANY),
        ),
        (
            world_model.reward(wm, z, action, **shown),
            world_model.reward(bound_wm, z, action, config=MANY),
        ),
        (
            world_model.q(wm["q"], z, action, drop, **shown),
            world_model.q(bound_wm["q"], z, action, drop, config=MANY),
        ),
        (
            world_model.pi(pi, z, eps, **shown).action,
            world_model.pi(bound_pi, z, eps, config=MANY).action,
        ),
    ]
    for shown_to, bound in pairs:
        np.testing.assert_allclose(bound, shown_to, rtol=1e-4, atol=1e-4)


def test_masked_dimensions_act_zero_and_the_others_are_counted():
    rng = np.random.default_rng(0)
    mean, log_std, eps = (rng.normal(size=(2, 3, 5)).astype(np.float32) for _ in range(3))
    mask = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], np.float32)
    ours = squashed_gaussian(*map(jnp.asarray, (mean, log_std, eps, mask)))
    m, s, e = (np.asarray(x, np.float64) * mask for x in (mean, log_std, eps))
    action = np.tanh(m + e * np.exp(s))
    gaussian = np.sum(-0.5 * e**2 - s, axis=-1) - 0.5 * np.log(2 * np.pi)
    log_pi = mask.sum(-1) * gaussian - np.sum(np.log(1 - action**2 + 1e-6), axis=-1)
    np.testing.assert_allclose(ours.action, action, atol=1e-6)
    np.testing.assert_allclose(ours.log_pi, log_pi, rtol=1e-4, atol=1e-4)
    assert np.all(np.asarray(ours.action)[np.broadcast_to(mask == 0, action.shape)] == 0)


def test_embeddings_start_within_their_range_and_are_counted():
    table = np.asarray(init_params(jax.random.key(4), config=MANY)[0]["task_emb"])
    assert table.shape == (N_TASKS, DIM)
    # Uniform on both sides of 0.
    assert -0.02 <= table.min() < -0.015 and 0.015 < table.max() <= 0.02
    counts = parameter_counts(MANY)
    assert counts["task_emb"] == N_TASKS * DIM
    # Every first layer is wider by the embedding.
    widened = MANY.enc_dim + MANY.mlp_dim * (3 + MANY.num_q)
    assert counts["total"] - parameter_counts(CONFIG)["total"] == DIM * (widened + N_TASKS)


def test_the_embeddings_of_the_batch_are_learned_by_the_world_model_alone(networks):
    """The policy's loss reads the table, and gives it no gradient."""
    learner = moved_learner(config=MANY)
    h, b = MANY.horizon, MANY.batch_size
    task = jnp.zeros(b, jnp.int32).at[0].set(2)
    context = TaskContext(
        task=task,
        action_mask=jnp.ones((b, MANY.action_dim)),
        discount=jnp.full(b, 0.9),
    )
    batch = Batch(
        obs=jax.random.normal(jax.random.key(5), (h + 1, b, MANY.obs_dim)),
        action=jnp.zeros((h, b, MANY.action_dim)),
        reward=jnp.ones((h, b)),
    )
    noise = draw_update_noise(jax.random.key(6), config=MANY)
    after, _ = jax.jit(partial(update, config=MANY))(learner, batch, noise, task=context)
    before = renormalised(learner.wm_params["task_emb"], task)
    change = np.abs(np.asarray(after.wm_params["task_emb"] - before)).max(axis=1)
    assert change[0] > 0 and change[2] > 0 and change[1] == 0
    assert set(after.pi_params) == set(learner.pi_params)


def test_the_program_of_a_single_task_knows_nothing_of_tasks(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("the program of a single task must not get here")

    # `wm_tdmpc2.update` is the function.
    monkeypatch.setattr(sys.modules["wm_tdmpc2.update"], "renormalised", forbidden)
    monkeypatch.setattr(task_context, "renormalised", forbidden)
    monkeypatch.setattr(task_context, "bind_task", forbidden)
    learner = moved_learner()
    h, b = CONFIG.horizon, CONFIG.batch_size
    batch = Batch(
        obs=jnp.zeros((h + 1, b, CONFIG.obs_dim)),
        action=jnp.zeros((h, b, CONFIG.action_dim)),
        reward=jnp.zeros((h, b)),
    )
    noise = draw_update_noise(jax.random.key(0), config=CONFIG)
    updates = [
        jax.jit(partial(update, config=CONFIG, **given)).lower(learner, batch, noise).as_text()
        for given in ({}, {"task": None})
    ]
    assert updates[0] == updates[1]
    decide = partial(plan, config=CONFIG, eval_mode=False)
    noise = draw_plan_noise(jax.random.key(1), config=CONFIG)
    mean = jnp.zeros((h, CONFIG.action_dim))
    jax.jit(decide).lower(
        learner.wm_params, learner.pi_params, jnp.zeros(CONFIG.obs_dim), mean, True, noise
    )
