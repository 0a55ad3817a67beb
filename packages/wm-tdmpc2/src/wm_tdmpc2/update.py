"""One TD-MPC2 update: world model, then policy, then target networks.

The order and the freshness of parameters are the reference's: the TD target and the latents come
from the parameters before the step, the policy is trained on those latents (detached) with the Q
networks after the step, and the target follows last.

Two agents add to this. The episodic one masks TD targets where the episode terminated and learns to
predict terminations. The agent of several tasks (a `TaskContext` is given) shows every network the
embedding of a slice's task.

Source: nicklashansen/tdmpc2@b67b21c, tdmpc2.py, `update`, `update_pi`, `_td_target`; for episodic
agents also nicklashansen/tdmpc2@e9f5932, tdmpc2.py, `_update`.
"""

import dataclasses
from typing import Any, NamedTuple, TypeVar

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
from wm_tdmpc2.task_context import TaskContext, renormalised

METRIC_NAMES = (
    "consistency_loss",
    "reward_loss",
    "value_loss",
    "total_loss",
    "pi_loss",
    "grad_norm",
    "pi_scale",
)
EPISODIC_METRIC_NAMES = ("termination_loss", "termination_rate", "termination_f1")
_GRAD_NORM = "Train/grad_norm"

State = TypeVar("State")


def metric_names(config: TDMPC2Config) -> tuple[str, ...]:
    """Return the names of the metrics that `update` reports."""
    episodic = EPISODIC_METRIC_NAMES if config.episodic else ()
    norms = tuple(f"{_GRAD_NORM}/{name}" for name in _trained_networks(config))
    return METRIC_NAMES + episodic + norms


def _trained_networks(config: TDMPC2Config) -> tuple[str, ...]:
    """Return the parts of the world model, as in its parameters, and the policy."""
    termination = ("termination",) if config.episodic else ()
    embedding = ("task_emb",) if config.n_tasks else ()
    return ("encoder", "dynamics", "reward", "q", *termination, *embedding, "policy")


class Batch(NamedTuple):
    """Slices of H transitions; time first."""

    obs: jax.Array  # [H + 1, B, O]
    action: jax.Array  # [H, B, A]
    reward: jax.Array  # [H, B]
    terminated: jax.Array | None = None  # [H, B], 0 or 1; only read by episodic agents


@flax.struct.dataclass
class LearnerState:
    """What an update needs from the previous one."""

    wm_params: Params  # encoder, dynamics, reward, q; termination, task_emb where there are any
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
    state: LearnerState,
    batch: Batch,
    noise: UpdateNoise,
    *,
    config: TDMPC2Config,
    task: TaskContext | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the encodings of the next observations and the TD targets.

    y_t = r_t + γ (1 − terminated_t) min(Q̄_i, Q̄_j)(z̄_{t+1}, a'), a' ~ π(z̄_{t+1}),
    z̄ = h(o_{t+1}): online encoder and policy, target Q. An episode that ends without terminating
    was cut by its time limit; nothing is masked there, and nothing at all unless the agent is
    episodic. γ is that of the slice's task.

    Returns:
        `[H, B, Z]` latents and `[H, B]` targets in reward units; neither carries a gradient.
    """
    tasked = _embedding(state.wm_params, task)
    next_z = world_model.encode(state.wm_params, batch.obs[1:], config=config, **tasked)
    masked = tasked | _mask(task)
    action = world_model.pi(state.pi_params, next_z, noise.td_eps, config=config, **masked).action
    values = world_model.q_pair(
        state.target_q_params,
        next_z,
        action,
        noise.td_q_pair,
        noise.td_dropout,
        config=config,
        **tasked,
    )
    value = jnp.min(values, axis=0)
    if config.episodic:
        value = (1 - _terminated(batch)) * value
    gamma = config.gamma if task is None else jnp.broadcast_to(task.discount, value.shape)
    target = batch.reward + gamma * value
    return jax.lax.stop_gradient(next_z), jax.lax.stop_gradient(target)


def world_model_loss(
    wm_params: Params,
    batch: Batch,
    next_z: jax.Array,
    target: jax.Array,
    dropout_key: jax.Array,
    *,
    config: TDMPC2Config,
    task: TaskContext | None = None,
) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
    """Return the weighted loss, the latent rollout and the unweighted loss terms.

    z_0 = h(o_0), z_{t+1} = d(z_t, a_t);
    consistency = 1/H Σ_t ρ^t mean (z_{t+1} − z̄_{t+1})², reward = 1/H Σ_t ρ^t mean ce(R, r_t),
    value = 1/(H Nq) Σ_t Σ_q ρ^t mean ce(Q_q, y_t), t = 0 … H − 1; for episodic agents also
    termination = mean over t and B of the binary cross entropy of c(z_{t+1}), without ρ.

    Returns:
        Scalar loss, (`zs` `[H + 1, B, Z]`, metrics).
    """
    tasked = _embedding(wm_params, task)
    z = world_model.encode(wm_params, batch.obs[0], config=config, **tasked)
    latents = [z]
    for t in range(config.horizon):
        z = world_model.next(wm_params, z, batch.action[t], config=config, **tasked)
        latents.append(z)
    zs = jnp.stack(latents)

    weight = config.rho ** jnp.arange(config.horizon) / config.horizon
    mse = jnp.mean(jnp.square(zs[1:] - next_z), axis=(1, 2))
    consistency = jnp.sum(weight * mse)

    reward_logits = world_model.reward(wm_params, zs[:-1], batch.action, config=config, **tasked)
    q_logits = world_model.q(
        wm_params["q"], zs[:-1], batch.action, dropout_key, config=config, **tasked
    )
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
    }
    if config.episodic:
        logits = world_model.termination(wm_params, zs[1:], config=config)
        metrics |= termination_metrics(logits, _terminated(batch))
        total = total + config.termination_coef * metrics["termination_loss"]
    return total, (zs, metrics | {"total_loss": total})


def termination_metrics(logits: jax.Array, terminated: jax.Array) -> dict[str, jax.Array]:
    """Return the termination loss, and how often slices ended so and how well it was predicted.

    Args:
        logits: of the termination head at z_1 … z_H, `[H, B]`.
        terminated: whether entering that latent ended the episode, `[H, B]`, 0 or 1.

    Returns:
        `termination_loss`: the mean binary cross entropy; `termination_rate`: share of slices that
        terminate at their end (they can nowhere else); `termination_f1`: F1 score of predicting so
        with a probability above ½, 0 where nothing was predicted rightly.

    Source: nicklashansen/tdmpc2@e9f5932, tdmpc2.py, `_update`; common/math.py,
    `termination_statistics`.
    """
    loss = jnp.mean(optax.sigmoid_binary_cross_entropy(logits, terminated))
    predicted, ended = jax.nn.sigmoid(logits[-1]) > 0.5, terminated[-1] > 0.5
    n_hits = jnp.sum(predicted & ended)
    n_either = jnp.sum(predicted) + jnp.sum(ended)
    return {
        "termination_loss": loss,
        "termination_rate": jnp.mean(terminated[-1]),
        "termination_f1": 2 * n_hits / jnp.maximum(n_either, 1),
    }


def policy_loss(
    pi_params: Params,
    wm_params: Params,
    zs: jax.Array,
    q_scale: RunningScaleState,
    noise: UpdateNoise,
    *,
    config: TDMPC2Config,
    task: TaskContext | None = None,
) -> tuple[jax.Array, RunningScaleState]:
    """Return the policy loss and the running scale, which is updated before it is used.

    loss = 1/(H + 1) Σ_t ρ^t mean(β log π − ½(Q_i + Q_j)/S), t = 0 … H; S moves towards
    max(1, p95 − p5) of the values at t = 0. Only `pi_params` get a gradient.
    """
    tasked = _embedding(wm_params, task)
    masked = tasked | _mask(task)
    sample = world_model.pi(pi_params, zs, noise.pi_eps, config=config, **masked)
    values = world_model.q_pair(
        wm_params["q"],
        zs,
        sample.action,
        noise.pi_q_pair,
        noise.pi_dropout,
        config=config,
        **tasked,
    )
    value = jnp.mean(values, axis=0)
    q_scale = RunningScale(tau=config.tau).update(q_scale, jax.lax.stop_gradient(value[0]))
    weight = config.rho ** jnp.arange(config.horizon + 1) / (config.horizon + 1)
    objective = config.entropy_coef * sample.log_pi - value / q_scale.scale
    return jnp.sum(weight * jnp.mean(objective, axis=1)), q_scale


def update(
    state: LearnerState,
    batch: Batch,
    noise: UpdateNoise,
    *,
    config: TDMPC2Config,
    task: TaskContext | None = None,
    halted: jax.Array | bool = False,
) -> tuple[LearnerState, dict[str, jax.Array]]:
    """Take one gradient step of the whole agent.

    The world model's clip norm includes the policy gradient of the previous update, after its
    own clip: the reference never clears it before that clip, so `pi_grad_norm_sq` carries it.

    With several tasks, the embeddings of the batch's tasks are brought back into the unit ball at
    two points: before anything is computed, and after the world model's step.

    Args:
        state: the learner.
        batch: slices of the replay.
        noise: the draws, see `draw_update_noise`.
        config: static configuration.
        task: the tasks of the slices; None for the agent of a single task.
        halted: leave the learner as it is, bool `[]`. So does a loss or gradient that is not
            finite (E25): of the world model all of it, of the policy its own part.

    Returns:
        The next state and the metrics of `metric_names`, scalars: losses before their
        coefficients, `grad_norm` as the world model's clip saw it, the norm of each network's
        gradient before any clip, `pi_scale` after its update.
    """
    state = dataclasses.replace(state, wm_params=_renormalised(state.wm_params, task))
    next_z, target = td_target(state, batch, noise, config=config, task=task)
    wm_grad_fn = jax.value_and_grad(world_model_loss, has_aux=True)
    (_, (zs, metrics)), wm_grads = wm_grad_fn(
        state.wm_params, batch, next_z, target, noise.value_dropout, config=config, task=task
    )
    norms = {name: optax.tree.norm(grads) for name, grads in wm_grads.items()}
    own_norm_sq = jnp.square(optax.tree.norm(wm_grads))
    grad_norm = jnp.sqrt(own_norm_sq + state.pi_grad_norm_sq)
    wm_grads = scale_gradients(wm_grads, clip_coefficient(grad_norm, config))
    wm_updates, wm_opt_state = world_model_optimizer(config).update(
        wm_grads, state.wm_opt_state, state.wm_params
    )
    # Selected at once, so that the selection is part of the optimiser's own pass over the arrays.
    wm_learns = ~jnp.asarray(halted) & jnp.isfinite(metrics["total_loss"]) & jnp.isfinite(grad_norm)
    wm_params, wm_opt_state = _select(
        wm_learns,
        (optax.apply_updates(state.wm_params, wm_updates), wm_opt_state),
        (state.wm_params, state.wm_opt_state),
    )
    wm_params = _renormalised(wm_params, task)
    target_q_params = optax.incremental_update(wm_params["q"], state.target_q_params, config.tau)

    (pi_loss, q_scale), pi_grads = jax.value_and_grad(policy_loss, has_aux=True)(
        state.pi_params,
        wm_params,
        jax.lax.stop_gradient(zs),
        state.q_scale,
        noise,
        config=config,
        task=task,
    )
    pi_norm = optax.tree.norm(pi_grads)
    pi_coefficient = clip_coefficient(pi_norm, config)
    pi_updates, pi_opt_state = policy_optimizer(config).update(
        scale_gradients(pi_grads, pi_coefficient), state.pi_opt_state, state.pi_params
    )
    metrics |= {"pi_loss": pi_loss, "grad_norm": grad_norm, "pi_scale": q_scale.scale}
    norms["policy"] = pi_norm
    metrics |= {f"{_GRAD_NORM}/{name}": norms[name] for name in _trained_networks(config)}
    pi_learns = wm_learns & jnp.isfinite(pi_loss) & jnp.isfinite(pi_norm)
    pi_params, pi_opt_state, q_scale, pi_grad_norm_sq = _select(
        pi_learns,
        (
            optax.apply_updates(state.pi_params, pi_updates),
            pi_opt_state,
            q_scale,
            jnp.square(pi_coefficient * pi_norm),
        ),
        (state.pi_params, state.pi_opt_state, state.q_scale, state.pi_grad_norm_sq),
    )
    new_state = LearnerState(
        wm_params=wm_params,
        target_q_params=_select(wm_learns, target_q_params, state.target_q_params),
        wm_opt_state=wm_opt_state,
        pi_params=pi_params,
        pi_opt_state=pi_opt_state,
        q_scale=q_scale,
        pi_grad_norm_sq=pi_grad_norm_sq,
    )
    return new_state, metrics


def _select(learns: jax.Array, new: State, old: State) -> State:
    """Return the new arrays where learning goes on, else the old ones."""
    return jax.tree.map(lambda a, b: jnp.where(learns, a, b), new, old)


def _embedding(wm_params: Params, task: TaskContext | None) -> dict[str, Any]:
    """Return the keyword argument that shows a network the task of every slice, if there is one."""
    return {} if task is None else {"embedding": wm_params["task_emb"][task.task]}


def _mask(task: TaskContext | None) -> dict[str, Any]:
    """Return the keyword argument that tells the policy which dimensions a task has."""
    return {} if task is None else {"action_mask": task.action_mask}


def _renormalised(wm_params: Params, task: TaskContext | None) -> Params:
    if task is None:
        return wm_params
    return {**wm_params, "task_emb": renormalised(wm_params["task_emb"], task.task)}


def _terminated(batch: Batch) -> jax.Array:
    if batch.terminated is None:
        raise ValueError(
            "an episodic agent learns from batches that say where episodes terminated; "
            "batch.terminated is None."
        )
    return batch.terminated
