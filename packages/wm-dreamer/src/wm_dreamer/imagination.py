"""Imagined trajectories: the actor and the prior, H steps from every replayed state.

Nothing here is differentiated: the whole rollout runs behind `stop_gradient`, so no tangents are
traced and no residuals are kept. What the losses differentiate are the actor and the critic on
the states it returns.

Every network that reads a new state multiplies it by the kernel of its first layer. `imagine`
makes these products together, once per state: one product for the deterministic part, one for the
latents. The first layers' outputs of the heads are returned, so that nothing is multiplied again
by whoever evaluates a head on the imagined states; `known_products` gives the gradient of such an
output with respect to its kernel.

Source: danijar/dreamerv3@2411f7d, dreamerv3/agent.py, `Agent.loss` ("Imagination").
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from wm_dreamer import networks
from wm_dreamer.action_distributions import action_distribution
from wm_dreamer.config import DreamerV3Config
from wm_dreamer.latents import mix_uniform, sample_classes
from wm_dreamer.noise import UpdateNoise
from wm_dreamer.rssm import (
    Core,
    Params,
    RSSMState,
    bounded_action,
    flat_rows,
    hidden_layer,
    next_blocks,
    prior_logits,
    rms_silu,
    to_blocks,
    to_rows,
)

# Heads that are wanted at the state an action is chosen in, and at the state it leads to.
_BEFORE = ("actor", "critic", "slow_critic")
_AFTER = ("reward", "continue")


class Imagined(NamedTuple):
    """H imagined steps from N starts, step first. Step j leads from state j to state j + 1.

    Pre-activations are outputs of the first linear layer of a head, `[H, N, units]`.

    Attributes:
        state: states 0 to H − 1, `[H, N, ...]`; state 0 is the start.
        action: actions at these states, one-hot or raw, `[H, N, A]`.
        actor: the actor's pre-activation at the states 0 to H − 1.
        critic: the critic's, at the states 0 to H − 1.
        slow_critic: the slow critic's, at the states 0 to H − 1.
        reward: the reward head's, at the states 1 to H.
        cont: the continue head's, at the states 1 to H.
        last_critic: the critic's at state H, `[N, units]`.
        last_state: state H, `[N, ...]`.
    """

    state: RSSMState
    action: jax.Array
    actor: jax.Array
    critic: jax.Array
    slow_critic: jax.Array
    reward: jax.Array
    cont: jax.Array
    last_critic: jax.Array
    last_state: RSSMState


class _Reads(NamedTuple):
    """First-layer outputs of everything that reads one state, `[N, ...]`."""

    deter_in: jax.Array
    stoch_in: jax.Array
    heads: dict[str, jax.Array]


def imagine(
    params: Params,
    slow_critic: Params,
    start: RSSMState,
    noise: UpdateNoise,
    *,
    config: DreamerV3Config,
) -> Imagined:
    """Roll the actor and the prior out for H steps; no gradient flows into anything.

    Args:
        params: parameters of all modules.
        slow_critic: the slow critic's parameters.
        start: N states to start from, `[N, ...]`.
        noise: of the actions and the latents; its posterior draws are not used.
        config: sizes.
    """
    params, slow_critic, start = jax.lax.stop_gradient((params, slow_critic, start))
    rssm = params["rssm"]
    core = Core.of(rssm)
    actor = networks.Actor(config)
    n_deter, units, w = config.deter, config.units, config.hidden
    trained = ("actor", "critic", *_AFTER)
    first = {name: networks.first_layer(name, params[name]) for name in trained}
    first["slow_critic"] = networks.first_layer("critic", slow_critic)

    def reading(names: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
        """Return the kernels of the deterministic part and of the latents, side by side."""
        heads = [first[name]["kernel"] for name in names]
        of_deter = [rssm["deter_in"]["kernel"], *(k[:n_deter] for k in heads)]
        of_stoch = [rssm["stoch_in"]["kernel"], *(k[n_deter:] for k in heads)]
        return jnp.concatenate(of_deter, axis=1), jnp.concatenate(of_stoch, axis=1)

    def reads(from_deter: jax.Array, from_stoch: jax.Array, names: tuple[str, ...]) -> _Reads:
        """Split the outputs of `reading`'s kernels, and add the biases."""
        heads = {}
        for i, name in enumerate(names):
            columns = slice(w + i * units, w + (i + 1) * units)
            bias = first[name]["bias"][None]
            heads[name] = from_deter[:, columns] + from_stoch[:, columns] + bias
        return _Reads(
            deter_in=from_deter[:, :w] + rssm["deter_in"]["bias"][None],
            stoch_in=from_stoch[:, :w] + rssm["stoch_in"]["bias"][None],
            heads=heads,
        )

    everything = _BEFORE + _AFTER
    deter_kernel, stoch_kernel = reading(everything)
    prior = rssm["prior_hidden_0"]
    deter_kernel = jnp.concatenate([deter_kernel, prior["kernel"]], axis=1)

    def step(
        carry: tuple[RSSMState, jax.Array, _Reads], noise: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[RSSMState, jax.Array, _Reads], dict[str, Any]]:
        state, blocks, read = carry
        action_noise, prior_noise = noise
        outputs = networks.finish(actor, params["actor"], read.heads["actor"])
        action = action_distribution(outputs, config=config).sample(action_noise)
        inputs = jnp.concatenate(
            [
                rms_silu(read.deter_in, rssm["deter_in"]["scale"]),
                rms_silu(read.stoch_in, rssm["stoch_in"]["scale"]),
                hidden_layer(rssm["action_in"], bounded_action(action)),
            ],
            axis=-1,
        )
        blocks = next_blocks(core, blocks, inputs)
        deter = to_rows(blocks)
        from_deter = deter @ deter_kernel
        prior_hidden = rms_silu(from_deter[:, -w:] + prior["bias"][None], prior["scale"])
        logits = prior_logits(rssm, prior_hidden).reshape(-1, config.stoch, config.classes)
        classes = sample_classes(mix_uniform(logits, config.unimix), prior_noise)
        stoch = jax.nn.one_hot(classes, config.classes).reshape(-1, config.stoch * config.classes)
        new = reads(from_deter[:, :-w], stoch @ stoch_kernel, everything)
        after = {name: new.heads.pop(name) for name in _AFTER}
        made = {
            "state": state,
            "action": action,
            "actor": read.heads["actor"],
            "critic": read.heads["critic"],
            "slow_critic": read.heads["slow_critic"],
            "reward": after["reward"],
            "cont": after["continue"],
        }
        return (RSSMState(deter, stoch), blocks, new), made

    deter_kernel_0, stoch_kernel_0 = reading(_BEFORE)
    first_reads = reads(start.deter @ deter_kernel_0, start.stoch @ stoch_kernel_0, _BEFORE)
    # The deterministic state is carried in both layouts: one transposition per step, and the gates
    # are computed where they lie.
    first_carry = (start, to_blocks(start.deter, config.blocks), first_reads)
    (last, _, last_reads), steps = jax.lax.scan(step, first_carry, (noise.action, noise.prior))
    return Imagined(**steps, last_critic=last_reads.heads["critic"], last_state=last)


@jax.custom_vjp
def known_products(
    layers: list[Params], state: RSSMState, products: list[jax.Array]
) -> list[jax.Array]:
    """Return `products`, each features(state)·kernel + bias of its layer, with their gradients.

    The gradients flow into the layers' kernels and biases only, as through
    stop_gradient(features)·kernel + bias, but nothing is multiplied forward, and the gradients of
    all kernels are one product.

    Args:
        layers: `{"kernel": [D + S·C, units], "bias": [units]}` of each layer.
        state: the states that were multiplied, `[..., D]` and `[..., S·C]`.
        products: the known outputs, each `[..., units]`.
    """
    return products


def _known_products_forward(
    layers: list[Params], state: RSSMState, products: list[jax.Array]
) -> tuple[list[jax.Array], RSSMState]:
    return products, state


def _known_products_backward(
    state: RSSMState, cotangents: list[jax.Array]
) -> tuple[list[Params], None, None]:
    rows = [flat_rows(x) for x in cotangents]
    # The narrow factor is transposed first: XLA's CPU product with a long contraction over the
    # leading axes of both factors runs at half the speed.
    columns = jax.lax.optimization_barrier(jnp.concatenate(rows, axis=1).T)
    deter, stoch = (flat_rows(x) for x in state)
    kernels = jnp.concatenate([columns @ deter, columns @ stoch], axis=1).T
    layers, start = [], 0
    for one in rows:
        stop = start + one.shape[1]
        layers.append({"kernel": kernels[:, start:stop], "bias": jnp.sum(one, axis=0)})
        start = stop
    return layers, None, None


known_products.defvjp(_known_products_forward, _known_products_backward)
