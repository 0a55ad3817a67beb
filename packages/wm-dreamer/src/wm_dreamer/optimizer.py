"""Adaptive gradient clipping, LaProp and the warm-up of the step size.

Three optax transformations, each usable alone, and `laprop`, which chains them. Everything is per
tensor, in the tensors' dtype (float32 everywhere in this package, D30), so an optimiser split by
networks makes the same updates as one over all of them.

For a tensor p with gradient g at update u (from 0), with k = u + 1:

    1. g ← g / max(1, ‖g‖ / (clip · max(pmin, ‖p‖)))
    2. nu ← β2 nu + (1 − β2) g²,   y = g / (√(nu / (1 − β2^k)) + eps)
    3. mu ← β1 mu + (1 − β1) y,    d = mu / (1 − β1^k)
    4. p ← p − learning_rate · clip(u / warmup, 0, 1) · d

Source: danijar/dreamerv3@2411f7d, dreamerv3/jaxutils.py, `Optimizer`, `scale_by_agc`,
`scale_by_rms`, `scale_by_momentum`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from wm_dreamer.config import DreamerV3Settings, LearningRate


class LaPropState(NamedTuple):
    """State of `scale_by_laprop`.

    Attributes:
        count: updates made, int32 `[]`.
        nu: EMA of the squared gradients, a tree like the parameters; not bias-corrected.
        mu: EMA of the normalised gradients, a tree like the parameters; not bias-corrected.
    """

    count: jax.Array  # type: ignore[assignment]  # optax's name; tuples have a method `count`
    nu: Any
    mu: Any


def adaptive_gradient_clip(clip: float = 0.3, pmin: float = 1e-3) -> optax.GradientTransformation:
    """Return a transformation that limits each gradient's norm relative to its parameter's.

    g ← g / max(1, ‖g‖ / (clip · max(pmin, ‖p‖))), with the Frobenius norm of a whole tensor,
    whatever its rank; p is the parameter before the step. `pmin` gives tensors that are zero an
    allowance. A gradient whose squares underflow has norm 0 and is left alone.

    Args:
        clip: the largest ratio of the norms, above 0.
        pmin: the parameter's norm counts as at least this, above 0.

    Returns:
        A stateless transformation whose `update` needs the parameters; it raises a `ValueError`
        without them.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/jaxutils.py, `scale_by_agc`. Deviations: none. Unlike
        `optax.adaptive_grad_clip`, the norms are of whole tensors instead of single units.
    """

    def clipped(gradient: jax.Array, parameter: jax.Array) -> jax.Array:
        allowed = clip * jnp.maximum(pmin, _norm(parameter))
        return gradient * (1.0 / jnp.maximum(1.0, _norm(gradient) / allowed))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        if params is None:
            raise ValueError(
                "Adaptive gradient clipping compares gradients with parameters; call "
                "update(gradients, state, params) with the parameters before the step."
            )
        return jax.tree.map(clipped, updates, params), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def scale_by_laprop(
    beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-20
) -> optax.GradientTransformation:
    """Return a transformation that normalises gradients by their RMS and then adds momentum.

    Stages 2 and 3 of the module's description. Adam averages the gradients and divides the
    average; LaProp divides each gradient when it arrives and averages the quotients, so a gradient
    counts in proportion to the scale of its own time.

    Both averages start at 0 and are bias-corrected. The correction 1 − β^k is computed in float32,
    as the reference does, so the first y is 0.9999934 for β2 = 0.999. A zero gradient gives 0.
    Where nu underflows (abs g below 3e-18 or so, depending on the device's subnormal numbers), y is
    g / eps: with the default eps up to some hundreds, instead of about 1.

    Args:
        beta1: decay of the momentum, in [0, 1).
        beta2: decay of the second moment, in [0, 1).
        eps: added to the root of the corrected second moment, above 0.

    Returns:
        A transformation with a `LaPropState`. Its updates d are ascent directions; `laprop` scales
        them by a negative step size.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/jaxutils.py, `scale_by_rms`, `scale_by_momentum`.
        Deviations: none. Described in L. Ziyin, Z. Wang, M. Ueda: LaProp: Separating Momentum and
        Adaptivity in Adam, 2020.
    """

    def init(params: optax.Params) -> LaPropState:
        def zeros() -> optax.Params:
            return jax.tree.map(jnp.zeros_like, params)

        return LaPropState(count=jnp.zeros((), jnp.int32), nu=zeros(), mu=zeros())

    def update(
        updates: optax.Updates, state: LaPropState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, LaPropState]:
        count = optax.safe_increment(state.count)
        nu_correction = _bias_correction(beta2, count)
        mu_correction = _bias_correction(beta1, count)

        nu = jax.tree.map(lambda g, nu: beta2 * nu + (1 - beta2) * (g * g), updates, state.nu)

        def averaged(g: jax.Array, nu: jax.Array, mu: jax.Array) -> jax.Array:
            return beta1 * mu + (1 - beta1) * (g / (jnp.sqrt(nu / nu_correction) + eps))

        mu = jax.tree.map(averaged, updates, nu, state.mu)
        d = jax.tree.map(lambda mu: mu / mu_correction, mu)
        return d, LaPropState(count=count, nu=nu, mu=mu)

    return optax.GradientTransformation(init, update)


def warmup_schedule(learning_rate: LearningRate, warmup: int = 1000) -> optax.Schedule:
    """Return the step size of update u, learning_rate · clip(u / warmup, 0, 1).

    Update 0 has step size 0: it changes no parameter, while the optimiser's averages already take
    its gradient. `warmup=0` leaves the learning rate as it is.

    Args:
        learning_rate: a number, or a schedule of u.
        warmup: updates until the full step size.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/jaxutils.py, `Optimizer`. Deviations: none.
    """

    def rate(count: jax.Array) -> jax.Array:
        full = learning_rate(count) if callable(learning_rate) else learning_rate
        factor = jnp.clip(count / warmup, 0.0, 1.0) if warmup else 1.0
        return jnp.asarray(full * factor, jnp.float32)

    return rate


def laprop(
    learning_rate: LearningRate = 4e-5,
    *,
    agc: float = 0.3,
    agc_pmin: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-20,
    warmup: int = 1000,
) -> optax.GradientTransformation:
    """Return DreamerV3's optimiser: clip, normalise, add momentum, scale by the step size.

    Args:
        learning_rate: step size after the warm-up: a number, or a schedule of the update count.
        agc: `clip` of `adaptive_gradient_clip`.
        agc_pmin: `pmin` of `adaptive_gradient_clip`.
        beta1: decay of the momentum.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        warmup: updates over which the step size rises from 0; 0 for none.

    Returns:
        A transformation whose `update` needs the parameters and whose updates are to be added to
        them (`optax.apply_updates`). Its state is a tuple: an empty state, a `LaPropState`, and
        optax's `ScaleByScheduleState`, whose count equals that of the second.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/jaxutils.py, `Optimizer`; dreamerv3/configs.yaml,
        `opt`. Deviations: D39.
    """
    return optax.chain(
        adaptive_gradient_clip(agc, agc_pmin),
        scale_by_laprop(beta1, beta2, eps),
        optax.scale_by_learning_rate(warmup_schedule(learning_rate, warmup)),
    )


def optimizer_of(config: DreamerV3Settings) -> optax.GradientTransformation:
    """Return the optimiser of a configuration (nothing in it depends on the task)."""
    return laprop(
        config.learning_rate,
        agc=config.agc,
        agc_pmin=config.agc_pmin,
        beta1=config.beta1,
        beta2=config.beta2,
        eps=config.eps,
        warmup=config.warmup,
    )


def _norm(x: jax.Array) -> jax.Array:
    """Return the Frobenius norm of a tensor of any rank, `[]`."""
    return jnp.sqrt(jnp.sum(jnp.square(x)))


def _bias_correction(beta: float, count: jax.Array) -> jax.Array:
    return 1 - jnp.float32(beta) ** count.astype(jnp.float32)
