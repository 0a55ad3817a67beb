"""Chained decisions against danijar/dreamerv3@29eb964, `Agent.policy`.

The recordings `policy_*.npz` hold a few steps of several environments from the initial carry, with
a reset of one environment in between. We feed the recorded draws and chain from our own carry.

Tolerances: outputs of networks to `NETWORK` of their largest entry; draws are exact, but for a
continuous action, which is rebuilt from its noise.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_dreamer import networks
from wm_dreamer.interop import from_reference, to_reference
from wm_dreamer.noise import ActNoise
from wm_dreamer.policy import Decision, PolicyCarry, act, initial_carry

from .comparison import NETWORK, assert_near_largest
from .recordings import config, load
from .updates import forced

pytestmark = pytest.mark.recordings("dreamerv3/policy_*.npz")


class Step(NamedTuple):
    """One recorded step, ours, and the carry and embedding ours started from."""

    theirs: dict[str, np.ndarray]
    ours: Decision
    carry: PolicyCarry
    embedding: jax.Array


@functools.cache
def replay(path):
    recording = load(path)
    settings = config(recording)
    params = policy_params(recording.group("params/0"), settings)

    @jax.jit
    def step(carry, obs, is_first, noise):
        decision = act(params, carry, obs, is_first, noise, config=settings)
        return decision, networks.encode(params["encoder"], obs, config=settings)

    carry, steps = initial_carry(settings, recording.meta["envs"]), []
    for n in range(1, recording.meta["steps"] + 1):
        theirs = recording.group(f"step/{n}")
        noise = recorded_noise(theirs, settings)
        decision, embedding = step(carry, theirs["obs/vector"], theirs["obs/is_first"], noise)
        steps.append(Step(theirs, decision, carry, embedding))
        carry = decision.carry
    return steps


def policy_params(theirs, settings):
    """The recording holds the networks that act; the others are filled with zeros."""
    shapes = jax.eval_shape(
        lambda key: networks.init_params(key, config=settings), jax.random.key(0)
    )
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return from_reference(to_reference(zeros, config=settings) | theirs, config=settings).params


def recorded_noise(theirs, settings):
    action = theirs["sampled_action"]
    if settings.discrete:
        action = forced(action)
    else:
        action = (action - theirs["actor_loc"]) / theirs["actor_scale"]
    return ActNoise(posterior=forced(theirs["stoch"]), action=action)


def one_hot_latents(flat, theirs):
    return np.asarray(flat).reshape(theirs.shape)


def test_embeddings(recording):
    for step in replay(recording):
        assert_near_largest(step.embedding, step.theirs["embed"], NETWORK)


def test_deterministic_state_and_posterior(recording):
    for step in replay(recording):
        assert_near_largest(step.ours.observed.deter, step.theirs["deter"], NETWORK)
        assert_near_largest(step.ours.observed.log_probs, step.theirs["post_logit"], NETWORK)
        stoch = one_hot_latents(step.ours.observed.stoch, step.theirs["stoch"])
        np.testing.assert_array_equal(stoch, step.theirs["stoch"])


def test_actor(recording):
    names = {"log_probs": "actor_logits", "mean": "actor_loc", "std": "actor_scale"}
    for step in replay(recording):
        for field, ours in step.ours.policy._asdict().items():
            assert_near_largest(ours, step.theirs[names[field]], NETWORK, field)


def test_actions(recording):
    for step in replay(recording):
        assert step.ours.action.dtype == step.theirs["action"].dtype
        relative = 0 if config(load(recording)).discrete else NETWORK
        assert_near_largest(step.ours.action, step.theirs["action"], relative)


def test_carries_from_step_to_step(recording):
    for step in replay(recording):
        state, theirs = step.carry.state, step.theirs
        assert_near_largest(state.deter, theirs["carry_in/deter"], NETWORK)
        stoch = one_hot_latents(state.stoch, theirs["carry_in/stoch"])
        np.testing.assert_array_equal(stoch, theirs["carry_in/stoch"])
        assert_near_largest(step.carry.action, theirs["carry_in/action"], NETWORK)


def test_latents_for_the_replay(recording):
    for step in replay(recording):
        assert_near_largest(step.ours.observed.deter, step.theirs["replay_deter"], NETWORK)
        np.testing.assert_array_equal(step.ours.observed.classes, step.theirs["replay_stoch"])


def test_a_reset_happens_in_between(recording):
    """Without this the tests above could pass with a carry that is never cleared."""
    assert any(
        step.theirs["obs/is_first"].any() and np.any(step.carry.state.deter)
        for step in replay(recording)[1:]
    )
