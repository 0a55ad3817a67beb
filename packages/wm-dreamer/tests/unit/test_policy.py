"""Acting: the carry, resets, and that a decision is a filtered state and a draw from the actor."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_dreamer import networks, rssm
from wm_dreamer.action_distributions import action_distribution, action_vector
from wm_dreamer.noise import draw_act_noise
from wm_dreamer.policy import PolicyCarry, act, initial_carry

from .tiny import CONFIG, DISCRETE, assert_trees_equal, moved_learner

E = 4
BOTH = pytest.mark.parametrize("config", [CONFIG, DISCRETE], ids=["continuous", "discrete"])


@functools.cache
def act_program(config=CONFIG):
    return jax.jit(functools.partial(act, config=config))


def rows(seed=0, config=CONFIG):
    """Observations, flags and noise of one row of every environment."""
    obs = np.random.default_rng(seed).normal(size=(E, config.obs_dim)).astype(np.float32)
    return obs, np.zeros(E, bool), draw_act_noise(jax.random.key(seed), E, config=config)


def decide(carry, seed=0, config=CONFIG, **changes):
    obs, is_first, noise = rows(seed, config)
    given = dict(obs=obs, is_first=is_first, noise=noise) | changes
    params = {name: moved_learner(config).params[name] for name in ("encoder", "rssm", "actor")}
    return act_program(config)(params, carry, given["obs"], given["is_first"], given["noise"])


@functools.cache
def some_carry(config=CONFIG):
    """The carry after two rows."""
    carry = decide(initial_carry(config, E), 1, config).carry
    return decide(carry, 2, config).carry


@BOTH
def test_the_first_carry_is_zero(config):
    carry = initial_carry(config, E)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(carry))
    assert carry.action.dtype == (np.int32 if config.discrete else np.float32)
    assert carry.action.shape == ((E,) if config.discrete else (E, config.action_dim))
    after = decide(carry, config=config).carry
    assert jax.tree.map(lambda x: (x.shape, x.dtype), carry) == jax.tree.map(
        lambda x: (x.shape, x.dtype), after
    )


@BOTH
def test_a_decision_is_a_filtered_state_and_a_draw_from_the_actor(config):
    carry, (obs, is_first, noise) = some_carry(config), rows(config=config)
    params = moved_learner(config).params
    decision = decide(carry, config=config)
    observed = rssm.observe_step(
        params["rssm"],
        carry.state,
        action_vector(carry.action, config=config),
        networks.encode(params["encoder"], obs, config=config),
        is_first,
        noise.posterior,
        config=config,
    )
    np.testing.assert_allclose(decision.observed.deter, observed.deter, atol=2e-6)
    np.testing.assert_array_equal(decision.observed.classes, observed.classes)
    features = np.concatenate([observed.deter, observed.stoch], axis=-1)
    outputs = networks.apply(networks.Actor(config), params["actor"], features)
    policy = action_distribution(outputs, config=config)
    action = policy.sample(noise.action)
    if config.discrete:
        np.testing.assert_array_equal(decision.action, np.argmax(action, axis=-1))
        assert decision.action.dtype == np.int32
    else:
        np.testing.assert_allclose(decision.action, action, atol=2e-5)


@BOTH
def test_the_next_carry_holds_the_posterior_and_the_raw_action(config):
    decision = decide(some_carry(config), config=config)
    np.testing.assert_array_equal(decision.carry.state.deter, decision.observed.deter)
    np.testing.assert_array_equal(decision.carry.state.stoch, decision.observed.stoch)
    np.testing.assert_array_equal(decision.carry.action, decision.action)


def test_actions_are_not_clipped():
    _, _, noise = rows()
    far = noise._replace(action=jnp.full_like(noise.action, 5.0))
    decision = decide(some_carry(), noise=far)
    np.testing.assert_allclose(
        decision.action, decision.policy.mean + 5 * decision.policy.std, rtol=1e-6
    )
    assert np.any(np.abs(decision.action) > 1)


@BOTH
def test_a_first_row_forgets_the_carry(config):
    is_first = np.array([False, True, False, True])
    decision = decide(some_carry(config), config=config, is_first=is_first)
    anew = decide(initial_carry(config, E), config=config, is_first=np.ones(E, bool))
    kept = decide(some_carry(config), config=config)
    for ours, first, usual in zip(
        jax.tree.leaves(decision), jax.tree.leaves(anew), jax.tree.leaves(kept), strict=True
    ):
        np.testing.assert_array_equal(ours[is_first], first[is_first])
        np.testing.assert_array_equal(ours[~is_first], usual[~is_first])
    assert np.any(decision.observed.deter[1] != kept.observed.deter[1])


def test_the_previous_action_enters_the_state():
    carry = some_carry()
    other = PolicyCarry(carry.state, carry.action + 0.5)
    before, after = decide(carry).observed.deter, decide(other).observed.deter
    assert np.all(np.any(np.asarray(before != after), axis=-1))


def test_environments_do_not_see_each_other():
    order = np.array([2, 0, 3, 1])
    obs, is_first, noise = rows()
    decision = decide(some_carry())
    shuffled = jax.tree.map(lambda x: x[order], (some_carry(), obs, is_first, noise))
    other = decide(shuffled[0], obs=shuffled[1], is_first=shuffled[2], noise=shuffled[3])
    for ours, theirs in zip(jax.tree.leaves(decision), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(ours[order], theirs, rtol=0, atol=5e-6)


def test_the_same_draws_decide_the_same():
    assert_trees_equal(decide(some_carry()), decide(some_carry()))
    _, _, other = rows(7)
    assert np.all(decide(some_carry()).action != decide(some_carry(), noise=other).action)
