"""Replay of whole episodes in rounds, sampled as short slices (TD-MPC2).

In static mode all N environments finish their episodes on the same tick. One such lockstep episode
is a *round*, T + 1 ticks long. The buffer is a ring of R rounds: the running round is written in
place, row by row, and becomes sampleable as a whole on its last tick, when the ring moves on to
the slot of the oldest round. So R − 1 rounds are sampleable at most, and no episode is ever
sampled before it is complete or after a part of it was overwritten.

Where everything lies is arithmetic on the absolute tick. The buffer's state is the rows alone, it
has no write index that could disagree between seeds.

Source: nicklashansen/tdmpc2@b67b21c, tdmpc2/common/buffer.py. Deviations: T29.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from wm_collect.replay.rings import (
    read_rows,
    require_count,
    require_indexable,
    require_same,
    require_shapes,
)
from wm_collect.row import Row


class EpisodeBufferState(NamedTuple):
    """The rows of R rounds of N episodes; row k of an episode is its k-th observation.

    Attributes:
        obs: `[R, N, T + 1, O]` float32.
        action: action chosen at each observation, `[R, N, T + 1, A]` float32; 0 in row T.
        reward: reward on entering each observation, `[R, N, T + 1]` float32; 0 in row 0.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array


class SliceDraw(NamedTuple):
    """Where the B slices of a batch begin.

    Attributes:
        round: slot of the round in the ring, `[B]` int32.
        env: environment, `[B]` int32.
        offset: first row of the slice within its episode, `[B]` int32, 0 to T − H inclusive.
    """

    round: jax.Array
    env: jax.Array
    offset: jax.Array


class Batch(NamedTuple):
    """B slices of H agent steps, time first.

    Attributes:
        obs: observations o_0 to o_H, `[H + 1, B, O]` float32.
        action: actions a_0 to a_{H−1}, a_t chosen at o_t, `[H, B, A]` float32.
        reward: rewards r_0 to r_{H−1}, r_t received on entering o_{t+1}, `[H, B]` float32.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeBuffer:
    """The sizes of a replay of rounds, and the pure functions over its state.

    All functions are for one seed; under `jax.vmap` over seeds the tick stays unbatched.

    Attributes:
        n_rounds: R, the slots of the ring, the running round's included.
        n_envs: N, the environments in lockstep.
        episode_length: T, in agent steps.
        obs_dim: O.
        action_dim: A.
        horizon: H, the agent steps of a slice.

    Raises:
        ValueError: a size is not a positive whole number, the ring has no slot beside the running
            round, a slice is longer than an episode, or the rows are too many to be indexed.
    """

    n_rounds: int
    n_envs: int
    episode_length: int
    obs_dim: int
    action_dim: int
    horizon: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            require_count(field.name, getattr(self, field.name))
        if self.n_rounds < 2:
            raise ValueError(
                f"n_rounds must be at least 2, got {self.n_rounds}: one round is being written "
                "while the others are sampled."
            )
        if self.horizon > self.episode_length:
            raise ValueError(
                f"horizon={self.horizon} is longer than an episode of "
                f"{self.episode_length} agent steps: a slice must fit in one episode. Use a "
                f"horizon of at most {self.episode_length}."
            )
        require_indexable(self.n_rounds * self.n_envs * (self.episode_length + 1))

    @classmethod
    def for_run(
        cls,
        capacity: int,
        total_env_steps: int,
        *,
        n_envs: int,
        episode_length: int,
        obs_dim: int,
        action_dim: int,
        horizon: int,
    ) -> "EpisodeBuffer":
        """Size a buffer for a run: no larger than asked for, and than the run can fill.

        R = ⌈min(capacity, total_env_steps) / (T·N)⌉ + 1.

        Args:
            capacity: agent steps to keep, of all environments together.
            total_env_steps: agent steps of the whole run, earlier calls of a resumed run included.
            n_envs: N.
            episode_length: T, in agent steps.
            obs_dim: O.
            action_dim: A.
            horizon: H, agent steps of a slice.

        Returns:
            The buffer. One sized by the run's length never evicts.

        Raises:
            ValueError: `capacity` does not hold one round, or a size is refused by the class.
        """
        per_round = n_envs * episode_length
        if capacity < per_round:
            raise ValueError(
                f"A buffer of {capacity} agent steps does not hold one episode of each "
                f"environment: {n_envs} x {episode_length} = {per_round} agent steps. Use a "
                f"buffer of at least {per_round}, or fewer environments."
            )
        if total_env_steps < 1:
            raise ValueError(f"total_env_steps must be at least 1, got {total_env_steps}.")
        kept = min(capacity, total_env_steps)
        return cls(
            n_rounds=-(-kept // per_round) + 1,
            n_envs=n_envs,
            episode_length=episode_length,
            obs_dim=obs_dim,
            action_dim=action_dim,
            horizon=horizon,
        )

    @property
    def bytes(self) -> int:
        """Bytes of the state of one seed."""
        n_rows = self.n_rounds * self.n_envs * (self.episode_length + 1)
        return n_rows * (self.obs_dim + self.action_dim + 1) * np.dtype(np.float32).itemsize

    @property
    def first_sampleable_tick(self) -> int:
        """The first tick at whose end a batch can be drawn: the last tick of the first round."""
        return self.episode_length

    def init(self) -> EpisodeBufferState:
        """Make the empty state, all zeros."""
        shape = (self.n_rounds, self.n_envs, self.episode_length + 1)
        return EpisodeBufferState(
            obs=jnp.zeros((*shape, self.obs_dim), jnp.float32),
            action=jnp.zeros((*shape, self.action_dim), jnp.float32),
            reward=jnp.zeros(shape, jnp.float32),
        )

    def add(self, state: EpisodeBufferState, row: Row, tick: jax.Array) -> EpisodeBufferState:
        """Write a tick's rows into the running round, in place where the state is donated.

        Args:
            state: the buffer's state.
            row: the rows of all environments, leading axis `[N]`, continuous actions.
            tick: the absolute tick that emitted them, `[]` int32, unbatched.

        Returns:
            The state with the rows written.

        Raises:
            ValueError: the rows' shapes are not those of the buffer; at trace time.
        """
        require_shapes(
            {
                "obs": (row.obs, (self.n_envs, self.obs_dim)),
                "action": (row.action, (self.n_envs, self.action_dim)),
                "reward": (row.reward, (self.n_envs,)),
            }
        )
        slot, row_index = self._running_slot(tick), tick % (self.episode_length + 1)
        return EpisodeBufferState(
            obs=_write(state.obs, row.obs, slot, row_index),
            action=_write(state.action, row.action, slot, row_index),
            reward=_write(state.reward, row.reward, slot, row_index),
        )

    def n_committed(self, tick: jax.Array | int) -> jax.Array:
        """Return how many rounds can be sampled at the end of `tick`, `[]` int32."""
        return jnp.minimum(self._n_complete(tick), self.n_rounds - 1).astype(jnp.int32)

    def check_sampleable(self, tick: int) -> None:
        """Check on the host that a schedule's first update has something to sample.

        Args:
            tick: the first tick at whose end a batch is drawn.

        Raises:
            ValueError: no round is complete at the end of that tick.
        """
        if tick < self.first_sampleable_tick:
            raise ValueError(
                f"The first update would come at the end of tick {tick}, but the first round of "
                f"episodes is complete only at the end of tick {self.first_sampleable_tick} "
                f"(episodes of {self.episode_length} agent steps). Start the updates later."
            )

    def draw(self, key: jax.Array, tick: jax.Array | int, batch_size: int) -> SliceDraw:
        """Draw where the slices of a batch begin, uniformly and with replacement.

        Every committed episode is equally likely, then every offset 0 to T − H, the last included
        (the reference never draws it). With the same key and the same number of committed rounds,
        rings of different sizes draw the same slices of the same rounds.

        Args:
            key: consumed.
            tick: the absolute tick at whose end the batch is used, `[]` int32. At least one round
                must be committed (`check_sampleable`); traced code cannot tell, and the draw would
                then point into the running round.
            batch_size: B.

        Returns:
            The slices' places, each field `[B]`.

        Source:
            nicklashansen/tdmpc2@b67b21c, tdmpc2/common/buffer.py. Deviations: T29.
        """
        round_key, env_key, offset_key = jax.random.split(key, 3)
        n_committed = self.n_committed(tick)
        shape, dtype = (batch_size,), jnp.int32
        nth = jax.random.randint(round_key, shape, 0, n_committed, dtype)
        env = jax.random.randint(env_key, shape, 0, self.n_envs, dtype)
        n_offsets = self.episode_length - self.horizon + 1
        offset = jax.random.randint(offset_key, shape, 0, n_offsets, dtype)
        oldest = self._n_complete(tick) - n_committed
        return SliceDraw(round=(oldest + nth) % self.n_rounds, env=env, offset=offset)

    def gather(self, state: EpisodeBufferState, draw: SliceDraw) -> Batch:
        """Read the slices of a draw.

        Args:
            state: the buffer's state.
            draw: where the slices begin, each field `[B]`; must lie inside the buffer, which is
                not checked.

        Returns:
            From a slice that begins at row s: observations of rows s to s + H, actions of rows s
            to s + H − 1, rewards of rows s + 1 to s + H.
        """
        rows_per_episode = self.episode_length + 1
        start = (draw.round * self.n_envs + draw.env) * rows_per_episode + draw.offset
        index = start[None, :] + jnp.arange(self.horizon + 1, dtype=jnp.int32)[:, None]
        return Batch(
            obs=read_rows(state.obs, index, n_axes=3),
            action=read_rows(state.action, index[:-1], n_axes=3),
            reward=read_rows(state.reward, index[1:], n_axes=3),
        )

    def sample(
        self, state: EpisodeBufferState, key: jax.Array, tick: jax.Array | int, batch_size: int
    ) -> Batch:
        """Draw and read a batch: `gather` of `draw`.

        A batch sampled before any round is committed has NaN rewards, so that the mistake shows.
        """
        batch = self.gather(state, self.draw(key, tick, batch_size))
        committed = self.n_committed(tick) > 0
        return batch._replace(reward=jnp.where(committed, batch.reward, jnp.nan))

    def adopt(
        self, old: "EpisodeBuffer", old_state: EpisodeBufferState, next_tick: int
    ) -> EpisodeBufferState:
        """Move the rounds of a buffer of another size into this one, between two ticks.

        The committed rounds (the newest, if they do not all fit) and the running one keep their
        places in time: sampling goes on as if the buffer had had this size from the start.

        Args:
            old: the buffer that filled `old_state`; it may differ in `n_rounds` and `horizon`.
            old_state: its state, of one seed.
            next_tick: the absolute tick to be collected next, which is the number of ticks done;
                a Python integer, because whether the move is possible depends on it.

        Returns:
            The state in this buffer's size.

        Raises:
            ValueError: the rows differ in shape, or this ring is larger and the old one has
                already evicted rounds that this one would still hold.
        """
        require_same(old, self, ("n_envs", "episode_length", "obs_dim", "action_dim"))
        if old.n_rounds == self.n_rounds:
            return old_state
        n_complete = next_tick // (self.episode_length + 1)
        n_held, n_wanted = (min(n_complete, ring.n_rounds - 1) for ring in (old, self))
        if n_held < n_wanted:
            raise ValueError(
                f"A buffer of {self.n_rounds} rounds would hold the last {n_wanted} of the "
                f"{n_complete} rounds collected, but the old one of {old.n_rounds} rounds has "
                f"kept only {n_held}. A buffer that has evicted cannot grow: keep its size."
            )
        # Slot p of this ring holds the newest round a, complete or running, with a mod R = p.
        slot = np.arange(self.n_rounds)
        absolute = n_complete - (n_complete - slot) % self.n_rounds
        present = absolute >= max(0, n_complete - n_held)
        source = np.where(present, absolute % old.n_rounds, 0).astype(np.int32)

        def move(ring: jax.Array) -> jax.Array:
            taken = jnp.take(ring, source, axis=0)
            return jnp.where(present.reshape((-1,) + (1,) * (ring.ndim - 1)), taken, 0.0)

        return EpisodeBufferState(*map(move, old_state))

    def _n_complete(self, tick: jax.Array | int) -> jax.Array | int:
        """Return how many rounds were ever completed at the end of `tick`."""
        return (tick + 1) // (self.episode_length + 1)

    def _running_slot(self, tick: jax.Array) -> jax.Array:
        """Return the slot written at `tick`."""
        return (tick // (self.episode_length + 1)) % self.n_rounds


def _write(ring: jax.Array, rows: jax.Array, slot: jax.Array, row_index: jax.Array) -> jax.Array:
    """Write `rows` `[N, ...]` at `ring[slot, :, row_index]`, the form XLA updates in place."""
    block = rows[None, :, None]
    start = (slot, 0, row_index) + (0,) * (ring.ndim - 3)
    return lax.dynamic_update_slice(ring, block.astype(ring.dtype), start)
