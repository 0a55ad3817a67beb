"""A recorded run of the original trainer, repeated by the collector and the schedule.

The environment counts: the numbers in an observation say which row of which episode it is. Planned
actions are replaced by a constant that says that they were planned and whether the planner was
told that an episode begins; everything else is what `make_algorithm` gives the training loop.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.replay import Batch, EpisodeBuffer, SliceDraw
from wm_collect.testing import CounterEnv
from wm_tdmpc2 import Schedule, TDMPC2Settings, resolve_config, schedule_of, train

from .recordings import Recording

# Random actions lie in [-1, 1]; the counting environment takes others as they are.
PLANNED, PLANNED_FIRST = 2.0, 3.0
# Slices we sample on every tick, enough to count offsets even in short runs.
N_SAMPLED = 200


class Run(NamedTuple):
    """What happened at every tick, leading axis `[n_ticks]`, and the pieces it was made of."""

    schedule: Schedule
    buffer: EpisodeBuffer
    n_updates: np.ndarray
    n_committed: np.ndarray
    episode: np.ndarray  # number of the episode of the tick's row, from 0 in order of collection
    row: np.ndarray  # the row's place in its episode
    action: np.ndarray  # first entry of the action; 0 on last rows
    reward: np.ndarray
    sampled: Batch  # one batch of the tick, [n_ticks, H + 1, B, O] and so on
    gathered: Batch  # the slices the original drew, for updates after the burst
    gathered_burst: Batch  # the same for the recorded updates of the burst, [S, H + 1, B, O]
    numbers: np.ndarray  # the environment's own number of episode i


def settings_of(recording: Recording, **changes: Any) -> TDMPC2Settings:
    """Return the recorded schedule with networks as small as they get."""
    case, meta = recording.meta["case"], recording.meta
    values = dict(
        seed_steps=meta["seed_steps"],
        buffer_size=case.get("buffer_size", TDMPC2Settings().buffer_size),
        batch_size=meta["batch_size"],
        horizon=meta["horizon"],
        enc_dim=8,
        mlp_dim=8,
        latent_dim=8,
        num_q=2,
    )
    return TDMPC2Settings(**(values | changes))


def environment(recording: Recording) -> CounterEnv:
    """Return an environment whose rows name their episode and place."""
    return CounterEnv(recording.meta["case"]["lengths"])


def announce_planning(*_: Any, **__: Any) -> Any:
    """Stand in for `planning_policy`: actions that say that they were planned."""

    def policy(carry: Any, obs: jax.Array, is_first: jax.Array, key: jax.Array) -> Any:
        kind = jnp.where(is_first, PLANNED_FIRST, PLANNED)[:, None]
        return jnp.broadcast_to(kind, (len(obs), 2)), carry, None

    return policy


@functools.cache
def repeat(recording: Recording) -> Run:
    """Run as many environment steps as the recording has."""
    env = environment(recording)
    config = resolve_config(settings_of(recording), env.spec)
    schedule = schedule_of(config)
    n_steps = recording.meta["case"]["steps"]
    buffer = train.replay_of(config, n_steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "planning_policy", announce_planning)
        return _run(recording, env, config, schedule, buffer)


def _run(recording: Recording, env: Any, config: Any, schedule: Schedule, buffer: Any) -> Run:
    algorithm = train.make_algorithm(env, config, buffer)
    n_ticks = schedule.tick_of_step(len(recording["step/index"]) - 1) + 1
    ticks = np.arange(n_ticks)
    before = np.array([algorithm.updates_before(int(t)) for t in range(n_ticks + 1)])
    n_updates = np.diff(before)
    draws = recorded_draws(recording, buffer)
    burst = schedule.burst_tick
    per_tick = draws_of_ticks(draws, before, burst, n_ticks)

    def one_tick(state: Any, inputs: Any) -> Any:
        tick, draw = inputs
        key = jax.random.fold_in(jax.random.key(3), tick)
        state, _ = algorithm.collect(state, tick, jax.random.fold_in(key, 0))
        stored = state.buffer
        slot = (tick // (buffer.episode_length + 1)) % buffer.n_rounds
        place = (slot, 0, tick % (buffer.episode_length + 1))
        row = (stored.obs[place], stored.action[place][0], stored.reward[place])
        sample_key = jax.random.fold_in(key, 1)
        sampled = buffer.sample(stored, sample_key, tick, N_SAMPLED)
        return state, (row, buffer.n_committed(tick), sampled, buffer.gather(stored, draw))

    @jax.jit
    def run(burst_draws: SliceDraw) -> Any:
        state = algorithm.init(jax.random.key(0))
        inputs = (jnp.asarray(ticks, jnp.int32), per_tick)
        until_burst = jax.tree.map(lambda x: x[: burst + 1], inputs)
        state, early = jax.lax.scan(one_tick, state, until_burst)
        at_burst = jax.vmap(lambda draw: buffer.gather(state.buffer, draw))(burst_draws)
        _, late = jax.lax.scan(one_tick, state, jax.tree.map(lambda x: x[burst + 1 :], inputs))
        return jax.tree.map(lambda *x: jnp.concatenate(x), early, late), at_burst

    burst_draws = jax.tree.map(lambda x: x[: before[burst + 1]], draws)
    outputs, at_burst = jax.tree.map(np.asarray, run(burst_draws))
    (obs, action, reward), n_committed, sampled, gathered = outputs
    row = obs[:, 1].astype(int)
    starts = np.flatnonzero(row == 0)
    episode = np.cumsum(row == 0) - 1
    return Run(
        schedule=schedule,
        buffer=buffer,
        n_updates=n_updates,
        n_committed=n_committed,
        episode=episode,
        row=row,
        action=action,
        reward=reward,
        sampled=sampled,
        gathered=gathered,
        gathered_burst=at_burst,
        numbers=obs[starts, 0],
    )


def drawn_episodes(recording: Recording) -> np.ndarray:
    """Return which episode, counted from 0, every recorded draw picked, `[u, B]`.

    The original numbers storage slots: slot j holds the latest episode whose index is j modulo the
    capacity. A draw k ≥ 1 was made during the update before, so it does not know of an episode
    that was added in between.
    """
    slots = recording["draw/episode"].astype(int)
    added = recording["update/episodes_added"]
    known = added[np.maximum(np.arange(len(slots)) - 1, 0)][:, None]
    capacity = recording.meta["capacity"]
    return known - 1 - (known - 1 - slots) % capacity


def recorded_draws(recording: Recording, buffer: EpisodeBuffer) -> SliceDraw:
    """Return the recorded draws as places in our ring, `[u, B]`."""
    rounds = drawn_episodes(recording) % buffer.n_rounds
    offsets = recording["draw/offset"].astype(int)
    return SliceDraw(
        round=jnp.asarray(rounds, jnp.int32),
        env=jnp.zeros(rounds.shape, jnp.int32),
        offset=jnp.asarray(offsets, jnp.int32),
    )


def draws_of_ticks(draws: SliceDraw, before: np.ndarray, burst: int, n_ticks: int) -> SliceDraw:
    """Return the draw of the one update of every tick after the burst; zeros elsewhere."""
    update = before[:-1]
    recorded = (np.arange(n_ticks) > burst) & (np.diff(before) == 1) & (update < len(draws.round))

    def pick(values: jax.Array) -> jax.Array:
        return jnp.where(recorded[:, None], values[np.where(recorded, update, 0)], 0)

    return jax.tree.map(pick, draws)
