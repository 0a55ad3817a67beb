"""Imagined trajectories: equal to single steps, without gradient, and their known products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_dreamer import networks, rssm
from wm_dreamer.action_distributions import action_distribution
from wm_dreamer.imagination import imagine, known_products
from wm_dreamer.rssm import RSSMState

from .tiny import (
    CONFIG,
    DISCRETE,
    assert_trees_close,
    assert_trees_equal,
    moved_learner,
    random_noise,
)

BOTH = pytest.mark.parametrize("config", [CONFIG, DISCRETE], ids=["continuous", "discrete"])
N, H = CONFIG.batch_size * CONFIG.batch_length, CONFIG.imag_horizon


def starts(config=CONFIG):
    rng = np.random.default_rng(0)
    classes = rng.integers(0, config.classes, (N, config.stoch))
    return RSSMState(
        rng.uniform(-1, 1, (N, config.deter)).astype(np.float32),
        np.eye(config.classes, dtype=np.float32)[classes].reshape(N, -1),
    )


@functools.cache
def imagine_program(config=CONFIG):
    return jax.jit(functools.partial(imagine, config=config))


@functools.cache
def imagined(config=CONFIG):
    learner = moved_learner(config)
    return imagine_program(config)(
        learner.params, learner.slow_critic, starts(config), random_noise(config=config)
    )


def features(state):
    return jnp.concatenate(state, axis=-1)


@functools.cache
def step_by_step(config=CONFIG):
    """States and actions by the actor and `imagine_step`, one after the other: H + 1 and H."""
    params, noise = moved_learner(config).params, random_noise(config=config)

    @jax.jit
    def step(state, action_noise, prior_noise):
        outputs = networks.apply(networks.Actor(config), params["actor"], features(state))
        action = action_distribution(outputs, config=config).sample(action_noise)
        return action, rssm.imagine_step(params["rssm"], state, action, prior_noise, config=config)

    states, actions = [starts(config)], []
    for j in range(H):
        action, state = step(states[-1], noise.action[j], noise.prior[j])
        actions.append(action)
        states.append(state)
    return states, actions


@BOTH
def test_a_rollout_equals_single_steps_of_the_actor_and_the_model(config):
    """The rollout merges first layers; states and actions stay those of the plain networks."""
    ours, (states, actions) = imagined(config), step_by_step(config)
    for j in range(H + 1):
        state = ours.last_state if j == H else RSSMState(*(x[j] for x in ours.state))
        np.testing.assert_allclose(state.deter, states[j].deter, rtol=0, atol=5e-6, err_msg=str(j))
        np.testing.assert_array_equal(state.stoch, states[j].stoch, err_msg=str(j))
    np.testing.assert_allclose(ours.action, np.stack(actions), rtol=0, atol=2e-5)
    assert ours.action.shape == (H, N, config.action_dim)


@BOTH
def test_the_first_state_is_the_start(config):
    for ours, start in zip(imagined(config).state, starts(config), strict=True):
        np.testing.assert_array_equal(ours[0], start)


@BOTH
def test_preactivations_are_the_heads_own_first_layers(config):
    """The actor's and the critics' at the states 0 to H − 1, the model's at the states 1 to H."""
    ours, learner = imagined(config), moved_learner(config)
    before = features(ours.state)
    after = jnp.concatenate([before[1:], features(ours.last_state)[None]])
    slow = networks.first_layer("critic", learner.slow_critic)

    def first(name):
        return networks.first_layer(name, learner.params[name])

    expected = {
        "actor": (first("actor"), before),
        "critic": (first("critic"), before),
        "slow_critic": (slow, before),
        "reward": (first("reward"), after),
        "cont": (first("continue"), after),
        "last_critic": (first("critic"), after[-1]),
    }
    for name, (layer, x) in expected.items():
        preactivation = np.asarray(rssm.affine(layer, x))
        largest = np.abs(preactivation).max()
        np.testing.assert_allclose(
            getattr(ours, name), preactivation, rtol=0, atol=2e-6 * largest, err_msg=name
        )


def test_no_gradient_leaves_imagination():
    """Into no parameter, not into the starts, and not through reparameterised actions."""

    @jax.jit
    def gradients(params, slow_critic, start):
        def total(params, slow_critic, start):
            out = imagine(params, slow_critic, start, random_noise(), config=CONFIG)
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(out))

        return jax.grad(total, (0, 1, 2))(params, slow_critic, start)

    learner = moved_learner()
    for leaf in jax.tree.leaves(gradients(learner.params, learner.slow_critic, starts())):
        np.testing.assert_array_equal(leaf, 0)


def test_starts_do_not_see_each_other():
    order = np.random.default_rng(3).permutation(N)
    noise = random_noise()
    shuffled = noise._replace(action=noise.action[:, order], prior=noise.prior[:, order])
    learner = moved_learner()
    start = RSSMState(*(x[order] for x in starts()))
    other = imagine_program()(learner.params, learner.slow_critic, start, shuffled)
    for name in other._fields:
        axis = 0 if name.startswith("last") else 1
        usual = jax.tree.map(
            lambda x, a=axis: np.take(np.asarray(x), order, axis=a), getattr(imagined(), name)
        )
        for ours, theirs in zip(
            jax.tree.leaves(usual), jax.tree.leaves(getattr(other, name)), strict=True
        ):
            largest = np.abs(ours).max()
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6 * largest, err_msg=name)


def test_posterior_draws_are_not_used():
    noise, learner = random_noise(), moved_learner()
    other = noise._replace(posterior=1 - noise.posterior)
    result = imagine_program()(learner.params, learner.slow_critic, starts(), other)
    assert_trees_equal(result, imagined())


def test_imagined_latents_and_actions_follow_their_draws():
    noise, learner = random_noise(), moved_learner()
    forced = noise._replace(prior=jnp.full_like(noise.prior, 3.0))
    result = imagine_program()(learner.params, learner.slow_critic, starts(), forced)
    classes = np.asarray(result.last_state.stoch).reshape(N, CONFIG.stoch, CONFIG.classes)
    np.testing.assert_array_equal(classes.argmax(axis=-1), 2)
    still = noise._replace(action=jnp.zeros_like(noise.action))
    result = imagine_program()(learner.params, learner.slow_critic, starts(), still)
    assert np.abs(result.action).max() <= 1


# --- gradients of known products ------------------------------------------------------------------


def product_inputs():
    """Two layers of different widths that read the same states, and weights of their outputs."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    deter, stoch, widths = 4, 3, (5, 2)
    state = RSSMState(draw(2, 6, deter), draw(2, 6, stoch))
    layers = [{"kernel": draw(deter + stoch, w), "bias": draw(w)} for w in widths]
    return layers, state, [draw(2, 6, w) for w in widths]


def plain_products(layers, state):
    return [rssm.affine(layer, features(state)) for layer in layers]


def test_known_products_are_passed_on_and_have_the_gradients_of_their_layers():
    layers, state, weights = product_inputs()
    products = plain_products(layers, state)

    def total(outputs):
        pairs = zip(weights, outputs, strict=True)
        return sum(jnp.sum(w * jnp.tanh(x)) for w, x in pairs)

    for ours, expected in zip(known_products(layers, state, products), products, strict=True):
        np.testing.assert_array_equal(ours, expected)
    ours = jax.grad(lambda layers: total(known_products(layers, state, products)))(layers)
    expected = jax.grad(lambda layers: total(plain_products(layers, state)))(layers)
    assert_trees_close(ours, expected, 1e-5)


def test_known_products_pass_no_gradient_to_states_or_to_their_values():
    layers, state, weights = product_inputs()

    def total(state, products):
        outputs = known_products(layers, state, products)
        return sum(jnp.sum(w * x) for w, x in zip(weights, outputs, strict=True))

    products = plain_products(layers, state)
    for leaf in jax.tree.leaves(jax.grad(total, (0, 1))(state, products)):
        np.testing.assert_array_equal(leaf, 0)
