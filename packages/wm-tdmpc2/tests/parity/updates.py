"""Recorded chains of updates, replayed through the public functions."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from wm_numerics import RunningScale, percentile
from wm_tdmpc2 import (
    Batch,
    LearnerState,
    TaskContext,
    TDMPC2Config,
    UpdateNoise,
    init_learner,
    update,
    world_model,
)
from wm_tdmpc2.interop import from_reference, load_reference, paper_names, to_reference
from wm_tdmpc2.networks import Params, apply, policy_module
from wm_tdmpc2.task_context import renormalised
from wm_tdmpc2.update import policy_loss, td_target, world_model_loss

from .recordings import Recording


class Call(NamedTuple):
    """One update: what was recorded, what our functions return, and our state around it."""

    theirs: dict[str, np.ndarray]
    ours: dict[str, Any]
    before: LearnerState
    after: LearnerState


@functools.cache
def program(config: TDMPC2Config) -> Callable[..., tuple[Any, ...]]:
    """Return the compiled update, together with what it computes on the way."""

    @jax.jit
    def run(
        state: LearnerState,
        batch: Batch,
        noise: UpdateNoise,
        recorded: dict[str, jax.Array],
        task: TaskContext | None,
    ) -> tuple[Any, ...]:
        after, metrics = update(state, batch, noise, config=config, task=task)
        looked_at = intermediates(state, after, batch, noise, recorded, config=config, task=task)
        return after, metrics, looked_at

    return run


@functools.cache
def replay(recording: Recording) -> tuple[Call, ...]:
    """Run every recorded update, each from our own result of the one before.

    The later code trains its policy by another loss and clears the policy's gradient before the
    world model's clip, so there the policy is taken from the recording after every call.
    """
    config = recording.config
    state = new_learner(recording.group("params_before/"), config)
    calls = []
    for i in range(n_calls(recording)):
        theirs = with_paper_names(recording.group(f"call{i}/"))
        before = state
        if "emb_before" in theirs:
            # Between two calls the recording stretches an embedding.
            table = jnp.asarray(theirs["emb_before"])
            before = before.replace(wm_params={**before.wm_params, "task_emb": table})
        state, metrics, ours = program(config)(before, *recorded_inputs(theirs, recording))
        ours = jax.tree.map(np.asarray, ours)
        ours |= {f"info/{name}": float(value) for name, value in metrics.items()}
        ours["grad_wm"] = to_reference(ours["grad_wm"], config=config)
        if config.n_tasks:
            ours["emb/after"] = np.asarray(state.wm_params["task_emb"])
        ours["grad_pi"] = to_reference(pi_params=ours["grad_pi"], config=config)
        calls.append(Call(theirs, ours, before, state))
        if recording.is_later:
            params = from_reference(recording.group(f"call{i}/params_after/"), config=config)
            state = state.replace(pi_params=params.pi_params, pi_grad_norm_sq=jnp.zeros(()))
    return tuple(calls)


def saturation_doubt(call: Call, recording: Recording) -> dict[str, np.ndarray]:
    """Return, per tensor, what the rounding of saturated actions may make of the policy's gradient.

    1 - a² is off by the last bits of a, up to 6e-7, and the derivative of the log-probability's
    squash term, 2 (1 - a²) / (1 - a² + 1e-6), then by 6e-7 · 2e-6 / (1 - a² + 1e-6)². Each such
    action pulls at the networks through its own pre-squash value; their shares are added up without
    their signs.
    """
    config = recording.config
    _, noise, recorded, task = recorded_inputs(call.theirs, recording)
    shown = {}
    if task is not None:
        shown["embedding"] = call.after.wm_params["task_emb"][task.task]
    horizon, batch = config.horizon, config.batch_size
    action = call.theirs["policy/action"].astype(np.float64)
    room = np.maximum(1 - action**2, 0)
    slope = np.minimum(2.0, 6e-7 * 2e-6 / (room + 1e-6) ** 2)
    weight = config.entropy_coef * config.rho ** np.arange(horizon + 1) / (horizon + 1) / batch

    @jax.jit
    def pull(pi_params: Params, index: jax.Array) -> Params:
        def pre_squash(params: Params) -> jax.Array:
            z = recorded["zs"]
            if task is not None:
                rows = jnp.broadcast_to(shown["embedding"], (*z.shape[:-1], config.task_dim))
                z = jnp.concatenate([z, rows], axis=-1)
            out = apply(policy_module(config), params, z)
            mean, raw = jnp.split(out, 2, axis=-1)
            log_std = world_model.bounded_log_std(raw, config=config)
            return (mean + noise.pi_eps * jnp.exp(log_std))[tuple(index)]

        return jax.grad(pre_squash)(pi_params)

    doubt: dict[str, np.ndarray] = {}
    for place in np.argwhere(slope > 1e-3):
        gradient = to_reference(
            pi_params=pull(call.before.pi_params, jnp.asarray(place)), config=config
        )
        share = weight[place[0]] * slope[tuple(place)]
        for name, value in gradient.items():
            doubt[name] = doubt.get(name, 0.0) + share * np.abs(value)
    return doubt


def coding_doubt(call: Call, recording: Recording) -> dict[str, np.ndarray]:
    """Return, per tensor, what the rounding of two-hot coded rewards may make of the gradient.

    The original codes a reward by the fraction of (x + 10) / 0.2, x its symlog; the sum alone is
    rounded by up to 9.5e-7, which is 5e-6 of a bin. Over a small batch that does not average out.
    Returned is the largest change of three random draws of its signs.
    """
    batch, *others = recorded_inputs(call.theirs, recording)
    reward = np.asarray(batch.reward)
    doubt: dict[str, np.ndarray] = {}
    for seed in range(3):
        sign = np.random.default_rng(seed).choice([-1, 1], reward.shape)
        moved = (reward + sign * 9.5e-7 * (1 + np.abs(reward))).astype(np.float32)
        *_, found = program(recording.config)(call.before, batch._replace(reward=moved), *others)
        for name, gradient in to_reference(found["grad_wm"], config=recording.config).items():
            change = np.abs(gradient - call.ours["grad_wm"][name]).max()
            doubt[name] = np.maximum(doubt.get(name, 0.0), change)
    return doubt


def rounded(params: Params, seed: int) -> Params:
    """Return every number off by a random share of its rounding, a relative 1.2e-7 at most."""
    rng = np.random.default_rng(seed)

    def move(leaf: jax.Array) -> jax.Array:
        share = rng.uniform(-1.2e-7, 1.2e-7, leaf.shape).astype(np.float32)
        return leaf * (1 + share)

    return jax.tree.map(move, params)


def n_calls(recording: Recording) -> int:
    """Return how many updates are recorded."""
    return len({name.partition("/")[0] for name in recording.group("call")})


def with_paper_names(theirs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Spell the tensors of the later code the paper-era way."""
    spelt = {}
    for name, value in theirs.items():
        group, _, tensor = name.partition("/")
        if group in ("params_after", "grad_wm", "grad_pi"):
            for renamed in paper_names({tensor: value}):
                spelt[f"{group}/{renamed}"] = value
        else:
            spelt[name] = value
    return spelt


def new_learner(params: dict[str, np.ndarray], config: TDMPC2Config) -> LearnerState:
    """Return a learner before its first update, with the original's parameters.

    Nothing is drawn: compiling the initial values would take longer than the updates.
    """
    template = jax.eval_shape(partial(init_learner, config=config), jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), template)
    learner = load_reference(zeros, params, config=config)
    return learner.replace(q_scale=RunningScale(tau=config.tau).init())


def recorded_inputs(
    theirs: dict[str, np.ndarray], recording: Recording
) -> tuple[Batch, UpdateNoise, dict[str, jax.Array], TaskContext | None]:
    """Return the batch, draws, some intermediates and tasks of a recorded call, in our layout."""
    obs, action, reward = (jnp.asarray(theirs[f"batch/{n}"]) for n in ("obs", "action", "reward"))
    unused = jax.random.key(0)  # recordings are made without dropout
    noise = UpdateNoise(
        td_eps=jnp.asarray(theirs["draw/td_eps"]),
        td_dropout=unused,
        td_q_pair=jnp.asarray(theirs["draw/td_q_pair"], jnp.int32),
        value_dropout=unused,
        pi_eps=jnp.asarray(theirs["draw/pi_eps"]),
        pi_dropout=unused,
        pi_q_pair=jnp.asarray(theirs["draw/pi_q_pair"], jnp.int32),
    )
    recorded = {
        "next_z": jnp.asarray(theirs["td/next_z"]),
        "target": jnp.asarray(theirs["td/target"])[..., 0],
        "zs": jnp.asarray(theirs["wm/zs"]),
        "td_action": jnp.asarray(theirs["td/action"]),
        "pi_action": jnp.asarray(theirs["policy/action"]),
    }
    batch = Batch(obs, action, reward[..., 0])
    if recording.is_episodic:
        batch = batch._replace(terminated=jnp.asarray(theirs["batch/terminated"])[..., 0])
    task = recording.task_context(theirs["batch/task"]) if recording.is_multitask else None
    return batch, noise, recorded, task


def intermediates(
    before: LearnerState,
    after: LearnerState,
    batch: Batch,
    noise: UpdateNoise,
    recorded: dict[str, jax.Array],
    *,
    config: TDMPC2Config,
    task: TaskContext | None,
) -> dict[str, Any]:
    """Return what an update computes on the way, under the names of the recordings.

    Losses, gradients and values are taken at recorded targets, latents and actions, so that each is
    judged by itself; `update`, whose parameters are compared too, uses its own.
    """
    in_use = before
    tasked: dict[str, Any] = {}
    masked: dict[str, Any] = {}
    if task is not None:
        # What the update reads is the table after its first renormalisation.
        table = renormalised(before.wm_params["task_emb"], task.task)
        in_use = before.replace(wm_params={**before.wm_params, "task_emb": table})
        tasked = {"embedding": table[task.task]}
        masked = tasked | {"action_mask": task.action_mask}
    next_z, target = td_target(in_use, batch, noise, config=config, task=task)
    wm = partial(jax.value_and_grad(world_model_loss, has_aux=True), config=config, task=task)
    (_, (zs, wm_metrics)), grad_wm = wm(
        in_use.wm_params, batch, recorded["next_z"], recorded["target"], noise.value_dropout
    )
    reward_logits = world_model.reward(
        in_use.wm_params, zs[:-1], batch.action, config=config, **tasked
    )
    q_logits = world_model.q(
        in_use.wm_params["q"], zs[:-1], batch.action, noise.value_dropout, config=config, **tasked
    )
    td_policy = world_model.pi(before.pi_params, next_z, noise.td_eps, config=config, **masked)
    after_masked = masked
    if task is not None:
        after_masked = masked | {"embedding": after.wm_params["task_emb"][task.task]}
    policy = world_model.pi(
        before.pi_params, recorded["zs"], noise.pi_eps, config=config, **after_masked
    )

    def pair_of(
        q_params: Params, z: jax.Array, action: jax.Array, pair: jax.Array, table: jax.Array | None
    ) -> jax.Array:
        shown = {} if task is None else {"embedding": table[task.task]}
        return world_model.q_pair(
            q_params, z, action, pair, noise.td_dropout, config=config, **shown
        )

    target_pair = pair_of(
        before.target_q_params,
        recorded["next_z"],
        recorded["td_action"],
        noise.td_q_pair,
        in_use.wm_params.get("task_emb"),
    )
    pair = pair_of(
        after.wm_params["q"],
        recorded["zs"],
        recorded["pi_action"],
        noise.pi_q_pair,
        after.wm_params.get("task_emb"),
    )
    q_avg = jnp.mean(pair, axis=0)
    grad_pi, _ = jax.grad(policy_loss, has_aux=True)(
        before.pi_params,
        after.wm_params,
        recorded["zs"],
        before.q_scale,
        noise,
        config=config,
        task=task,
    )
    episodic = {}
    if config.episodic:
        episodic["wm/termination_logits"] = world_model.termination(
            before.wm_params, zs[1:], config=config
        )
        episodic["termination_loss"] = wm_metrics["termination_loss"]
    broadcast_target = jnp.broadcast_to(recorded["target"], q_logits.shape[:-1])
    return {
        **episodic,
        "td/next_z": next_z,
        "td/q_min": jnp.min(target_pair, axis=0),
        "td/target": target,
        **{f"td/{name}": value for name, value in td_policy._asdict().items()},
        "wm/zs": zs,
        "wm/consistency_mse": jnp.mean(jnp.square(zs[1:] - next_z), axis=(1, 2)),
        "wm/reward_ce": config.two_hot.loss(reward_logits, batch.reward),
        "wm/value_ce": config.two_hot.loss(q_logits, broadcast_target),
        "wm/q_logits": q_logits,
        "wm/reward_logits": reward_logits,
        "grad_wm": grad_wm,
        "grad_pi": grad_pi,
        **{f"policy/{name}": value for name, value in policy._asdict().items()},
        "policy/q_avg": q_avg,
        "clip/wm_norm_own": optax.tree.norm(grad_wm),
        "clip/carried_pi_norm": jnp.sqrt(before.pi_grad_norm_sq),
        "clip/pi_norm": optax.tree.norm(grad_pi),
        "clip/pi_norm_after": jnp.sqrt(after.pi_grad_norm_sq),
        "scale/percentiles": percentile(q_avg[0], (5.0, 95.0)),
        "scale/before": before.q_scale.scale,
        "scale/after": after.q_scale.scale,
    }


class AdamMoments(NamedTuple):
    """State of one Adam under the original names: `exp_avg`, `exp_avg_sq` and `step`."""

    exp_avg: dict[str, np.ndarray]
    exp_avg_sq: dict[str, np.ndarray]
    step: int


def adam_wm(state: LearnerState, config: TDMPC2Config) -> AdamMoments:
    """Return the world model's moments, encoder and the rest put together."""
    parts = [
        optax.tree.get(inner, "ScaleByAdamState")
        for inner in state.wm_opt_state.inner_states.values()
    ]
    masked = optax.MaskedNode

    def joined(field: str) -> Params:
        trees = [getattr(part, field) for part in parts]
        return {
            name: next(tree[name] for tree in trees if not isinstance(tree[name], masked))
            for name in state.wm_params
        }

    (step,) = {int(part.count) for part in parts}
    return AdamMoments(
        to_reference(joined("mu"), config=config), to_reference(joined("nu"), config=config), step
    )


def adam_pi(state: LearnerState, config: TDMPC2Config) -> AdamMoments:
    """Return the policy's moments."""
    part = optax.tree.get(state.pi_opt_state, "ScaleByAdamState")
    mu, nu = (to_reference(pi_params=tree, config=config) for tree in (part.mu, part.nu))
    return AdamMoments(mu, nu, int(part.count))
