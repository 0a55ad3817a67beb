"""The stream replay against lists of rows kept on the host, written to one after another."""

import collections
import dataclasses
import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.replay import StreamReplay, WindowDraw, stream
from wm_collect.row import Row

KEY = jax.random.key(5)
SIZES = dict(
    n_envs=2,
    batch_length=3,
    batch_size=4,
    obs_dim=2,
    action_dim=3,
    discrete=False,
    deter=2,
    stoch=3,
    classes=5,
)
N_TICKS = 44
ALWAYS = [True] * N_TICKS

examples = hypothesis.settings(max_examples=40, deadline=None, derandomize=True)


def make_replay(**changes):
    return StreamReplay(**{"capacity": 12, **SIZES, **changes})


# A few sizes, because each is compiled: the smallest ring, one that wraps often, one that never
# does, with online items on every tick or rarely, and fewer or more of them than a batch takes.
REPLAYS = [
    make_replay(n_envs=1, capacity=7),
    make_replay(n_envs=4, capacity=17, batch_length=6, batch_size=3, discrete=True),
    make_replay(n_envs=16, capacity=5, batch_size=5, discrete=True),
    make_replay(n_envs=4, capacity=N_TICKS, batch_length=1, batch_size=9),
]
replays = st.sampled_from(REPLAYS)


def rows_of(replay, tick):
    """The row and the latents of a tick: numbers that tell where they come from."""
    env = np.arange(replay.n_envs)
    number = 100.0 * tick + env
    episode_length = 3 + env % 4
    row_index = (tick + 2 * env) % episode_length
    is_last = row_index == episode_length - 1
    row = Row(
        obs=np.float32(number[:, None] + 1000 * np.arange(replay.obs_dim)),
        action=(
            np.int32(number)
            if replay.discrete
            else np.float32(number[:, None] + 0.25 * np.arange(replay.action_dim))
        ),
        reward=np.float32(-number),
        is_first=row_index == 0,
        is_last=is_last,
        is_terminal=is_last & ((tick + env) % 2 == 0),
    )
    deter = np.float32(number[:, None] + 0.125 * np.arange(replay.deter))
    stoch = np.int32(number[:, None] + np.arange(replay.stoch)) % replay.classes
    return row, deter, stoch


def new_latents_of(replay, tick):
    """The latents written back at a tick: another number for every row of the batch."""
    size, length = replay.batch_size, replay.batch_length
    number = -1000.0 * (tick + 1) - np.arange(size * length).reshape(size, length, 1)
    deter = np.float32(number + 0.125 * np.arange(replay.deter))
    stoch = np.int32(7 * -number + np.arange(replay.stoch)) % replay.classes
    return deter, stoch


@functools.cache
def inputs(replay):
    """What is added and written back at each of N_TICKS ticks, stacked."""
    ticks = [(rows_of(replay, tick), new_latents_of(replay, tick)) for tick in range(N_TICKS)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *ticks)


@functools.partial(jax.jit, static_argnums=0)
def ticks_of(replay, state, key, inputs, samples, start, stop):
    """Run the ticks from start to stop; where `samples` is true, sample a batch and write back."""

    def one_tick(state, xs):
        tick, samples, ((row, deter, stoch), (new_deter, new_stoch)) = xs
        added = replay.add(state, row, deter, stoch, tick)
        sampled, draw, batch = replay.sample(added, jax.random.fold_in(key, tick), tick)
        written = replay.write_back(sampled, draw, new_deter, new_stoch)
        runs = (start <= tick) & (tick < stop)
        # An update is never due before there is an item.
        updates = samples & (replay.n_items(tick) > 0)
        state = jax.tree.map(
            lambda w, a, s: jnp.where(runs, jnp.where(updates, w, a), s), written, added, state
        )
        return state, (replay.n_items(tick), draw, batch)

    return jax.lax.scan(one_tick, state, (jnp.arange(N_TICKS), samples, inputs))


def run(replay, key, samples, *, state=None, start=0, stop=N_TICKS):
    state = replay.init() if state is None else state
    return jax.tree.map(
        np.asarray, ticks_of(replay, state, key, inputs(replay), np.array(samples), start, stop)
    )


class Streams:
    """The whole history in order, and what of it a ring of C rows still holds."""

    def __init__(self, replay):
        self.replay = replay
        self.length = replay.batch_length + 1
        self.rows = [[] for _ in range(replay.n_envs)]
        self.latents = [[] for _ in range(replay.n_envs)]
        self.queue = collections.deque()

    def add(self, row, deter, stoch):
        for env in range(self.replay.n_envs):
            n_before = len(self.rows[env])
            self.rows[env].append(jax.tree.map(lambda leaf, env=env: leaf[env], row))
            self.latents[env].append((deter[env], stoch[env]))
            if n_before >= self.replay.batch_length and n_before % self.length == 0:
                self.queue.append((env, n_before - self.replay.batch_length))

    @property
    def oldest(self):
        return max(0, len(self.rows[0]) - self.replay.capacity)

    def items(self):
        starts = range(self.oldest, len(self.rows[0]) - self.replay.batch_length)
        return [(env, start) for start in starts for env in range(self.replay.n_envs)]

    def pop(self):
        """The online items that lead the next batch."""
        popped = []
        while self.queue and len(popped) < self.replay.batch_size:
            env, start = self.queue.popleft()
            if start >= self.oldest:
                popped.append((env, start))
        return popped

    def window(self, env, start):
        """A window's rows stacked, with the flags annotated, and its context's latents."""
        rows = self.rows[env][start : start + self.length]
        assert len(rows) == self.length and start >= self.oldest
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        is_first = stacked.is_first.copy()
        is_first[0] = True
        is_last = stacked.is_last.copy()
        for k in range(self.length - 1):
            is_last[k] |= is_first[k + 1]
        row = dataclasses.replace(stacked, is_first=is_first, is_last=is_last)
        return row, *self.latents[env][start]

    def write_back(self, draw, deter, stoch):
        for b, (env, start) in enumerate(zip(draw.env, draw.start, strict=True)):
            for k in range(self.replay.batch_length):
                self.latents[env][start + 1 + k] = (deter[b, k], stoch[b, k])

    def assert_latents_equal(self, state):
        for env, latents in enumerate(self.latents):
            for tick in range(self.oldest, len(latents)):
                deter, stoch = latents[tick]
                slot = tick % self.replay.capacity
                np.testing.assert_array_equal(state.deter[env, slot], deter)
                np.testing.assert_array_equal(state.stoch[env, slot], stoch)


@examples
@hypothesis.given(
    replay=replays,
    samples=st.lists(st.booleans(), min_size=N_TICKS, max_size=N_TICKS),
    quiet=st.integers(0, N_TICKS),
    seed=st.integers(0, 10),
)
def test_a_run_is_that_of_rows_kept_in_lists(replay, samples, quiet, seed):
    samples = [chosen and tick >= quiet for tick, chosen in enumerate(samples)]
    state, (n_items, draws, batches) = run(replay, jax.random.key(seed), samples)
    model = Streams(replay)
    for tick in range(N_TICKS):
        model.add(*rows_of(replay, tick))
        items = model.items()
        assert n_items[tick] == len(items)
        if not samples[tick] or not items:
            continue
        draw, batch = jax.tree.map(lambda leaf, tick=tick: leaf[tick], (draws, batches))
        drawn = list(zip(draw.env.tolist(), draw.start.tolist(), strict=True))
        online = model.pop()
        assert draw.online.tolist() == [b < len(online) for b in range(replay.batch_size)]
        assert drawn[: len(online)] == online
        assert set(drawn) <= set(items)
        for b, item in enumerate(drawn):
            row, deter, stoch = model.window(*item)
            for name, expected in vars(row).items():
                np.testing.assert_array_equal(getattr(batch, name)[b], expected, err_msg=name)
            np.testing.assert_array_equal(batch.context_deter[b], deter)
            np.testing.assert_array_equal(batch.context_stoch[b], stoch)
        model.write_back(draw, *new_latents_of(replay, tick))
    model.assert_latents_equal(state)


@pytest.mark.parametrize("replay", REPLAYS, ids=lambda replay: f"{replay.n_envs}-envs")
def test_types_are_those_documented(replay):
    size, length = replay.batch_size, replay.batch_length + 1
    action = ((), jnp.int32) if replay.discrete else ((replay.action_dim,), jnp.float32)
    row = {
        "obs": ((replay.obs_dim,), jnp.float32),
        "action": action,
        "reward": ((), jnp.float32),
        "is_first": ((), bool),
        "is_last": ((), bool),
        "is_terminal": ((), bool),
    }

    def described(tree, names):
        return {name: (getattr(tree, name).shape, getattr(tree, name).dtype) for name in names}

    state = jax.eval_shape(replay.init)
    latents = {"deter": ((replay.deter,), jnp.float32), "stoch": ((replay.stoch,), jnp.uint8)}
    assert described(state, [*row, *latents]) == {
        name: ((replay.n_envs, replay.capacity, *shape), dtype)
        for name, (shape, dtype) in {**row, **latents}.items()
    }
    new_state, draw, batch = jax.eval_shape(replay.sample, state, KEY, 20)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new_state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    assert described(batch, row) == {
        name: ((size, length, *shape), dtype) for name, (shape, dtype) in row.items()
    }
    assert described(batch, ["context_deter", "context_stoch"]) == {
        "context_deter": ((size, replay.deter), jnp.float32),
        "context_stoch": ((size, replay.stoch), jnp.int32),
    }
    assert described(draw, ["env", "start", "online"]) == {
        "env": ((size,), jnp.int32),
        "start": ((size,), jnp.int32),
        "online": ((size,), bool),
    }


@pytest.mark.parametrize(
    ("classes", "dtype"),
    [(1, "uint8"), (32, "uint8"), (256, "uint8"), (257, "uint16"), (70_000, "uint32")],
)
def test_classes_are_stored_in_the_smallest_type_that_holds_them(classes, dtype):
    replay = make_replay(classes=classes)
    row, deter, stoch = rows_of(replay, 0)
    state = replay.add(replay.init(), row, deter, jnp.full_like(stoch, classes - 1), jnp.int32(0))
    assert state.stoch.dtype == dtype
    assert (np.asarray(state.stoch[:, 0]) == classes - 1).all()


def test_flags_are_annotated():
    """An episode broken off without a last row gets one; the forced first flag is row 0's only."""
    replay = make_replay(n_envs=1, capacity=8, batch_length=4, batch_size=2)
    stored_first = [1, 0, 0, 1, 0, 0, 1, 1]
    stored_last = [0, 0, 0, 0, 0, 1, 0, 1]
    state = replay.init()._replace(
        is_first=jnp.array([stored_first], bool), is_last=jnp.array([stored_last], bool)
    )
    draw = WindowDraw(
        env=jnp.zeros(2, jnp.int32),
        start=jnp.array([2, 3], jnp.int32),
        online=jnp.zeros(2, bool),
    )
    batch = replay.gather(state, draw)
    np.testing.assert_array_equal(batch.is_first, [[1, 1, 0, 0, 1], [1, 0, 0, 1, 1]])
    np.testing.assert_array_equal(batch.is_last, [[1, 0, 0, 1, 0], [0, 0, 1, 1, 1]])


def test_online_items_are_cut_from_row_one_and_queue_by_tick_then_environment():
    replay = make_replay(n_envs=2, capacity=40, batch_length=3, batch_size=3)
    draws = {}
    state = replay.init()
    for tick in (3, 4, 5, 12, 13):
        state, draw = replay.draw(state, KEY, tick)
        n_online = int(draw.online.sum())
        draws[tick] = list(zip(draw.env.tolist(), draw.start.tolist(), strict=True))[:n_online]
    assert draws == {
        3: [],
        4: [(0, 1), (1, 1)],
        5: [],
        12: [(0, 5), (1, 5), (0, 9)],
        13: [(1, 9)],
    }
    assert int(state.online_popped) == 6


def test_online_items_whose_rows_were_overwritten_are_skipped():
    """Online windows end at ticks 4, 8, …, 40; at tick 40 a ring of C rows begins at 41 − C."""
    for capacity, drawn in {
        6: [[(0, 37), (1, 37)], []],
        7: [[(0, 37), (1, 37)], []],
        8: [[(0, 33), (1, 33), (0, 37)], [(1, 37)]],
    }.items():
        replay = make_replay(n_envs=2, capacity=capacity, batch_length=3, batch_size=3)
        state = replay.init()
        for expected in drawn:
            state, draw = replay.draw(state, KEY, 40)
            assert draw.online.tolist() == [b < len(expected) for b in range(3)]
            items = list(zip(draw.env.tolist(), draw.start.tolist(), strict=True))
            assert items[: len(expected)] == expected
        assert int(state.online_popped) == 20


def test_the_rest_of_a_batch_is_drawn_uniformly_from_all_items():
    n = 20_000
    replay = make_replay(n_envs=3, capacity=7000, batch_length=4, batch_size=n)
    for n_windows, tick in [(5, 8), (20, 23)]:
        state = replay.init()._replace(online_popped=jnp.int32(3 * (tick // 5)))
        state, draw = replay.draw(state, KEY, tick)
        assert not draw.online.any()
        cells = np.asarray(draw.start) * 3 + draw.env
        counts = np.bincount(cells, minlength=3 * n_windows)
        assert len(counts) == 3 * n_windows == replay.n_items(tick)
        expected = n / len(counts)
        chi_squared = ((counts - expected) ** 2 / expected).sum()
        degrees = len(counts) - 1
        assert abs(chi_squared - degrees) < 4 * np.sqrt(2 * degrees)


def test_items_are_numbered_from_the_oldest_and_by_environment():
    replay = make_replay(n_envs=3, capacity=6, batch_length=3, batch_size=4)
    for tick, starts in {3: [0], 5: [0, 1, 2], 9: [4, 5, 6]}.items():
        n_items = int(replay.n_items(tick))
        env, start = replay.item(jnp.arange(n_items, dtype=jnp.int32), tick)
        assert start.tolist() == [start for start in starts for _ in range(3)]
        assert env.tolist() == [0, 1, 2] * len(starts)


@pytest.mark.parametrize("tick", [4, 8, 30, 43])
def test_rings_that_have_not_evicted_draw_alike_whatever_their_size(tick):
    draws = []
    for capacity in (44, 45, 1000):
        replay = make_replay(n_envs=3, capacity=capacity, batch_size=40)
        draws.append(replay.draw(replay.init(), KEY, tick))
    states, draws = zip(*draws, strict=True)
    for draw in draws[1:]:
        jax.tree.map(np.testing.assert_array_equal, draw, draws[0])
    assert len({int(state.online_popped) for state in states}) == 1


def test_a_batch_before_the_first_item_shows():
    replay = make_replay(batch_length=3)
    for tick, exists in ((2, False), (3, True)):
        _, _, batch = replay.sample(replay.init(), KEY, tick)
        assert np.isnan(batch.reward).all() == (not exists)


written_back = jax.jit(StreamReplay.write_back, static_argnums=0)


@examples
@hypothesis.given(replay=replays, tick=st.integers(0, N_TICKS - 1), data=st.data())
def test_where_windows_overlap_the_later_one_of_the_batch_is_kept(replay, tick, data):
    tick = max(tick, replay.batch_length)
    state, model = jax.tree.map(np.array, replay.init()), Streams(replay)
    for past in range(tick + 1):
        row, deter, stoch = rows_of(replay, past)
        model.add(row, deter, stoch)
        state.deter[:, past % replay.capacity] = deter
        state.stoch[:, past % replay.capacity] = stoch
    # Few items, close together, so that windows overlap in part and in whole.
    items = model.items()[-3 * replay.n_envs :]
    size = replay.batch_size
    index = st.integers(0, len(items) - 1)
    chosen = data.draw(st.lists(index, min_size=size, max_size=size), label="items")
    env, start = np.array([items[i] for i in chosen], np.int32).T
    draw = WindowDraw(env=env, start=start, online=np.zeros(size, bool))
    latents = new_latents_of(replay, tick)
    state = jax.tree.map(np.asarray, written_back(replay, state, draw, *latents))
    model.write_back(draw, *latents)
    model.assert_latents_equal(state)


def test_no_place_is_written_twice(monkeypatch):
    """On a CPU the last of two writes stays, so the values alone would not show it."""
    replay = make_replay(n_envs=1, capacity=20, batch_length=3, batch_size=9)
    written, scatter = [], stream._scatter

    def spy(ring, index, rows):
        written.append(np.asarray(index))
        return scatter(ring, index, rows)

    monkeypatch.setattr(stream, "_scatter", spy)
    for order in (1, -1):
        start = np.array([0, 0, 1, 3, 6, 8, 11, 15, 16], np.int32)[::order]
        draw = WindowDraw(env=np.zeros(9, np.int32), start=start, online=np.zeros(9, bool))
        replay.write_back(replay.init(), draw, *new_latents_of(replay, 0))
    assert len(written) == 4
    for index in written:
        inside = index[index < 20]
        assert sorted(inside) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19]


@pytest.mark.parametrize("replay", REPLAYS[:2], ids=lambda replay: f"{replay.n_envs}-envs")
def test_seeds_side_by_side_are_seeds_alone(replay):
    keys = jax.random.split(KEY, 2)
    states = jax.tree.map(lambda x: jnp.stack([x, x]), replay.init())
    rest = (inputs(replay), np.array(ALWAYS), 0, N_TICKS)
    both = jax.vmap(lambda state, key: ticks_of(replay, state, key, *rest))(states, keys)
    for seed in range(2):
        alone = run(replay, keys[seed], ALWAYS)
        jax.tree.map(lambda x, y, s=seed: np.testing.assert_array_equal(x[s], y), both, alone)


@pytest.mark.parametrize("before", [0, 5, 11, 12])
def test_a_grown_replay_is_the_one_that_had_its_size_from_the_start(before):
    small, large = make_replay(capacity=12), make_replay(capacity=30)
    first_part, _ = run(small, KEY, ALWAYS, stop=before)
    grown = large.adopt(small, first_part, before)
    from_the_start, _ = run(large, KEY, ALWAYS, stop=before)
    jax.tree.map(np.testing.assert_array_equal, grown, from_the_start)
    rest = [run(large, KEY, ALWAYS, state=state, start=before) for state in (grown, from_the_start)]
    jax.tree.map(np.testing.assert_array_equal, *rest)


def test_a_replay_shrinks_to_what_holds_every_row():
    small, large = make_replay(capacity=12), make_replay(capacity=30)
    state, _ = run(large, KEY, ALWAYS, stop=12)
    expected, _ = run(small, KEY, ALWAYS, stop=12)
    jax.tree.map(np.testing.assert_array_equal, small.adopt(large, state, 12), expected)


def test_growing_works_over_seeds():
    small, large = make_replay(capacity=12), make_replay(capacity=14)
    states = [run(small, key, ALWAYS, stop=9)[0] for key in jax.random.split(KEY, 2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    grown = jax.vmap(lambda state: large.adopt(small, state, 9))(stacked)
    for seed, state in enumerate(states):
        one = large.adopt(small, state, 9)
        jax.tree.map(lambda x, y, s=seed: np.testing.assert_array_equal(x[s], y), grown, one)


def test_a_replay_of_the_same_size_is_taken_over_as_it_is_also_after_it_has_evicted():
    replay = make_replay()
    state = replay.init()
    assert replay.adopt(make_replay(), state, 1000) is state


@pytest.mark.parametrize(
    ("old", "next_tick", "message"),
    [
        (
            dict(capacity=10),
            11,
            "10 rows per environment holds the newest 10 of 11 rows, one of 12 would hold 11",
        ),
        (dict(capacity=13), 13, "holds the newest 13 of 13 rows, one of 12 would hold 12"),
        (dict(capacity=10, n_envs=3), 5, "n_envs was 3, here it is 2"),
        (dict(discrete=True), 5, "discrete was True, here it is False"),
    ],
)
def test_a_replay_that_cannot_be_taken_over_is_refused(old, next_tick, message):
    old = make_replay(**old)
    with pytest.raises(ValueError, match=message):
        make_replay(capacity=12).adopt(old, jax.eval_shape(old.init), next_tick)


@pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])
@pytest.mark.parametrize("n_seeds", [None, 2], ids=["one-seed", "two-seeds"])
def test_a_tick_of_a_compiled_run_never_copies_a_ring(n_seeds, discrete):
    sizes = dict(n_envs=4, capacity=250_000, batch_length=16, batch_size=8, deter=64, stoch=8)
    replay = make_replay(**sizes, discrete=discrete)

    def program(state, key, start, stop):
        def one_tick(tick, carry):
            state, total = carry
            row, deter, stoch = rows_of(replay, 0)
            deter = deter + jnp.float32(tick)
            state = replay.add(state, row, deter, stoch, tick)

            def update(j, carry):
                state, total = carry
                state, draw, batch = replay.sample(state, jax.random.fold_in(key, j), tick)
                new_deter, new_stoch = new_latents_of(replay, 0)
                # An update's latents follow from the context, so its reads come before the write.
                new_deter = new_deter + batch.context_deter[:, None]
                new_stoch = (new_stoch + batch.context_stoch[:, None]) % replay.classes
                state = replay.write_back(state, draw, new_deter, new_stoch)
                return state, total + batch.obs.sum() + batch.context_stoch.sum()

            n_updates = jnp.where(tick >= replay.batch_length, 2, 0)
            return jax.lax.fori_loop(0, n_updates, update, (state, total))

        return jax.lax.fori_loop(start, stop, one_tick, (state, jnp.float32(0)))

    state, key = jax.eval_shape(replay.init), jax.eval_shape(lambda: KEY)
    if n_seeds is not None:
        program = jax.vmap(program, in_axes=(0, 0, None, None))
        state, key = (
            jax.tree.map(lambda x: jax.ShapeDtypeStruct((n_seeds, *x.shape), x.dtype), tree)
            for tree in (state, key)
        )
    compiled = jax.jit(program, donate_argnums=0).lower(state, key, 0, 10).compile()
    memory = compiled.memory_analysis()
    smallest_ring = replay.n_envs * replay.capacity  # bytes of the flags of one seed
    assert memory.temp_size_in_bytes < smallest_ring / 2
    assert memory.alias_size_in_bytes >= (n_seeds or 1) * (replay.bytes - 4)
    rings = r"= \w+\[(?:2,)?(?:4,250000|1000000)\b[\d,]*\]\S* (?:copy|transpose)\(.*"
    assert re.findall(rings, compiled.as_text()) == []


def test_the_far_end_of_a_million_row_ring_is_reached():
    replay = make_replay(n_envs=2, capacity=500_000, batch_size=1, deter=1, stoch=1)
    tick = 1_000_001  # the second time round, at slot 1
    state = jax.jit(replay.init)()
    for past in range(tick - 3, tick + 1):
        row, deter, stoch = rows_of(replay, past)
        state = jax.jit(replay.add, donate_argnums=0)(state, row, deter, stoch, past)
    draw = WindowDraw(
        env=jnp.array([1], jnp.int32),
        start=jnp.array([tick - 3], jnp.int32),
        online=jnp.array([False]),
    )
    batch = replay.gather(state, draw)
    rewards = [rows_of(replay, past)[0].reward[1] for past in range(tick - 3, tick + 1)]
    np.testing.assert_array_equal(batch.reward, [rewards])
    new_deter = jnp.array([[[1.0], [2.0], [3.0]]])
    state = replay.write_back(state, draw, new_deter, jnp.ones((1, 3, 1), jnp.int32))
    slots = np.array([499_999, 0, 1])
    np.testing.assert_array_equal(np.asarray(state.deter)[1, slots, 0], [1, 2, 3])


@pytest.mark.parametrize(
    ("replay_capacity", "n_rows", "n_envs", "capacity"),
    [
        (5_000_000, 250_000, 16, 15_625),  # the run is the limit
        (5_000_000, 250_001, 16, 15_626),
        (100_000, 250_000, 16, 6_250),
        (100_001, 250_000, 16, 6_251),
        (100, 250_000, 16, 65),  # one window of each environment makes a batch
        (5_000_000, 1, 1, 80),
        (5_000_000, 1, 32, 65),
    ],
)
def test_a_replay_for_a_run_is_no_larger_than_the_run_fills(
    replay_capacity, n_rows, n_envs, capacity
):
    sizes = {**SIZES, "n_envs": n_envs, "batch_length": 64, "batch_size": 16}
    replay = StreamReplay.for_run(replay_capacity, n_rows, **sizes)
    assert replay.capacity == capacity
    assert replay.n_items(n_rows + 10**6) >= 16


@pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])
@pytest.mark.parametrize("classes", [16, 300])
def test_bytes_are_those_of_the_state(discrete, classes):
    replay = make_replay(discrete=discrete, classes=classes)
    shapes = jax.eval_shape(replay.init)
    assert replay.bytes == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def test_a_row_of_the_usual_size_on_walker_takes_8351_bytes():
    replay = make_replay(obs_dim=24, action_dim=6, deter=2048, stoch=32, classes=16)
    assert replay.bytes_per_row == 8351


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(n_envs=0), "n_envs must be a whole number of at least 1, got 0"),
        (dict(capacity=8.0), "capacity must be a whole number of at least 1, got 8.0"),
        (dict(obs_dim=-3), "obs_dim must be a whole number of at least 1, got -3"),
        (dict(stoch=0), "stoch must be a whole number of at least 1, got 0"),
        (dict(discrete=1), "discrete must be True or False, got 1"),
        (dict(capacity=4), "capacity=4 rows of each of 2 .* Use a capacity of at least 5 rows"),
        (dict(batch_size=20), "at least 13 rows per environment"),
        (dict(n_envs=10**3, capacity=10**7), "10000000000 rows are more than 32-bit indices"),
    ],
)
def test_impossible_sizes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_replay(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(replay_capacity=0), "replay_capacity must be a whole number of at least 1, got 0"),
        (dict(n_rows=0), "n_rows must be a whole number of at least 1, got 0"),
        (dict(n_envs=0), "n_envs must be a whole number of at least 1, got 0"),
        (dict(classes=0), "classes must be a whole number of at least 1, got 0"),
    ],
)
def test_impossible_runs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        StreamReplay.for_run(**{"replay_capacity": 100, "n_rows": 100, **SIZES, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(obs_dim=5), r"takes obs of shape \(2, 5\) here, got \(2, 2\)"),
        (dict(discrete=True), r"takes action of shape \(2,\) here, got \(2, 3\)"),
        (dict(n_envs=3), r"takes obs of shape \(3, 2\) here, got \(2, 2\)"),
        (dict(stoch=4), r"takes stoch of shape \(2, 4\) here, got \(2, 3\)"),
    ],
)
def test_rows_of_another_shape_are_refused(changes, message):
    replay = make_replay(**changes)
    row, deter, stoch = rows_of(make_replay(), 0)
    with pytest.raises(ValueError, match=message):
        replay.add(replay.init(), row, deter, stoch, jnp.int32(0))


def test_latents_of_another_shape_are_refused():
    replay = make_replay()
    state, draw = replay.draw(replay.init(), KEY, 9)
    deter, stoch = new_latents_of(replay, 0)
    with pytest.raises(ValueError, match=r"takes deter of shape \(4, 3, 2\) here, got \(4, 2, 2\)"):
        replay.write_back(state, draw, deter[:, 1:], stoch)


def test_a_replay_is_hashable_and_equal_by_its_sizes():
    assert make_replay() == make_replay() and hash(make_replay()) == hash(make_replay())
    assert make_replay() != make_replay(capacity=13)
