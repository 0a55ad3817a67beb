"""The recurrent state-space model: block-diagonal GRU, posterior and prior over the latents.

A state is a deterministic vector `deter` of D units and S one-hot latents of C classes, flat
`[S·C]` with the classes of a latent side by side. Both are zero before the first row of a stream,
and again where `is_first`.

Layout. The D units form G blocks that see only their own units and the (shared) inputs, so the
blocks lead inside the core: `[G, N, D / G]`. Each block's product is then one plain matrix
product, and the inputs, which are the same for all blocks, are multiplied for all of them at once.

Here are the layers and one step of N streams; whole sequences with their gradient are in
`wm_dreamer.observe_sequence`, imagined ones in `wm_dreamer.imagination`.

Source: danijar/dreamerv3@2411f7d, dreamerv3/nets.py, `RSSM`.
"""

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
    return latent_log_probs(prior_logits(params, hidden), config)


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
    log_probs = latent_log_probs(affine(params["posterior_logits"], hidden), config)
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


def latent_log_probs(logits: jax.Array, config: DreamerV3Config) -> jax.Array:
    """Return the mixed log-probabilities `[..., S, C]` of raw logits `[..., S·C]`."""
    shape = (*logits.shape[:-1], config.stoch, config.classes)
    return mix_uniform(logits.reshape(shape), config.unimix)


def _like(vector: jax.Array, x: jax.Array) -> jax.Array:
    """Return `vector` with leading axes of length 1, as many as `x` has more."""
    return vector.reshape((1,) * (x.ndim - vector.ndim) + vector.shape)
