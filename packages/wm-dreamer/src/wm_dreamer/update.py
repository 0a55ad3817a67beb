"""One DreamerV3 update: one joint gradient, one optimiser step, then the slow critic.

Source: danijar/dreamerv3@2411f7d, dreamerv3/agent.py, `Agent.train`; dreamerv3/jaxutils.py,
`SlowUpdater`.
"""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from wm_collect.replay import StreamBatch
from wm_dreamer import latents, networks
from wm_dreamer.config import DreamerV3Config
from wm_dreamer.losses import LossOutputs, Sequences, loss, return_normalizer, sequences
from wm_dreamer.noise import UpdateNoise
from wm_dreamer.optimizer import optimizer_of
from wm_dreamer.rssm import Params
from wm_numerics import ReturnNormalizerState

# Those whose parameters are trained.
MODULES = ("encoder", "rssm", "decoder", "reward", "continue", "actor", "critic")

METRIC_NAMES = (
    "reconstruction",
    "reward",
    "continue",
    "dyn",
    "rep",
    "actor",
    "critic",
    "replay_critic",
    "total",
    *(f"Train/grad_norm/{name}" for name in MODULES),
    "Train/grad_norm",
    "Train/update_norm",
    "Train/param_norm",
    "Train/policy_entropy",
    "Train/prior_entropy",
    "Train/posterior_entropy",
    "Train/imagined_reward",
    "Train/imagined_return",
    "Train/replay_return",
    "Train/value",
    "Train/td_error",
    "Train/advantage",
    "Train/weight",
    "Train/retnorm_low",
    "Train/retnorm_high",
    "Train/retnorm_scale",
)


@flax.struct.dataclass
class LearnerState:
    """What an update needs from the previous one.

    Attributes:
        params: `{"encoder", "rssm", "decoder", "reward", "continue", "actor", "critic"}`.
        slow_critic: structure of `params["critic"]`.
        opt_state: state of the one optimiser over all of `params`.
        retnorm: moving percentiles of the imagined returns.
        updates: updates made, `[]` int32.
    """

    params: Params
    slow_critic: Params
    opt_state: optax.OptState
    retnorm: ReturnNormalizerState
    updates: jax.Array


class Latents(NamedTuple):
    """Posterior latents of the trained rows, to be written back to the replay.

    Attributes:
        deter: `[B, T, D]` float32.
        stoch: class indices, `[B, T, S]` int32.
    """

    deter: jax.Array
    stoch: jax.Array


def init_learner(key: jax.Array, *, config: DreamerV3Config) -> LearnerState:
    """Return a fresh learner; `key` is consumed. The slow critic has parameters of its own."""
    params_key, slow_key = jax.random.split(key)
    params = networks.init_params(params_key, config=config)
    return LearnerState(
        params=params,
        slow_critic=networks.init_critic(slow_key, config=config),
        opt_state=optimizer_of(config).init(params),
        retnorm=return_normalizer(config).init(),
        updates=jnp.zeros((), jnp.int32),
    )


def update(
    state: LearnerState,
    batch: StreamBatch,
    noise: UpdateNoise,
    *,
    config: DreamerV3Config,
    halted: jax.Array | bool = False,
) -> tuple[LearnerState, Latents, dict[str, jax.Array]]:
    """Make one update.

    The first update leaves the parameters where they are, because the warm-up starts at a step
    size of zero; the optimiser's averages, the return normaliser and the slow critic do change.

    Args:
        state: the learner.
        batch: B windows of T + 1 rows, annotated.
        noise: the update's draws.
        config: static.
        halted: leave the learner as it is, bool `[]`. So does a loss or gradient that is not
            finite (E25).

    Returns:
        The learner; the posterior latents of the T trained rows, computed with the parameters
        before the step; and the metrics named in `METRIC_NAMES`: unscaled means of the loss terms,
        norms over all trained tensors (`grad_norm` before clipping, `param_norm` after the step),
        of each module's gradient, and means of the statistics.
    """
    data = sequences(batch, config=config)
    (total, outputs), grads = jax.value_and_grad(loss, has_aux=True)(
        state.params, state.slow_critic, state.retnorm, data, noise, config=config
    )
    steps, opt_state = optimizer_of(config).update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, steps)
    grad_norm = optax.tree.norm(grads)
    new_state = LearnerState(
        params=params,
        slow_critic=slow_update(state.slow_critic, params["critic"], state.updates, config=config),
        opt_state=opt_state,
        retnorm=outputs.retnorm,
        updates=state.updates + 1,
    )
    learns = ~jnp.asarray(halted) & jnp.isfinite(total) & jnp.isfinite(grad_norm)
    new_state = jax.tree.map(lambda new, old: jnp.where(learns, new, old), new_state, state)
    observed = outputs.world_model.observed
    written = Latents(
        deter=jax.lax.stop_gradient(jnp.swapaxes(observed.deter, 0, 1)),
        stoch=jnp.swapaxes(observed.classes, 0, 1),
    )
    metrics = {
        **_statistics(outputs, data, config),
        "total": total,
        **{f"Train/grad_norm/{name}": optax.tree.norm(grads[name]) for name in MODULES},
        "Train/grad_norm": grad_norm,
        "Train/update_norm": optax.tree.norm(steps),
        "Train/param_norm": optax.tree.norm(params),
    }
    return new_state, written, metrics


def slow_update(
    slow: Params, critic: Params, updates: jax.Array, *, config: DreamerV3Config
) -> Params:
    """Return the slow critic after an update: a copy after the first, then a moving average.

    Args:
        slow: the slow critic.
        critic: the critic after the optimiser's step.
        updates: updates made before this one, `[]` int32.
        config: holds `slow_rate`.
    """
    mix = jnp.where(updates == 0, 1.0, config.slow_rate)
    return jax.tree.map(lambda old, new: mix * new + (1 - mix) * old, slow, critic)


def _statistics(
    outputs: LossOutputs, data: Sequences, config: DreamerV3Config
) -> dict[str, jax.Array]:
    terms, behavior, model = outputs.terms, outputs.behavior, outputs.world_model
    # The reward of a start is the data's; that of the other states is predicted.
    reward = jnp.concatenate([data.reward.reshape(1, -1), behavior.reward])
    weight = jnp.concatenate([behavior.weight, behavior.weight[-1:] * behavior.cont[-1:]])
    td_error = jnp.abs(behavior.returns - behavior.value[:-1])
    means = {
        "reconstruction": terms.reconstruction,
        "reward": terms.reward,
        "continue": terms.cont,
        "dyn": terms.dyn,
        "rep": terms.rep,
        "actor": terms.actor,
        "critic": terms.critic,
        "replay_critic": terms.replay_critic,
        "Train/policy_entropy": behavior.policy.entropy(),
        "Train/prior_entropy": jnp.sum(latents.entropy(model.prior), axis=-1),
        "Train/posterior_entropy": jnp.sum(latents.entropy(model.observed.log_probs), axis=-1),
        "Train/imagined_reward": reward,
        "Train/imagined_return": behavior.returns,
        "Train/replay_return": outputs.replay_returns,
        "Train/value": behavior.value,
        "Train/td_error": td_error,
        "Train/advantage": outputs.advantage,
        "Train/weight": weight,
    }
    return {name: jnp.mean(value) for name, value in means.items()} | {
        "Train/retnorm_low": outputs.retnorm.low,
        "Train/retnorm_high": outputs.retnorm.high,
        "Train/retnorm_scale": return_normalizer(config).scale(outputs.retnorm),
    }
