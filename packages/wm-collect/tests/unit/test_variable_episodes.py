"""The replay of episodes of any length against lists of episodes kept on the host."""

import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.collector import collect_dynamic, init_collector, random_policy
from wm_collect.replay import VariableEpisodeBuffer
from wm_collect.row import Row
from wm_collect.testing import CounterEnv

KEY = jax.random.key(7)
SIZES = dict(n_envs=2, obs_dim=2, action_dim=1, horizon=3)
N_TICKS = 60
LONGEST = 8  # agent steps of an episode
# Draws enough that no slice is missed: the rarest is 1 of 30 episodes and then 1 of 7 offsets.
MANY = 4000

examples = hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
scripts = st.tuples(
    st.lists(st.integers(1, LONGEST), min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=1, max_size=5),
)


def make_buffer(**changes):
    return VariableEpisodeBuffer(**{"capacity": 12, **SIZES, **changes})


# A few sizes, because each is compiled: a ring of one slice, which is shorter than most episodes;
# rings that wrap several times; one that never does.
BUFFERS = [
    make_buffer(capacity=4, n_envs=1, horizon=3),
    make_buffer(capacity=17, n_envs=1, horizon=2),
    make_buffer(capacity=15, n_envs=4, horizon=3),
    make_buffer(capacity=N_TICKS, n_envs=2, horizon=2),
]
names_of = [f"{buffer.n_envs}-envs-{buffer.capacity}-rows" for buffer in BUFFERS]


@functools.lru_cache(maxsize=64)
def scripted(n_envs, lengths, terminates, n_ticks=N_TICKS):
    """Rows `[n_ticks, N]` whose numbers all differ, of episodes with the given ends, in turn.

    Environment e begins with the e-th length; every other end is a time limit or a termination.
    """
    first, last, terminal = (np.zeros((n_ticks, n_envs), bool) for _ in range(3))
    for env in range(n_envs):
        tick, episode = 0, env
        while tick < n_ticks:
            first[tick, env] = True
            tick += lengths[episode % len(lengths)]
            if tick < n_ticks:
                last[tick, env] = True
                terminal[tick, env] = terminates[episode % len(terminates)]
            tick, episode = tick + 1, episode + 1
    number = 4.0 * np.arange(n_ticks * n_envs).reshape(n_ticks, n_envs)
    return Row(
        obs=np.float32(np.stack([number, number + 1], axis=-1)),
        action=np.float32(number + 2)[..., None],
        reward=np.float32(number + 3),
        is_first=first,
        is_last=last,
        is_terminal=terminal,
    )


def rows_of(buffer, script, **kwargs):
    lengths, terminates = script
    return scripted(buffer.n_envs, tuple(lengths), tuple(terminates), **kwargs)


def nth(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


@functools.partial(jax.jit, static_argnums=(0, 6))
def ticks_of(buffer, state, rows, key, start, stop, size):
    """Add the rows of the ticks from start to stop, and sample at the end of each."""

    def one_tick(state, xs):
        tick, row = xs
        runs = (start <= tick) & (tick < stop)
        added = buffer.add(state, row, tick)
        state = jax.tree.map(lambda new, old: jnp.where(runs, new, old), added, state)
        tick_key = jax.random.fold_in(key, tick)
        draw = buffer.draw(state, tick_key, tick, size)
        return state, (buffer.n_sampleable(state), draw, buffer.gather(state, draw))

    return jax.lax.scan(one_tick, state, (jnp.arange(N_TICKS, dtype=jnp.int32), rows))


def run(buffer, rows, *, state=None, start=0, stop=N_TICKS, key=KEY, size=16):
    state = buffer.init() if state is None else state
    return jax.tree.map(np.asarray, ticks_of(buffer, state, rows, key, start, stop, size))


sampled = jax.jit(VariableEpisodeBuffer.sample, static_argnums=(0, 4))
drawn = jax.jit(VariableEpisodeBuffer.draw, static_argnums=(0, 4))
gathered = jax.jit(VariableEpisodeBuffer.gather, static_argnums=0)


class Episodes:
    """Every environment's episodes as lists of ticks, whose oldest row goes when C are exceeded."""

    def __init__(self, buffer):
        self.buffer = buffer
        self.episodes = [[] for _ in range(buffer.n_envs)]
        self.complete = [[] for _ in range(buffer.n_envs)]

    def add(self, row, tick):
        for env, (episodes, complete) in enumerate(zip(self.episodes, self.complete, strict=True)):
            if row.is_first[env]:
                episodes.append([])
                complete.append(False)
            episodes[-1].append(tick)
            complete[-1] = bool(row.is_last[env])
            if sum(map(len, episodes)) > self.buffer.capacity:
                episodes[0].pop(0)
            if not episodes[0]:
                del episodes[0], complete[0]

    def sampleable(self):
        """The episodes to draw from: environment and ticks of the rows that are left."""
        return [
            (env, ticks)
            for env in range(self.buffer.n_envs)
            for ticks, complete in zip(self.episodes[env], self.complete[env], strict=True)
            if complete and len(ticks) >= self.buffer.horizon + 1
        ]

    def slices(self):
        n_more = self.buffer.horizon
        return {(env, tick) for env, ticks in self.sampleable() for tick in ticks[:-n_more]}


def assert_rows_are_those_of(rows, draw, batch, horizon):
    """Check every slice of a batch against the rows that were added."""
    ticks = draw.tick + np.arange(horizon + 1)[:, None]
    env = np.broadcast_to(draw.env, ticks.shape)
    np.testing.assert_array_equal(batch.obs, rows.obs[ticks, env])
    np.testing.assert_array_equal(batch.action, rows.action[ticks, env][:-1])
    np.testing.assert_array_equal(batch.reward, rows.reward[ticks, env][1:])
    np.testing.assert_array_equal(batch.terminated[-1], rows.is_terminal[ticks, env][-1])
    assert not batch.terminated[:-1].any()
    assert not rows.is_first[ticks, env][1:].any() and not rows.is_last[ticks, env][:-1].any()


@examples
@hypothesis.given(buffer=st.sampled_from(BUFFERS), script=scripts, seed=st.integers(0, 10))
@hypothesis.example(buffer=BUFFERS[2], script=([3], [True]), seed=0)  # the most that fit a table
@hypothesis.example(buffer=BUFFERS[2], script=([2, 1], [True]), seed=0)  # all too short
@hypothesis.example(buffer=BUFFERS[0], script=([8], [False, True]), seed=0)
def test_all_slices_of_what_is_left_of_complete_episodes_are_drawn_and_no_others(
    buffer, script, seed
):
    rows = rows_of(buffer, script)
    _, (n_sampleable, draws, batches) = run(buffer, rows, key=jax.random.key(seed), size=MANY)
    model = Episodes(buffer)
    for tick in range(N_TICKS):
        model.add(nth(rows, tick), tick)
        assert n_sampleable[tick] == len(model.sampleable())
        draw, batch = nth(draws, tick), nth(batches, tick)
        if n_sampleable[tick] == 0:
            assert all(np.isfinite(leaf).all() for leaf in batch)
            continue
        assert set(zip(draw.env.tolist(), draw.tick.tolist(), strict=True)) == model.slices()
        assert_rows_are_those_of(rows, draw, batch, buffer.horizon)


def test_an_episode_is_sampleable_from_its_last_row_on_and_shrinks_before_it_goes():
    """Rows 0 to 6, 7 to 10 and 11 to 59 are episodes; a slice has 4 rows, the ring has 10."""
    buffer = make_buffer(capacity=10, n_envs=1)
    rows = scripted(1, (6, 3, 99), (True, False))
    _, (n_sampleable, draws, _) = run(buffer, rows, size=500)
    starts = {
        tick: sorted(set(draws.tick[tick].tolist())) if n_sampleable[tick] else []
        for tick in (5, 6, 9, 10, 11, 12, 13, 16, 17)
    }
    assert starts == {
        5: [],
        6: [0, 1, 2, 3],
        9: [0, 1, 2, 3],
        10: [1, 2, 3, 7],
        11: [2, 3, 7],
        12: [3, 7],
        13: [7],
        16: [7],
        17: [],
    }


def test_a_termination_shows_in_the_last_step_of_the_slice_that_ends_with_it():
    buffer = make_buffer(capacity=20, n_envs=1)
    rows = scripted(1, (5, 5, 99), (True, False))
    state, _ = run(buffer, rows, stop=15)
    draw = drawn(buffer, state, KEY, jnp.int32(14), 500)
    batch = gathered(buffer, state, draw)
    assert set(draw.tick.tolist()) == {0, 1, 2, 6, 7, 8}
    for start, last in [(0, 0), (1, 0), (2, 1), (6, 0), (7, 0), (8, 0)]:
        of_start = np.asarray(batch.terminated)[:, np.asarray(draw.tick) == start]
        np.testing.assert_array_equal(of_start[-1], last)
        np.testing.assert_array_equal(of_start[:-1], 0)


def test_types_are_those_documented():
    buffer = make_buffer(capacity=21, n_envs=4)
    state = jax.eval_shape(buffer.init)
    assert {name: (leaf.shape, leaf.dtype.name) for name, leaf in state._asdict().items()} == {
        "obs": ((4, 21, 2), "float32"),
        "action": ((4, 21, 1), "float32"),
        "reward": ((4, 21), "float32"),
        "is_terminal": ((4, 21), "bool"),
        "first_tick": ((4,), "int32"),
        "episode_env": ((24,), "int32"),
        "episode_end": ((24,), "int32"),
        "episode_rows": ((24,), "int32"),
        "n_added": ((), "int32"),
        "n_expired": ((), "int32"),
    }
    row = nth(scripted(4, (5,), (True,)), 0)
    added = jax.eval_shape(buffer.add, state, row, jnp.int32(0))
    described = functools.partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
    assert described(added) == described(state)
    draw = jax.eval_shape(lambda state: buffer.draw(state, KEY, 9, 5), state)
    assert {name: (leaf.shape, leaf.dtype.name) for name, leaf in draw._asdict().items()} == {
        "env": ((5,), "int32"),
        "tick": ((5,), "int32"),
    }
    batch = jax.eval_shape(lambda state: buffer.sample(state, KEY, 9, 5), state)
    assert {name: (leaf.shape, leaf.dtype.name) for name, leaf in batch._asdict().items()} == {
        "obs": ((4, 5, 2), "float32"),
        "action": ((3, 5, 1), "float32"),
        "reward": ((3, 5), "float32"),
        "terminated": ((3, 5), "float32"),
    }
    assert buffer.n_sampleable(buffer.init()).dtype == jnp.int32


def test_episodes_are_drawn_uniformly_whatever_their_length_and_then_offsets():
    buffer = make_buffer(capacity=22, n_envs=3, horizon=2)
    rows = scripted(3, (7, 1, 3, 2, 5), (True,))
    state, _ = run(buffer, rows, stop=40)
    model = Episodes(buffer)
    for tick in range(40):
        model.add(nth(rows, tick), tick)
    n, episodes = 40_000, model.sampleable()
    lengths = [len(ticks) for _, ticks in episodes]
    assert set(lengths) == {3, 4, 5, 6, 8}  # those of 5 rows have lost their first ones
    expected = {
        (env, tick): n / len(episodes) / (len(ticks) - 2)
        for env, ticks in episodes
        for tick in ticks[:-2]
    }
    draw = drawn(buffer, state, KEY, jnp.int32(39), n)
    places, counts = np.unique(np.stack([draw.env, draw.tick]), axis=1, return_counts=True)
    assert set(map(tuple, places.T.tolist())) == set(expected)
    hoped = np.array([expected[place] for place in map(tuple, places.T.tolist())])
    chi_squared = ((counts - hoped) ** 2 / hoped).sum()
    degrees = len(expected) - 1
    assert abs(chi_squared - degrees) < 4 * np.sqrt(2 * degrees)


def test_slices_of_a_running_collection_are_pieces_of_finished_episodes():
    n_envs, n_ticks, size, H = 3, 90, 16, 3
    env = CounterEnv((7, 2, 4, 5), terminates=(True, True, False, True))
    buffer = VariableEpisodeBuffer.for_run(
        30, 10**6, n_envs=n_envs, episode_length=7, obs_dim=3, action_dim=2, horizon=H
    )
    assert buffer.capacity == 18

    @jax.jit
    def collected():
        def one_tick(carry, tick):
            collector, replay = carry
            key = jax.random.fold_in(KEY, tick)
            policy = random_policy(env.spec)
            collector, row, _, _ = collect_dynamic(env, collector, tick, key, policy)
            replay = buffer.add(replay, row, tick)
            batch = buffer.sample(replay, key, tick, size)
            return (collector, replay), (row, batch, buffer.n_sampleable(replay))

        start = (init_collector(env, n_envs, KEY, None), buffer.init())
        return jax.lax.scan(one_tick, start, jnp.arange(n_ticks))[1]

    rows, batches, n_sampleable = jax.tree.map(np.asarray, collected())
    assert (n_sampleable[7:] > 0).all()
    n_terminated = 0
    for tick in np.flatnonzero(n_sampleable):
        obs, action, reward, terminated = (array[tick] for array in batches)
        episode, row_index = obs[..., 0], obs[..., 1]
        assert (episode == episode[0]).all()
        assert (np.diff(row_index, axis=0) == 1).all()
        np.testing.assert_array_equal(reward, 1000 * row_index[1:] + episode[1:] % 1000)
        np.testing.assert_array_equal(action[..., 0], obs[1:, :, 2])
        finished = rows.obs[: tick + 1][rows.is_last[: tick + 1]][:, 0]
        assert np.isin(episode[0], finished).all()
        kind = episode[0].astype(int) % 4
        length = np.array(env.lengths)[kind]
        ends = (row_index[-1] == length) & np.array(env.terminates)[kind]
        np.testing.assert_array_equal(terminated[-1], ends)
        assert not terminated[:-1].any() and (length >= H).all()
        n_terminated += ends.sum()
    assert n_terminated > 100


@pytest.mark.parametrize("n_ticks", [0, 30], ids=["empty", "all-too-short"])
def test_a_batch_without_an_episode_to_draw_is_finite_and_counted_as_such(n_ticks):
    buffer = make_buffer()
    state, _ = run(buffer, scripted(2, (2, 1), (True,)), stop=n_ticks)
    assert int(buffer.n_sampleable(state)) == 0
    batch = sampled(buffer, state, KEY, jnp.int32(max(n_ticks - 1, 0)), 32)
    assert all(np.isfinite(leaf).all() for leaf in batch)


def test_rings_that_have_not_evicted_draw_alike_whatever_their_size():
    buffers = [make_buffer(capacity=capacity) for capacity in (20, 33)]
    rows = scripted(2, (4, 7, 3), (True, False))
    states = [run(buffer, rows, stop=20)[0] for buffer in buffers]
    assert states[0].n_added == 6 and states[0].n_expired == 0
    draws = [
        drawn(b, state, KEY, jnp.int32(19), 64) for b, state in zip(buffers, states, strict=True)
    ]
    jax.tree.map(np.testing.assert_array_equal, *draws)


def test_seeds_side_by_side_are_seeds_alone():
    """The seeds' episodes end at different ticks, so their tables differ."""
    buffer = BUFFERS[2]
    of_seeds = [rows_of(buffer, script) for script in (([5, 2, 3], [True]), ([8, 4], [False]))]
    keys = jax.random.split(KEY, 2)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), buffer.init())
    rows = jax.tree.map(lambda *leaves: np.stack(leaves), *of_seeds)
    both = jax.vmap(lambda state, rows, key: ticks_of(buffer, state, rows, key, 0, N_TICKS, 16))(
        states, rows, keys
    )
    for seed in range(2):
        alone = run(buffer, of_seeds[seed], key=keys[seed])
        jax.tree.map(lambda x, y, s=seed: np.testing.assert_array_equal(x[s], y), both, alone)


@examples
@hypothesis.given(
    sizes=st.tuples(st.sampled_from([7, 20, 33]), st.sampled_from([7, 20, 33])),
    script=scripts,
    n_before=st.integers(0, N_TICKS),
)
@hypothesis.example(sizes=(20, 33), script=([8, 3], [True]), n_before=20)
@hypothesis.example(sizes=(20, 33), script=([8, 3], [True]), n_before=21)
@hypothesis.example(sizes=(33, 20), script=([8, 3], [True]), n_before=55)
@hypothesis.example(sizes=(20, 7), script=([3], [True]), n_before=17)
def test_an_adopted_buffer_samples_as_if_it_had_had_its_size_from_the_start(
    sizes, script, n_before
):
    old, new = (make_buffer(capacity=capacity) for capacity in sizes)
    rows = rows_of(new, script)
    before, _ = run(old, rows, stop=n_before)
    if n_before > old.capacity and new.capacity > old.capacity:
        with pytest.raises(ValueError, match="A buffer that has evicted cannot grow"):
            new.adopt(old, before, n_before)
        return
    adopted = new.adopt(old, before, n_before)
    from_the_start, _ = run(new, rows, stop=n_before)
    if from_the_start.n_expired == 0:
        jax.tree.map(np.testing.assert_array_equal, adopted, from_the_start)
    after = [run(new, rows, state=state, start=n_before) for state in (adopted, from_the_start)]
    (_, (n_sampleable, *of_adopted)), (_, (expected_n, *expected)) = after
    np.testing.assert_array_equal(n_sampleable, expected_n)
    # Samples before `n_before` were drawn from the later state, and are no samples of this run.
    compared = (np.arange(N_TICKS) >= n_before) & (expected_n > 0)
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x[compared], y[compared]), of_adopted, expected
    )


@pytest.mark.parametrize(("old", "new"), [(33, 20), (20, 33)], ids=["shrunk", "grown"])
def test_adopting_does_not_change_what_the_same_key_samples(old, new):
    old, new = make_buffer(capacity=old), make_buffer(capacity=new)
    state, _ = run(old, scripted(2, (4, 7, 3), (True, False)), stop=19)
    adopted = new.adopt(old, state, 19)
    assert jax.tree.map(jnp.shape, adopted) == jax.tree.map(jnp.shape, new.init())
    batches = [sampled(b, s, KEY, jnp.int32(18), 64) for b, s in ((old, state), (new, adopted))]
    jax.tree.map(np.testing.assert_array_equal, *batches)


def test_rows_of_another_kind_are_not_adopted():
    old = make_buffer(capacity=20, horizon=2)
    with pytest.raises(ValueError, match="horizon was 2, here it is 3"):
        make_buffer(capacity=33).adopt(old, old.init(), 0)


@pytest.mark.parametrize("capacity", [7, 33], ids=["shrunk", "grown"])
def test_adopting_works_over_seeds(capacity):
    old, new = make_buffer(capacity=20), make_buffer(capacity=capacity)
    of_seeds = [scripted(2, lengths, (True,)) for lengths in ((4, 7, 3), (3, 1, 8))]
    states = [run(old, rows, stop=18)[0] for rows in of_seeds]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    adopted = jax.vmap(lambda state: new.adopt(old, state, 18))(stacked)
    for seed, state in enumerate(states):
        alone = new.adopt(old, state, 18)
        jax.tree.map(lambda x, y, s=seed: np.testing.assert_array_equal(x[s], y), adopted, alone)


def test_a_buffer_of_the_same_size_is_taken_over_as_it_is_also_after_it_has_evicted():
    buffer = make_buffer()
    state = buffer.init()
    assert buffer.adopt(make_buffer(), state, 1000) is state


@pytest.mark.parametrize(
    ("old", "next_tick", "message"),
    [
        (dict(capacity=10), 11, "12 rows per environment would hold the last 11 of the 11 rows"),
        (dict(capacity=10), 11, "the old one of 10 rows has kept only 10. A buffer that has"),
        (dict(capacity=10), 500, "would hold the last 12 of the 500 rows collected"),
        (dict(n_envs=3), 5, "n_envs was 3, here it is 2"),
        (dict(obs_dim=5), 5, "obs_dim was 5, here it is 2"),
        (dict(action_dim=5), 5, "action_dim was 5, here it is 1"),
        (dict(horizon=2), 5, "horizon was 2, here it is 3"),
    ],
)
def test_a_buffer_that_cannot_be_taken_over_is_refused(old, next_tick, message):
    old = make_buffer(**old)
    with pytest.raises(ValueError, match=message):
        make_buffer(capacity=12).adopt(old, jax.eval_shape(old.init), next_tick)


@pytest.mark.parametrize("n_seeds", [None, 2], ids=["one-seed", "two-seeds"])
def test_a_tick_of_a_compiled_run_never_copies_a_ring_or_the_table(n_seeds):
    buffer = make_buffer(n_envs=4, capacity=250_000, obs_dim=8, horizon=3)

    def program(state, key, start, stop):
        def one_tick(tick, carry):
            state, total = carry
            row = Row(
                obs=jnp.full((4, 8), tick, jnp.float32),
                action=jnp.ones((4, 1)),
                reward=jnp.ones(4),
                is_first=tick % 7 == jnp.arange(4),
                is_last=tick % 7 == jnp.arange(4) - 1,
                is_terminal=jnp.zeros(4, bool),
            )
            state = buffer.add(state, row, tick)

            def update(j, total):
                return total + buffer.sample(state, jax.random.fold_in(key, j), tick, 8).obs.sum()

            return state, jax.lax.fori_loop(0, jnp.where(tick >= 9, 2, 0), update, total)

        return jax.lax.fori_loop(start, stop, one_tick, (state, jnp.float32(0)))

    state, key = jax.eval_shape(buffer.init), jax.eval_shape(lambda: KEY)
    if n_seeds is not None:
        program = jax.vmap(program, in_axes=(0, 0, None, None))
        state, key = (
            jax.tree.map(lambda x: jax.ShapeDtypeStruct((n_seeds, *x.shape), x.dtype), tree)
            for tree in (state, key)
        )
    compiled = jax.jit(program, donate_argnums=0).lower(state, key, 0, 10).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 100_000  # a tenth of the smallest array of one seed
    assert memory.alias_size_in_bytes >= (n_seeds or 1) * (buffer.bytes - 4 * 4 - 8)
    # Nothing that long is made anew, at any tick: not copied, masked or transposed.
    assert buffer.n_entries == 250_004
    made = r"= \w+\[(?:2,)?(?:4,250000|1000000|250004)\b[\d,]*\]\S* ([\w-]+)\("
    in_place = {"parameter", "get-tuple-element", "bitcast", "dynamic-update-slice", "fusion"}
    assert set(re.findall(made, compiled.as_text())) <= in_place | {"scatter", "while", "call"}


def test_the_last_ticks_that_int32_counts_and_the_far_end_of_a_million_rows_are_reached():
    # A ring that begins anew three ticks before the last one.
    buffer = make_buffer(capacity=1_027_996, horizon=2)
    stop = np.iinfo(np.int32).max
    assert (stop - 3) % buffer.capacity == 0
    first = stop - 6
    rows = scripted(2, (3, 2), (True, False), n_ticks=6)
    add = jax.jit(buffer.add, donate_argnums=0)
    # The counts of a run of one-step episodes that ended before.
    state = jax.jit(buffer.init)()._replace(
        n_added=jnp.int32(stop // 3), n_expired=jnp.int32(stop // 3)
    )
    for i in range(6):
        state = add(state, nth(rows, i), jnp.int32(first + i))
    assert int(buffer.n_sampleable(state)) == 2
    draw = drawn(buffer, state, KEY, jnp.int32(stop - 1), 64)
    places = set(zip(draw.env.tolist(), draw.tick.tolist(), strict=True))
    assert places == {(0, first), (0, first + 1), (1, first)}
    batch = jax.tree.map(np.asarray, gathered(buffer, state, draw))
    local = draw._replace(env=np.asarray(draw.env), tick=np.asarray(draw.tick) - first)
    assert_rows_are_those_of(rows, local, batch, 2)


@pytest.mark.parametrize(
    ("capacity", "total_rows", "n_envs", "rows"),
    [
        (1_000_000, 100_000, 1, 100_000),  # the run is the limit
        (1_000_000, 100_001, 4, 25_001),
        (50_000, 100_000, 1, 50_501),  # what was asked for, and the running episode
        (50_001, 100_000, 4, 13_002),
        (501, 100_000, 1, 1_002),
        (1_000_000, 1, 4, 4),  # a slice fits, though the run is too short for one
    ],
)
def test_a_buffer_for_a_run_is_no_larger_than_the_run_fills(capacity, total_rows, n_envs, rows):
    sizes = {**SIZES, "n_envs": n_envs}
    buffer = VariableEpisodeBuffer.for_run(capacity, total_rows, episode_length=500, **sizes)
    assert buffer == make_buffer(capacity=rows, n_envs=n_envs)


def test_the_asked_capacity_is_held_beside_the_running_episodes():
    buffer = VariableEpisodeBuffer.for_run(24, 10**6, episode_length=7, **SIZES)
    rows = scripted(2, (7,), (False,))
    model = Episodes(buffer)
    for tick in range(N_TICKS):
        model.add(nth(rows, tick), tick)
        held = sum(len(ticks) for _, ticks in model.sampleable())
        assert tick < 23 or held >= 24


@pytest.mark.parametrize("buffer", BUFFERS, ids=names_of)
def test_bytes_are_those_of_the_state(buffer):
    shapes = jax.eval_shape(buffer.init)
    assert buffer.bytes == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(n_envs=0), "n_envs must be a whole number of at least 1, got 0"),
        (dict(capacity=12.0), "capacity must be a whole number of at least 1, got 12.0"),
        (dict(obs_dim=-3), "obs_dim must be a whole number of at least 1, got -3"),
        (dict(action_dim=0), "action_dim must be a whole number of at least 1, got 0"),
        (dict(horizon=0), "horizon must be a whole number of at least 1, got 0"),
        (dict(capacity=3), "capacity=3 rows per environment do not hold one slice of horizon=3"),
        (dict(n_envs=10**3, capacity=10**7), "10000000000 rows are more than 32-bit indices"),
    ],
)
def test_impossible_sizes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_buffer(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(capacity=15), "15 rows does not hold .*: 2 x 8 = 16 rows. Use a buffer of at least"),
        (dict(capacity=0), "capacity must be a whole number of at least 1, got 0"),
        (dict(capacity=1e6), "capacity must be a whole number of at least 1, got 1000000.0"),
        (dict(total_rows=0), "total_rows must be a whole number of at least 1, got 0"),
        (dict(n_envs=0), "n_envs must be a whole number of at least 1, got 0"),
        (dict(episode_length=0), "episode_length must be a whole number of at least 1, got 0"),
        (dict(obs_dim=0), "obs_dim must be a whole number of at least 1, got 0"),
        (dict(horizon=8), "horizon=8 is longer than an episode of 7 agent steps"),
        (dict(total_rows=2**31), "A run of 2147483648 rows is longer than int32 counts"),
        (
            dict(capacity=2**31, total_rows=2**31 - 1),
            "2147483648 rows are more than 32-bit indices reach",
        ),
    ],
)
def test_impossible_runs_are_refused(changes, message):
    given = {"capacity": 100, "total_rows": 1000, "episode_length": 7, **SIZES, **changes}
    with pytest.raises(ValueError, match=message):
        VariableEpisodeBuffer.for_run(**given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(obs_dim=5), r"takes obs of shape \(2, 5\) here"),
        (dict(action_dim=2), r"takes action of shape \(2, 2\) here"),
        (dict(n_envs=3), r"takes obs of shape \(3, \d\) here"),
    ],
    ids=str,
)
def test_rows_of_another_shape_are_refused(changes, message):
    buffer = make_buffer(**changes)
    row = nth(scripted(2, (5,), (True,)), 0)
    with pytest.raises(ValueError, match=message):
        buffer.add(buffer.init(), row, jnp.int32(0))


def test_a_buffer_is_hashable_and_equal_by_its_sizes():
    assert make_buffer() == make_buffer() and hash(make_buffer()) == hash(make_buffer())
    assert make_buffer() != make_buffer(capacity=13)
