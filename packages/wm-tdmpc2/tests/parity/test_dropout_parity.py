"""Where dropout acts, against what nicklashansen/tdmpc2@5f6fade was seen to do.

`dropout_trace_paper.json` lists the passes through the Q ensemble in an update and a decision, with
the training flag its dropout received: it is active in every one, target Q and planner included.
The original's masks cannot be recorded, so here only what depends on which key is compared; that a
mask drops units independently at the right rate is tested in tests/unit/test_networks.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_numerics import RunningScale
from wm_tdmpc2 import (
    Batch,
    TDMPC2Settings,
    draw_plan_noise,
    draw_update_noise,
    init_learner,
    plan,
    resolve_config,
    world_model,
)
from wm_tdmpc2.update import policy_loss, td_target, world_model_loss

from .recordings import spec_of

SETTINGS = TDMPC2Settings(
    enc_dim=8,
    mlp_dim=16,
    latent_dim=8,
    num_q=3,
    batch_size=5,
    num_samples=12,
    num_elites=4,
    num_pi_trajs=2,
    dropout=0.3,
)
CONFIG = resolve_config(SETTINGS, spec_of(obs_dim=4, action_dim=2, episode_length=100))


@functools.cache
def learner():
    """A learner with parameters off their initial values, at which Q is 0 whatever is dropped."""
    rng = np.random.default_rng(0)
    template = jax.eval_shape(functools.partial(init_learner, config=CONFIG), jax.random.key(0))

    def drawn(leaf):
        return jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype)

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), template)
    networks = ("wm_params", "target_q_params", "pi_params")
    return zeros.replace(
        q_scale=RunningScale(tau=CONFIG.tau).init(),
        **{name: jax.tree.map(drawn, getattr(template, name)) for name in networks},
    )


def batch_and_noise():
    h, b = CONFIG.horizon, CONFIG.batch_size
    keys = jax.random.split(jax.random.key(4), 3)
    batch = Batch(
        obs=jax.random.normal(keys[0], (h + 1, b, CONFIG.obs_dim)),
        action=jax.random.uniform(keys[1], (h, b, CONFIG.action_dim), minval=-1),
        reward=jax.random.normal(keys[2], (h, b)),
    )
    return batch, draw_update_noise(jax.random.key(5), config=CONFIG)


def td_target_pass(state, key):
    batch, noise = batch_and_noise()
    return td_target(state, batch, noise._replace(td_dropout=key), config=CONFIG)[1]


def world_model_loss_pass(state, key):
    batch, _ = batch_and_noise()
    next_z = world_model.encode(state.wm_params, batch.obs[1:], config=CONFIG)
    loss, _ = world_model_loss(state.wm_params, batch, next_z, batch.reward, key, config=CONFIG)
    return loss


def policy_loss_pass(state, key):
    batch, noise = batch_and_noise()
    zs = world_model.encode(state.wm_params, batch.obs, config=CONFIG)
    noise = noise._replace(pi_dropout=key)
    loss, _ = policy_loss(state.pi_params, state.wm_params, zs, state.q_scale, noise, config=CONFIG)
    return loss


def planner_pass(state, key):
    noise = draw_plan_noise(jax.random.key(6), config=CONFIG)
    noise = noise._replace(dropout=jax.random.split(key, CONFIG.iterations))
    decision = plan(
        state.wm_params,
        state.pi_params,
        jnp.ones(CONFIG.obs_dim),
        jnp.zeros((CONFIG.horizon, CONFIG.action_dim)),
        jnp.array(True),
        noise,
        config=CONFIG,
        eval_mode=True,
    )
    # Of the first iteration: later ones also differ because their candidates do.
    return decision.trace.value[0]


PASSES = {
    "td_target(target Q)": td_target_pass,
    "world_model_loss(online Q)": world_model_loss_pass,
    "policy_loss(online Q)": policy_loss_pass,
    "planner(online Q)": planner_pass,
    "planner_before_any_update(online Q)": planner_pass,
}


@pytest.mark.parametrize("name", PASSES)
def test_dropout_is_active_where_5f6fade_has_it_active(dropout_recording, name):
    run = jax.jit(PASSES[name])
    first, again, other = (np.asarray(run(learner(), jax.random.key(seed))) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    active = bool(np.all(first != other))
    assert active == dropout_recording.meta["passes"][name]["active"]


def test_every_pass_of_5f6fade_is_compared(dropout_recording):
    assert set(dropout_recording.meta["passes"]) == set(PASSES)


def test_the_planner_draws_masks_once_an_iteration_as_5f6fade(dropout_recording):
    calls = dropout_recording.meta["passes"]["planner(online Q)"]["calls"]
    assert draw_plan_noise(jax.random.key(0), config=CONFIG).dropout.shape == (calls,)


@functools.partial(jax.jit, static_argnums=2)
def equal_members(q_params, key, n_rows):
    """Logits `[Nq, n_rows, K]` of members with the same parameters, on equal rows."""
    q_params = jax.tree.map(lambda p: jnp.broadcast_to(p[:1], p.shape), q_params)
    z = jnp.full((n_rows, CONFIG.latent_dim), 1 / CONFIG.simnorm_dim)
    action = jnp.full((n_rows, CONFIG.action_dim), 0.5)
    return world_model.q(q_params, z, action, key, config=CONFIG)


def test_masks_differ_between_members_and_rows_as_in_5f6fade(dropout_recording):
    logits = np.asarray(equal_members(learner().wm_params["q"], jax.random.key(9), 6))
    members = logits.reshape(CONFIG.num_q, -1)
    rows = logits.swapaxes(0, 1).reshape(6, -1)
    for name, parts in (("members", members), ("rows", rows)):
        differ = len(np.unique(parts, axis=0)) == len(parts)
        assert differ == dropout_recording.meta[f"masks_differ_between_{name}"]
