"""The one loss of an update: world model, actor, critic and replayed critic.

Everything is computed in one forward pass with the parameters before the step, and its gradient
with respect to all seven modules is taken at once. What may not be trained by a term is behind
`stop_gradient`: imagined trajectories train the actor and the critic only, the replayed critic's
term trains the critic and, through the features, the world model.

Each term is an array whose *mean over all elements* enters the loss; masked elements count in the
mean. Time leads, then the batch: rows `[T, B]` are flattened row-major to `[T·B]`.

Source: danijar/dreamerv3@2411f7d, dreamerv3/agent.py, `Agent.loss`; 29eb964 for the replay
context's action.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from wm_collect.replay import StreamBatch
from wm_dreamer import latents, networks, rssm
from wm_dreamer.action_distributions import (
    ActionDistribution,
    action_distribution,
    action_vector,
)
from wm_dreamer.config import DreamerV3Config
from wm_dreamer.imagination import Imagined, imagine, known_products
from wm_dreamer.noise import UpdateNoise
from wm_dreamer.observe_sequence import observe
from wm_dreamer.returns import lambda_return, replay_return
from wm_dreamer.rssm import Observed, Params, RSSMState, flat_rows
from wm_numerics import ReturnNormalizer, ReturnNormalizerState, symlog

# Squared errors below this count as zero, and so does their gradient.
RECONSTRUCTION_TOLERANCE = 1e-8


class Sequences(NamedTuple):
    """B training sequences of T rows and the state before them, time first.

    Attributes:
        obs: `[T, B, O]` float32.
        prev_action: action chosen at the row before each row, `[T, B, A]`, one-hot if discrete.
        reward: `[T, B]`.
        is_first: `[T, B]` bool.
        is_last: annotated, `[T, B]` bool.
        is_terminal: true terminations, not time limits (D33), `[T, B]` bool.
        start: states after the context row, `[B, ...]`.
    """

    obs: jax.Array
    prev_action: jax.Array
    reward: jax.Array
    is_first: jax.Array
    is_last: jax.Array
    is_terminal: jax.Array
    start: RSSMState


class Terms(NamedTuple):
    """The unscaled loss terms, before any mean.

    Attributes:
        reconstruction: squared error in symlog space, summed over the observation, `[T·B]`.
        reward: cross-entropy of the reward, `[T·B]`.
        cont: cross-entropy of the discounted continuation, `[T·B]`.
        dyn: KL to the prior, prior trained, at least the free nats, `[T·B]`.
        rep: the same KL, posterior trained, `[T·B]`.
        actor: `[H, T·B]`.
        critic: on imagined states, `[H, T·B]`.
        replay_critic: on replayed states, `[T − 1, B]`.
    """

    reconstruction: jax.Array
    reward: jax.Array
    cont: jax.Array
    dyn: jax.Array
    rep: jax.Array
    actor: jax.Array
    critic: jax.Array
    replay_critic: jax.Array


class WorldModelOutputs(NamedTuple):
    """What the world model says about the replayed rows.

    Attributes:
        observed: the posterior states, `[T, B, ...]`.
        features: `[T·B, D + S·C]`, with gradients.
        prior: log-probabilities of the prior, `[T·B, S, C]`.
        obs: predicted symlog observations, `[T·B, O]`.
        reward: two-hot logits, `[T·B, bins]`.
        cont: logits, `[T·B]`.
    """

    observed: Observed
    features: jax.Array
    prior: jax.Array
    obs: jax.Array
    reward: jax.Array
    cont: jax.Array


class Behavior(NamedTuple):
    """What imagination says, step first; everything but the distribution is without gradient.

    Attributes:
        policy: the actor's distribution at the states 0 to H − 1, with gradients.
        critic_logits: the critic at the states 0 to H − 1, `[H, N, bins]`, with gradients.
        reward: predicted reward of the states 1 to H, `[H, N]`.
        cont: predicted continuation of the states 1 to H, the discount included, `[H, N]`.
        weight: probability of getting to the states 0 to H − 1, discounted, `[H, N]`.
        value: the critic's value of the states 0 to H, `[H + 1, N]`.
        slow_value: the slow critic's, of the states 0 to H − 1, `[H, N]`.
        returns: λ-returns of the states 0 to H − 1, `[H, N]`.
    """

    policy: ActionDistribution
    critic_logits: jax.Array
    reward: jax.Array
    cont: jax.Array
    weight: jax.Array
    value: jax.Array
    slow_value: jax.Array
    returns: jax.Array


class LossOutputs(NamedTuple):
    """Everything the forward pass computed that is of use besides the loss."""

    terms: Terms
    world_model: WorldModelOutputs
    imagined: Imagined
    behavior: Behavior
    retnorm: ReturnNormalizerState
    advantage: jax.Array
    replay_returns: jax.Array
    replay_logits: jax.Array
    replay_slow_value: jax.Array


def loss(
    params: Params,
    slow_critic: Params,
    retnorm: ReturnNormalizerState,
    data: Sequences,
    noise: UpdateNoise,
    *,
    config: DreamerV3Config,
) -> tuple[jax.Array, LossOutputs]:
    """Return the scaled sum of the terms' means, and what led to it.

    Args:
        params: parameters of the seven modules, which the loss trains.
        slow_critic: the slow critic's parameters.
        retnorm: the return normaliser before this update.
        data: the batch.
        noise: the update's draws.
        config: sizes and scales.
    """
    model = observe_rows(params, data, noise.posterior, config=config)
    observed = model.observed
    starts = RSSMState(flat_rows(observed.deter), flat_rows(observed.stoch))
    imagined = imagine(params, slow_critic, starts, noise, config=config)
    continues = 1 - data.is_terminal.reshape(-1).astype(jnp.float32)
    behavior = evaluate_imagined(params, slow_critic, imagined, continues, config=config)

    normalizer = return_normalizer(config)
    retnorm = normalizer.update(retnorm, behavior.returns)
    advantage = (behavior.returns - behavior.value[:-1]) / normalizer.scale(retnorm)

    reconstruction, reward, cont, dyn, rep = world_model_terms(model, data, config=config)
    replay_logits, replay_slow_value = _replay_critics(params, slow_critic, model, config)
    replay_returns = replay_return(
        data.reward,
        data.is_last,
        data.is_terminal,
        behavior.returns[0].reshape(data.reward.shape),
        gamma=config.gamma,
        lam=config.repval_lam,
    )
    used = replay_returns.size
    replay_critic = _critic_loss(
        replay_logits[:used], replay_returns.reshape(-1), replay_slow_value[:used], config
    )

    actor = behavior.policy.log_prob(imagined.action) * advantage
    actor += config.actent * behavior.policy.entropy()
    critic = _critic_loss(behavior.critic_logits, behavior.returns, behavior.slow_value, config)
    terms = Terms(
        reconstruction=reconstruction,
        reward=reward,
        cont=cont,
        dyn=dyn,
        rep=rep,
        actor=-behavior.weight * actor,
        critic=behavior.weight * critic,
        replay_critic=jnp.where(
            data.is_last[:-1], 0.0, replay_critic.reshape(replay_returns.shape)
        ),
    )
    factors = scales(config)
    scaled = [factors[name] * jnp.mean(term) for name, term in terms._asdict().items()]
    total = jnp.sum(jnp.stack(scaled))
    return total, LossOutputs(
        terms=terms,
        world_model=model,
        imagined=imagined,
        behavior=behavior,
        retnorm=retnorm,
        advantage=advantage,
        replay_returns=replay_returns,
        replay_logits=replay_logits,
        replay_slow_value=replay_slow_value,
    )


def scales(config: DreamerV3Config) -> dict[str, float]:
    """Return each term's factor in the loss, by the names of `Terms`."""
    return {
        "reconstruction": config.rec_scale,
        "reward": config.rew_scale,
        "cont": config.con_scale,
        "dyn": config.dyn_scale,
        "rep": config.rep_scale,
        "actor": config.actor_scale,
        "critic": config.critic_scale,
        "replay_critic": config.repval_scale,
    }


def return_normalizer(config: DreamerV3Config) -> ReturnNormalizer:
    """Return the normaliser of the actor's advantages."""
    return ReturnNormalizer(rate=config.retnorm_rate, limit=config.retnorm_limit)


def observe_rows(
    params: Params, data: Sequences, noise: jax.Array, *, config: DreamerV3Config
) -> WorldModelOutputs:
    """Return the posterior states of a batch and every prediction about its rows.

    Args:
        params: parameters of all modules.
        data: the batch.
        noise: of the posterior latents, `[T, B, S]`.
        config: sizes.
    """
    n_steps, batch = data.is_first.shape
    embedding = networks.encode(params["encoder"], flat_rows(data.obs), config=config)
    observed = observe(
        params["rssm"],
        data.start,
        data.prev_action,
        embedding.reshape(n_steps, batch, -1),
        data.is_first,
        noise,
        config=config,
    )
    deter = flat_rows(observed.deter)
    features = jnp.concatenate([deter, flat_rows(observed.stoch)], axis=-1)
    return WorldModelOutputs(
        observed=observed,
        features=features,
        prior=rssm.prior_log_probs(params["rssm"], deter, config=config),
        obs=networks.apply(networks.decoder(config), params["decoder"], features),
        reward=networks.apply(networks.reward_head(config), params["reward"], features),
        cont=networks.apply(networks.continue_head(config), params["continue"], features)[:, 0],
    )


def world_model_terms(
    model: WorldModelOutputs, data: Sequences, *, config: DreamerV3Config
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return reconstruction, reward, continue, dynamics and representation terms, each `[T·B]`.

    Args:
        model: predictions for the batch.
        data: the batch.
        config: discount and free nats.
    """
    squared = jnp.square(model.obs - symlog(flat_rows(data.obs)))
    squared = jnp.where(squared < RECONSTRUCTION_TOLERANCE, 0.0, squared)
    alive = config.gamma * (1 - data.is_terminal.reshape(-1).astype(jnp.float32))
    cont = alive * jax.nn.softplus(-model.cont) + (1 - alive) * jax.nn.softplus(model.cont)
    posterior = model.observed.log_probs.reshape(model.prior.shape)
    sg = jax.lax.stop_gradient
    return (
        jnp.sum(squared, axis=-1),
        config.two_hot.loss(model.reward, data.reward.reshape(-1)),
        cont,
        jnp.maximum(latents.kl_divergence(sg(posterior), model.prior), config.free_nats),
        jnp.maximum(latents.kl_divergence(posterior, sg(model.prior)), config.free_nats),
    )


def evaluate_imagined(
    params: Params,
    slow_critic: Params,
    imagined: Imagined,
    start_continues: jax.Array,
    *,
    config: DreamerV3Config,
) -> Behavior:
    """Return actor, critic and model on imagined states, and the λ-returns.

    The continuation of a start is what the data say, without a discount; that of the other states
    is predicted, and the prediction includes the discount.

    Args:
        params: parameters of all modules; only the actor and the critic get gradients.
        slow_critic: the slow critic's parameters.
        imagined: the rollout.
        start_continues: 1 − is_terminal of the starts, `[N]`.
        config: sizes.
    """
    two_hot, sg = config.two_hot, jax.lax.stop_gradient
    horizon, n_starts = imagined.actor.shape[:2]
    critic, actor = networks.critic(config), networks.Actor(config)
    frozen = sg(params)

    def steps(rows: jax.Array) -> jax.Array:
        return rows.reshape(horizon, n_starts, *rows.shape[1:])

    layers = [networks.first_layer(name, params[name]) for name in ("actor", "critic")]
    actor_hidden, critic_hidden = known_products(
        layers, imagined.state, [imagined.actor, imagined.critic]
    )
    outputs = networks.finish(actor, params["actor"], flat_rows(actor_hidden))
    critic_logits = networks.finish(critic, params["critic"], flat_rows(critic_hidden))
    slow_logits = networks.finish(critic, slow_critic, flat_rows(imagined.slow_critic))
    last_logits = networks.finish(critic, frozen["critic"], imagined.last_critic)
    reward_logits = networks.finish(
        networks.reward_head(config), frozen["reward"], flat_rows(imagined.reward)
    )
    cont_logits = networks.finish(
        networks.continue_head(config), frozen["continue"], flat_rows(imagined.cont)
    )

    reward = steps(two_hot.mean(reward_logits))
    cont = steps(jax.nn.sigmoid(cont_logits[:, 0]))
    values = steps(two_hot.mean(sg(critic_logits)))
    value = jnp.concatenate([values, two_hot.mean(last_logits)[None]])
    return Behavior(
        policy=action_distribution(jax.tree.map(steps, outputs), config=config),
        critic_logits=steps(critic_logits),
        reward=reward,
        cont=cont,
        weight=jnp.cumprod(jnp.concatenate([start_continues[None], cont[:-1]]), axis=0),
        value=value,
        slow_value=sg(steps(two_hot.mean(slow_logits))),
        returns=lambda_return(reward, cont, value[1:], value[-1], config.lam),
    )


def sequences(batch: StreamBatch, *, config: DreamerV3Config) -> Sequences:
    """Return a replayed batch `[B, T + 1, ...]` as training sequences.

    Row 0 of each window is the replay context: its stored latents are the state the sequence
    starts from, and its action the first previous action; it is not trained on.
    """

    def swap(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x, 0, 1)

    stoch = jax.nn.one_hot(batch.context_stoch, config.classes)
    return Sequences(
        obs=swap(batch.obs[:, 1:]),
        prev_action=swap(action_vector(batch.action[:, :-1], config=config)),
        reward=swap(batch.reward[:, 1:]),
        is_first=swap(batch.is_first[:, 1:]),
        is_last=swap(batch.is_last[:, 1:]),
        is_terminal=swap(batch.is_terminal[:, 1:]),
        start=RSSMState(batch.context_deter, stoch.reshape(stoch.shape[0], -1)),
    )


def _critic_loss(
    logits: jax.Array, target: jax.Array, slow_value: jax.Array, config: DreamerV3Config
) -> jax.Array:
    """Return the cross-entropies to the target and to the slow critic's value, `[...]`."""
    to_slow = config.two_hot.loss(logits, slow_value)
    return config.two_hot.loss(logits, target) + config.slowreg * to_slow


def _replay_critics(
    params: Params, slow_critic: Params, model: WorldModelOutputs, config: DreamerV3Config
) -> tuple[jax.Array, jax.Array]:
    """Return critic logits `[T·B, bins]` with gradients, and the slow critic's values `[T·B]`."""
    critic = networks.critic(config)
    logits = networks.apply(critic, params["critic"], model.features)
    slow_logits = networks.apply(critic, slow_critic, jax.lax.stop_gradient(model.features))
    return logits, jax.lax.stop_gradient(config.two_hot.mean(slow_logits))
