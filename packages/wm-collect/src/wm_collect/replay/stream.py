"""Replay of endless streams of rows, sampled as windows, latents included (DreamerV3).

Every environment has a ring of C rows; the row of absolute tick a lies at slot a mod C. An *item*
is a window of L = T + 1 rows of one environment that follow one another, from any row on, across
the ends of episodes. Its row 0 gives the context, its other T rows are trained on, and the latents
computed for them are written back over the stored ones.

Where everything lies is arithmetic on the absolute tick: the rows of a tick are added first, then
batches are drawn at its end. The one thing that the state counts is how many *online items* were
handed out. These are new windows that go straight into the next batches, so that what was just
collected is trained on soon, whatever chance draws.

Source: danijar/dreamerv3@2411f7d, embodied/replay/replay.py. Deviations: D27, D28.
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


class StreamReplayState(NamedTuple):
    """The rings of N environments; the row of tick a is at slot a mod C.

    Attributes:
        obs: `[N, C, O]` float32.
        action: action chosen at each observation, `[N, C, A]` float32, or `[N, C]` int32 for
            discrete actions.
        reward: reward on entering each observation, `[N, C]` float32.
        is_first: `[N, C]` bool.
        is_last: `[N, C]` bool.
        is_terminal: `[N, C]` bool.
        deter: deterministic latent after each observation, `[N, C, D]` float32.
        stoch: class of each of the S categorical latents after each observation, `[N, C, S]`, the
            smallest unsigned integer that holds all classes.
        online_popped: online items handed out or skipped so far, `[]` int32.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    is_first: jax.Array
    is_last: jax.Array
    is_terminal: jax.Array
    deter: jax.Array
    stoch: jax.Array
    online_popped: jax.Array


class WindowDraw(NamedTuple):
    """Where the B windows of a batch begin.

    Attributes:
        env: environment, `[B]` int32.
        start: absolute tick of the window's row 0, `[B]` int32.
        online: whether the window comes from the online queue, `[B]` bool; those come first.
    """

    env: jax.Array
    start: jax.Array
    online: jax.Array


class StreamBatch(NamedTuple):
    """B windows of L = T + 1 rows, batch first.

    Attributes:
        obs: `[B, L, O]` float32.
        action: action chosen at each observation, `[B, L, A]` float32 or `[B, L]` int32.
        reward: reward on entering each observation, `[B, L]` float32.
        is_first: `[B, L]` bool; true in every row 0, whatever is stored.
        is_last: `[B, L]` bool; true also where the window's next row is a first one.
        is_terminal: `[B, L]` bool.
        context_deter: deterministic latent stored with row 0, `[B, D]` float32.
        context_stoch: classes stored with row 0, `[B, S]` int32.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    is_first: jax.Array
    is_last: jax.Array
    is_terminal: jax.Array
    context_deter: jax.Array
    context_stoch: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamReplay:
    """The sizes of a replay of streams, and the pure functions over its state.

    All functions are for one seed; under `jax.vmap` over seeds the tick stays unbatched. The rows
    of a whole run, of all environments, must be countable in int32, as the collector counts them.

    Attributes:
        n_envs: N, the environments, which emit one row each per tick.
        capacity: C, the rows kept of each environment.
        batch_length: T, the trained rows of a window, which has one row more.
        batch_size: B.
        obs_dim: O.
        action_dim: A, or the number of choices of a discrete action.
        discrete: whether actions are `[N]` int32 instead of `[N, A]` float32.
        deter: D, the size of the deterministic latent.
        stoch: S, the number of categorical latents.
        classes: the classes of each categorical latent.

    Raises:
        ValueError: a size is not a positive whole number, `discrete` is not a bool, a full ring
            does not hold B items, or the rows are too many to be indexed.
    """

    n_envs: int
    capacity: int
    batch_length: int
    batch_size: int
    obs_dim: int
    action_dim: int
    discrete: bool
    deter: int
    stoch: int
    classes: int

    def __post_init__(self) -> None:
        if not isinstance(self.discrete, bool):
            raise ValueError(f"discrete must be True or False, got {self.discrete!r}.")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "discrete":
                require_count(field.name, value)
        smallest = _smallest_capacity(self.n_envs, self.batch_length, self.batch_size)
        if self.capacity < smallest:
            raise ValueError(
                f"capacity={self.capacity} rows of each of {self.n_envs} environments hold fewer "
                f"than batch_size={self.batch_size} windows of {self.batch_length + 1} rows. Use "
                f"a capacity of at least {smallest} rows per environment."
            )
        require_indexable(self.n_envs * self.capacity)

    @classmethod
    def for_run(
        cls,
        replay_capacity: int,
        n_rows: int,
        *,
        n_envs: int,
        batch_length: int,
        batch_size: int,
        obs_dim: int,
        action_dim: int,
        discrete: bool,
        deter: int,
        stoch: int,
        classes: int,
    ) -> "StreamReplay":
        """Size a replay for a run: no larger than asked for, and than the run can fill.

        C = max(⌈min(replay_capacity, n_rows) / N⌉, T + ⌈B / N⌉), where the second is what it takes
        to hold the B items that the first batch waits for.

        Args:
            replay_capacity: rows to keep, of all environments together.
            n_rows: rows of the whole run, of all environments together, earlier calls of a resumed
                run included.
            n_envs: N.
            batch_length: T, the trained rows of a window.
            batch_size: B.
            obs_dim: O.
            action_dim: A, or the number of choices.
            discrete: whether actions are discrete.
            deter: D.
            stoch: S.
            classes: the classes of each categorical latent.

        Returns:
            The replay. One sized by the run's length never evicts.

        Raises:
            ValueError: a size is refused by the class, or is not a positive whole number.

        Source:
            Deviations: D27.
        """
        sizes = (replay_capacity, n_rows, n_envs, batch_length, batch_size)
        names = ("replay_capacity", "n_rows", "n_envs", "batch_length", "batch_size")
        for name, size in zip(names, sizes, strict=True):
            require_count(name, size)
        kept = -(-min(replay_capacity, n_rows) // n_envs)
        return cls(
            n_envs=n_envs,
            capacity=max(kept, _smallest_capacity(n_envs, batch_length, batch_size)),
            batch_length=batch_length,
            batch_size=batch_size,
            obs_dim=obs_dim,
            action_dim=action_dim,
            discrete=discrete,
            deter=deter,
            stoch=stoch,
            classes=classes,
        )

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row of one environment."""
        n_words = self.obs_dim + (1 if self.discrete else self.action_dim) + 1 + self.deter
        return 4 * n_words + 3 + self.stoch * self._stoch_dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of the state of one seed."""
        return self.n_envs * self.capacity * self.bytes_per_row + 4

    def init(self) -> StreamReplayState:
        """Make the empty state, all zeros."""
        shape = (self.n_envs, self.capacity)
        action = (
            jnp.zeros(shape, jnp.int32)
            if self.discrete
            else jnp.zeros((*shape, self.action_dim), jnp.float32)
        )
        # Each field is its own array: a state that holds one buffer twice cannot be donated.
        return StreamReplayState(
            obs=jnp.zeros((*shape, self.obs_dim), jnp.float32),
            action=action,
            reward=jnp.zeros(shape, jnp.float32),
            is_first=jnp.zeros(shape, bool),
            is_last=jnp.zeros(shape, bool),
            is_terminal=jnp.zeros(shape, bool),
            deter=jnp.zeros((*shape, self.deter), jnp.float32),
            stoch=jnp.zeros((*shape, self.stoch), self._stoch_dtype),
            online_popped=jnp.zeros((), jnp.int32),
        )

    def add(
        self,
        state: StreamReplayState,
        row: Row,
        deter: jax.Array,
        stoch: jax.Array,
        tick: jax.Array,
    ) -> StreamReplayState:
        """Write a tick's rows over the oldest, in place where the state is donated.

        Args:
            state: the replay's state.
            row: the rows of all environments, leading axis `[N]`.
            deter: the acting policy's deterministic latent at those rows, `[N, D]` float32.
            stoch: the classes of its categorical latents, `[N, S]` integers below `classes`.
            tick: the absolute tick that emitted them, `[]` int32, unbatched; every tick from 0 on
                must be added once, in order.

        Returns:
            The state with the rows written.

        Raises:
            ValueError: the shapes are not those of the replay; at trace time.
        """
        each = (self.n_envs,)
        require_shapes(
            {
                "obs": (row.obs, (*each, self.obs_dim)),
                "action": (row.action, each if self.discrete else (*each, self.action_dim)),
                "reward": (row.reward, each),
                "is_first": (row.is_first, each),
                "is_last": (row.is_last, each),
                "is_terminal": (row.is_terminal, each),
                "deter": (deter, (*each, self.deter)),
                "stoch": (stoch, (*each, self.stoch)),
            }
        )
        slot = tick % self.capacity
        return StreamReplayState(
            obs=write_rows(state.obs, row.obs, slot),
            action=write_rows(state.action, row.action, slot),
            reward=write_rows(state.reward, row.reward, slot),
            is_first=write_rows(state.is_first, row.is_first, slot),
            is_last=write_rows(state.is_last, row.is_last, slot),
            is_terminal=write_rows(state.is_terminal, row.is_terminal, slot),
            deter=write_rows(state.deter, deter, slot),
            stoch=write_rows(state.stoch, stoch, slot),
            online_popped=state.online_popped,
        )

    def n_items(self, tick: jax.Array | int) -> jax.Array:
        """Return how many items there are at the end of `tick`, `[]` int32.

        N · max(0, min(tick + 1, C) − T).
        """
        per_env = jnp.minimum(jnp.asarray(tick, jnp.int32) + 1, self.capacity) - self.batch_length
        return self.n_envs * jnp.maximum(per_env, 0)

    def item(self, index: jax.Array, tick: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """Return the environment and the first row's absolute tick of an item.

        Items are numbered from the oldest, those of one tick in the order of the environments.

        Args:
            index: from 0 to `n_items(tick)` − 1, int32, any shape.
            tick: the absolute tick at whose end the items are counted, `[]` int32.

        Returns:
            The environments and the ticks of the windows' rows 0, int32, in the shape of `index`.
        """
        return index % self.n_envs, self._oldest_row(tick) + index // self.n_envs

    def draw(
        self, state: StreamReplayState, key: jax.Array, tick: jax.Array | int
    ) -> tuple[StreamReplayState, WindowDraw]:
        """Draw where the windows of a batch begin: the pending online items, then uniformly.

        The stream of every environment is also cut into windows that do not overlap, starting with
        row 1; these are the online items. Item q is of environment q mod N, starts at row
        1 + L·⌊q / N⌋ and becomes available when its last row is written, at tick L·(⌊q / N⌋ + 1).
        The oldest pending ones take the first places of the batch, at most B. An online item of
        which a row was overwritten before its turn is skipped for good.

        The other places are drawn uniformly with replacement from all items, so with the same key
        and the same number of items rings of different sizes draw alike.

        Args:
            state: the replay's state; only `online_popped` is read.
            key: consumed.
            tick: the absolute tick at whose end the batch is used, `[]` int32, unbatched. At least
                one item must exist; traced code cannot tell, and the draw would then be of rows
                that were never written.

        Returns:
            The state with the online items taken, and the windows' places, each field `[B]`.

        Source:
            danijar/dreamerv3@2411f7d, embodied/replay/replay.py, `Replay.add` and
            `Replay._sample`. Deviations: D27, D28.
        """
        place = jnp.arange(self.batch_size, dtype=jnp.int32)
        index = jax.random.randint(key, place.shape, 0, self.n_items(tick), jnp.int32)
        env, start = self.item(index, tick)

        length = self.batch_length + 1
        available = self.n_envs * (tick // length)
        # Round j of online items starts at row 1 + L·j: the first round that is still whole.
        first_whole_round = (jnp.maximum(self._oldest_row(tick) - 1, 0) + length - 1) // length
        next_online = jnp.maximum(state.online_popped, self.n_envs * first_whole_round)
        n_online = jnp.minimum(available - next_online, self.batch_size)
        online = place < n_online
        online_item = next_online + place
        draw = WindowDraw(
            env=jnp.where(online, online_item % self.n_envs, env),
            start=jnp.where(online, 1 + length * (online_item // self.n_envs), start),
            online=online,
        )
        return state._replace(online_popped=next_online + n_online), draw

    def gather(self, state: StreamReplayState, draw: WindowDraw) -> StreamBatch:
        """Read the windows of a draw.

        `is_first` becomes true in every row 0. It is the context's flag, so it hides nothing from
        the rows that are trained on. `is_last` becomes true also before a first row, for episodes
        that were broken off.

        Args:
            state: the replay's state.
            draw: where the windows begin, each field `[B]`; must be items, which is not checked.

        Returns:
            Rows start to start + T of every window, and the stored latents of row start.

        Source:
            danijar/dreamerv3@2411f7d, embodied/replay/replay.py, `Replay._annotate_batch`.
            Deviations: none.
        """
        row = jnp.arange(self.batch_length + 1, dtype=jnp.int32)
        index = self._index(draw.env[:, None], draw.start[:, None] + row[None, :])
        is_first = read_rows(state.is_first, index).at[:, 0].set(True)
        is_last = read_rows(state.is_last, index)
        return StreamBatch(
            obs=read_rows(state.obs, index),
            action=read_rows(state.action, index),
            reward=read_rows(state.reward, index),
            is_first=is_first,
            is_last=is_last.at[:, :-1].set(is_last[:, :-1] | is_first[:, 1:]),
            is_terminal=read_rows(state.is_terminal, index),
            context_deter=read_rows(state.deter, index[:, 0]),
            context_stoch=read_rows(state.stoch, index[:, 0]).astype(jnp.int32),
        )

    def sample(
        self, state: StreamReplayState, key: jax.Array, tick: jax.Array | int
    ) -> tuple[StreamReplayState, WindowDraw, StreamBatch]:
        """Draw and read a batch: `gather` of `draw`.

        A batch sampled before there is any item has NaN rewards, so that the mistake shows.

        Args:
            state: the replay's state.
            key: consumed.
            tick: the absolute tick at whose end the batch is used, `[]` int32, unbatched.

        Returns:
            The state with the online items taken, the draw (for `write_back`), and the batch.
        """
        state, draw = self.draw(state, key, tick)
        batch = self.gather(state, draw)
        exists = self.n_items(tick) > 0
        return state, draw, batch._replace(reward=jnp.where(exists, batch.reward, jnp.nan))

    def write_back(
        self, state: StreamReplayState, draw: WindowDraw, deter: jax.Array, stoch: jax.Array
    ) -> StreamReplayState:
        """Overwrite the latents of the trained rows, in place where the state is donated.

        Window b's rows 1 to T are written; its context is not. Where windows overlap, the row of
        the later one in the batch stays. The rows must still be the drawn ones: write back before
        the next tick's rows are added. The latents must follow from the batch's context, as an
        update's do; a compiler that may write them before it has read that copies a ring.

        Args:
            state: the replay's state.
            draw: the batch's draw.
            deter: deterministic latents of the trained rows, `[B, T, D]` float32.
            stoch: classes of their categorical latents, `[B, T, S]` integers below `classes`.

        Returns:
            The state with the latents written.

        Raises:
            ValueError: the shapes are not those of the replay; at trace time.

        Source:
            danijar/dreamerv3@2411f7d, embodied/replay/replay.py, `Replay.update`.
            Deviations: D28.
        """
        B, T = self.batch_size, self.batch_length
        require_shapes({"deter": (deter, (B, T, self.deter)), "stoch": (stoch, (B, T, self.stoch))})
        row = draw.start[:, None] + jnp.arange(1, T + 1, dtype=jnp.int32)[None, :]
        place = jnp.arange(B, dtype=jnp.int32)
        same_env = draw.env[:, None] == draw.env[None, :]
        later = same_env & (place[:, None] < place[None, :])
        row_of_other = row[:, :, None] - draw.start[None, None, :]
        covers = (row_of_other >= 1) & (row_of_other <= T)
        overwritten = jnp.any(later[:, None, :] & covers, axis=-1)
        # Which of two writes to one place a scatter keeps is undefined on a GPU. So a row that a
        # later window overwrites is sent beyond the ring, where it is dropped, and none is left
        # twice: one scatter for what would otherwise be a loop over the batch.
        beyond = self.n_envs * self.capacity
        index = jnp.where(overwritten, beyond, self._index(draw.env[:, None], row))
        return state._replace(
            deter=_scatter(state.deter, index, deter), stoch=_scatter(state.stoch, index, stoch)
        )

    def adopt(
        self, old: "StreamReplay", old_state: StreamReplayState, next_tick: int
    ) -> StreamReplayState:
        """Move the rows of a replay of another capacity into this one, between two ticks.

        A ring that has overwritten nothing has row a at slot a, whatever its capacity. So while
        all rows fit in both, the state is exactly what it would be had the replay had this
        capacity from the start.

        Args:
            old: the replay that filled `old_state`; it may differ in `capacity` only.
            old_state: its state, of one seed.
            next_tick: the absolute tick to be collected next, which is the number of ticks done;
                a Python integer, because whether the move is possible depends on it.

        Returns:
            The state in this replay's size; `old_state` itself where the size is the same.

        Raises:
            ValueError: something else than the capacity differs, or one of the two replays has
                overwritten, or would have, rows that the other holds.
        """
        names = [field.name for field in dataclasses.fields(self)]
        require_same(old, self, [name for name in names if name != "capacity"])
        n_more = self.capacity - old.capacity
        if n_more == 0:
            return old_state
        if next_tick > min(old.capacity, self.capacity):
            raise ValueError(
                f"A replay of {old.capacity} rows per environment holds the newest "
                f"{min(next_tick, old.capacity)} of {next_tick} rows, one of {self.capacity} would "
                f"hold {min(next_tick, self.capacity)}: once rows are overwritten a replay cannot "
                "change its size. Keep its capacity."
            )

        def fit(ring: jax.Array) -> jax.Array:
            if n_more < 0:
                return ring[:, : self.capacity]
            return jnp.pad(ring, [(0, 0), (0, n_more)] + [(0, 0)] * (ring.ndim - 2))

        rings = old_state._asdict()
        online_popped = rings.pop("online_popped")
        return StreamReplayState(
            **{name: fit(ring) for name, ring in rings.items()}, online_popped=online_popped
        )

    @property
    def _stoch_dtype(self) -> np.dtype:
        """The smallest unsigned integer that holds every class."""
        return np.min_scalar_type(self.classes - 1)

    def _oldest_row(self, tick: jax.Array | int) -> jax.Array:
        """Return the tick of the oldest row kept at the end of `tick`."""
        return jnp.maximum(jnp.asarray(tick, jnp.int32) + 1 - self.capacity, 0)

    def _index(self, env: jax.Array, row: jax.Array) -> jax.Array:
        """Return the place of a row of an absolute tick in the rings flattened to `[N · C]`."""
        return env * self.capacity + row % self.capacity


def _smallest_capacity(n_envs: int, batch_length: int, batch_size: int) -> int:
    """Return the rows per environment that hold B items."""
    return batch_length + -(-batch_size // n_envs)


def _scatter(ring: jax.Array, index: jax.Array, rows: jax.Array) -> jax.Array:
    """Write `rows` at their places in the flattened rings, each at most once, or beyond them."""
    flat = ring.reshape((-1, *ring.shape[2:]))
    written = flat.at[index].set(
        rows.astype(ring.dtype), mode="drop", unique_indices=True, wrap_negative_indices=False
    )
    return written.reshape(ring.shape)
