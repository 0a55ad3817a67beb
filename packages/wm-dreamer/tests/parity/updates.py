"""Recorded chains of updates, replayed through the public functions.

Recorded arrays have the batch first: rows `[B, T, ...]`, and imagined steps `[N, H, ...]` with
start n = b·T + t. Ours have time first, `[T, B, ...]` or flat `[T·B, ...]`, and `[H, N, ...]` with
start n = t·B + b. Everything is compared in the recorded layout.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.replay import StreamBatch
from wm_dreamer import latents, networks, rssm
from wm_dreamer.action_distributions import action_distribution
from wm_dreamer.config import DreamerV3Config
from wm_dreamer.interop import from_reference, to_reference
from wm_dreamer.losses import LossOutputs, Sequences, loss, return_normalizer, sequences
from wm_dreamer.noise import UpdateNoise
from wm_dreamer.optimizer import optimizer_of
from wm_dreamer.update import Latents, LearnerState, update
from wm_numerics import ReturnNormalizerState, symexp

from .recordings import Recording, config, load


class Call(NamedTuple):
    """One recorded update and ours of the same data and draws.

    Attributes:
        theirs: what was recorded, `out/<n>/...`.
        ours: what our functions compute on the way, under the same names and in the same layout.
        total: our total loss.
        gradients: ours of the total loss, under the original's names.
        updated: what `update` returned; None for a recording of the world model alone.
    """

    theirs: dict[str, np.ndarray]
    ours: dict[str, np.ndarray]
    total: float
    gradients: dict[str, np.ndarray]
    updated: "Updated | None"


class Updated(NamedTuple):
    """Our learner around an update, the latents to be written back, and the metrics."""

    before: LearnerState
    after: LearnerState
    written: Latents
    metrics: dict[str, float]


@functools.cache
def replay(path: Path) -> tuple[Call, ...]:
    """Run every recorded update, each from our own result of the one before."""
    recording = load(path)
    settings = config(recording)
    state = first_learner(recording, settings)
    calls = []
    for n in call_numbers(recording):
        theirs = recording.group(f"out/{n}")
        batch = recorded_batch(recording.group(f"data/{n}"))
        run = program(settings, with_update=holds_imagination(theirs))
        noise = recorded_noise(theirs, settings)
        total, gradients, found, results = jax.tree.map(np.asarray, run(state, batch, noise))
        updated = None
        if results:
            updated = Updated(state, *results)
            state = updated.after
        ours = in_recorded_layout(found, settings)
        gradients = to_reference(gradients, config=settings)
        calls.append(Call(theirs, ours, float(total), gradients, updated))
    return tuple(calls)


def holds_imagination(theirs: dict[str, np.ndarray]) -> bool:
    """Whether a call was recorded as a whole; recordings of the world model alone were not."""
    return "img/start_action" in theirs


def call_numbers(recording: Recording) -> list[int]:
    """Return the numbers of the recorded calls, from 1."""
    return sorted({int(name.split("/")[1]) for name in recording.arrays if name[:4] == "out/"})


def first_learner(recording: Recording, settings: DreamerV3Config) -> LearnerState:
    """Return our learner with the recorded state before the first call."""
    theirs = recording.params_after(0)
    networks_ = from_reference(theirs, config=settings)
    return LearnerState(
        params=networks_.params,
        slow_critic=networks_.slow_critic,
        opt_state=optimizer_of(settings).init(networks_.params),
        retnorm=ReturnNormalizerState(
            low=jnp.asarray(theirs["agent/retnorm/low/value"]),
            high=jnp.asarray(theirs["agent/retnorm/high/value"]),
        ),
        updates=jnp.asarray(theirs["agent/updater/updates/value"]),
    )


def recorded_batch(data: dict[str, np.ndarray]) -> StreamBatch:
    """Return a recorded batch of B windows of T + 1 rows."""
    return StreamBatch(
        obs=data["vector"],
        **{n: data[n] for n in ("action", "reward", "is_first", "is_last", "is_terminal")},
        context_deter=data["deter"][:, 0],
        context_stoch=data["stoch"][:, 0],
    )


def recorded_noise(theirs: dict[str, np.ndarray], settings: DreamerV3Config) -> UpdateNoise:
    """Return the noise that repeats the recorded draws.

    1 + k forces class k. A continuous action a of a normal is forced by (a − mean) / std.
    Recordings of the world model alone hold no imagined draws; any will do for them.
    """
    n_starts = settings.batch_size * settings.batch_length
    posterior = forced(np.swapaxes(theirs["wm/stoch"], 0, 1))
    if not holds_imagination(theirs):
        steps = (settings.imag_horizon, n_starts)
        action = np.zeros(steps if settings.discrete else (*steps, settings.action_dim), np.float32)
        return UpdateNoise(posterior, action, np.zeros((*steps, settings.stoch), np.float32))

    def first_states(name: str) -> np.ndarray:
        """Return an output at the states 0 to H − 1; that of state 0 was recorded apart."""
        start, others = theirs[f"img/start_{name}"], theirs[f"img/{name}"]
        # Actions of the states from 1 on, but outputs of the actor of the states from 0 on.
        others = others[:, :-1] if name == "action" else others[:, 1:-1]
        return np.concatenate([start[:, None], others], axis=1)

    action = first_states("action")
    if settings.discrete:
        action = forced(action)
    else:
        action = (action - first_states("actor_loc")) / first_states("actor_scale")
    prior = forced(theirs["img/stoch"])
    return UpdateNoise(posterior, our_steps(action, settings), our_steps(prior, settings))


def forced(one_hot: np.ndarray) -> np.ndarray:
    """Return noise that forces the classes of one-hot samples `[..., C]`."""
    return 1 + np.argmax(one_hot, axis=-1).astype(np.float32)


def our_steps(x: np.ndarray, settings: DreamerV3Config) -> np.ndarray:
    """Return recorded `[N, H, ...]` as `[H, N, ...]`, starts in our order."""
    rows = x.reshape(settings.batch_size, settings.batch_length, *x.shape[1:])
    return np.swapaxes(np.swapaxes(rows, 0, 1).reshape(x.shape), 0, 1)


@functools.cache
def program(settings: DreamerV3Config, *, with_update: bool) -> Callable[..., tuple[Any, ...]]:
    """Return the compiled loss, its gradient, what is computed on the way, and the update."""

    @jax.jit
    def run(state: LearnerState, batch: StreamBatch, noise: UpdateNoise) -> tuple[Any, ...]:
        data = sequences(batch, config=settings)
        (total, outputs), gradients = jax.value_and_grad(loss, has_aux=True)(
            state.params, state.slow_critic, state.retnorm, data, noise, config=settings
        )
        found = intermediates(state, data, outputs, settings)
        results = update(state, batch, noise, config=settings) if with_update else ()
        return total, gradients, found, results

    return run


def intermediates(
    state: LearnerState, data: Sequences, outputs: LossOutputs, settings: DreamerV3Config
) -> dict[str, dict[str, jax.Array]]:
    """Return what an update computes on the way, under the names of the recordings.

    By layout: windows `[T or T − 1, B, ...]`, rows `[T·B, ...]`, steps `[H or H + 1, N, ...]`, and
    scalars. What the update has no use for (the actor and the slow critic at the last imagined
    state, logits that only enter as means) is computed here from its states.
    """
    params, two_hot = state.params, settings.two_hot
    model, imagined, behavior = outputs.world_model, outputs.imagined, outputs.behavior
    terms, scale = outputs.terms, return_normalizer(settings).scale(outputs.retnorm)
    last = jnp.concatenate(imagined.last_state, axis=-1)
    critic = networks.critic(settings)

    last_actor = networks.apply(networks.Actor(settings), params["actor"], last)
    policy = jax.tree.map(
        lambda x, end: jnp.concatenate([x, end[None]]),
        behavior.policy,
        action_distribution(last_actor, config=settings),
    )
    names = {"log_probs": "actor_logits", "mean": "actor_loc", "std": "actor_scale"}
    actor = {names[field]: value for field, value in policy._asdict().items()}
    imagined_deter = jnp.concatenate([imagined.state.deter[1:], imagined.last_state.deter[None]])
    imagined_stoch = jnp.concatenate([imagined.state.stoch[1:], imagined.last_state.stoch[None]])
    last_slow = networks.apply(critic, state.slow_critic, last)
    slow_logits = networks.apply(critic, state.slow_critic, model.features)

    def classes(flat: jax.Array) -> jax.Array:
        return flat.reshape(*flat.shape[:-1], settings.stoch, settings.classes)

    def from_start(start: jax.Array, others: jax.Array) -> jax.Array:
        return jnp.concatenate([start[None], others])

    imagined_cont = networks.finish(
        networks.continue_head(settings), params["continue"], imagined.cont
    )[..., 0]
    imagined_reward = networks.finish(
        networks.reward_head(settings), params["reward"], imagined.reward
    )
    last_critic = networks.finish(critic, params["critic"], imagined.last_critic)
    imagined_slow = networks.finish(critic, state.slow_critic, imagined.slow_critic)
    start_reward = two_hot.mean(model.reward)
    start_cont = 1 - data.is_terminal.reshape(-1).astype(jnp.float32)
    cont = from_start(start_cont, behavior.cont)
    windows = {
        "wm/embed": networks.encode(params["encoder"], data.obs, config=settings),
        "wm/prev_action": data.prev_action,
        "wm/deter": model.observed.deter,
        "wm/post_logit": model.observed.log_probs,
        "wm/stoch": classes(model.observed.stoch),
        "loss/replay_critic": settings.repval_scale * terms.replay_critic,
        "metric/replay_ret/dist": outputs.replay_returns,
        "metric/post_ent/dist": jnp.sum(latents.entropy(model.observed.log_probs), axis=-1),
    }
    rows = {
        "wm/prior_logit": model.prior,
        "wm/kl_raw": latents.kl_divergence(
            model.observed.log_probs.reshape(model.prior.shape), model.prior
        ),
        "wm/dec_symlog_mean": model.obs,
        "wm/dec_mean": symexp(model.obs),
        "wm/rew_logits": model.reward,
        "wm/rew_mean": start_reward,
        "wm/con_logits": model.cont,
        "wm/con_mean": jax.nn.sigmoid(model.cont),
        "rep/critic_logits": outputs.replay_logits,
        "rep/critic_mean": two_hot.mean(outputs.replay_logits),
        "rep/slowcritic_logits": slow_logits,
        "rep/slowcritic_mean": outputs.replay_slow_value,
        "loss/vector": settings.rec_scale * terms.reconstruction,
        "loss/reward": settings.rew_scale * terms.reward,
        "loss/cont": settings.con_scale * terms.cont,
        "loss/dyn": settings.dyn_scale * terms.dyn,
        "loss/rep": settings.rep_scale * terms.rep,
        "metric/prior_ent/dist": jnp.sum(latents.entropy(model.prior), axis=-1),
    }
    steps = {
        **{f"img/{name}": value for name, value in actor.items()},
        "img/action": imagined.action,
        "img/stoch": classes(imagined_stoch),
        "img/deter": imagined_deter,
        "img/logit": rssm.prior_log_probs(params["rssm"], imagined_deter, config=settings),
        "img/rew_logits": from_start(model.reward, imagined_reward),
        "img/rew_mean": from_start(start_reward, behavior.reward),
        "img/con_logits": from_start(model.cont, imagined_cont),
        "img/con_mean": from_start(jax.nn.sigmoid(model.cont), behavior.cont),
        "img/critic_logits": jnp.concatenate([behavior.critic_logits, last_critic[None]]),
        "img/critic_mean": behavior.value,
        "img/slowcritic_logits": jnp.concatenate([imagined_slow, last_slow[None]]),
        "img/slowcritic_mean": jnp.concatenate(
            [behavior.slow_value, two_hot.mean(last_slow)[None]]
        ),
        "img/ret": behavior.returns,
        "img/log_prob": behavior.policy.log_prob(imagined.action),
        "loss/actor": settings.actor_scale * terms.actor,
        "loss/critic": settings.critic_scale * terms.critic,
        "metric/rew/dist": from_start(data.reward.reshape(-1), behavior.reward),
        "metric/weight/dist": jnp.concatenate(
            [behavior.weight, (behavior.weight[-1] * cont[-1])[None]]
        ),
        "metric/val/dist": behavior.value,
        "metric/ret/dist": behavior.returns,
        "metric/adv/dist": outputs.advantage,
        "metric/ret_normed/dist": (behavior.returns - outputs.retnorm.low) / scale,
        "metric/ent/action/dist": behavior.policy.entropy(),
    }
    scalars = {"img/retnorm_offset": outputs.retnorm.low, "img/retnorm_scale": scale}
    return {"windows": windows, "rows": rows, "steps": steps, "scalars": scalars}


def in_recorded_layout(
    found: dict[str, dict[str, jax.Array]], settings: DreamerV3Config
) -> dict[str, np.ndarray]:
    """Return our arrays under one name each, batch first."""
    batch, n_steps = settings.batch_size, settings.batch_length

    def batch_first(x: np.ndarray) -> np.ndarray:
        return np.swapaxes(x, 0, 1)

    def rows(x: np.ndarray) -> np.ndarray:
        return batch_first(x.reshape(n_steps, batch, *x.shape[1:]))

    def steps(x: np.ndarray) -> np.ndarray:
        x = np.swapaxes(x, 0, 1)
        by_row = x.reshape(n_steps, batch, *x.shape[1:])
        return np.swapaxes(by_row, 0, 1).reshape(x.shape)

    layouts = {"windows": batch_first, "rows": rows, "steps": steps, "scalars": lambda x: x}
    result = {
        name: layouts[kind](np.asarray(value))
        for kind, arrays in found.items()
        for name, value in arrays.items()
    }
    return {k: v.reshape(-1) if k.endswith("/dist") else v for k, v in result.items()}
