"""The networks around the recurrent model: encoder, decoder and the heads.

Parameters of all seven trained modules live in one dictionary, `{"encoder", "rssm", "decoder",
"reward", "continue", "actor", "critic"}`; the slow critic has the critic's structure. Every head
reads the features of a state, `deter` first, then `stoch`: `[..., D + S·C]`.

Source: danijar/dreamerv3@2411f7d, dreamerv3/nets.py, `SimpleEncoder`, `SimpleDecoder`, `MLP`,
`Dist`; dreamerv3/configs.yaml. Deviations: D29, D32.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from wm_dreamer.config import DreamerV3Config
from wm_dreamer.rssm import NORM_EPS, Params, init_rssm
from wm_numerics import fan_in_truncated_normal, symlog
from wm_numerics.blocks import NormedMLP, linear

DECODER_OUTSCALE = 0.1
ACTOR_OUTSCALE = 0.01


def _mlp(width: int, layers: int, out: int | None = None, outscale: float = 1.0) -> NormedMLP:
    return NormedMLP(
        hidden=(width,) * layers,
        activation="silu",
        norm="rms",
        norm_eps=NORM_EPS,
        kernel_init=fan_in_truncated_normal(),
        out_features=out,
        out_kernel_init=fan_in_truncated_normal(outscale),
    )


def encoder(config: DreamerV3Config) -> NormedMLP:
    """Return the encoder: symlog observations `[..., O]` to embeddings `[..., units]`."""
    return _mlp(config.units, config.enc_layers)


def decoder(config: DreamerV3Config) -> NormedMLP:
    """Return the decoder: features to symlog observations `[..., O]`."""
    return _mlp(config.units, config.dec_layers, config.obs_dim, DECODER_OUTSCALE)


def reward_head(config: DreamerV3Config) -> NormedMLP:
    """Return the reward head: features to two-hot logits `[..., bins]`, zero at the start."""
    return _mlp(config.units, config.rew_layers, config.bins, 0.0)


def continue_head(config: DreamerV3Config) -> NormedMLP:
    """Return the continue head: features to one logit `[..., 1]`."""
    return _mlp(config.units, config.con_layers, 1)


def critic(config: DreamerV3Config) -> NormedMLP:
    """Return the critic: features to two-hot logits `[..., bins]`, zero at the start."""
    return _mlp(config.units, config.critic_layers, config.bins, 0.0)


class Actor(nn.Module):
    """The actor's hidden layers and output layers.

    The two output layers of a continuous actor are tensors of their own, because the optimiser
    clips each tensor by its own norm.

    Attributes:
        config: sizes.
    """

    config: DreamerV3Config

    def setup(self) -> None:
        """Create the layers `trunk` and `logits`, or `trunk`, `mean` and `std`."""
        c, init = self.config, fan_in_truncated_normal(ACTOR_OUTSCALE)
        self.trunk = _mlp(c.units, c.actor_layers)
        names = ("logits",) if c.discrete else ("mean", "std")
        for name in names:
            setattr(self, name, linear(c.action_dim, kernel_init=init))

    def __call__(self, features: jax.Array) -> dict[str, jax.Array]:
        """Return the raw outputs `{"logits"}` or `{"mean", "std"}`, each `[..., A]`."""
        return self.from_preactivation(self.trunk.preactivation(features))

    def from_preactivation(self, h: jax.Array) -> dict[str, jax.Array]:
        """Return the raw outputs for the first linear layer's output `[..., units]`."""
        h = self.trunk.from_preactivation(h)
        names = ("logits",) if self.config.discrete else ("mean", "std")
        return {name: getattr(self, name)(h) for name in names}


def init_params(key: jax.Array, *, config: DreamerV3Config) -> Params:
    """Return fresh parameters of the seven trained modules; `key` is consumed."""
    features = jnp.zeros((1, config.feature_dim), jnp.float32)
    obs = jnp.zeros((1, config.obs_dim), jnp.float32)
    modules: dict[str, tuple[nn.Module, jax.Array]] = {
        "encoder": (encoder(config), obs),
        "decoder": (decoder(config), features),
        "reward": (reward_head(config), features),
        "continue": (continue_head(config), features),
        "actor": (Actor(config), features),
        "critic": (critic(config), features),
    }
    keys = jax.random.split(key, len(modules) + 1)
    params = {
        name: module.init(k, x)["params"]
        for k, (name, (module, x)) in zip(keys[1:], modules.items(), strict=True)
    }
    return params | {"rssm": init_rssm(keys[0], config)}


def init_critic(key: jax.Array, *, config: DreamerV3Config) -> Params:
    """Return fresh parameters of a critic, for the slow one; `key` is consumed."""
    features = jnp.zeros((1, config.feature_dim), jnp.float32)
    return critic(config).init(key, features)["params"]


def apply(module: nn.Module, params: Params, x: jax.Array) -> Any:
    """Return the module's output with the given parameters."""
    return module.apply({"params": params}, x)


def finish(module: nn.Module, params: Params, preactivation: jax.Array) -> Any:
    """Return the module's output for the output of its first linear layer."""
    return module.apply({"params": params}, preactivation, method="from_preactivation")


def first_layer(name: str, params: Params) -> Params:
    """Return `{kernel, bias}` of the first linear layer of a head, e.g. `"actor"`."""
    return (params["trunk"] if name == "actor" else params)["linear_0"]


def encode(params: Params, obs: jax.Array, *, config: DreamerV3Config) -> jax.Array:
    """Return embeddings of observations: `[..., O]` float32, raw units, to `[..., units]`."""
    return apply(encoder(config), params, symlog(obs))
