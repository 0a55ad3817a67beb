"""The recurrent state-space model: block-diagonal GRU, posterior and prior over the latents.

A state is a deterministic vector `deter` of D units and S one-hot latents of C classes, flat
`[S·C]` with the classes of a latent side by side. Both are zero before the first row of a stream,
and again where `is_first`.

Layout. The D units form G blocks that see only their own units and the (shared) inputs, so the
blocks lead inside the core: `[G, N, D / G]`. Each block's product is then one plain matrix
product, and the inputs, which are the same for all blocks, are multiplied for all of them at once.

`observe` has a backward pass of its own. Autodiff of the scan would add the kernels' gradients up
step by step, at batch-size many rows: bound by the memory that holds the kernels. Here the scan
backwards only collects the cotangents of every linear layer's output, and each kernel's gradient
is one product over all steps.

Source: danijar/dreamerv3@2411f7d, dreamerv3/nets.py, `RSSM`.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from wm_dreamer.config import DreamerV3Config
from wm_dreamer.latents import mix_uniform, one_hot_sample
from wm_numerics import fan_in_truncated_normal

Params = dict[str, Any]

NORM_EPS = 1e-4
# The update gate starts mostly closed.
UPDATE_BIAS = -1.0


class RSSMState(NamedTuple):
    """A state, or a stack of states with further axes in front.

    Attributes:
        deter: deterministic part, `[..., D]` float32.
        stoch: one-hot latents, `[..., S·C]` float32.
    """

    deter: jax.Array
    stoch: jax.Array


class Observed(NamedTuple):
    """The posterior states of a sequence, time first.

    Attributes:
        deter: `[T, B, D]`.
        stoch: one-hot samples with straight-through gradients, `[T, B, S·C]`.
        log_probs: log-probabilities they were drawn from, `[T, B, S, C]`.
        classes: the samples as class indices, `[T, B, S]` int32.
    """

    deter: jax.Array
    stoch: jax.Array
    log_probs: jax.Array
    classes: jax.Array


def initial_state(config: DreamerV3Config, n: int) -> RSSMState:
    """Return the state before a stream's first row, for `n` streams: zeros, also the latents."""
    return RSSMState(
        jnp.zeros((n, config.deter), jnp.float32),
        jnp.zeros((n, config.stoch * config.classes), jnp.float32),
    )


def init_rssm(key: jax.Array, config: DreamerV3Config) -> Params:
    """Return fresh parameters: `{layer: {kernel, bias[, scale]}}`.

    Kernels are `[in, out]`, those of the block-diagonal layers `[G, in / G, out / G]`. The block
    layer `hidden` reads, in this order, its own D / G units and the three projections
    `deter_in`, `stoch_in`, `action_in`. The outputs of `gates` are, within each block, reset,
    candidate, update. Layers with a `scale` are followed by RMSNorm and SiLU.
    """
    d, w, z = config.deter, config.hidden, config.stoch * config.classes
    per_block = d // config.blocks
    shapes: dict[str, tuple[tuple[int, ...], bool]] = {
        "deter_in": ((d, w), True),
        "stoch_in": ((z, w), True),
        "action_in": ((config.action_dim, w), True),
        "hidden": ((config.blocks, per_block + 3 * w, per_block), True),
        "gates": ((config.blocks, per_block, 3 * per_block), False),
        "posterior_hidden": ((d + config.units, w), True),
        "posterior_logits": ((w, z), False),
        "prior_hidden_0": ((d, w), True),
        "prior_hidden_1": ((w, w), True),
        "prior_logits": ((w, z), False),
    }
    init = fan_in_truncated_normal()
    params = {}
    for k, (name, (shape, normed)) in zip(
        jax.random.split(key, len(shapes)), shapes.items(), strict=True
    ):
        n_out = math.prod(shape) // math.prod(shape[:-1])
        n_out *= shape[0] if len(shape) == 3 else 1
        layer = {"kernel": init(k, shape, jnp.float32), "bias": jnp.zeros(n_out, jnp.float32)}
        params[name] = layer | ({"scale": jnp.ones(n_out, jnp.float32)} if normed else {})
    return params


def rms_silu(x: jax.Array, scale: jax.Array, axes: tuple[int, ...] = (-1,)) -> jax.Array:
    """Return SiLU(x·rsqrt(mean(x²) + 1e-4)·scale), the mean over `axes`.

    Only `x` is kept for the backward pass.
    """

    def apply(x: jax.Array, scale: jax.Array) -> jax.Array:
        mean_square = jnp.mean(jnp.square(x), axis=axes, keepdims=True)
        return jax.nn.silu(x * (jax.lax.rsqrt(mean_square + NORM_EPS) * scale))

    return jax.checkpoint(apply, prevent_cse=False)(x, _like(scale, x))


def affine(layer: Params, x: jax.Array) -> jax.Array:
    """Return x·kernel + bias: `[..., in]` to `[..., out]`."""
    return x @ layer["kernel"] + _like(layer["bias"], x)


def hidden_layer(layer: Params, x: jax.Array) -> jax.Array:
    """Return SiLU(RMSNorm(x·kernel + bias)): `[..., in]` to `[..., out]`."""
    return rms_silu(affine(layer, x), layer["scale"])


def bounded_action(action: jax.Array) -> jax.Array:
    """Return a / max(1, abs a), elementwise; no gradient through the denominator."""
    return action / jax.lax.stop_gradient(jnp.maximum(1.0, jnp.abs(action)))


class Core(NamedTuple):
    """The block-diagonal layers' parameters, laid out for the products.

    Attributes:
        own: kernel of a block's own units in `hidden`, `[G, D / G, D / G]`.
        shared: kernel of the shared inputs in `hidden`, `[3W, D]`.
        shared_bias: bias of `hidden`, `[D]`.
        scale: scale of its norm, `[G, 1, D / G]`.
        gates: kernel of `gates`, `[G, D / G, 3D / G]`.
        gates_bias: its bias, `[G, 1, 3D / G]`.
    """

    own: jax.Array
    shared: jax.Array
    shared_bias: jax.Array
    scale: jax.Array
    gates: jax.Array
    gates_bias: jax.Array

    @classmethod
    def of(cls, params: Params) -> "Core":
        """Lay out the RSSM's parameters."""
        kernel, gates = params["hidden"]["kernel"], params["gates"]["kernel"]
        n_blocks, _, per_block = kernel.shape
        shared = jnp.swapaxes(kernel[:, per_block:], 0, 1)
        return cls(
            own=kernel[:, :per_block],
            shared=shared.reshape(shared.shape[0], n_blocks * per_block),
            shared_bias=params["hidden"]["bias"],
            scale=params["hidden"]["scale"].reshape(n_blocks, 1, per_block),
            gates=gates,
            gates_bias=params["gates"]["bias"].reshape(n_blocks, 1, -1),
        )


def to_blocks(rows: jax.Array, n_blocks: int) -> jax.Array:
    """Return `[N, D]` as `[G, N, D / G]`."""
    return jnp.swapaxes(rows.reshape(rows.shape[0], n_blocks, -1), 0, 1)


def to_rows(blocks: jax.Array) -> jax.Array:
    """Return `[G, N, D / G]` as `[N, D]`."""
    return jnp.swapaxes(blocks, 0, 1).reshape(blocks.shape[1], -1)


def flat_rows(x: jax.Array) -> jax.Array:
    """Return `[T, B, k]` as `[T·B, k]`: products over rows want one axis of them."""
    return x.reshape(-1, x.shape[-1])


def core_hidden(core: Core, deter: jax.Array, shared: jax.Array) -> jax.Array:
    """Return the hidden layer of the core, `[G, N, D / G]`.

    Args:
        core: the parameters.
        deter: previous deterministic state, `[G, N, D / G]`.
        shared: the shared inputs' product with their kernel, bias added, `[N, D]`.
    """
    own = jnp.matmul(deter, core.own)
    return rms_silu(own + to_blocks(shared, deter.shape[0]), core.scale, axes=(0, 2))


def gated_update(gates: jax.Array, deter: jax.Array) -> jax.Array:
    """Return the next deterministic state u·c + (1 − u)·h, with c = tanh(r·candidate).

    Args:
        gates: pre-activations, `[G, N, 3D / G]`: reset, candidate, update of each block.
        deter: previous state h, `[G, N, D / G]`.
    """
    reset, candidate, update = jnp.split(gates, 3, axis=-1)
    update = jax.nn.sigmoid(update + UPDATE_BIAS)
    candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
    return update * candidate + (1 - update) * deter


def next_blocks(core: Core, deter: jax.Array, inputs: jax.Array) -> jax.Array:
    """Return the next deterministic state, `[G, N, D / G]`.

    Args:
        core: the parameters.
        deter: previous deterministic state, `[G, N, D / G]`.
        inputs: the three projections side by side, `[N, 3W]`.
    """
    shared = inputs @ core.shared + _like(core.shared_bias, inputs)
    hidden = core_hidden(core, deter, shared)
    return gated_update(jnp.matmul(hidden, core.gates) + core.gates_bias, deter)


def core_step(params: Params, core: Core, state: RSSMState, action: jax.Array) -> jax.Array:
    """Return the next deterministic state `[N, D]`.

    Args:
        params: the RSSM's parameters.
        core: `Core.of(params)`.
        state: previous states, `[N, ...]`.
        action: action chosen at the previous states, one-hot or raw, `[N, A]`.
    """
    inputs = jnp.concatenate(
        [
            hidden_layer(params["deter_in"], state.deter),
            hidden_layer(params["stoch_in"], state.stoch),
            hidden_layer(params["action_in"], bounded_action(action)),
        ],
        axis=-1,
    )
    return to_rows(next_blocks(core, to_blocks(state.deter, core.own.shape[0]), inputs))


def prior_log_probs(params: Params, deter: jax.Array, *, config: DreamerV3Config) -> jax.Array:
    """Return the prior over the latents, given only the deterministic state.

    Args:
        params: the RSSM's parameters.
        deter: `[..., D]`.
        config: sizes and the uniform mixture.

    Returns:
        Log-probabilities `[..., S, C]`.
    """
    hidden = hidden_layer(params["prior_hidden_0"], deter)
    return _log_probs(prior_logits(params, hidden), config)


def prior_logits(params: Params, hidden: jax.Array) -> jax.Array:
    """Return the prior's raw logits `[..., S·C]` for its first hidden layer `[..., W]`."""
    return affine(params["prior_logits"], hidden_layer(params["prior_hidden_1"], hidden))


def observe_step(
    params: Params,
    state: RSSMState,
    prev_action: jax.Array,
    embedding: jax.Array,
    is_first: jax.Array,
    noise: jax.Array,
    *,
    config: DreamerV3Config,
) -> Observed:
    """Return the posterior after one row of each of N streams, for acting.

    Args:
        params: the RSSM's parameters.
        state: states before the row, `[N, ...]`; ignored where `is_first`.
        prev_action: action chosen at the previous row, one-hot or raw, `[N, A]`; likewise.
        embedding: the row's encoded observation, `[N, units]`.
        is_first: `[N]` bool.
        noise: of the latents, `[N, S]`; see `wm_dreamer.latents.sample_classes`.
        config: sizes and the uniform mixture.

    Returns:
        The posterior states, without a time axis.
    """
    keep = (~is_first).astype(jnp.float32)[:, None]
    state = RSSMState(state.deter * keep, state.stoch * keep)
    deter = core_step(params, Core.of(params), state, prev_action * keep)
    hidden = hidden_layer(params["posterior_hidden"], jnp.concatenate([deter, embedding], axis=-1))
    log_probs = _log_probs(affine(params["posterior_logits"], hidden), config)
    stoch, classes = one_hot_sample(log_probs, noise)
    return Observed(deter, stoch.reshape(deter.shape[0], -1), log_probs, classes)


def imagine_step(
    params: Params,
    state: RSSMState,
    action: jax.Array,
    noise: jax.Array,
    *,
    config: DreamerV3Config,
) -> RSSMState:
    """Return the states predicted after one action, without an observation.

    Args:
        params: the RSSM's parameters.
        state: `[N, ...]`.
        action: one-hot or raw, `[N, A]`.
        noise: of the latents, `[N, S]`.
        config: sizes and the uniform mixture.
    """
    deter = core_step(params, Core.of(params), state, action)
    log_probs = prior_log_probs(params, deter, config=config)
    stoch, _ = one_hot_sample(log_probs, noise)
    return RSSMState(deter, stoch.reshape(deter.shape[0], -1))


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
    action = (bounded_action(prev_action * keep)).reshape(n_steps * batch, -1)
    from_action = hidden_layer(params["action_in"], action) @ core.shared[2 * w :]
    from_action = from_action + _like(core.shared_bias, from_action)
    posterior = params["posterior_hidden"]
    rows = embedding.reshape(n_steps * batch, -1)
    from_embedding = rows @ posterior["kernel"][config.deter :] + _like(posterior["bias"], rows)

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
        log_probs = _log_probs(logits, config)
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


def _log_probs(logits: jax.Array, config: DreamerV3Config) -> jax.Array:
    """Return the mixed log-probabilities `[..., S, C]` of raw logits `[..., S·C]`."""
    shape = (*logits.shape[:-1], config.stoch, config.classes)
    return mix_uniform(logits.reshape(shape), config.unimix)


def _like(vector: jax.Array, x: jax.Array) -> jax.Array:
    """Return `vector` with leading axes of length 1, as many as `x` has more."""
    return vector.reshape((1,) * (x.ndim - vector.ndim) + vector.shape)
