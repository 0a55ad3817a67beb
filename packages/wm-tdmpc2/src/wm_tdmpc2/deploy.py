"""TD-MPC2's policy to deploy: the planner of evaluations within a budget, or the policy prior."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wm_collect.checks import check_count
from wm_collect.collector import Policy
from wm_tdmpc2 import world_model
from wm_tdmpc2.config import TDMPC2Config
from wm_tdmpc2.task_context import TaskContext, networks_of
from wm_tdmpc2.train import ActingParams, initial_mean, planning_policy
from wm_tdmpc2.update import LearnerState


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannerBudget:
    """How much one decision of a deployed policy computes; a smaller budget decides faster.

    Raises:
        ValueError: a number is out of range, or there is a budget where nothing is planned.
    """

    iterations: int | None = None
    """Planner iterations; None keeps the agent's."""
    num_samples: int | None = None
    """Candidates per iteration; None keeps the agent's. Elites and policy trajectories follow."""
    policy_only: bool = False
    """Act by the mean of the policy prior, without planning."""

    def __post_init__(self) -> None:
        for name, minimum in {"iterations": 1, "num_samples": 2}.items():
            value = getattr(self, name)
            if value is None:
                continue
            check_count(name, value, minimum)
            if self.policy_only:
                raise ValueError(
                    f"policy_only plans nothing, so {name}={value} has no use; leave one out."
                )

    def applied_to(self, config: TDMPC2Config) -> TDMPC2Config:
        """Return the configuration within this budget.

        Elites and policy trajectories are scaled with the candidates, E' = E·N' / N, rounded down;
        at least one elite is kept.
        """
        changed: dict[str, Any] = {}
        if self.iterations is not None:
            changed["iterations"] = self.iterations
        if self.num_samples is not None:
            n, n_before = self.num_samples, config.num_samples
            changed["num_samples"] = n
            changed["num_elites"] = max(1, config.num_elites * n // n_before)
            changed["num_pi_trajs"] = config.num_pi_trajs * n // n_before
        return dataclasses.replace(config, **changed)

    def describe(self, config: TDMPC2Config) -> dict[str, Any]:
        """Return what a decision computes, plain values, for a policy's contract."""
        if self.policy_only:
            return {"policy_only": True}
        within = self.applied_to(config)
        names = ("iterations", "num_samples", "num_elites", "num_pi_trajs", "horizon")
        return {"policy_only": False} | {name: getattr(within, name) for name in names}


def acting_params(learner: LearnerState, budget: PlannerBudget) -> ActingParams:
    """Return the parameters that a deployed policy reads: no target networks, no optimisers."""
    wm_params = learner.wm_params
    if budget.policy_only:
        wm_params = {name: wm_params[name] for name in ("encoder", "task_emb") if name in wm_params}
    return ActingParams(wm_params, learner.pi_params)


def initial_carry(config: TDMPC2Config, budget: PlannerBudget, n_envs: int) -> dict[str, jax.Array]:
    """Return what a deployed policy carries into its first decision: nothing if it only reacts."""
    return {} if budget.policy_only else {"planner_mean": initial_mean(config, n_envs)}


def deployed_policy(
    params: ActingParams,
    *,
    config: TDMPC2Config,
    budget: PlannerBudget,
    task: TaskContext | None = None,
) -> Callable[..., tuple[jax.Array, Any]]:
    """Return `act(carry, obs, is_first, key) -> (action, carry)`, as evaluations act.

    Args:
        params: see `acting_params`.
        config: the trained agent's.
        budget: what a decision may compute.
        task: the task that all environments are of; None for the agent of a single task.
    """
    if budget.policy_only:
        react = prior_policy(params, config=config, task=task)
        return lambda carry, obs, is_first, key: react(carry, obs, is_first, key)[:2]
    planner = planning_policy(params, config=budget.applied_to(config), eval_mode=True, task=task)

    def act(
        carry: dict[str, jax.Array], obs: jax.Array, is_first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        action, mean, _ = planner(carry["planner_mean"], obs, is_first, key)
        return action, {"planner_mean": mean}

    return act


def prior_policy(
    params: ActingParams | LearnerState, *, config: TDMPC2Config, task: TaskContext | None = None
) -> Policy:
    """Return the policy that acts by the mean of the policy prior; it carries and draws nothing."""
    wm_params, pi_params, mask = networks_of(
        params.wm_params, params.pi_params, task, config=config
    )

    def policy(
        carry: Any, obs: jax.Array, is_first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any, None]:
        del is_first, key
        z = world_model.encode(wm_params, obs, config=config)
        no_noise = jnp.zeros((obs.shape[0], config.action_dim))
        sample = world_model.pi(pi_params, z, no_noise, config=config, action_mask=mask)
        return sample.mean, carry, None

    return policy
