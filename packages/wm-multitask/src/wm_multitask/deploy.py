"""The policy to deploy for one task of a multi-task agent, in the task's own sizes."""

from typing import Any

import jax
import jax.numpy as jnp

from wm_collect.deploy import Deployable
from wm_collect.environment import Environment
from wm_multitask.tasks import TaskSet
from wm_multitask.train import NAME, task_context
from wm_tdmpc2 import LearnerState, TDMPC2Config
from wm_tdmpc2.deploy import PlannerBudget, acting_params, deployed_policy, initial_carry
from wm_tdmpc2.train import ActingParams


def deployable_task(
    learner: LearnerState,
    tasks: TaskSet,
    index: int,
    env: Environment,
    *,
    config: TDMPC2Config,
    budget: PlannerBudget,
) -> Deployable:
    """Return the policy of one task, which acts as evaluations do within a budget.

    It observes and acts in the task's own sizes, and knows the embedding of no other task.

    Args:
        learner: the trained learner of one seed.
        tasks: all tasks of the agent.
        index: id of the task.
        env: its environment.
        config: the agent's.
        budget: what a decision may compute.
    """
    task = tasks.tasks[index]
    # The embedding is the only row left of the table, so the task's id in it is 0.
    context = task_context(tasks, config, jnp.int32(index))._replace(task=jnp.int32(0))
    trained = acting_params(learner, budget)
    embedding = trained.wm_params["task_emb"][index : index + 1]

    def act(
        params: ActingParams, carry: Any, obs: jax.Array, is_first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any]:
        policy = deployed_policy(params, config=config, budget=budget, task=context)
        padded = jnp.pad(obs, ((0, 0), (0, config.obs_dim - task.obs_dim)))
        action, carry = policy(carry, padded, is_first, key)
        return action[:, : task.action_dim], carry

    return Deployable(
        agent=NAME,
        env=env,
        weights=trained._replace(wm_params={**trained.wm_params, "task_emb": embedding}),
        init_carry=lambda n: initial_carry(config, budget, n),
        act=act,
        planner={"task": task.name, **budget.describe(config)},
    )
