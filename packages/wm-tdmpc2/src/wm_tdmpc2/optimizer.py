"""The two optimisers and the clip that remembers the policy's last gradient.

Source: nicklashansen/tdmpc2@b67b21c, tdmpc2.py, `TDMPC2.__init__`, `update`, `update_pi`.
"""

import jax
import jax.numpy as jnp
import optax

from wm_tdmpc2.config import TDMPC2Config
from wm_tdmpc2.networks import Params

WORLD_MODEL_EPS = 1e-8
CLIP_EPS = 1e-6


def world_model_optimizer(config: TDMPC2Config) -> optax.GradientTransformation:
    """Return Adam with the encoder's learning rate scaled by `enc_lr_scale`."""
    rate, scale = config.learning_rate, config.enc_lr_scale
    encoder_rate = (lambda count: rate(count) * scale) if callable(rate) else rate * scale

    def labels(params: Params) -> dict[str, str]:
        return {name: "encoder" if name == "encoder" else "rest" for name in params}

    return optax.multi_transform(
        {
            "encoder": optax.adam(encoder_rate, eps=WORLD_MODEL_EPS),
            "rest": optax.adam(rate, eps=WORLD_MODEL_EPS),
        },
        labels,
    )


def policy_optimizer(config: TDMPC2Config) -> optax.GradientTransformation:
    """Return the policy prior's Adam."""
    return optax.adam(config.learning_rate, eps=config.pi_eps)


def clip_coefficient(norm: jax.Array, config: TDMPC2Config) -> jax.Array:
    """Return min(1, grad_clip_norm / (norm + 1e-6)), the factor gradients are scaled by."""
    return jnp.minimum(1.0, config.grad_clip_norm / (norm + CLIP_EPS))


def scale_gradients(grads: Params, coefficient: jax.Array) -> Params:
    """Return every gradient times `coefficient`."""
    return jax.tree.map(lambda g: g * coefficient, grads)
