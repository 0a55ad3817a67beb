"""What TD-MPC2 expects of recorded episodes: latents, rewards, ends and returns.

There is no decoder, so the model is judged where it is trained: a latent rolled out with the
actions that were taken is compared with the encoding of what was then observed. Where there are
several tasks, everything is asked of the networks bound to one task (`wm_tdmpc2.task_context`).
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
from wm_tdmpc2 import world_model
from wm_tdmpc2.config import TDMPC2Config
from wm_tdmpc2.networks import Params
from wm_tdmpc2.noise import draw_plan_noise
from wm_tdmpc2.planner import plan
from wm_tdmpc2.task_context import TaskContext, networks_of
from wm_tdmpc2.update import LearnerState

# Starting rows of open-loop predictions and rows to plan from, in each episode.
_STARTS, _PLANS = 16, 25
# Predicted steps: several times the horizon, to show how fast the error grows.
_AHEAD = 15

LOG_PANELS = (
    LogPanel(
        "World-model losses",
        ("Loss/consistency_loss", "Loss/reward_loss", "Loss/value_loss"),
        "All fall and level off; a consistency loss that rises later comes with states the model "
        "has not seen before, one that vanishes at once with latents that all look the same.",
    ),
    LogPanel(
        "Policy loss",
        ("Loss/pi_loss",),
        "It is minus the value over the scale, so it moves with the values; a jump means that the "
        "values or their scale jumped.",
    ),
    LogPanel(
        "Scale of the values",
        ("Loss/pi_scale",),
        "Spread of the values of a batch (5th to 95th percentile), at least 1: at 1 the values "
        "hardly differ, and a growth without end means that values diverge.",
    ),
    LogPanel(
        "Gradient norm",
        ("Loss/grad_norm",),
        "Before clipping at grad_clip_norm (20 in the paper): rare peaks are normal, a level above "
        "the clip is not.",
    ),
    LogPanel(
        "Terminations",
        ("Loss/termination_loss", "Loss/termination_rate", "Loss/termination_f1"),
        "The F1 score rises towards 1 where terminations are foreseen; the rate falls as the agent "
        "learns to avoid them.",
    ),
)


class EpisodePredictions(NamedTuple):
    """What is expected of one episode of R rows, from chosen rows and from every row.

    Attributes:
        latent: encodings of the rows, `[R, Z]`.
        latent_ahead: latents rolled out 1 to K steps from each of S starts, `[S, K, Z]`.
        reward_ahead: rewards on entering these, `[S, K]`.
        next_reward: reward on entering the row after each, `[R − 1]`.
        next_terminated: probability that this row is terminal, `[R − 1]`; 0 unless episodic.
        q: value of the action taken, mean of the ensemble, `[R − 1]`.
        last_value: the same at the last row, for an action of the policy prior, `[]`.
        planned: value of the planner's elites at the P rows to plan from, weighted, `[P]`.
    """

    latent: jax.Array
    latent_ahead: jax.Array
    reward_ahead: jax.Array
    next_reward: jax.Array
    next_terminated: jax.Array
    q: jax.Array
    last_value: jax.Array
    planned: jax.Array


@functools.partial(jax.jit, static_argnames=("n_ahead", "config"))
def predict_episode(
    wm_params: Params,
    pi_params: Params,
    obs: jax.Array,
    action: jax.Array,
    last_row: jax.Array,
    starts: jax.Array,
    plan_rows: jax.Array,
    key: jax.Array,
    *,
    n_ahead: int,
    config: TDMPC2Config,
    task: TaskContext | None = None,
) -> EpisodePredictions:
    """Return what is expected of an episode; rows after its end are filled with something finite.

    Args:
        wm_params: world-model parameters.
        pi_params: policy-prior parameters.
        obs: observations from the reset on, `[R, O]` float32.
        action: actions taken at all rows but the last, `[R − 1, A]`.
        last_row: row of the episode's last observation, `[]` int32.
        starts: rows to roll out from, `[S]` int32.
        plan_rows: rows to plan from, each as if it were the first of an episode, `[P]` int32.
        key: consumed.
        n_ahead: K.
        config: static.
        task: the task the episode is of; None for the agent of a single task.
    """
    q_key, last_key, plan_key = jax.random.split(key, 3)
    own_wm, own_pi, mask = networks_of(wm_params, pi_params, task, config=config)
    latent = world_model.encode(own_wm, obs, config=config)

    def mean_reward(z: jax.Array, a: jax.Array) -> jax.Array:
        return config.two_hot.mean(world_model.reward(own_wm, z, a, config=config))

    def mean_q(z: jax.Array, a: jax.Array, key: jax.Array) -> jax.Array:
        logits = world_model.q(own_wm["q"], z, a, key, config=config)
        return jnp.mean(config.two_hot.mean(logits), axis=0)

    def step(z: jax.Array, a: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        following = world_model.next(own_wm, z, a, config=config)
        return following, (following, mean_reward(z, a))

    index = jnp.minimum(starts[None] + jnp.arange(n_ahead)[:, None], action.shape[0] - 1)
    _, (latent_ahead, reward_ahead) = jax.lax.scan(step, latent[starts], action[index])

    terminated = jnp.zeros(action.shape[0])
    if config.episodic:
        following = world_model.next(own_wm, latent[:-1], action, config=config)
        terminated = jax.nn.sigmoid(world_model.termination(own_wm, following, config=config))

    eps_key, dropout_key = jax.random.split(last_key)
    last = latent[last_row]
    eps = jax.random.normal(eps_key, (config.action_dim,))
    last_action = world_model.pi(own_pi, last, eps, config=config, action_mask=mask).action

    def planned(row: jax.Array, key: jax.Array) -> jax.Array:
        decision = plan(
            wm_params,
            pi_params,
            obs[row],
            jnp.zeros((config.horizon, config.action_dim)),
            jnp.bool_(True),
            draw_plan_noise(key, config=config),
            config=config,
            eval_mode=True,
            task=task,
        )
        trace = decision.trace
        return jnp.sum(trace.score[-1] * trace.value[-1][trace.elite_idx[-1]])

    return EpisodePredictions(
        latent=latent,
        latent_ahead=jnp.swapaxes(latent_ahead, 0, 1),
        reward_ahead=jnp.swapaxes(reward_ahead, 0, 1),
        next_reward=mean_reward(latent[:-1], action),
        next_terminated=terminated,
        q=mean_q(latent[:-1], action, q_key),
        last_value=mean_q(last, last_action, dropout_key),
        planned=jax.lax.map(
            lambda x: planned(*x), (plan_rows, jax.random.split(plan_key, plan_rows.shape[0]))
        ),
    )


def diagnose(
    learner: LearnerState,
    episodes: Sequence[Trajectory],
    key: jax.Array,
    *,
    terminates: bool,
    config: TDMPC2Config,
    task: TaskContext | None = None,
) -> Diagnostics:
    """Return how well a learner's predictions fit recorded episodes.

    Args:
        learner: a learner without a seed axis.
        episodes: recorded episodes, all padded to the same length, with the observation and action
            widths of the networks; their environment states are not read.
        key: consumed.
        terminates: whether the task can terminate.
        config: static.
        task: the task the episodes are of; None for the agent of a single task.
    """
    n_ahead = min(_AHEAD, episodes[0].action.shape[0])
    played = [PlayedEpisode.of(episode) for episode in episodes]
    lengths = [episode.length for episode in played]
    starts = [start_rows(n, _STARTS, n_ahead) for n in lengths]
    plan_rows = [np.unique(start_rows(n, _PLANS, 1)) for n in lengths]
    guesses = [
        predict_episode(
            learner.wm_params,
            learner.pi_params,
            jnp.asarray(episode.obs),
            jnp.asarray(episode.action),
            jnp.int32(n),
            jnp.asarray(from_rows, jnp.int32),
            # Of one size in every episode, so that one program serves all.
            jnp.asarray(np.resize(rows, _PLANS), jnp.int32),
            jax.random.fold_in(key, i),
            n_ahead=n_ahead,
            config=config,
            task=task,
        )
        for i, (episode, n, from_rows, rows) in enumerate(
            zip(episodes, lengths, starts, plan_rows, strict=True)
        )
    ]
    guesses = jax.device_get(guesses)
    gamma = config.gamma if task is None else float(task.discount)

    def steps(predictions: list[np.ndarray]) -> list[np.ndarray]:
        """Return the entries of the agent steps that were taken, of each episode."""
        return [array[:n] for array, n in zip(predictions, lengths, strict=True)]

    def compared(name: str, expected: list[np.ndarray]) -> Values:
        last_values = [float(guess.last_value) for guess in guesses]
        return compare_values(name, expected, played, last_values, gamma=gamma)

    planned = []
    for guess, n, rows in zip(guesses, lengths, plan_rows, strict=True):
        values = np.full(n, np.nan)
        values[rows] = guess.planned[: len(rows)]
        planned.append(values)

    latents = [guess.latent[: n + 1] for guess, n in zip(guesses, lengths, strict=True)]
    # One scale for all dimensions: many of a latent hardly vary, and would drown the others.
    spread = np.sqrt(np.mean(np.concatenate(latents).var(0)))
    continuations = None
    if config.episodic:
        continuations = Continuations(
            probability=1 - np.concatenate(steps([guess.next_terminated for guess in guesses])),
            went_on=np.concatenate([episode.went_on for episode in played]),
            task_terminates=terminates,
        )
    return Diagnostics(
        open_loop=(
            horizon_errors(
                "latents",
                "standard deviations",
                [guess.latent_ahead for guess in guesses],
                latents,
                starts,
                scale=np.full(config.latent_dim, spread),
                relied_on=config.horizon,
            ),
            horizon_errors(
                "rewards",
                "reward units",
                [guess.reward_ahead[..., None] for guess in guesses],
                [episode.reward_entering for episode in played],
                starts,
                scale=np.ones(1),
                relied_on=config.horizon,
            ),
        ),
        rewards=RewardPredictions(
            predicted=np.concatenate(steps([guess.next_reward for guess in guesses])),
            real=np.concatenate([episode.reward for episode in played]),
        ),
        continuations=continuations,
        values=(
            compared("Q value of the action taken", steps([guess.q for guess in guesses])),
            compared("planner's value", planned),
        ),
    )
