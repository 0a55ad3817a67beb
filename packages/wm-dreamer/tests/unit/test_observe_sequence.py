"""The posterior of whole sequences: step by step, resets, and the gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_dreamer import observe_sequence, rssm
from wm_dreamer.rssm import RSSMState

from .rows import B, C, D, S, T, inputs, params_of
from .tiny import CONFIG, assert_trees_close, leaves_by_path


@functools.cache
def observe_program():
    return jax.jit(functools.partial(observe_sequence.observe, config=CONFIG))


def observe(**changes):
    return observe_program()(params_of(), **(inputs() | changes))


def observe_step_by_step(params, start, prev_action, embedding, is_first, noise):
    def step(state, x):
        observed = rssm.observe_step(params, state, *x, config=CONFIG)
        return RSSMState(observed.deter, observed.stoch), observed

    return jax.lax.scan(step, start, (prev_action, embedding, is_first, noise))[1]


@pytest.fixture(scope="module")
def both():
    """Outputs and gradients of `observe` and of the steps one by one, by plain autodiff."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: observe_step_by_step(params_of(), **inputs()))
    weights = [rng.standard_normal(x.shape).astype(np.float32) for x in shapes[:3]]

    @jax.jit
    def run(params, prev_action, embedding):
        def total(function, params, prev_action, embedding):
            given = inputs() | {"prev_action": prev_action, "embedding": embedding}
            observed = function(params, **given)
            parts = zip(weights, observed[:3], strict=True)
            return sum(jnp.sum(w * x) for w, x in parts), observed

        def gradients(function):
            of = functools.partial(total, function)
            return jax.grad(of, (0, 1, 2), has_aux=True)(params, prev_action, embedding)

        at_once = functools.partial(observe_sequence.observe, config=CONFIG)
        return gradients(at_once), gradients(observe_step_by_step)

    return run(params_of(), inputs()["prev_action"], inputs()["embedding"])


def test_observing_a_sequence_equals_observing_row_by_row(both):
    (_, at_once), (_, one_by_one) = both
    for name in at_once._fields:
        ours, other = getattr(at_once, name), getattr(one_by_one, name)
        np.testing.assert_allclose(ours, other, rtol=0, atol=3e-6, err_msg=name)
    np.testing.assert_array_equal(at_once.classes, one_by_one.classes)


def test_its_gradient_equals_plain_autodiff_for_every_parameter_and_input(both):
    (gradients, _), (expected, _) = both
    for path, gradient in leaves_by_path(expected).items():
        if "prior" in path:
            np.testing.assert_array_equal(gradient, 0)
        else:
            assert np.any(gradient != 0), path
    assert_trees_close(gradients, expected, 1e-5)


def test_gradients_cross_resets_no_more_than_values_do(both):
    """What a reset erased has no gradient: here the action before a first row."""
    (_, of_action, of_embedding), _ = both[0]
    np.testing.assert_array_equal(np.asarray(of_action)[inputs()["is_first"]], 0)
    assert np.all(np.any(np.asarray(of_embedding) != 0, axis=-1))


def test_gradients_reach_the_first_row_from_the_last():
    def last(embedding):
        given = inputs() | {"embedding": embedding, "is_first": np.zeros((T, B), bool)}
        observed = observe_sequence.observe(params_of(), **given, config=CONFIG)
        return jnp.sum(observed.deter[-1] * jnp.arange(1.0, D + 1)[None])

    gradient = jax.jit(jax.grad(last))(inputs()["embedding"])
    assert np.all(np.any(np.asarray(gradient[:-1]) != 0, axis=-1))
    # The last deterministic state does not see its own row's observation.
    np.testing.assert_array_equal(gradient[-1], 0)


def test_samples_are_one_hot_of_their_classes():
    observed = observe()
    one_hot = np.asarray(observed.stoch).reshape(T, B, S, C)
    np.testing.assert_array_equal(one_hot, np.eye(C)[np.asarray(observed.classes)])
    probs = np.exp(np.float64(observed.log_probs))
    np.testing.assert_allclose(probs.sum(axis=-1), 1, rtol=1e-5)
    assert probs.min() > 0.99 * CONFIG.unimix / C


def test_latents_can_be_forced():
    classes = np.random.default_rng(5).integers(0, C, (T, B, S))
    observed = observe(noise=1 + classes.astype(np.float32))
    np.testing.assert_array_equal(observed.classes, classes)


def test_all_first_rows_equal_single_rows_from_the_zero_state_with_a_zero_action():
    given = inputs()
    observed = observe(is_first=np.ones((T, B), bool))
    rows = T * B
    alone = rssm.observe_step(
        params_of(),
        rssm.initial_state(CONFIG, rows),
        np.zeros((rows, CONFIG.action_dim), np.float32),
        given["embedding"].reshape(rows, -1),
        np.zeros(rows, bool),
        given["noise"].reshape(rows, S),
        config=CONFIG,
    )
    np.testing.assert_allclose(observed.deter.reshape(rows, D), alone.deter, atol=2e-6)
    np.testing.assert_array_equal(observed.classes.reshape(rows, S), alone.classes)


def test_nothing_from_before_a_first_row_changes_anything_after_it():
    given = inputs()
    start, action = given["start"], np.array(given["prev_action"])
    other_start = RSSMState(0.5 - start.deter, np.roll(start.stoch, 1, axis=-1))
    action[0, 1] += 3
    usual, other = observe(), observe(start=other_start, prev_action=action)
    for name in usual._fields:
        ours, theirs = (np.asarray(getattr(x, name)) for x in (usual, other))
        np.testing.assert_array_equal(ours[:, 1], theirs[:, 1], err_msg=name)
        np.testing.assert_array_equal(ours[3:, 0], theirs[3:, 0], err_msg=name)
    assert np.all(usual.deter[0, 0] != other.deter[0, 0])
    assert np.any(usual.deter[:, 2] != other.deter[:, 2])


def test_the_core_still_runs_on_a_first_row():
    """On zeros, so that the state of a first row is not zero."""
    assert np.all(np.any(np.asarray(observe().deter)[inputs()["is_first"]] != 0, axis=-1))


def test_sequences_do_not_see_each_other():
    order = np.array([2, 0, 1])
    given = inputs()
    shuffled = {name: given[name][:, order] for name in given if name != "start"}
    shuffled["start"] = jax.tree.map(lambda x: x[order], given["start"])
    usual, other = observe(), observe(**shuffled)
    np.testing.assert_allclose(usual.deter[:, order], other.deter, atol=2e-6)
    np.testing.assert_array_equal(usual.classes[:, order], other.classes)
