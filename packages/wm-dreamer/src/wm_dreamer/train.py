"""DreamerV3 assembled for the training loop: one seed's state, collection, updates, evaluation."""

import dataclasses
from collections.abc import Callable
from functools import partial

import flax.struct
import jax

from wm_collect.collector import (
    CollectorState,
    Policy,
    collect_dynamic,
    collect_static,
    init_collector,
)
from wm_collect.environment import Environment
from wm_collect.evaluate import Evaluation, evaluate_policy
from wm_collect.loop import Algorithm
from wm_collect.replay import StreamReplay, StreamReplayState
from wm_collect.row import EpisodeRecord
from wm_dreamer.config import DreamerV3Config
from wm_dreamer.noise import draw_act_noise, draw_update_noise
from wm_dreamer.policy import PolicyCarry, act, initial_carry
from wm_dreamer.rssm import Params
from wm_dreamer.schedule import Schedule
from wm_dreamer.update import METRIC_NAMES, LearnerState, init_learner, update

NAME = "DreamerV3"

# What a seed's key is folded with to start a run.
_LEARNER, _RESET = 0, 1
# What an update's key is folded with.
_SAMPLE, _NOISE = 0, 1


@flax.struct.dataclass
class DreamerV3State:
    """One seed's whole state between two ticks."""

    learner: LearnerState
    collector: CollectorState  # its policy carry is the filtered latent state, a `PolicyCarry`
    replay: StreamReplayState


def stream_replay(config: DreamerV3Config, n_rows: int) -> StreamReplay:
    """Return the replay of a run of `n_rows` rows, over all environments."""
    return StreamReplay.for_run(
        config.replay_capacity,
        n_rows,
        n_envs=config.n_envs,
        batch_length=config.batch_length,
        batch_size=config.batch_size,
        obs_dim=config.obs_dim,
        action_dim=config.action_dim,
        discrete=config.discrete,
        deter=config.deter,
        stoch=config.stoch,
        classes=config.classes,
    )


def make_algorithm(env: Environment, config: DreamerV3Config, replay: StreamReplay) -> Algorithm:
    """Return the functions the training loop runs, for one environment and configuration."""
    schedule = Schedule.of(config)
    # A task of fixed length pays for a reset once an episode instead of on every tick (E23);
    # its held ticks store no latents (D35).
    collect_rows = collect_dynamic if config.terminates else collect_static

    def init(key: jax.Array) -> DreamerV3State:
        return DreamerV3State(
            learner=init_learner(jax.random.fold_in(key, _LEARNER), config=config),
            collector=init_collector(
                env,
                config.n_envs,
                jax.random.fold_in(key, _RESET),
                initial_carry(config, config.n_envs),
            ),
            replay=replay.init(),
        )

    def collect(
        state: DreamerV3State, tick: jax.Array, key: jax.Array
    ) -> tuple[DreamerV3State, EpisodeRecord]:
        policy = filtering_policy(state.learner.params, config=config)
        collector, row, latents, episodes = collect_rows(env, state.collector, tick, key, policy)
        deter, stoch = latents
        return (
            dataclasses.replace(
                state,
                collector=collector,
                replay=replay.add(state.replay, row, deter, stoch, tick),
            ),
            episodes,
        )

    def learn(
        state: DreamerV3State, tick: jax.Array, key: jax.Array, halted: jax.Array
    ) -> tuple[DreamerV3State, dict[str, jax.Array]]:
        replay_state, draw, batch = replay.sample(
            state.replay, jax.random.fold_in(key, _SAMPLE), tick
        )
        noise = draw_update_noise(jax.random.fold_in(key, _NOISE), config=config)
        learner, latents, metrics = update(
            state.learner, batch, noise, config=config, halted=halted
        )
        replay_state = replay.write_back(replay_state, draw, latents.deter, latents.stoch)
        return dataclasses.replace(state, learner=learner, replay=replay_state), metrics

    return Algorithm(
        name=NAME,
        init=init,
        collect=collect,
        update=learn,
        updates_before=schedule.updates_before,
        metric_names=METRIC_NAMES,
        n_envs=config.n_envs,
        trained=lambda state: state.learner,
        counters=lambda state: {"n_offschedule_dones": state.collector.n_offschedule_dones},
        check=partial(_check_counters, env.spec.env_id, config.agent_episode_length),
    )


def filtering_policy(params: Params, *, config: DreamerV3Config) -> Policy:
    """Return the policy that filters observations and samples; its extras are the latents.

    Its carry is a `PolicyCarry`, its extras are `deter` `[N, D]` and the latents' classes `[N, S]`.
    """

    def policy(
        carry: PolicyCarry, obs: jax.Array, is_first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PolicyCarry, tuple[jax.Array, jax.Array]]:
        noise = draw_act_noise(key, obs.shape[0], config=config)
        decision = act(params, carry, obs, is_first, noise, config=config)
        observed = decision.observed
        return decision.action, decision.carry, (observed.deter, observed.classes)

    return policy


def make_evaluator(
    env: Environment, config: DreamerV3Config, n_episodes: int, *, record: bool = False
) -> Callable[[DreamerV3State, jax.Array], Evaluation]:
    """Return the function that evaluates a state: the sampling policy from a zero carry (D36)."""

    def evaluate(state: DreamerV3State, key: jax.Array) -> Evaluation:
        policy = filtering_policy(state.learner.params, config=config)
        carry = initial_carry(config, n_episodes)
        return evaluate_policy(env, policy, carry, n_episodes, key, record=record)

    return evaluate


def _check_counters(env_id: str, length: int, counters: dict[str, int]) -> str | None:
    dones = counters["n_offschedule_dones"]
    if dones:
        return (
            f"{env_id} ended {dones} episode(s) before or after its {length} agent steps, but it "
            "was said to have episodes of fixed length; pass terminates=True to collect episodes "
            "of any length."
        )
    return None
