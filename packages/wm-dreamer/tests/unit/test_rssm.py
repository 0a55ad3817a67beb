"""The recurrent model: its core written out in NumPy, resets, and the gradient of `observe`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_dreamer import rssm
from wm_dreamer.rssm import RSSMState

from .tiny import (
    CONFIG,
    DISCRETE,
    assert_trees_close,
    compiled,
    leaves_by_path,
    moved_learner,
)

T, B = 6, 3
D, S, C, G = CONFIG.deter, CONFIG.stoch, CONFIG.classes, CONFIG.blocks


def params_of(config=CONFIG):
    return moved_learner(config).params["rssm"]


def inputs(seed=0, config=CONFIG):
    """Start, previous actions, embeddings, resets and noise of B sequences of T rows."""
    rng = np.random.default_rng(seed)
    is_first = np.zeros((T, B), bool)
    is_first[0, 1] = is_first[3, 0] = is_first[4, 0] = True
    return dict(
        start=RSSMState(
            rng.uniform(-1, 1, (B, D)).astype(np.float32),
            np.eye(C, dtype=np.float32)[rng.integers(0, C, (B, S))].reshape(B, S * C),
        ),
        prev_action=(2 * rng.standard_normal((T, B, config.action_dim))).astype(np.float32),
        embedding=rng.standard_normal((T, B, config.units)).astype(np.float32),
        is_first=is_first,
        noise=rng.random((T, B, S)).astype(np.float32),
    )


@functools.cache
def observe_program():
    return compiled(functools.partial(rssm.observe, config=CONFIG))


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

    @compiled
    def run(params, prev_action, embedding):
        def total(function, params, prev_action, embedding):
            given = inputs() | {"prev_action": prev_action, "embedding": embedding}
            observed = function(params, **given)
            parts = zip(weights, observed[:3], strict=True)
            return sum(jnp.sum(w * x) for w, x in parts), observed

        def gradients(function):
            of = functools.partial(total, function)
            return jax.grad(of, (0, 1, 2), has_aux=True)(params, prev_action, embedding)

        at_once = functools.partial(rssm.observe, config=CONFIG)
        return gradients(at_once), gradients(observe_step_by_step)

    return run(params_of(), inputs()["prev_action"], inputs()["embedding"])


# --- the core -------------------------------------------------------------------------------------


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def hidden(layer, x):
    """SiLU(RMSNorm(x·kernel + bias)), eps 1e-4 inside the root."""
    x = x @ layer["kernel"] + layer["bias"]
    return silu(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-4) * layer["scale"])


def core_in_numpy(params, h, z, a):
    """The equations of the recurrent core, block by block, in float64."""
    p = jax.tree.map(np.float64, params)
    a = a / np.maximum(1, np.abs(a))
    shared = [hidden(p[n], x) for n, x in (("deter_in", h), ("stoch_in", z), ("action_in", a))]
    size = D // G
    of_block = [h[:, g * size : (g + 1) * size] for g in range(G)]
    y = [
        np.concatenate([of_block[g], *shared], axis=-1) @ p["hidden"]["kernel"][g] for g in range(G)
    ]
    y = np.concatenate(y, axis=-1) + p["hidden"]["bias"]
    # The norm is over all D units, not per block.
    y = silu(y / np.sqrt(np.mean(y**2, axis=-1, keepdims=True) + 1e-4) * p["hidden"]["scale"])
    result = []
    for g in range(G):
        bias = p["gates"]["bias"][g * 3 * size : (g + 1) * 3 * size]
        gates = y[:, g * size : (g + 1) * size] @ p["gates"]["kernel"][g] + bias
        reset, candidate, update = (gates[:, i * size : (i + 1) * size] for i in range(3))
        candidate, update = np.tanh(sigmoid(reset) * candidate), sigmoid(update - 1)
        result.append(update * candidate + (1 - update) * of_block[g])
    return np.concatenate(result, axis=-1)


def test_the_core_follows_its_equations_block_by_block():
    given = inputs()
    state, action = given["start"], given["prev_action"][0]
    params = params_of()
    ours = rssm.core_step(params, rssm.Core.of(params), state, action)
    expected = core_in_numpy(params, *(np.float64(x) for x in (*state, action)))
    np.testing.assert_allclose(ours, expected, atol=5e-6)


def test_a_block_sees_its_own_units_and_the_shared_inputs_only():
    """With the shared inputs cut off, a unit's change stays in its block, but for the norm."""
    params = params_of()
    kernel = params["hidden"]["kernel"].at[:, D // G :].set(0)
    gates = params["gates"] | {"kernel": jnp.zeros_like(params["gates"]["kernel"])}
    params = params | {"hidden": params["hidden"] | {"kernel": kernel}, "gates": gates}
    state, action = inputs()["start"], inputs()["prev_action"][0]

    def step(deter):
        return rssm.core_step(params, rssm.Core.of(params), RSSMState(deter, state.stoch), action)

    moved = np.array(state.deter)
    moved[:, 0] += 0.5
    changed = np.any(np.asarray(step(moved)) != np.asarray(step(state.deter)), axis=0)
    np.testing.assert_array_equal(np.flatnonzero(changed), [0])


def test_large_actions_are_brought_to_one_and_their_gradient_is_divided_likewise():
    action = jnp.array([-4.0, -1.0, 0.3, 1.0, 5.0])
    expected = [-1.0, -1.0, 0.3, 1.0, 1.0]
    np.testing.assert_allclose(rssm.bounded_action(action), expected, rtol=1e-6)
    gradient = jax.grad(lambda a: jnp.sum(rssm.bounded_action(a)))(action)
    np.testing.assert_allclose(gradient, [0.25, 1.0, 1.0, 1.0, 0.2], rtol=1e-6)


def test_blocks_and_rows_are_inverse():
    rows = jnp.arange(2.0 * 12).reshape(2, 12)
    blocks = rssm.to_blocks(rows, 4)
    np.testing.assert_array_equal(blocks[1], rows[:, 3:6])
    np.testing.assert_array_equal(rssm.to_rows(blocks), rows)


def test_the_first_state_is_zero_also_the_latents():
    state = rssm.initial_state(CONFIG, 4)
    assert state.deter.shape == (4, D) and state.stoch.shape == (4, S * C)
    assert not np.any(state.deter) and not np.any(state.stoch)


# --- observing ------------------------------------------------------------------------------------


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
        observed = rssm.observe(params_of(), **given, config=CONFIG)
        return jnp.sum(observed.deter[-1] * jnp.arange(1.0, D + 1)[None])

    gradient = compiled(jax.grad(last))(inputs()["embedding"])
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


# --- imagining ------------------------------------------------------------------------------------


def test_an_imagined_step_is_the_core_and_a_draw_from_the_prior():
    params, given = params_of(DISCRETE), inputs(config=DISCRETE)
    action = np.eye(DISCRETE.action_dim, dtype=np.float32)[[0, 3, 6]]
    noise = given["noise"][0]
    state = rssm.imagine_step(params, given["start"], action, noise, config=DISCRETE)
    deter = rssm.core_step(params, rssm.Core.of(params), given["start"], action)
    np.testing.assert_allclose(state.deter, deter, atol=1e-6)
    log_probs = rssm.prior_log_probs(params, deter, config=DISCRETE)
    assert log_probs.shape == (B, S, C)
    cumulative = np.cumsum(np.exp(np.float64(log_probs)), axis=-1)
    classes = np.sum(cumulative[..., :-1] <= noise[..., None], axis=-1)
    np.testing.assert_array_equal(state.stoch, np.eye(C)[classes].reshape(B, S * C))


def test_the_prior_is_two_hidden_layers_of_the_deterministic_state_alone():
    p = jax.tree.map(np.float64, params_of())
    deter = inputs()["start"].deter
    x = hidden(p["prior_hidden_1"], hidden(p["prior_hidden_0"], np.float64(deter)))
    logits = (x @ p["prior_logits"]["kernel"] + p["prior_logits"]["bias"]).reshape(B, S, C)
    probs = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    ours = rssm.prior_log_probs(params_of(), deter, config=CONFIG)
    np.testing.assert_allclose(np.exp(ours), 0.99 * probs + 0.01 / C, rtol=2e-5)
