"""Multi-task TD-MPC2 assembled for the training loop: one seed's state, updates and evaluation.

Nothing is collected: a tick is one update on a batch drawn from the dataset, which the loop hands
to every seed. The planner only acts in evaluations.

Source: nicklashansen/tdmpc2@b67b21c, trainer/offline_trainer.py.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from wm_collect.collector import Policy
from wm_collect.environment import Environment
from wm_collect.evaluate import Evaluate, Evaluation, evaluate_policy
from wm_collect.loop import Algorithm
from wm_collect.row import EpisodeRecord
from wm_multitask.sampling import OfflineData, sample
from wm_multitask.tasks import TaskSet
from wm_tdmpc2 import (
    LearnerState,
    TaskContext,
    TDMPC2Config,
    draw_update_noise,
    init_learner,
    planning_policy,
    update,
)
from wm_tdmpc2.train import initial_mean
from wm_tdmpc2.update import metric_names

NAME = "multi-task TD-MPC2"

# What an update's key is folded with.
_SAMPLE, _NOISE = 0, 1


@flax.struct.dataclass
class MultiTaskState:
    """One seed's whole state between two updates."""

    learner: LearnerState
    n_updates: jax.Array  # [] int32


def task_context(tasks: TaskSet, config: TDMPC2Config, task: jax.Array) -> TaskContext:
    """Return the context of tasks `[B]` or of one task `[]`, from their ids."""
    discounts = tasks.discounts(config.discount_denom, config.discount_min, config.discount_max)
    return TaskContext(
        task=task,
        action_mask=jnp.asarray(tasks.action_masks)[task],
        discount=jnp.asarray(discounts)[task],
    )


def make_algorithm(tasks: TaskSet, config: TDMPC2Config) -> Algorithm:
    """Return the functions the training loop runs; it is to be given an `OfflineData` to share."""

    def init(key: jax.Array) -> MultiTaskState:
        return MultiTaskState(
            learner=init_learner(key, config=config), n_updates=jnp.zeros((), jnp.int32)
        )

    def collect(
        state: MultiTaskState, tick: jax.Array, key: jax.Array
    ) -> tuple[MultiTaskState, EpisodeRecord]:
        nobody = EpisodeRecord(
            finished=jnp.zeros((0,), bool),
            episode_return=jnp.zeros((0,), jnp.float32),
            episode_length=jnp.zeros((0,), jnp.int32),
            obs_finite=jnp.ones((0,), bool),
            reward_finite=jnp.ones((0,), bool),
            action_finite=jnp.ones((0,), bool),
        )
        return state, nobody

    def learn(
        state: MultiTaskState,
        tick: jax.Array,
        key: jax.Array,
        halted: jax.Array,
        data: OfflineData,
    ) -> tuple[MultiTaskState, dict[str, jax.Array]]:
        batch, task = sample(
            data,
            jax.random.fold_in(key, _SAMPLE),
            batch_size=config.batch_size,
            horizon=config.horizon,
        )
        noise = draw_update_noise(jax.random.fold_in(key, _NOISE), config=config)
        learner, metrics = update(
            state.learner,
            batch,
            noise,
            config=config,
            task=task_context(tasks, config, task),
            halted=halted,
        )
        return MultiTaskState(learner=learner, n_updates=state.n_updates + 1), metrics

    return Algorithm(
        name=NAME,
        init=init,
        collect=collect,
        update=learn,
        updates_before=lambda tick: tick,
        metric_names=metric_names(config),
        n_envs=0,
        trained=lambda state: state.learner,
    )


def task_policy(
    learner: LearnerState, tasks: TaskSet, index: int, *, config: TDMPC2Config
) -> Policy:
    """Return the policy that plans for environments of one task, without exploration noise.

    It pads the task's observations and cuts the planner's actions to the task's dimensions.
    """
    task = tasks.tasks[index]
    planner = planning_policy(
        learner,
        config=config,
        eval_mode=True,
        task=task_context(tasks, config, jnp.int32(index)),
    )

    def policy(
        carry: Any, obs: jax.Array, is_first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any, Any]:
        padded = jnp.pad(obs, ((0, 0), (0, config.obs_dim - task.obs_dim)))
        action, carry, extras = planner(carry, padded, is_first, key)
        return action[:, : task.action_dim], carry, extras

    return policy


def make_evaluator(
    env: Environment,
    tasks: TaskSet,
    index: int,
    config: TDMPC2Config,
    n_episodes: int,
    *,
    record: bool = False,
) -> Evaluate:
    """Return the function that measures a state on one task, in that task's environment."""

    def evaluate(state: MultiTaskState, key: jax.Array) -> Evaluation:
        policy = task_policy(state.learner, tasks, index, config=config)
        carry = initial_mean(config, n_episodes)
        return evaluate_policy(env, policy, carry, n_episodes, key, record=record)

    return evaluate
