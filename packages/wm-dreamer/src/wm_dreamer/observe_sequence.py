"""The posterior states of whole sequences, with a backward pass of their own.

Autodiff of the scan over the steps would add the kernels' gradients up step by step, at batch-size
many rows: bound by the memory that holds the kernels. Here the scan backwards only collects the
cotangents of every linear layer's output, and each kernel's gradient is one product over all
steps.

Source: danijar/dreamerv3@2411f7d, dreamerv3/nets.py, `RSSM.observe`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from wm_dreamer.config import DreamerV3Config
from wm_dreamer.latents import one_hot_sample
from wm_dreamer.rssm import (
    Core,
    Observed,
    Params,
    RSSMState,
    affine,
    bounded_action,
    core_hidden,
    flat_rows,
    gated_update,
    hidden_layer,
    latent_log_probs,
    rms_silu,
    to_blocks,
    to_rows,
)


def observe(
    params: Params,
    start: RSSMState,
    prev_action: jax.Array,
    embedding: jax.Array,
    is_first: jax.Array,
    noise: jax.Array,
    *,
    config: DreamerV3Config,
) -> Observed:
    """Return the posterior states of B sequences; gradients flow through the whole sequence.

    Where `is_first`, the state carried in and the previous action are multiplied by zero before
    the core, which still runs.

    Args:
        params: the RSSM's parameters.
        start: states before the first row, `[B, ...]`; data, no gradient flows into them.
        prev_action: action chosen at each previous row, one-hot or raw, `[T, B, A]`.
        embedding: encoded observations, `[T, B, units]`.
        is_first: `[T, B]` bool.
        noise: of the latents, `[T, B, S]`.
        config: sizes and the uniform mixture.
    """
    core, w = Core.of(params), config.hidden
    n_steps, batch = is_first.shape
    keep = (~is_first).astype(jnp.float32)[..., None]

    # Whatever does not depend on the recurrence leaves it, as one product over all rows.
    action = hidden_layer(params["action_in"], flat_rows(bounded_action(prev_action * keep)))
    from_action = affine({"kernel": core.shared[2 * w :], "bias": core.shared_bias}, action)
    posterior = params["posterior_hidden"]
    of_embedding = {"kernel": posterior["kernel"][config.deter :], "bias": posterior["bias"]}
    from_embedding = affine(of_embedding, flat_rows(embedding))

    weights = _Weights(
        deter_in=_without_scale(params["deter_in"]),
        stoch_in=_without_scale(params["stoch_in"]),
        own=core.own,
        shared=core.shared[: 2 * w],
        gates={"kernel": core.gates, "bias": params["gates"]["bias"]},
        posterior=posterior["kernel"][: config.deter],
        logits=params["posterior_logits"],
    )
    scales = {
        "deter_in": params["deter_in"]["scale"],
        "stoch_in": params["stoch_in"]["scale"],
        "hidden": core.scale,
        "posterior": posterior["scale"],
    }
    additive = _Additive(
        hidden=from_action.reshape(n_steps, batch, -1),
        posterior=from_embedding.reshape(n_steps, batch, -1),
    )
    return _recurrence(config, weights, scales, additive, start, keep, noise)


class _Weights(NamedTuple):
    """Kernels and biases used inside the recurrence."""

    deter_in: Params
    stoch_in: Params
    own: jax.Array
    shared: jax.Array
    gates: Params
    posterior: jax.Array
    logits: Params


class _Additive(NamedTuple):
    """What enters pre-activations from outside the recurrence, `[T, B, ...]`."""

    hidden: jax.Array
    posterior: jax.Array


class _Taps(NamedTuple):
    """Zeros added to the outputs of the layers without such an input, to read their cotangents."""

    deter_in: jax.Array
    stoch_in: jax.Array
    gates: jax.Array
    logits: jax.Array


class _LayerInputs(NamedTuple):
    """What the kernels inside the recurrence were multiplied by, `[T, ...]`."""

    deter: jax.Array
    stoch: jax.Array
    shared: jax.Array
    hidden: jax.Array
    posterior: jax.Array


def _scan(
    config: DreamerV3Config,
    weights: _Weights,
    scales: Params,
    additive: _Additive,
    taps: _Taps,
    start: RSSMState,
    keep: jax.Array,
    noise: jax.Array,
) -> tuple[Observed, _LayerInputs]:
    n_blocks, batch = config.blocks, keep.shape[1]
    gates_bias = weights.gates["bias"].reshape(n_blocks, 1, -1)
    core = Core(
        own=weights.own,
        shared=weights.shared,
        shared_bias=jnp.zeros(()),  # part of `additive.hidden`
        scale=scales["hidden"],
        gates=weights.gates["kernel"],
        gates_bias=gates_bias,
    )

    def step(
        carry: tuple[RSSMState, jax.Array], x: tuple[_Additive, _Taps, jax.Array, jax.Array]
    ) -> tuple[tuple[RSSMState, jax.Array], tuple[Observed, _LayerInputs]]:
        state, blocks = carry
        added, tap, keep, noise = x
        deter, stoch, blocks = state.deter * keep, state.stoch * keep, blocks * keep[None]
        inputs = jnp.concatenate(
            [
                rms_silu(affine(weights.deter_in, deter) + tap.deter_in, scales["deter_in"]),
                rms_silu(affine(weights.stoch_in, stoch) + tap.stoch_in, scales["stoch_in"]),
            ],
            axis=-1,
        )
        hidden = core_hidden(core, blocks, inputs @ core.shared + added.hidden)
        gates = jnp.matmul(hidden, core.gates) + core.gates_bias + tap.gates
        new_blocks = gated_update(gates, blocks)
        next_deter = to_rows(new_blocks)
        posterior = rms_silu(next_deter @ weights.posterior + added.posterior, scales["posterior"])
        logits = affine(weights.logits, posterior) + tap.logits
        log_probs = latent_log_probs(logits, config)
        next_stoch, classes = one_hot_sample(log_probs, noise)
        next_stoch = next_stoch.reshape(batch, -1)
        return (RSSMState(next_deter, next_stoch), new_blocks), (
            Observed(next_deter, next_stoch, log_probs, classes),
            _LayerInputs(deter, stoch, inputs, hidden, posterior),
        )

    # The deterministic state is carried in both layouts: one transposition per step.
    first = (start, to_blocks(start.deter, n_blocks))
    _, outputs = jax.lax.scan(step, first, (additive, taps, keep, noise))
    return outputs


def _zero_taps(config: DreamerV3Config, n_steps: int, batch: int) -> _Taps:
    w, per_block = config.hidden, config.deter // config.blocks
    return _Taps(
        deter_in=jnp.zeros((n_steps, batch, w)),
        stoch_in=jnp.zeros((n_steps, batch, w)),
        gates=jnp.zeros((n_steps, config.blocks, batch, 3 * per_block)),
        logits=jnp.zeros((n_steps, batch, config.stoch * config.classes)),
    )


def _recurrence_forward(
    config: DreamerV3Config,
    weights: _Weights,
    scales: Params,
    additive: _Additive,
    start: RSSMState,
    keep: jax.Array,
    noise: jax.Array,
) -> tuple[Observed, Any]:
    taps = _zero_taps(config, *keep.shape[:2])

    def run(scales: Params, additive: _Additive, taps: _Taps) -> Any:
        return _scan(config, weights, scales, additive, taps, start, keep, noise)

    observed, pullback, inputs = jax.vjp(run, scales, additive, taps, has_aux=True)
    return observed, (pullback, inputs, observed.deter)


def _recurrence_backward(config: DreamerV3Config, residuals: Any, cotangent: Observed) -> Any:
    pullback, inputs, deter = residuals
    scales, additive, taps = pullback(cotangent)
    hidden = flat_rows(additive.hidden)
    gates = _block_rows(taps.gates)
    weights = _Weights(
        deter_in=_affine_gradient(inputs.deter, taps.deter_in),
        stoch_in=_affine_gradient(inputs.stoch, taps.stoch_in),
        own=_block_product(
            to_blocks(flat_rows(inputs.deter), config.blocks), to_blocks(hidden, config.blocks)
        ),
        shared=flat_rows(inputs.shared).T @ hidden,
        gates={
            "kernel": _block_product(_block_rows(inputs.hidden), gates),
            "bias": jnp.sum(gates, axis=1).reshape(-1),
        },
        posterior=flat_rows(deter).T @ flat_rows(additive.posterior),
        logits=_affine_gradient(inputs.posterior, taps.logits),
    )
    return weights, scales, additive, None, None, None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recurrence(
    config: DreamerV3Config,
    weights: _Weights,
    scales: Params,
    additive: _Additive,
    start: RSSMState,
    keep: jax.Array,
    noise: jax.Array,
) -> Observed:
    """Run the recurrence; gradients flow into `weights`, `scales` and `additive`."""
    taps = _zero_taps(config, *keep.shape[:2])
    return _scan(config, weights, scales, additive, taps, start, keep, noise)[0]


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)


def _affine_gradient(x: jax.Array, cotangent: jax.Array) -> Params:
    """Return the gradients of `affine`'s parameters, summed over `[T, B]`."""
    rows = flat_rows(cotangent)
    return {"kernel": flat_rows(x).T @ rows, "bias": jnp.sum(rows, axis=0)}


def _block_product(x: jax.Array, cotangent: jax.Array) -> jax.Array:
    """Return per block Σ_n x_n·cotangent_nᵀ: `[G, N, i]`, `[G, N, o]` to `[G, i, o]`."""
    return jnp.matmul(jnp.swapaxes(x, 1, 2), cotangent)


def _block_rows(x: jax.Array) -> jax.Array:
    """Return `[T, G, B, k]` as `[G, T·B, k]`."""
    return jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1, x.shape[-1])


def _without_scale(layer: Params) -> Params:
    return {"kernel": layer["kernel"], "bias": layer["bias"]}
