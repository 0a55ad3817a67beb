"""The recurrent model: its core written out in NumPy, the prior, imagined steps."""

import jax
import jax.numpy as jnp
import numpy as np

from wm_dreamer import rssm
from wm_dreamer.rssm import RSSMState

from .rows import B, C, D, G, S, inputs, params_of
from .tiny import CONFIG, DISCRETE


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
