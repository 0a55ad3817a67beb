"""One TD-MPC2 update: world model, then policy, then target networks.

The order and the freshness of parameters are the reference's: the TD target and the latents come
from the parameters before the step, the policy is trained on those latents (detached) with the Q
networks after the step, and the target follows last.

Source: nicklashansen/tdmpc2@b67b21c, tdmpc2.py, `update`, `update_pi`, `_td_target`.
"""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from wm_numerics import RunningScale, RunningScaleState
from wm_tdmpc2 import world_model
from wm_tdmpc2.config import TDMPC2Config
from wm_tdmpc2.networks import Params, init_params
from wm_tdmpc2.noise import UpdateNoise
from wm_tdmpc2.optimizer import (
    clip_coefficient,
    policy_optimizer,
    scale_gradients,
    world_model_optimizer,
)

METRIC_NAMES = (
    "consistency_loss",
    "reward_loss",
    "value_loss",
    "total_loss",
    "pi_loss",
    "grad_norm",
    "pi_scale",
)


class Batch(NamedTuple):
    """Slices of H transitions; time first. The replay's own batch has the same fields."""

    obs: jax.Array  # [H + 1, B, O]
    action: jax.Array  # [H, B, A]
    reward: jax.Array  # [H, B]


@flax.struct.dataclass
class LearnerState:
    """What an update needs from the previous one."""

    wm_params: Params  # encoder, dynamics, reward, q
    target_q_params: Params  # EMA of wm_params["q"]
    wm_opt_state: optax.OptState
    pi_params: Params
    pi_opt_state: optax.OptState
    q_scale: RunningScaleState  # running scale of the policy loss, starts at 1
    pi_grad_norm_sq: jax.Array  # [] squared norm of the last clipped policy gradient


def init_learner(key: jax.Array, *, config: TDMPC2Config) -> LearnerState:
    """Return a fresh learner; `key` is consumed. The target starts as a copy of Q."""
    wm_params, pi_params = init_params(key, config=config)
    return LearnerState(
        wm_params=wm_params,
        target_q_params=jax.tree.map(jnp.copy, wm_params["q"]),
        wm_opt_state=world_model_optimizer(config).init(wm_params),
        pi_params=pi_params,
        pi_opt_state=policy_optimizer(config).init(pi_params),
        q_scale=RunningScale(tau=config.tau).init(),
        pi_grad_norm_sq=jnp.zeros(()),
    )


def td_target(
    state: LearnerState, batch: Batch, noise: UpdateNoise, *, config: TDMPC2Config
) -> tuple[jax.Array, jax.Array]:
    """Return the encodings of the next observations and the TD targets.

    y_t = r_t + γ min(Q̄_i, Q̄_j)(z̄_{t+1}, a'), a' ~ π(z̄_{t+1}), z̄ = h(o_{t+1}): online encoder
    and policy, target Q. Every episode end is a time limit, so nothing is masked.

    Returns:
        `[H, B, Z]` latents and `[H, B]` targets in reward units; neither carries a gradient.
    """
    next_z = world_model.encode(state.wm_params, batch.obs[1:], config=config)
    action = world_model.pi(state.pi_params, next_z, noise.td_eps, config=config).action
    values = world_model.q_pair(
        state.target_q_params,
        next_z,
        action,
        noise.td_q_pair,
        noise.td_dropout,
        config=config,
    )
    target = batch.reward + config.gamma * jnp.min(values, axis=0)
    return jax.lax.stop_gradient(next_z), jax.lax.stop_gradient(target)


def world_model_loss(
    wm_params: Params,
    batch: Batch,
    next_z: jax.Array,
    target: jax.Array,
    dropout_key: jax.Array,
    *,
    config: TDMPC2Config,
) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
    """Return the weighted loss, the latent rollout and the unweighted loss terms.

    z_0 = h(o_0), z_{t+1} = d(z_t, a_t);
    consistency = 1/H Σ_t ρ^t mean (z_{t+1} − z̄_{t+1})², reward = 1/H Σ_t ρ^t mean ce(R, r_t),
    value = 1/(H Nq) Σ_t Σ_q ρ^t mean ce(Q_q, y_t), t = 0 … H − 1.

    Returns:
        Scalar loss, (`zs` `[H + 1, B, Z]`, metrics).
    """
    z = world_model.encode(wm_params, batch.obs[0], config=config)
    latents = [z]
    for t in range(config.horizon):
        z = world_model.next(wm_params, z, batch.action[t], config=config)
        latents.append(z)
    zs = jnp.stack(latents)

    weight = config.rho ** jnp.arange(config.horizon) / config.horizon
    mse = jnp.mean(jnp.square(zs[1:] - next_z), axis=(1, 2))
    consistency = jnp.sum(weight * mse)

    reward_logits = world_model.reward(wm_params, zs[:-1], batch.action, config=config)
    q_logits = world_model.q(wm_params["q"], zs[:-1], batch.action, dropout_key, config=config)
    reward_ce = config.two_hot.loss(reward_logits, batch.reward)
    value_ce = config.two_hot.loss(q_logits, jnp.broadcast_to(target, q_logits.shape[:-1]))
    reward_loss = jnp.sum(weight * jnp.mean(reward_ce, axis=1))
    value_loss = jnp.sum(weight * jnp.mean(value_ce, axis=(0, 2)))
    total = (
        config.consistency_coef * consistency
        + config.reward_coef * reward_loss
        + config.value_coef * value_loss
    )
    metrics = {
        "consistency_loss": consistency,
        "reward_loss": reward_loss,
        "value_loss": value_loss,
        "total_loss": total,
    }
    return total, (zs, metrics)


def policy_loss(
    pi_params: Params,
    q_params: Params,
    zs: jax.Array,
    q_scale: RunningScaleState,
    noise: UpdateNoise,
    *,
    config: TDMPC2Config,
) -> tuple[jax.Array, RunningScaleState]:
    """Return the policy loss and the running scale, which is updated before it is used.

    loss = 1/(H + 1) Σ_t ρ^t mean(β log π − ½(Q_i + Q_j)/S), t = 0 … H; S moves towards
    max(1, p95 − p5) of the values at t = 0. Only `pi_params` get a gradient.
    """
    sample = world_model.pi(pi_params, zs, noise.pi_eps, config=config)
    values = world_model.q_pair(
        q_params, zs, sample.action, noise.pi_q_pair, noise.pi_dropout, config=config
    )
    value = jnp.mean(values, axis=0)
    q_scale = RunningScale(tau=config.tau).update(q_scale, jax.lax.stop_gradient(value[0]))
    weight = config.rho ** jnp.arange(config.horizon + 1) / (config.horizon + 1)
    objective = config.entropy_coef * sample.log_pi - value / q_scale.scale
    return jnp.sum(weight * jnp.mean(objective, axis=1)), q_scale


def update(
    state: LearnerState, batch: Batch, noise: UpdateNoise, *, config: TDMPC2Config
) -> tuple[LearnerState, dict[str, jax.Array]]:
    """Take one gradient step of the whole agent.

    The world model's clip norm includes the policy gradient of the previous update, after its
    own clip: the reference never clears it before that clip, so `pi_grad_norm_sq` carries it.

    Args:
        state: the learner.
        batch: slices of the replay.
        noise: the draws, see `draw_update_noise`.
        config: static configuration.

    Returns:
        The next state and the metrics of `METRIC_NAMES`, scalars: losses before their
        coefficients, `grad_norm` as the world model's clip saw it, `pi_scale` after its update.
    """
    next_z, target = td_target(state, batch, noise, config=config)
    wm_grad_fn = jax.value_and_grad(world_model_loss, has_aux=True)
    (_, (zs, metrics)), wm_grads = wm_grad_fn(
        state.wm_params, batch, next_z, target, noise.value_dropout, config=config
    )
    own_norm_sq = jnp.square(optax.tree.norm(wm_grads))
    grad_norm = jnp.sqrt(own_norm_sq + state.pi_grad_norm_sq)
    wm_grads = scale_gradients(wm_grads, clip_coefficient(grad_norm, config))
    wm_updates, wm_opt_state = world_model_optimizer(config).update(
        wm_grads, state.wm_opt_state, state.wm_params
    )
    wm_params = optax.apply_updates(state.wm_params, wm_updates)

    (pi_loss, q_scale), pi_grads = jax.value_and_grad(policy_loss, has_aux=True)(
        state.pi_params,
        wm_params["q"],
        jax.lax.stop_gradient(zs),
        state.q_scale,
        noise,
        config=config,
    )
    pi_norm = optax.tree.norm(pi_grads)
    pi_coefficient = clip_coefficient(pi_norm, config)
    pi_updates, pi_opt_state = policy_optimizer(config).update(
        scale_gradients(pi_grads, pi_coefficient), state.pi_opt_state, state.pi_params
    )
    metrics |= {"pi_loss": pi_loss, "grad_norm": grad_norm, "pi_scale": q_scale.scale}
    new_state = LearnerState(
        wm_params=wm_params,
        target_q_params=optax.incremental_update(wm_params["q"], state.target_q_params, config.tau),
        wm_opt_state=wm_opt_state,
        pi_params=optax.apply_updates(state.pi_params, pi_updates),
        pi_opt_state=pi_opt_state,
        q_scale=q_scale,
        pi_grad_norm_sq=jnp.square(pi_coefficient * pi_norm),
    )
    return new_state, metrics
