"""A tiny agent whose every number can be followed by hand, for tests of the loop and the driver."""

import dataclasses

import jax
import jax.numpy as jnp

from wm_collect.clocks import Clock
from wm_collect.loop import Algorithm
from wm_collect.row import EpisodeRecord

N_ENVS = 2
EPISODE_ROWS = 4  # three agent steps and the held tick
SEED_TICKS = 5  # no updates before
BURST = 7  # updates at the first tick after them
PER_TICK = 2  # updates at every later tick


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingState:
    """Counts of what was done, and a weight moved by random numbers."""

    n_collected: jax.Array
    n_updates: jax.Array
    weight: jax.Array
    ring: jax.Array
    mark: jax.Array  # drawn once; tells seeds apart


def updates_before(tick):
    """Nothing in the seed phase, a burst, then a constant number per tick."""
    after = jnp.maximum(tick - SEED_TICKS - 1, 0) * PER_TICK
    return jnp.where(tick > SEED_TICKS, BURST + after, 0)


def counting_agent(
    *, ring_rows=8, row_size=1, bad_tick=None, bad_row=None, bad_below=2.0, **overrides
):
    """Return the agent's `Algorithm`.

    At `bad_tick` a metric becomes NaN, at `bad_row` an observation, of seeds whose mark is below
    `bad_below`; marks are in [0, 1).
    """

    def init(key):
        return CountingState(
            n_collected=jnp.int32(0),
            n_updates=jnp.int32(0),
            weight=jax.random.normal(key, (3,)),
            ring=jnp.zeros((ring_rows, N_ENVS, row_size)),
            mark=jax.random.uniform(key),
        )

    def collect(state, tick, key):
        noise = jax.random.normal(key, (N_ENVS, row_size))
        finished = tick % EPISODE_ROWS == EPISODE_ROWS - 1
        state = dataclasses.replace(
            state,
            n_collected=state.n_collected + 1,
            ring=state.ring.at[tick % ring_rows].set(noise),
        )
        episode_return = jnp.arange(N_ENVS) + tick.astype(jnp.float32)
        return state, EpisodeRecord(
            finished=jnp.full(N_ENVS, finished),
            episode_return=jnp.where(finished, episode_return, 0.0),
            episode_length=jnp.full(N_ENVS, jnp.where(finished, EPISODE_ROWS - 1, 0)),
            obs_finite=jnp.array([True, ~((tick == bad_row) & (state.mark < bad_below))])
            if bad_row is not None
            else jnp.ones(N_ENVS, bool),
            reward_finite=jnp.ones(N_ENVS, bool),
            action_finite=jnp.ones(N_ENVS, bool),
        )

    def update(state, tick, key, halted):
        row_key, noise_key = jax.random.split(key)
        row = jax.random.randint(row_key, (), 0, ring_rows)
        drawn = jax.random.normal(noise_key, (3,)) + state.ring[row].mean()
        if bad_tick is not None:
            drawn = jnp.where((tick == bad_tick) & (state.mark < bad_below), jnp.nan, drawn)
        metrics = {"drawn": drawn.sum(), "Train/update": state.n_updates.astype(jnp.float32)}
        learns = ~halted & jnp.isfinite(metrics["drawn"])
        state = dataclasses.replace(
            state,
            n_updates=state.n_updates + 1,
            weight=jnp.where(learns, 0.9 * state.weight + drawn, state.weight),
        )
        return state, metrics

    fields = {
        "name": "the counting agent",
        "init": init,
        "collect": collect,
        "update": update,
        "updates_before": updates_before,
        "metric_names": ("drawn", "Train/update"),
        "n_envs": N_ENVS,
        "trained": lambda state: {"weight": state.weight},
    }
    return Algorithm(**(fields | overrides))


def steps(tick):
    """Env steps counted after `tick` ticks: the last tick of an episode counts none."""
    return N_ENVS * (tick - tick // EPISODE_ROWS)


CLOCK = Clock(timestep=steps, env_frames=lambda tick: 2 * steps(tick))
