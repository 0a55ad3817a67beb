"""The sampling planner (MPPI): from one observation to one action.

A decision keeps a Gaussian over action sequences `[H, A]`. Each iteration samples candidates
around it, values them in the latent model, and refits mean and deviation to the elites. A few
candidates come from the policy prior; they are drawn once per decision and compete in every
iteration.

Work that cannot change within a decision is done once: every candidate starts from the same
latent, so the first layers read it once; a policy trajectory keeps its actions, so its rewards
and final latent are computed once, and only its terminal value is drawn anew.

Source: nicklashansen/tdmpc2@b67b21c, tdmpc2.py, `act`, `plan`, `_estimate_value`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from wm_tdmpc2 import world_model
from wm_tdmpc2.config import TDMPC2Config
from wm_tdmpc2.networks import (
    Params,
    add_bias,
    apply,
    dynamics_module,
    joint_linear,
    split_columns,
    value_module,
)
from wm_tdmpc2.noise import PlanNoise
from wm_tdmpc2.task_context import TaskContext, networks_of

WEIGHT_EPS = 1e-9

FourArrays = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


class PlanOutput(NamedTuple):
    """One decision."""

    action: jax.Array  # [A] executed action in [-1, 1]
    mean: jax.Array  # [H, A] final sampling mean, the next decision's warm start
    trace: "PlanTrace"


class PlanTrace(NamedTuple):
    """What each iteration saw, for inspection; unused fields cost nothing under jit."""

    value: jax.Array  # [I, N] candidate values, policy trajectories first
    elite_idx: jax.Array  # [I, E] by decreasing value
    score: jax.Array  # [I, E] normalised weights
    mean: jax.Array  # [I, H, A]
    std: jax.Array  # [I, H, A]
    pi_actions: jax.Array  # [H, P, A]


def plan(
    wm_params: Params,
    pi_params: Params,
    obs: jax.Array,
    prev_mean: jax.Array,
    t0: jax.Array,
    noise: PlanNoise,
    *,
    config: TDMPC2Config,
    eval_mode: bool,
    task: TaskContext | None = None,
) -> PlanOutput:
    """Choose an action for one environment; vmap over environments.

    V(a) = Σ_{t<H} γ^t R(z_t, a_t) + γ^H ½(Q_i + Q_j)(z_H, π(z_H)); elites are weighted by
    exp(temperature (V − max V)); the deviation starts at `max_std` in every decision and the mean
    at the previous one shifted by a step. The executed action is the first action of an elite
    drawn by weight, plus noise unless `eval_mode`.

    An episodic agent predicts terminations: with c_t = 1 once a latent up to z_t was predicted
    terminal (probability above ½), reward t counts (1 − c_t) and the final value (1 − c_H).

    With several tasks, actions are 0 in the dimensions that the task does not have. Its embedding
    is read renormalised, but the table stays as it is.

    Args:
        wm_params: world-model parameters.
        pi_params: policy-prior parameters.
        obs: `[O]`.
        prev_mean: mean of the previous decision, `[H, A]`.
        t0: True at an episode's first decision, `[]`; the mean then starts at zero.
        noise: the draws, see `draw_plan_noise`.
        config: static configuration.
        eval_mode: leave out the noise on the executed action (everything else stays random).
        task: the task this environment is of; None for the agent of a single task.

    Returns:
        The action, the new mean, and the iterations' trace.
    """
    gamma: float | jax.Array = config.gamma if task is None else task.discount
    wm_params, pi_params, mask = networks_of(wm_params, pi_params, task, config=config)

    def masked(x: jax.Array) -> jax.Array:
        return x if mask is None else x * jnp.broadcast_to(mask, x.shape)

    def sample_policy(z: jax.Array, eps: jax.Array) -> jax.Array:
        return world_model.pi(pi_params, z, eps, config=config, action_mask=mask).action

    z = world_model.encode(wm_params, obs, config=config)
    model = _LatentStep.of(wm_params, config)
    pi_actions = _policy_trajectories(wm_params, sample_policy, z, noise.traj_eps, config=config)
    pi_rollout = _rollout(model, z, pi_actions, gamma)

    shifted = jnp.concatenate([prev_mean[1:], jnp.zeros_like(prev_mean[:1])])
    mean = jnp.where(t0, jnp.zeros_like(prev_mean), shifted)
    std = jnp.full_like(mean, config.max_std)

    def iterate(carry: FourArrays, draws: FourArrays) -> tuple[FourArrays, tuple[jax.Array, ...]]:
        mean, std, _, _ = carry
        mppi_eps, terminal_eps, q_pair, dropout_key = draws
        sampled = masked(jnp.clip(mean[:, None] + std[:, None] * mppi_eps, -1, 1))
        sampled_rollout = _rollout(model, z, sampled, gamma)
        last_z = jnp.concatenate([pi_rollout.last_z, sampled_rollout.last_z])
        last_action = sample_policy(last_z, terminal_eps)
        terminal = world_model.q_pair(
            wm_params["q"], last_z, last_action, q_pair, dropout_key, config=config
        )
        value = jnp.concatenate([pi_rollout.reward_sum, sampled_rollout.reward_sum])
        last_value = gamma**config.horizon * jnp.mean(terminal, axis=0)
        if config.episodic:
            last_value = jnp.concatenate([pi_rollout.alive, sampled_rollout.alive]) * last_value
        value = value + last_value
        value = jnp.nan_to_num(value, nan=0.0)

        elite_value, elite_idx = jax.lax.top_k(value, config.num_elites)
        candidates = jnp.concatenate([pi_actions, sampled], axis=1)
        elites = jnp.take(candidates, elite_idx, axis=1)
        score = jnp.exp(config.temperature * (elite_value - elite_value[0]))
        score = score / jnp.sum(score)
        weight = (score / (jnp.sum(score) + WEIGHT_EPS))[None, :, None]
        mean = masked(jnp.sum(weight * elites, axis=1))
        variance = jnp.sum(weight * jnp.square(elites - mean[:, None]), axis=1)
        std = masked(jnp.clip(jnp.sqrt(variance), config.min_std, config.max_std))
        return (mean, std, elites[0], score), (value, elite_idx, score, mean, std)

    first_actions = jnp.zeros((config.num_elites, config.action_dim))
    score = jnp.zeros((config.num_elites,))
    (mean, std, first_actions, score), (value, elite_idx, scores, means, stds) = jax.lax.scan(
        iterate,
        (mean, std, first_actions, score),
        (noise.mppi_eps, noise.terminal_eps, noise.q_pair, noise.dropout),
    )
    # Inverse CDF over the elites in descending order of value.
    cumulative = jnp.cumsum(score)
    drawn = jnp.sum(cumulative <= noise.elite_uniform * cumulative[-1])
    action = first_actions[jnp.minimum(drawn, config.num_elites - 1)]
    if not eval_mode:
        action = action + std[0] * noise.final_eps
    trace = PlanTrace(value, elite_idx, scores, means, stds, pi_actions)
    return PlanOutput(action=jnp.clip(action, -1, 1), mean=mean, trace=trace)


class _LatentStep(NamedTuple):
    """One latent step of many candidates: reward and next latent, first layers shared."""

    wm_params: Params
    kernel: jax.Array  # [Z + A, 2 M], dynamics then reward
    bias: jax.Array  # [2 M]
    config: TDMPC2Config

    @classmethod
    def of(cls, wm_params: Params, config: TDMPC2Config) -> "_LatentStep":
        kernel, bias, _ = joint_linear([wm_params["dynamics"], wm_params["reward"]])
        return cls(wm_params, kernel, bias, config)

    def first(self, z: jax.Array, action: jax.Array) -> jax.Array:
        """Return the first layers' output at one common latent `[Z]` for actions `[N, A]`."""
        z_dim = self.config.latent_dim
        return add_bias(action @ self.kernel[z_dim:], z @ self.kernel[:z_dim] + self.bias)

    def later(self, z: jax.Array, action: jax.Array) -> jax.Array:
        """Return the first layers' output at latents `[N, Z]` for actions `[N, A]`."""
        return add_bias(jnp.concatenate([z, action], axis=-1) @ self.kernel, self.bias)

    def finish(self, h: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return decoded rewards `[N]` and next latents `[N, Z]` from the first layers' output."""
        h_dynamics, h_reward = split_columns(h, (self.config.mlp_dim, self.config.mlp_dim))
        dynamics, reward = dynamics_module(self.config), value_module(self.config)
        next_z = apply(dynamics, self.wm_params["dynamics"], h_dynamics, "from_preactivation")
        logits = apply(reward, self.wm_params["reward"], h_reward, "from_preactivation")
        return self.config.two_hot.mean(logits), next_z


class _Rollout(NamedTuple):
    """What N action sequences lead to."""

    reward_sum: jax.Array  # [N], discounted, up to a predicted termination
    last_z: jax.Array  # [N, Z]
    alive: jax.Array  # [N], 0 where a termination was predicted, else 1


def _rollout(
    model: _LatentStep, z: jax.Array, actions: jax.Array, gamma: float | jax.Array
) -> _Rollout:
    """Roll out action sequences `[H, N, A]`, all from the latent `z` `[Z]`.

    The loop is unrolled: H is small, and the first step is cheaper than the others.

    Source of the predicted terminations: nicklashansen/tdmpc2@e9f5932, tdmpc2.py,
    `_estimate_value`.
    """
    config = model.config
    total = jnp.zeros(actions.shape[1])
    alive = jnp.ones(actions.shape[1])
    zs = z
    for t in range(config.horizon):
        h = model.first(z, actions[t]) if t == 0 else model.later(zs, actions[t])
        reward, zs = model.finish(h)
        reward = gamma**t * reward
        total = total + (alive * reward if config.episodic else reward)
        if config.episodic:
            logit = world_model.termination(model.wm_params, zs, config=config)
            alive = alive * (jax.nn.sigmoid(logit) <= 0.5)
    return _Rollout(total, zs, alive)


def _policy_trajectories(
    wm_params: Params,
    sample_policy: Callable[[jax.Array, jax.Array], jax.Array],
    z: jax.Array,
    eps: jax.Array,
    *,
    config: TDMPC2Config,
) -> jax.Array:
    """Return the actions `[H, P, A]` of trajectories sampled from the policy prior."""
    zs = jnp.broadcast_to(z, (config.num_pi_trajs, config.latent_dim))
    actions = []
    for t in range(config.horizon):
        action = sample_policy(zs, eps[t])
        actions.append(action)
        if t < config.horizon - 1:
            zs = world_model.next(wm_params, zs, action, config=config)
    return jnp.stack(actions)
