"""Replay of episodes that may end at any step, sampled as short slices (episodic TD-MPC2).

Every environment writes one row per tick into its own ring of C rows, whether its episode ends or
not, so where a row lies is arithmetic on the absolute tick. Where episodes lie is data: a table
lists the complete ones, in the order in which they ended. The running episodes are never sampled,
nor is an episode too short for a slice.

A new row overwrites the oldest one of its environment. An episode that loses its first rows so
stays as a shorter one while a slice still fits. Episodes become too short in the order in which
they ended, so the ones that can be sampled are always one stretch of the table, and keeping it
takes a look at N entries per tick.

Source: nicklashansen/tdmpc2@e9f5932, common/buffer.py, and torchrl's `SliceSampler`, which it draws
with. Deviations: T44.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.replay.rings import (
    read_rows,
    require_count,
    require_indexable,
    require_same,
    require_shapes,
    write_rows,
)
from wm_collect.row import Row


class VariableEpisodeBufferState(NamedTuple):
    """The rings of N environments and the table of M episodes; counts are int32.

    Attributes:
        obs: `[N, C, O]` float32; the row of tick i lies at i mod C.
        action: action chosen at each observation, `[N, C, A]` float32; 0 in last rows.
        reward: reward on entering each observation, `[N, C]` float32; 0 in reset rows.
        is_terminal: whether the row's episode terminated with it, `[N, C]` bool.
        first_tick: tick of the running episode's reset row, `[N]`.
        episode_env: table: environment of an episode, `[M]`; episode k lies at k mod M.
        episode_end: table: tick of its last row, `[M]`.
        episode_rows: table: its number of rows, also of those overwritten since, `[M]`.
        n_added: episodes ever put into the table, `[]`.
        n_expired: episodes of which too little is left, `[]`; the others can be sampled.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    is_terminal: jax.Array
    first_tick: jax.Array
    episode_env: jax.Array
    episode_end: jax.Array
    episode_rows: jax.Array
    n_added: jax.Array
    n_expired: jax.Array


class VariableSliceDraw(NamedTuple):
    """Where the B slices of a batch begin.

    Attributes:
        env: environment, `[B]` int32.
        tick: absolute tick of the slice's first row, `[B]` int32.
    """

    env: jax.Array
    tick: jax.Array


class EpisodicBatch(NamedTuple):
    """B slices of H agent steps, time first.

    Attributes:
        obs: observations o_0 to o_H, `[H + 1, B, O]` float32.
        action: actions a_0 to a_{H−1}, a_t chosen at o_t, `[H, B, A]` float32.
        reward: rewards r_0 to r_{H−1}, r_t received on entering o_{t+1}, `[H, B]` float32.
        terminated: 1 where entering o_{t+1} terminated the episode, else 0, `[H, B]` float32. Only
            the last step of a slice can; a time limit is no termination.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableEpisodeBuffer:
    """The sizes of a replay of episodes of any length, and the pure functions over its state.

    All functions are for one seed; under `jax.vmap` over seeds the tick stays unbatched.

    Attributes:
        capacity: C, rows per environment.
        n_envs: N, the environments in lockstep.
        obs_dim: O.
        action_dim: A.
        horizon: H, the agent steps of a slice.

    Raises:
        ValueError: a size is not a positive whole number, a ring is shorter than a slice, or the
            rows are too many to be indexed.
    """

    capacity: int
    n_envs: int
    obs_dim: int
    action_dim: int
    horizon: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            require_count(field.name, getattr(self, field.name))
        if self.capacity < self.horizon + 1:
            raise ValueError(
                f"capacity={self.capacity} rows per environment do not hold one slice of "
                f"horizon={self.horizon}, which has {self.horizon + 1} rows."
            )
        require_indexable(self.capacity * self.n_envs)

    @classmethod
    def for_run(
        cls,
        capacity: int,
        total_rows: int,
        *,
        n_envs: int,
        episode_length: int,
        obs_dim: int,
        action_dim: int,
        horizon: int,
    ) -> "VariableEpisodeBuffer":
        """Size a buffer for a run: no larger than asked for, and than the run can fill.

        C = min(⌈total_rows / N⌉, ⌈capacity / N⌉ + T + 1): the running episodes, of T + 1 rows at
        most, do not eat into the capacity.

        Args:
            capacity: rows of complete episodes to keep, of all environments together.
            total_rows: rows of the whole run, earlier calls of a resumed run included.
            n_envs: N.
            episode_length: T, the most agent steps of an episode.
            obs_dim: O.
            action_dim: A.
            horizon: H, agent steps of a slice.

        Returns:
            The buffer. One sized by the run's length never evicts.

        Raises:
            ValueError: `capacity` does not hold one episode of each environment, a slice is longer
                than an episode, the run has more rows than int32 counts, or a size is refused by
                the class or is not a positive whole number.
        """
        sizes = (capacity, total_rows, n_envs, episode_length)
        names = ("capacity", "total_rows", "n_envs", "episode_length")
        for name, size in zip(names, sizes, strict=True):
            require_count(name, size)
        longest = n_envs * (episode_length + 1)
        if capacity < longest:
            raise ValueError(
                f"A buffer of {capacity} rows does not hold one episode of each environment: "
                f"{n_envs} x {episode_length + 1} = {longest} rows. Use a buffer of at least "
                f"{longest}, or fewer environments."
            )
        if horizon > episode_length:
            raise ValueError(
                f"horizon={horizon} is longer than an episode of {episode_length} agent steps: a "
                f"slice must fit in one episode. Use a horizon of at most {episode_length}."
            )
        if total_rows > np.iinfo(np.int32).max:
            raise ValueError(
                f"A run of {total_rows} rows is longer than int32 counts "
                f"({np.iinfo(np.int32).max}). Use a shorter run."
            )
        rows = min(-(-total_rows // n_envs), -(-capacity // n_envs) + episode_length + 1)
        return cls(
            capacity=max(rows, horizon + 1),
            n_envs=n_envs,
            obs_dim=obs_dim,
            action_dim=action_dim,
            horizon=horizon,
        )

    @property
    def n_entries(self) -> int:
        """M, the entries of the table: as many episodes as can be long enough at once, and N more.

        Each has at least H + 1 rows in its ring, and no two share a row. The N others are for the
        episodes that end on a tick, which are listed before the ones that the tick made too short
        are forgotten.
        """
        return self.n_envs * (self.capacity // (self.horizon + 1) + 1)

    @property
    def bytes(self) -> int:
        """Bytes of the state of one seed."""
        shapes = jax.eval_shape(self.init)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in shapes)

    def init(self) -> VariableEpisodeBufferState:
        """Make the empty state, all zeros."""
        shape, entries = (self.n_envs, self.capacity), (self.n_entries,)
        return VariableEpisodeBufferState(
            obs=jnp.zeros((*shape, self.obs_dim), jnp.float32),
            action=jnp.zeros((*shape, self.action_dim), jnp.float32),
            reward=jnp.zeros(shape, jnp.float32),
            is_terminal=jnp.zeros(shape, bool),
            first_tick=jnp.zeros(self.n_envs, jnp.int32),
            episode_env=jnp.zeros(entries, jnp.int32),
            episode_end=jnp.zeros(entries, jnp.int32),
            episode_rows=jnp.zeros(entries, jnp.int32),
            n_added=jnp.zeros((), jnp.int32),
            n_expired=jnp.zeros((), jnp.int32),
        )

    def add(
        self, state: VariableEpisodeBufferState, row: Row, tick: jax.Array
    ) -> VariableEpisodeBufferState:
        """Write a tick's rows, in place where the state is donated, and list episodes that ended.

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
        slot = tick % self.capacity
        first_tick = jnp.where(row.is_first, tick, state.first_tick)
        n_rows = tick - first_tick + 1

        listed = row.is_last & (n_rows > self.horizon)
        place = (state.n_added + jnp.cumsum(listed, dtype=jnp.int32) - 1) % self.n_entries
        # Places beyond the table are not written.
        place = jnp.where(listed, place, self.n_entries)

        def enter(column: jax.Array, values: jax.Array) -> jax.Array:
            return column.at[place].set(values, mode="drop", unique_indices=False)

        episode_end = enter(state.episode_end, jnp.broadcast_to(tick, (self.n_envs,)))
        n_added = state.n_added + jnp.sum(listed, dtype=jnp.int32)
        # The ends are read after they were written: a compiler that may choose copies them first.
        oldest = state.n_expired + jnp.arange(self.n_envs, dtype=jnp.int32)
        too_short = jnp.take(episode_end, oldest % self.n_entries) < self._first_end(tick)
        n_expired = state.n_expired + jnp.sum(too_short & (oldest < n_added), dtype=jnp.int32)

        return VariableEpisodeBufferState(
            obs=write_rows(state.obs, row.obs, slot),
            action=write_rows(state.action, row.action, slot),
            reward=write_rows(state.reward, row.reward, slot),
            is_terminal=write_rows(state.is_terminal, row.is_terminal, slot),
            first_tick=first_tick,
            episode_env=enter(state.episode_env, jnp.arange(self.n_envs, dtype=jnp.int32)),
            episode_end=episode_end,
            episode_rows=enter(state.episode_rows, n_rows),
            n_added=n_added,
            n_expired=n_expired,
        )

    def n_sampleable(self, state: VariableEpisodeBufferState) -> jax.Array:
        """Return how many episodes can be sampled, `[]` int32."""
        return state.n_added - state.n_expired

    def draw(
        self,
        state: VariableEpisodeBufferState,
        key: jax.Array,
        tick: jax.Array | int,
        batch_size: int,
    ) -> VariableSliceDraw:
        """Draw where the slices of a batch begin, with replacement.

        Every episode that can be sampled is equally likely, whatever its length, then every offset
        at which a slice fits into its rows, the last one included: only there a termination shows.
        With the same key and the same episodes, rings of different sizes draw the same slices.

        Args:
            state: the buffer's state at the end of `tick`.
            key: consumed.
            tick: the absolute tick at whose end the batch is used, `[]` int32.
            batch_size: B.

        Returns:
            The slices' places, each field `[B]`. Without an episode to sample they are anywhere:
            see `n_sampleable`.
        """
        episode_key, offset_key = jax.random.split(key)
        n_episodes = jnp.maximum(self.n_sampleable(state), 1)
        nth = jax.random.randint(episode_key, (batch_size,), 0, n_episodes, jnp.int32)
        entry = (state.n_expired + nth) % self.n_entries
        end, n_rows = jnp.take(state.episode_end, entry), jnp.take(state.episode_rows, entry)
        first = jnp.maximum(end - n_rows + 1, tick - self.capacity + 1)
        n_offsets = jnp.maximum(end - first + 1 - self.horizon, 1)
        offset = jax.random.randint(offset_key, (batch_size,), 0, n_offsets, jnp.int32)
        return VariableSliceDraw(env=jnp.take(state.episode_env, entry), tick=first + offset)

    def gather(self, state: VariableEpisodeBufferState, draw: VariableSliceDraw) -> EpisodicBatch:
        """Read the slices of a draw.

        Args:
            state: the buffer's state.
            draw: where the slices begin, each field `[B]`; must lie inside the rings, which is not
                checked.

        Returns:
            From a slice that begins at row s: observations of rows s to s + H, actions of rows s
            to s + H − 1, rewards and terminations of rows s + 1 to s + H.
        """
        steps = jnp.arange(self.horizon + 1, dtype=jnp.int32)[:, None]
        slot = (draw.tick[None, :] + steps) % self.capacity
        index = draw.env[None, :] * self.capacity + slot
        return EpisodicBatch(
            obs=read_rows(state.obs, index),
            action=read_rows(state.action, index[:-1]),
            reward=read_rows(state.reward, index[1:]),
            terminated=read_rows(state.is_terminal, index[1:]).astype(jnp.float32),
        )

    def sample(
        self,
        state: VariableEpisodeBufferState,
        key: jax.Array,
        tick: jax.Array | int,
        batch_size: int,
    ) -> EpisodicBatch:
        """Draw and read a batch: `gather` of `draw`."""
        return self.gather(state, self.draw(state, key, tick, batch_size))

    def adopt(
        self, old: "VariableEpisodeBuffer", old_state: VariableEpisodeBufferState, next_tick: int
    ) -> VariableEpisodeBufferState:
        """Move the rows of a buffer of another capacity into this one, between two ticks.

        Sampling goes on as if the buffer had had this size from the start.

        Args:
            old: the buffer that filled `old_state`; it may differ in `capacity`.
            old_state: its state, of one seed.
            next_tick: the absolute tick to be collected next, which is the number of ticks done;
                a Python integer, because whether the move is possible depends on it.

        Returns:
            The state in this buffer's size.

        Raises:
            ValueError: the rows differ in shape, or this ring is larger and the old one has
                already overwritten rows that this one would still hold.
        """
        require_same(old, self, ("n_envs", "obs_dim", "action_dim", "horizon"))
        if old.capacity == self.capacity:
            return old_state
        n_held, n_wanted = (min(next_tick, ring.capacity) for ring in (old, self))
        if n_held < n_wanted:
            raise ValueError(
                f"A buffer of {self.capacity} rows per environment would hold the last {n_wanted} "
                f"of the {next_tick} rows collected, but the old one of {old.capacity} rows has "
                f"kept only {n_held}. A buffer that has evicted cannot grow: keep its size."
            )
        newest = next_tick - 1
        # Slot p of this ring holds the newest tick i with i mod C = p, if there was one.
        tick = newest - (newest - np.arange(self.capacity)) % self.capacity
        source = np.where(tick >= 0, tick % old.capacity, 0)

        def move(ring: jax.Array) -> jax.Array:
            present = (tick >= 0).reshape((1, -1) + (1,) * (ring.ndim - 2))
            return jnp.where(present, jnp.take(ring, source, axis=1), jnp.zeros((), ring.dtype))

        # The same for the table, whose numbers are data.
        number = old_state.n_added - 1 - jnp.arange(old.n_entries)
        still_listed = (number >= old_state.n_expired) & (
            jnp.take(old_state.episode_end, number % old.n_entries) >= self._first_end(newest)
        )
        n_expired = old_state.n_added - jnp.sum(still_listed, dtype=jnp.int32)
        last = old_state.n_added - 1
        entry = last - (last - jnp.arange(self.n_entries, dtype=jnp.int32)) % self.n_entries
        listed = entry >= n_expired

        def relist(column: jax.Array) -> jax.Array:
            return jnp.where(listed, jnp.take(column, entry % old.n_entries), 0)

        return old_state._replace(
            obs=move(old_state.obs),
            action=move(old_state.action),
            reward=move(old_state.reward),
            is_terminal=move(old_state.is_terminal),
            episode_env=relist(old_state.episode_env),
            episode_end=relist(old_state.episode_end),
            episode_rows=relist(old_state.episode_rows),
            n_expired=n_expired.astype(jnp.int32),
        )

    def _first_end(self, tick: jax.Array | int) -> jax.Array | int:
        """Return the earliest end of an episode with H + 1 rows left at the end of `tick`."""
        return tick - self.capacity + self.horizon + 1
