"""TD-MPC2 assembled for the training loop: one seed's state, collection, updates and evaluation."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from wm_collect.collector import (
    CollectorState,
    Policy,
    collect_dynamic,
    collect_static,
    init_collector,
    random_policy,
)
from wm_collect.environment import Environment
from wm_collect.evaluate import Evaluation, evaluate_policy
from wm_collect.loop import Algorithm
from wm_collect.replay import EpisodeBuffer, VariableEpisodeBuffer
from wm_collect.row import EpisodeRecord
from wm_tdmpc2.config import TDMPC2Config
from wm_tdmpc2.networks import Params
from wm_tdmpc2.noise import PlanNoise, draw_plan_noise, draw_update_noise
from wm_tdmpc2.planner import plan
from wm_tdmpc2.schedule import schedule_of
from wm_tdmpc2.task_context import TaskContext
from wm_tdmpc2.update import Batch, LearnerState, init_learner, metric_names, update

NAME = "TD-MPC2"

# What a seed's key is folded with to start a run.
_LEARNER, _RESET = 0, 1
# What an update's key is folded with.
_SAMPLE, _NOISE = 0, 1


@flax.struct.dataclass
class TDMPC2State:
    """One seed's whole state between two ticks."""

    learner: LearnerState
    collector: CollectorState  # its policy carry is the planner's previous mean, [N, H, A]
    buffer: Any  # the state of `replay_of`
    # Updates so far that found no episode long enough to learn from, [] int32; episodic agents.
    n_starved_updates: Any = None


def replay_of(config: TDMPC2Config, n_timesteps: int) -> EpisodeBuffer | VariableEpisodeBuffer:
    """Return the replay of a run of `n_timesteps`, which are rows if the agent is episodic."""
    kind = VariableEpisodeBuffer if config.episodic else EpisodeBuffer
    return kind.for_run(
        config.buffer_size,
        n_timesteps,
        n_envs=config.n_envs,
        episode_length=config.agent_episode_length,
        obs_dim=config.obs_dim,
        action_dim=config.action_dim,
        horizon=config.horizon,
    )


def make_algorithm(
    env: Environment, config: TDMPC2Config, buffer: EpisodeBuffer | VariableEpisodeBuffer
) -> Algorithm:
    """Return the functions the training loop runs, for one environment and configuration."""
    schedule = schedule_of(config)
    collect_rows = collect_dynamic if config.episodic else collect_static
    if isinstance(buffer, EpisodeBuffer):
        buffer.check_sampleable(schedule.burst_tick)
    act_randomly = random_policy(env.spec)

    def init(key: jax.Array) -> TDMPC2State:
        return TDMPC2State(
            learner=init_learner(jax.random.fold_in(key, _LEARNER), config=config),
            collector=init_collector(
                env,
                config.n_envs,
                jax.random.fold_in(key, _RESET),
                initial_mean(config, config.n_envs),
            ),
            buffer=buffer.init(),
            n_starved_updates=jnp.zeros((), jnp.int32) if config.episodic else None,
        )

    def collect(
        state: TDMPC2State, tick: jax.Array, key: jax.Array
    ) -> tuple[TDMPC2State, EpisodeRecord]:
        planner = planning_policy(state.learner, config=config, eval_mode=False)

        def policy(carry: Any, obs: jax.Array, is_first: jax.Array, key: jax.Array) -> Any:
            # The planner is not called in the seed phase: its mean stays at zero (deviation T32).
            random = schedule.is_random(tick)
            return jax.lax.cond(random, act_randomly, planner, carry, obs, is_first, key)

        collector, row, _, episodes = collect_rows(env, state.collector, tick, key, policy)
        return (
            dataclasses.replace(
                state, collector=collector, buffer=buffer.add(state.buffer, row, tick)
            ),
            episodes,
        )

    def learn(
        state: TDMPC2State, tick: jax.Array, key: jax.Array, halted: jax.Array
    ) -> tuple[TDMPC2State, dict[str, jax.Array]]:
        batch = buffer.sample(
            state.buffer, jax.random.fold_in(key, _SAMPLE), tick, config.batch_size
        )
        noise = draw_update_noise(jax.random.fold_in(key, _NOISE), config=config)
        learner, metrics = update(state.learner, Batch(*batch), noise, config=config, halted=halted)
        state = dataclasses.replace(state, learner=learner)
        if isinstance(buffer, VariableEpisodeBuffer):
            starved = buffer.n_sampleable(state.buffer) == 0
            n_starved = state.n_starved_updates + starved.astype(jnp.int32)
            state = dataclasses.replace(state, n_starved_updates=n_starved)
        return state, metrics

    def counters(state: TDMPC2State) -> dict[str, jax.Array]:
        if config.episodic:
            return {"n_starved_updates": state.n_starved_updates}
        return {
            "n_offschedule_dones": state.collector.n_offschedule_dones,
            "n_terminations": state.collector.n_terminations,
        }

    return Algorithm(
        name=NAME,
        init=init,
        collect=collect,
        update=learn,
        updates_before=schedule.updates_before,
        metric_names=metric_names(config),
        n_envs=config.n_envs,
        trained=lambda state: state.learner,
        counters=counters,
        check=partial(_check_counters, env.spec.env_id, config),
    )


class ActingParams(NamedTuple):
    """The part of a `LearnerState` that acting reads."""

    wm_params: Params
    pi_params: Params


def initial_mean(config: TDMPC2Config, n_envs: int) -> jax.Array:
    """Return the planner's carry before its first decision: zeros `[N, H, A]`."""
    return jnp.zeros((n_envs, config.horizon, config.action_dim))


def planning_policy(
    learner: LearnerState | ActingParams,
    *,
    config: TDMPC2Config,
    eval_mode: bool,
    task: TaskContext | None = None,
) -> Policy:
    """Return the policy that plans for each environment; its carry is the previous mean.

    Of an agent of several tasks, all environments are of the given one.

    The environments share the drawn Q pairs of a tick, so that one pair of networks serves all
    of them; everything else is drawn per environment (deviation T28).
    """
    axes: dict[str, Any] = {name: 0 for name in PlanNoise._fields} | {"q_pair": None}
    noise_axes = PlanNoise(**axes)

    def decide(
        prev_mean: jax.Array, obs: jax.Array, t0: jax.Array, noise: PlanNoise
    ) -> tuple[jax.Array, jax.Array]:
        decision = plan(
            learner.wm_params,
            learner.pi_params,
            obs,
            prev_mean,
            t0,
            noise,
            config=config,
            eval_mode=eval_mode,
            task=task,
        )
        return decision.action, decision.mean

    def policy(
        carry: jax.Array, obs: jax.Array, is_first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, None]:
        keys = jax.random.split(key, obs.shape[0])
        noise = jax.vmap(lambda k: draw_plan_noise(k, config=config))(keys)
        noise = noise._replace(q_pair=noise.q_pair[0])
        action, mean = jax.vmap(decide, in_axes=(0, 0, 0, noise_axes))(carry, obs, is_first, noise)
        return action, mean, None

    return policy


def make_evaluator(
    env: Environment, config: TDMPC2Config, n_episodes: int, *, record: bool = False
) -> Callable[[TDMPC2State, jax.Array], Evaluation]:
    """Return the function that evaluates a state: the planner without final noise, own carry."""

    def evaluate(state: TDMPC2State, key: jax.Array) -> Evaluation:
        policy = planning_policy(state.learner, config=config, eval_mode=True)
        carry = initial_mean(config, n_episodes)
        return evaluate_policy(env, policy, carry, n_episodes, key, record=record)

    return evaluate


def _check_counters(env_id: str, config: TDMPC2Config, counters: dict[str, int]) -> str | None:
    if counters.get("n_starved_updates"):
        return (
            f"no stored episode of {env_id} is long enough to learn from: a slice of "
            f"horizon={config.horizon} needs as many agent steps, and every episode ended before. "
            "Use a shorter horizon, a smaller action_repeat or a longer seed phase."
        )
    if counters.get("n_terminations"):
        return (
            f"{env_id} terminated {counters['n_terminations']} episode(s), but TD-MPC2 treats "
            "every episode end as a time limit and would learn wrong values; set episodic=True, or "
            "use a task that never terminates."
        )
    if counters.get("n_offschedule_dones"):
        return (
            f"{env_id} ended episodes off schedule {counters['n_offschedule_dones']} time(s): "
            f"every episode must take exactly {config.agent_episode_length} agent steps; correct "
            "episode_length or the environment."
        )
    return None
