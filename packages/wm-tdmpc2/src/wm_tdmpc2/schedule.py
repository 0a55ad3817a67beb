"""When to act at random, when to learn and how often: closed forms of the absolute tick.

`Schedule` is for episodes of a fixed length T. All environments run in lockstep, so tick i is a
held tick iff i mod (T + 1) = T, and the environment steps done before tick i are
N (i − ⌊i / (T + 1)⌋). With one environment this is the paper-era trainer exactly: S + 1 random
actions, a burst of S updates after the last of them, then one update per environment step. More
environments generalise it (deviation T28).

`RowSchedule` is for episodes that may terminate. When they do is not known beforehand, so it counts
rows, one per environment and tick, where the other counts environment steps: a reset is one row
more (deviation T43).

All functions accept Python integers or traced int32 ticks.

Source: nicklashansen/tdmpc2@b67b21c, trainer/online_trainer.py, `OnlineTrainer.train`.
"""

import abc
import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp

from wm_tdmpc2.config import TDMPC2Config

Tick = TypeVar("Tick", int, jax.Array)


@dataclasses.dataclass(frozen=True)
class _SeedAndBurst(abc.ABC):
    """What both schedules are made of.

    Attributes:
        episode_length: T, agent steps per episode; the most, if episodes may terminate.
        n_envs: environments in lockstep, N.
        seed_steps: S, timesteps of the seed phase and updates of the burst after it.
        updates_per_step: updates per timestep afterwards.
    """

    episode_length: int
    n_envs: int
    seed_steps: int
    updates_per_step: float

    @property
    @abc.abstractmethod
    def burst_tick(self) -> int:
        """The tick of the burst."""

    @property
    def updates_per_tick(self) -> int:
        """Updates on a tick that counts, after the burst: max(1, round(N r))."""
        return max(1, round(self.n_envs * self.updates_per_step))

    def is_random(self, tick: Tick) -> bool | jax.Array:
        """Return whether actions on `tick` are uniformly random (the seed phase)."""
        return tick <= self.burst_tick


@dataclasses.dataclass(frozen=True)
class Schedule(_SeedAndBurst):
    """The schedule of a run with episodes of a fixed length; every method is static arithmetic."""

    @property
    def burst_tick(self) -> int:
        """The tick of the burst: total steps first exceed S and a round is committed."""
        # Steps per environment after which N * steps > S.
        steps = self.seed_steps // self.n_envs + 1
        # The first round is committed on tick T; the first stepping tick after it is T + 1.
        steps = max(steps, self.episode_length + 1)
        return self.tick_of_step(steps - 1)

    def tick_of_step(self, step: int) -> int:
        """Return the tick on which every environment takes its step number `step` (from 0)."""
        return step + step // self.episode_length

    def is_held(self, tick: Tick) -> bool | jax.Array:
        """Return whether `tick` emits the last row of an episode and steps nothing."""
        return tick % (self.episode_length + 1) == self.episode_length

    def timesteps_before(self, tick: Tick) -> Tick:
        """Return the environment steps, over all environments, done before `tick`."""
        return self.n_envs * (tick - tick // (self.episode_length + 1))

    def updates_before(self, tick: Tick) -> Tick:
        """Return the updates done before `tick`."""
        burst = self.burst_tick
        period = self.episode_length + 1
        # Held ticks and stepping ticks in (burst, tick).
        ticks = tick - 1 - burst
        held = tick // period - (burst + 1) // period
        later = self.seed_steps + (ticks - held) * self.updates_per_tick
        if isinstance(tick, int):
            return later if tick > burst else 0
        return jnp.where(tick > burst, later, 0)


@dataclasses.dataclass(frozen=True)
class RowSchedule(_SeedAndBurst):
    """The schedule of a run whose episodes may terminate; every method is static arithmetic."""

    @property
    def burst_tick(self) -> int:
        """The tick of the burst: rows first exceed S, and every environment has had an episode."""
        # The longest first episode has its last row on tick T.
        return max(self.seed_steps // self.n_envs, self.episode_length)

    def timesteps_before(self, tick: Tick) -> Tick:
        """Return the rows, over all environments, collected before `tick`."""
        return self.n_envs * tick

    def updates_before(self, tick: Tick) -> Tick:
        """Return the updates done before `tick`."""
        later = self.seed_steps + (tick - 1 - self.burst_tick) * self.updates_per_tick
        if isinstance(tick, int):
            return later if tick > self.burst_tick else 0
        return jnp.where(tick > self.burst_tick, later, 0)


def schedule_of(config: TDMPC2Config) -> Schedule | RowSchedule:
    """Return the schedule of a configuration."""
    kind = RowSchedule if config.episodic else Schedule
    return kind(
        config.agent_episode_length,
        config.n_envs,
        config.seed_steps,
        config.updates_per_step,
    )
