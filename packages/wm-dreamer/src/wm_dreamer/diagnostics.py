"""What DreamerV3 expects of recorded episodes: observations, rewards, ends and returns.

One program looks at one episode. It filters all rows, and from the filtered states predicts: from
a few rows, many steps ahead with the actions that were taken; from every row, one step ahead, the
critic's value, and the λ-return of an imagined rollout of the actor.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.diagnostics import (
    Continuations,
    Diagnostics,
    LogPanel,
    PlayedEpisode,
    RewardPredictions,
    Values,
    compare_values,
    horizon_errors,
    start_rows,
)
from wm_collect.evaluate import Trajectory
from wm_dreamer import networks, open_loop
from wm_dreamer.action_distributions import action_vector
from wm_dreamer.config import DreamerV3Config
from wm_dreamer.imagination import imagine
from wm_dreamer.losses import evaluate_imagined
from wm_dreamer.noise import UpdateNoise, draw_act_noise
from wm_dreamer.rssm import Params, RSSMState
from wm_dreamer.update import LearnerState

# Starting rows in each episode, and sampled futures from each.
_STARTS, _SAMPLES = 8, 8

LOG_PANELS = (
    LogPanel(
        "KL between posterior and prior",
        ("Loss/dyn",),
        "How much an observation still tells the model, in nats: it falls to free_nats (1 in the "
        "paper) where the next latents are predicted well, and rises when the policy reaches "
        "states that the model does not know.",
    ),
    LogPanel(
        "World-model losses",
        ("Loss/reconstruction", "Loss/reward", "Loss/continue"),
        "They fall and level off; steps upwards come with new states or new rewards, and a reward "
        "loss that stays near its start means that rewards are not predicted.",
    ),
    LogPanel(
        "Actor and critic losses",
        ("Loss/actor", "Loss/critic", "Loss/replay_critic"),
        "The critic's fall as values settle; the actor's is around 0 and its size says little.",
    ),
    LogPanel(
        "Entropy of the policy",
        ("Train/policy_entropy",),
        "It falls as the policy commits itself; at its lowest value early on, exploration has "
        "stopped too soon, and where it never falls, nothing better than chance was found.",
    ),
    LogPanel(
        "Entropy of the latents",
        ("Train/prior_entropy", "Train/posterior_entropy"),
        "The gap between prior and posterior is what the model cannot foresee; a posterior near 0 "
        "with a high prior means that it memorises observations.",
    ),
    LogPanel(
        "Expected returns in imagination",
        ("Train/value", "Train/imagined_return", "Train/replay_return"),
        "They rise together with the real returns; when they rise alone, the actor exploits errors "
        "of the model.",
    ),
    LogPanel(
        "Return normaliser",
        ("Train/retnorm_low", "Train/retnorm_high", "Train/retnorm_scale"),
        "Advantages are divided by the scale, which is at least retnorm_limit; at that limit the "
        "returns hardly differ, and small noise is not blown up.",
    ),
    LogPanel(
        "Norms of gradient and step",
        ("Train/grad_norm", "Train/update_norm"),
        "Jumps of the gradient that stay point to a sudden change of the data; each tensor is "
        "clipped by its own norm, so the step stays calm.",
    ),
)


class EpisodePredictions(NamedTuple):
    """What is expected of one episode of R rows, from S starting rows and from every row.

    Attributes:
        obs: observations 1 to K steps after each start, `[S, K, O]`, mean of the samples.
        reward: rewards on entering these, `[S, K]`.
        next_reward: reward on entering the row after each, `[R − 1]`.
        next_cont: probability that this row is not terminal, `[R − 1]`.
        value: the critic's value, `[R]`.
        imagined_return: λ-return of the actor's rollout of `imag_horizon` steps, `[R]`.
    """

    obs: jax.Array
    reward: jax.Array
    next_reward: jax.Array
    next_cont: jax.Array
    value: jax.Array
    imagined_return: jax.Array


@functools.partial(jax.jit, static_argnames=("n_ahead", "config"))
def predict_episode(
    params: Params,
    slow_critic: Params,
    obs: jax.Array,
    action: jax.Array,
    starts: jax.Array,
    key: jax.Array,
    *,
    n_ahead: int,
    config: DreamerV3Config,
) -> EpisodePredictions:
    """Return what is expected of an episode; rows after its end are filled with something finite.

    Args:
        params: parameters of all modules.
        slow_critic: the slow critic's parameters.
        obs: observations from the reset on, `[R, O]` float32.
        action: actions chosen at all rows but the last, `[R − 1, A]` float32 or `[R − 1]` int32.
        starts: rows to predict from, `[S]` int32.
        key: consumed.
        n_ahead: K.
        config: static.
    """
    filter_key, ahead_key, next_key, imagine_key = jax.random.split(key, 4)
    n_rows = obs.shape[0]
    taken = action_vector(action, config=config)
    actions = jnp.concatenate([taken, jnp.zeros_like(taken[:1])])
    observed = open_loop.filter_rows(
        params, obs, actions, filter_key, n_samples=_SAMPLES, config=config
    )

    def predict(rows: jax.Array, n_steps: int, key: jax.Array) -> open_loop.OpenLoop:
        """Predict from the samples of `rows` `[n]`; results lead with `[K, n]`."""
        index = jnp.minimum(rows[:, None] + jnp.arange(n_steps)[None], n_rows - 1)
        followed = jnp.repeat(jnp.swapaxes(actions[index], 0, 1), _SAMPLES, axis=1)
        start = RSSMState(*(_flat(x[rows]) for x in (observed.deter, observed.stoch)))
        states = open_loop.imagine_rows(params, start, followed, key, config=config)
        guess = open_loop.decode(params, open_loop.features_of(states), config=config)

        def mean(x: jax.Array) -> jax.Array:
            return jnp.mean(x.reshape(n_steps, rows.shape[0], _SAMPLES, *x.shape[2:]), axis=2)

        return open_loop.OpenLoop(*map(mean, guess))

    ahead = predict(starts, n_ahead, ahead_key)
    following = predict(jnp.arange(n_rows - 1), 1, next_key)
    critic = networks.apply(
        networks.critic(config), params["critic"], open_loop.features_of(observed)
    )
    first_sample = RSSMState(observed.deter[:, 0], observed.stoch[:, 0])
    return EpisodePredictions(
        obs=jnp.swapaxes(ahead.obs, 0, 1),
        reward=jnp.swapaxes(ahead.reward, 0, 1),
        next_reward=following.reward[0],
        next_cont=following.cont[0],
        value=jnp.mean(config.two_hot.mean(critic), axis=1),
        imagined_return=_imagined_return(
            params, slow_critic, first_sample, imagine_key, config=config
        ),
    )


def diagnose(
    learner: LearnerState,
    episodes: Sequence[Trajectory],
    key: jax.Array,
    *,
    config: DreamerV3Config,
) -> Diagnostics:
    """Return how well a learner's predictions fit recorded episodes.

    Args:
        learner: a learner without a seed axis.
        episodes: recorded episodes, all padded to the same length; their environment states are
            not read.
        key: consumed.
        config: static.
    """
    n_ahead = min(open_loop.PREDICTED_ROWS, config.agent_episode_length)
    played = [PlayedEpisode.of(episode) for episode in episodes]
    n_before = open_loop.CONTEXT_ROWS - 1
    starts = [start_rows(episode.length, _STARTS, n_ahead, n_before) for episode in played]
    guesses = [
        predict_episode(
            learner.params,
            learner.slow_critic,
            jnp.asarray(episode.obs),
            jnp.asarray(episode.action),
            jnp.asarray(rows, jnp.int32),
            jax.random.fold_in(key, i),
            n_ahead=n_ahead,
            config=config,
        )
        for i, (episode, rows) in enumerate(zip(episodes, starts, strict=True))
    ]
    guesses = jax.device_get(guesses)
    lengths = [episode.length for episode in played]
    rewards = np.concatenate([episode.reward for episode in played])
    values = [guess.value for guess in guesses]

    def steps(predictions: list[np.ndarray]) -> list[np.ndarray]:
        """Return the entries of the agent steps that were taken, of each episode."""
        return [array[:n] for array, n in zip(predictions, lengths, strict=True)]

    def compared(name: str, expected: list[np.ndarray]) -> Values:
        last_values = [float(value[n]) for value, n in zip(values, lengths, strict=True)]
        return compare_values(name, steps(expected), played, last_values, gamma=config.gamma)

    return Diagnostics(
        open_loop=(
            horizon_errors(
                "observations",
                "standard deviations",
                [guess.obs for guess in guesses],
                [episode.obs for episode in played],
                starts,
                scale=np.concatenate([episode.obs for episode in played]).std(0),
                relied_on=config.imag_horizon,
            ),
            horizon_errors(
                "rewards",
                "reward units",
                [guess.reward[..., None] for guess in guesses],
                [episode.reward_entering for episode in played],
                starts,
                scale=np.ones(1),
                relied_on=config.imag_horizon,
            ),
        ),
        rewards=RewardPredictions(
            predicted=np.concatenate(steps([guess.next_reward for guess in guesses])), real=rewards
        ),
        continuations=Continuations(
            probability=np.concatenate(steps([guess.next_cont for guess in guesses])),
            went_on=np.concatenate([episode.went_on for episode in played]),
            task_terminates=config.terminates,
        ),
        values=(
            compared("critic's value", values),
            compared("imagined return", [guess.imagined_return for guess in guesses]),
        ),
    )


def _imagined_return(
    params: Params,
    slow_critic: Params,
    start: RSSMState,
    key: jax.Array,
    *,
    config: DreamerV3Config,
) -> jax.Array:
    """Return the λ-returns of one imagined rollout from each of N states, `[N]`."""
    n_starts = start.deter.shape[0]
    keys = jax.random.split(key, config.imag_horizon)
    # A step of a rollout draws what a decision draws: an action, and latents.
    draws = jax.vmap(lambda k: draw_act_noise(k, n_starts, config=config))(keys)
    noise = UpdateNoise(posterior=draws.posterior[0], action=draws.action, prior=draws.posterior)
    imagined = imagine(params, slow_critic, start, noise, config=config)
    goes_on = jnp.ones(n_starts)
    return evaluate_imagined(params, slow_critic, imagined, goes_on, config=config).returns[0]


def _flat(x: jax.Array) -> jax.Array:
    """Return `[n, M, ...]` as `[n·M, ...]`."""
    return x.reshape(-1, *x.shape[2:])
