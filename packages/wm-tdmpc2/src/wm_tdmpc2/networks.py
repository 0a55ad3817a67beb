"""The networks of TD-MPC2 and how their first layers are evaluated together.

Modules are flax.linen; parameters are plain dictionaries. Encoder and dynamics end in
Linear → LayerNorm → SimNorm, the other networks in a plain linear layer. The Q ensemble is one
`NormedMLP` whose parameters carry a leading member axis `[Nq, ...]`.

Several networks read the same input (latent and action). Their first layers are then one matrix
product (`joint_linear`), after which each network continues on its own slice: the same
numbers, with fewer and wider products.

Source: nicklashansen/tdmpc2@b67b21c, common/layers.py, common/world_model.py, common/init.py.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from wm_numerics.blocks import NormedMLP
from wm_numerics.dropout import dropout
from wm_numerics.initializers import normal, zeros
from wm_tdmpc2.config import TDMPC2Config

Params = Any  # nested dictionaries of arrays

WEIGHT_STD = 0.02
TASK_EMB_RANGE = 0.02
NORM_EPS = 1e-5

# What the key is folded with for the parts that not every agent has.
_TERMINATION, _TASK_EMB = 5, 6


def apply(module: nn.Module, params: Params, x: jax.Array, method: str = "__call__") -> jax.Array:
    """Return the output of a module that maps one array to one array."""
    output: Any = module.apply({"params": params}, x, method=method)
    return output


def simnorm(x: jax.Array, group: int) -> jax.Array:
    """Return the softmax over each group of consecutive features, `[..., Z]` to `[..., Z]`.

    Args:
        x: features, `[..., Z]`.
        group: features per group; Z must be a multiple of it.

    Source: nicklashansen/tdmpc2@b67b21c, common/layers.py, `SimNorm`.
    """
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // group, group)
    return jax.nn.softmax(groups, axis=-1).reshape(x.shape)


class LatentMLP(nn.Module):
    """Normed hidden layers, then Linear → LayerNorm → SimNorm: encoder and dynamics.

    Maps `[..., I]` to a latent `[..., Z]` in which each group of `simnorm_dim` features is a
    probability vector.
    """

    hidden: tuple[int, ...]
    latent_dim: int
    simnorm_dim: int

    def setup(self) -> None:
        """Name the submodules."""
        self.trunk = _mlp(self.hidden, self.latent_dim)
        self.norm = nn.LayerNorm(epsilon=NORM_EPS, use_fast_variance=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the latent of input `x`."""
        return self.from_preactivation(self.trunk.preactivation(x))

    def from_preactivation(self, h: jax.Array) -> jax.Array:
        """Return the latent, given the first linear layer's output."""
        return simnorm(self.norm(self.trunk.from_preactivation(h)), self.simnorm_dim)


def _mlp(hidden: tuple[int, ...], out: int, *, zero_out: bool = False) -> NormedMLP:
    return NormedMLP(
        hidden=hidden,
        activation="mish",
        norm="layer",
        norm_eps=NORM_EPS,
        kernel_init=normal(WEIGHT_STD),
        out_features=out,
        out_kernel_init=zeros if zero_out else normal(WEIGHT_STD),
    )


def encoder_module(config: TDMPC2Config) -> LatentMLP:
    """Return the encoder, `[..., O]` to `[..., Z]`."""
    hidden = (config.enc_dim,) * config.hidden_enc_layers
    return LatentMLP(hidden, config.latent_dim, config.simnorm_dim)


def dynamics_module(config: TDMPC2Config) -> LatentMLP:
    """Return the latent dynamics, `[..., Z + A]` to `[..., Z]`."""
    hidden = (config.mlp_dim, config.mlp_dim)
    return LatentMLP(hidden, config.latent_dim, config.simnorm_dim)


def value_module(config: TDMPC2Config) -> NormedMLP:
    """Return the reward head, and each Q member: `[..., Z + A]` to logits `[..., K]`.

    The last layer starts at zero, so rewards and values start at exactly 0.
    """
    return _mlp((config.mlp_dim, config.mlp_dim), config.num_bins, zero_out=True)


def policy_module(config: TDMPC2Config) -> NormedMLP:
    """Return the policy prior, `[..., Z]` to mean and raw log-std `[..., 2 A]`."""
    return _mlp((config.mlp_dim, config.mlp_dim), 2 * config.action_dim)


def termination_module(config: TDMPC2Config) -> NormedMLP:
    """Return the termination head, `[..., Z]` to a logit `[..., 1]`; its last layer is not zero.

    Source: nicklashansen/tdmpc2@e9f5932, common/world_model.py, `WorldModel.__init__`.
    """
    return _mlp((config.mlp_dim, config.mlp_dim), 1)


def init_params(key: jax.Array, *, config: TDMPC2Config) -> tuple[Params, Params]:
    """Return fresh world-model and policy parameters; `key` is consumed.

    Weights are N(0, 0.02²), biases 0, normalisation scales 1; the last weight of reward and Q
    networks is 0. Task embeddings are uniform in [−0.02, 0.02].

    Returns:
        World model `{"encoder", "dynamics", "reward", "q"}` (q with leading member axis `[Nq]`),
        with "termination" if `config.episodic` and "task_emb" `[n_tasks, D]` if there are several
        tasks; and the policy prior.
    """
    k_enc, k_dyn, k_rew, k_pi, k_q = jax.random.split(key, 5)
    # Every network takes the task's embedding after its first operand.
    obs = jnp.zeros((config.obs_dim + config.task_dim,))
    z = jnp.zeros((config.latent_dim + config.task_dim,))
    za = jnp.zeros((config.latent_dim + config.task_dim + config.action_dim,))

    def init(module: nn.Module, k: jax.Array, x: jax.Array) -> Params:
        return module.init(k, x)["params"]

    world_model = {
        "encoder": init(encoder_module(config), k_enc, obs),
        "dynamics": init(dynamics_module(config), k_dyn, za),
        "reward": init(value_module(config), k_rew, za),
        "q": jax.vmap(lambda k: init(value_module(config), k, za))(
            jax.random.split(k_q, config.num_q)
        ),
    }
    if config.episodic:
        k_termination = jax.random.fold_in(key, _TERMINATION)
        world_model["termination"] = init(termination_module(config), k_termination, z)
    if config.n_tasks:
        world_model["task_emb"] = jax.random.uniform(
            jax.random.fold_in(key, _TASK_EMB),
            (config.n_tasks, config.task_dim),
            minval=-TASK_EMB_RANGE,
            maxval=TASK_EMB_RANGE,
        )
    return world_model, init(policy_module(config), k_pi, z)


def parameter_counts(config: TDMPC2Config) -> dict[str, int]:
    """Return the learnable parameters of each network and in `total` (target Q excluded)."""
    wm, pi = jax.eval_shape(lambda k: init_params(k, config=config), jax.random.key(0))

    def count(tree: Params) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(tree))

    counts = {name: count(tree) for name, tree in wm.items()} | {"policy": count(pi)}
    return counts | {"total": sum(counts.values())}


def first_linear(params: Params) -> tuple[jax.Array, jax.Array]:
    """Return kernel `[(Nq,) I, M]` and bias `[(Nq,) M]` of a network's first layer."""
    layer = params.get("trunk", params)["linear_0"]
    return layer["kernel"], layer["bias"]


def with_first_linear(params: Params, kernel: jax.Array, bias: jax.Array) -> Params:
    """Return a network's parameters with another first layer."""
    if "trunk" in params:
        return {**params, "trunk": with_first_linear(params["trunk"], kernel, bias)}
    return {**params, "linear_0": {"kernel": kernel, "bias": bias}}


def joint_linear(networks: Sequence[Params]) -> tuple[jax.Array, jax.Array, tuple[int, ...]]:
    """Concatenate first layers that read the same input into one.

    Returns:
        Kernel `[I, F]`, bias `[F]`, and the number of columns of each network.
    """
    layers = [first_linear(params) for params in networks]
    kernel = jnp.concatenate([kernel for kernel, _ in layers], axis=1)
    bias = jnp.concatenate([bias for _, bias in layers])
    return kernel, bias, tuple(kernel.shape[1] for kernel, _ in layers)


def add_bias(h: jax.Array, bias: jax.Array) -> jax.Array:
    """Return `h` `[..., F]` plus `bias` `[F]`, their ranks made equal explicitly."""
    return h + jnp.broadcast_to(bias, h.shape)


def split_columns(h: jax.Array, widths: tuple[int, ...]) -> list[jax.Array]:
    """Cut the last axis of `h` into pieces of the given widths."""
    ends = [sum(widths[: i + 1]) for i in range(len(widths) - 1)]
    return jnp.split(h, ends, axis=-1)


def ensemble(
    params: Params,
    inputs: Sequence[jax.Array],
    dropout_key: jax.Array,
    *,
    config: TDMPC2Config,
) -> jax.Array:
    """Return the logits of each member of an ensemble.

    The first layer is summed over the parts of its input, so that a part without a gradient
    costs nothing in the backward pass. Dropout sits before the first normalisation, with an
    independent mask per member and row.

    Args:
        params: ensemble parameters, leading axis `[Nq]`.
        inputs: the parts of the input, each `[B, I_k]`, in order.
        dropout_key: key of the masks; consumed.
        config: gives the dropout rate and widths.

    Returns:
        Logits, `[Nq, B, K]`.
    """
    kernel, bias = first_linear(params)
    h, start = bias[:, None, :], 0
    for x in inputs:
        # One product per member: activations are then laid out member by member, as the batched
        # products of the later layers want them.
        members = jnp.broadcast_to(x, (kernel.shape[0], *x.shape))
        h = h + members @ kernel[:, start : start + x.shape[-1]]
        start += x.shape[-1]
    if config.dropout > 0:
        h = dropout(h, dropout_key, config.dropout)
    module = value_module(config)

    def member(p: Params, x: jax.Array) -> jax.Array:
        return apply(module, p, x, "from_preactivation")

    return jax.vmap(member)(params, h)


def select_member(params: Params, index: jax.Array) -> Params:
    """Return one member of an ensemble as an ensemble of its own, leading axis `[1]`."""
    return jax.tree.map(lambda p: jax.lax.dynamic_index_in_dim(p, index, 0), params)
