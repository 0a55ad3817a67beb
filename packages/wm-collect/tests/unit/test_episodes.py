"""The episode buffer against a list of rounds kept on the host."""

import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.collector import collect_static, init_collector, random_policy
from wm_collect.replay import EpisodeBuffer, SliceDraw
from wm_collect.row import Row
from wm_collect.testing import CounterEnv

KEY = jax.random.key(3)
SIZES = dict(n_envs=2, episode_length=4, obs_dim=2, action_dim=1, horizon=3)

examples = hypothesis.settings(max_examples=50, deadline=None, derandomize=True)


def make_buffer(**changes):
    return EpisodeBuffer(**{"n_rounds": 3, **SIZES, **changes})


# A few sizes with every edge, because each is compiled: one round kept, one environment, episodes
# of one step, slices as long as an episode and shorter.
BUFFERS = [
    make_buffer(n_rounds=2, n_envs=1, episode_length=1, horizon=1),
    make_buffer(n_rounds=2, n_envs=3, episode_length=4, horizon=4),
    make_buffer(n_rounds=3, n_envs=2, episode_length=5, horizon=2),
    make_buffer(n_rounds=4, n_envs=1, episode_length=3, horizon=1),
]


def written_at(tick, n_envs):
    """The numbers stored at a tick: every field of every row is a different number."""
    number = 4 * (tick * n_envs + np.arange(n_envs))
    return np.stack([number, number + 1], axis=-1), (number + 2)[:, None], number + 3


def row_at(tick, n_envs):
    number = 4.0 * (tick * n_envs + jnp.arange(n_envs))
    flag = jnp.zeros(n_envs, bool)
    return Row(
        obs=jnp.stack([number, number + 1], axis=-1),
        action=(number + 2)[:, None],
        reward=number + 3,
        is_first=flag,
        is_last=flag,
        is_terminal=flag,
    )


@functools.partial(jax.jit, static_argnums=0)
def filled(buffer, state, start, stop):
    def write(tick, state):
        return buffer.add(state, row_at(tick, buffer.n_envs), tick)

    return jax.lax.fori_loop(start, stop, write, state)


@functools.partial(jax.jit, static_argnums=(0, 3))
def filled_and_sampled(buffer, n_ticks, key, size):
    state, tick = filled(buffer, buffer.init(), 0, n_ticks), n_ticks - 1
    draw = buffer.draw(key, tick, size)
    return buffer.n_committed(tick), draw, buffer.gather(state, draw)


sampled = jax.jit(EpisodeBuffer.sample, static_argnums=(0, 4))
drawn = jax.jit(EpisodeBuffer.draw, static_argnums=(0, 3))


class ListOfRounds:
    """The whole history, round after round, and which of it a ring of R rounds can sample."""

    def __init__(self, buffer, n_ticks):
        self.buffer = buffer
        rows_per_round = buffer.episode_length + 1
        n_complete = n_ticks // rows_per_round
        self.rounds = [
            [written_at(r * rows_per_round + k, buffer.n_envs) for k in range(rows_per_round)]
            for r in range(n_complete)
        ]
        self.committed = list(range(n_complete))[-(buffer.n_rounds - 1) :]

    def slice(self, round_number, env, offset):
        rows = self.rounds[round_number][offset : offset + self.buffer.horizon + 1]
        assert len(rows) == self.buffer.horizon + 1
        return (
            np.stack([obs[env] for obs, _, _ in rows]),
            np.stack([action[env] for _, action, _ in rows[:-1]]),
            np.stack([reward[env] for _, _, reward in rows[1:]]),
        )


@examples
@hypothesis.given(
    buffer=st.sampled_from(BUFFERS), n_ticks=st.integers(0, 40), seed=st.integers(0, 10)
)
def test_samples_are_slices_of_the_committed_rounds(buffer, n_ticks, seed):
    n_ticks += buffer.episode_length + 1
    model = ListOfRounds(buffer, n_ticks)
    size = 24
    n_committed, draw, batch = jax.tree.map(
        np.asarray, filled_and_sampled(buffer, n_ticks, jax.random.key(seed), size)
    )
    assert n_committed == len(model.committed) > 0
    slots = {number % buffer.n_rounds: number for number in model.committed}
    H = buffer.horizon
    assert batch.obs.shape == (H + 1, size, 2)
    assert batch.action.shape == (H, size, 1)
    assert batch.reward.shape == (H, size)
    for b in range(size):
        number = slots[int(draw.round[b])]
        obs, action, reward = model.slice(number, draw.env[b], draw.offset[b])
        np.testing.assert_array_equal(batch.obs[:, b], obs)
        np.testing.assert_array_equal(batch.action[:, b], action)
        np.testing.assert_array_equal(batch.reward[:, b], reward)


def test_a_round_is_sampleable_from_its_held_tick_and_until_its_slot_is_needed():
    buffer = make_buffer(n_rounds=3)
    counts = [int(buffer.n_committed(tick)) for tick in range(20)]
    assert counts == [0, 0, 0, 0, 1, 1, 1, 1, 1] + [2] * 11
    assert buffer.first_sampleable_tick == 4
    # Round 0 is last sampled at tick 13; from the end of tick 14 its slot belongs to round 3.
    ticks = (4, 9, 13, 14, 18, 19)
    slots = [set(np.asarray(drawn(buffer, KEY, jnp.int32(tick), 99).round)) for tick in ticks]
    assert slots == [{0}, {0, 1}, {0, 1}, {1, 2}, {1, 2}, {2, 0}]


def test_episodes_and_offsets_are_drawn_uniformly_the_last_offset_included():
    buffer = make_buffer(n_rounds=5, n_envs=3, episode_length=6, horizon=2)
    n = 30_000
    draw = drawn(buffer, KEY, jnp.int32(7 * 9 - 1), n)
    cells = (np.asarray(draw.round) * 3 + draw.env) * 5 + draw.offset
    counts = np.bincount(cells, minlength=5 * 3 * 5).reshape(5, 3, 5)
    committed = [number % 5 for number in (5, 6, 7, 8)]
    assert counts.sum() == n and counts[4].sum() == 0
    expected = n / (4 * 3 * 5)
    chi_squared = ((counts[committed] - expected) ** 2 / expected).sum()
    degrees = 4 * 3 * 5 - 1
    assert abs(chi_squared - degrees) < 4 * np.sqrt(2 * degrees)


def test_sampled_slices_of_a_running_collection_are_pieces_of_finished_episodes():
    T, n_envs, n_ticks, size = 5, 3, 60, 16
    env = CounterEnv((T,))
    sizes = dict(n_envs=n_envs, episode_length=T, obs_dim=3, action_dim=2, horizon=3)
    buffer = EpisodeBuffer(n_rounds=4, **sizes)

    @jax.jit
    def run():
        def one_tick(carry, tick):
            collector, replay = carry
            key = jax.random.fold_in(KEY, tick)
            policy = random_policy(env.spec)
            collector, row, _, _ = collect_static(env, collector, tick, key, policy)
            replay = buffer.add(replay, row, tick)
            return (collector, replay), (row, buffer.sample(replay, key, tick, size))

        start = (init_collector(env, n_envs, KEY, None), buffer.init())
        return jax.lax.scan(one_tick, start, jnp.arange(n_ticks))[1]

    rows, batches = jax.tree.map(np.asarray, run())
    assert np.isnan(batches.reward[:T]).all(), "a batch before the first round must show"
    for tick in range(T, n_ticks):
        obs, action, reward = (array[tick] for array in batches)
        episode, row_index = obs[..., 0], obs[..., 1]
        assert (episode == episode[0]).all()
        assert (np.diff(row_index, axis=0) == 1).all()
        np.testing.assert_array_equal(reward, 1000 * row_index[1:] + episode[1:] % 1000)
        np.testing.assert_array_equal(action[..., 0], obs[1:, :, 2])
        finished = rows.obs[: tick + 1][rows.is_last[: tick + 1]][:, 0]
        assert np.isin(episode[0], finished[-3 * n_envs :]).all()
    offsets = batches.obs[T:, 0, :, 1]
    assert set(np.unique(offsets)) == {0, 1, 2}


@examples
@hypothesis.given(
    sizes=st.tuples(st.sampled_from([2, 3, 5]), st.sampled_from([2, 3, 5])),
    n_before=st.integers(0, 22),
    n_after=st.integers(1, 12),
)
def test_an_adopted_buffer_samples_as_if_it_had_had_its_size_from_the_start(
    sizes, n_before, n_after
):
    old, new = (make_buffer(n_rounds=n_rounds) for n_rounds in sizes)
    before = filled(old, old.init(), 0, n_before)
    n_complete = n_before // 5
    evicted = n_complete > old.n_rounds - 1
    if evicted and new.n_rounds > old.n_rounds:
        with pytest.raises(ValueError, match="A buffer that has evicted cannot grow"):
            new.adopt(old, before, n_before)
        return
    adopted = new.adopt(old, before, n_before)
    from_the_start = filled(new, new.init(), 0, n_before)
    if n_complete < min(sizes):
        jax.tree.map(np.testing.assert_array_equal, adopted, from_the_start)
    for stop in (n_before, n_before + n_after):
        adopted, from_the_start = (
            filled(new, state, n_before, stop) for state in (adopted, from_the_start)
        )
        if stop >= 5:
            batches = [
                sampled(new, state, KEY, jnp.int32(stop - 1), 32)
                for state in (adopted, from_the_start)
            ]
            jax.tree.map(np.testing.assert_array_equal, *batches)


@pytest.mark.parametrize("new_size", [3, 7])
def test_adopting_does_not_change_what_the_same_key_samples(new_size):
    """A ring that has not evicted draws the same slices whatever its size."""
    old, new = make_buffer(n_rounds=5), make_buffer(n_rounds=new_size)
    state = filled(old, old.init(), 0, 13)
    adopted = new.adopt(old, state, 13)
    batches = [sampled(b, s, KEY, jnp.int32(12), 32) for b, s in ((old, state), (new, adopted))]
    jax.tree.map(np.testing.assert_array_equal, *batches)


def test_adopting_works_over_seeds():
    old, new = make_buffer(n_rounds=3), make_buffer(n_rounds=5)
    state = filled(old, old.init(), 0, 12)
    seeds = jax.tree.map(lambda x: jnp.stack([x, -x]), state)
    adopted = jax.vmap(lambda one: new.adopt(old, one, 12))(seeds)
    one = new.adopt(old, state, 12)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, np.stack([y, -y])), adopted, one)


def test_rounds_of_another_shape_are_not_adopted():
    old = make_buffer(episode_length=5)
    with pytest.raises(ValueError, match="episode_length was 5, here it is 4"):
        make_buffer(n_rounds=4).adopt(old, old.init(), 0)


@pytest.mark.parametrize("n_seeds", [None, 2], ids=["one-seed", "two-seeds"])
def test_a_tick_of_a_compiled_run_never_copies_the_ring(n_seeds):
    buffer = make_buffer(n_rounds=300, obs_dim=16)

    def run(state, key, start, stop):
        def one_tick(tick, carry):
            state, total = carry
            row = Row(
                obs=jnp.full((2, 16), tick, jnp.float32),
                action=jnp.ones((2, 1)),
                reward=jnp.ones(2),
                is_first=jnp.zeros(2, bool),
                is_last=jnp.zeros(2, bool),
                is_terminal=jnp.zeros(2, bool),
            )
            state = buffer.add(state, row, tick)

            def update(j, total):
                return total + buffer.sample(state, jax.random.fold_in(key, j), tick, 8).obs.sum()

            n_updates = jnp.where(tick >= buffer.first_sampleable_tick, 2, 0)
            return state, jax.lax.fori_loop(0, n_updates, update, total)

        return jax.lax.fori_loop(start, stop, one_tick, (state, jnp.float32(0)))

    state, keys = jax.eval_shape(buffer.init), jax.eval_shape(lambda: KEY)
    n_rings = n_seeds or 1
    if n_seeds is not None:
        run = jax.vmap(run, in_axes=(0, 0, None, None))
        state, keys = (
            jax.tree.map(lambda x: jax.ShapeDtypeStruct((n_seeds, *x.shape), x.dtype), tree)
            for tree in (state, keys)
        )
    program = jax.jit(run, donate_argnums=0).lower(state, keys, 0, 10).compile()
    memory = program.memory_analysis()
    ring = buffer.n_rounds * buffer.n_envs * 5 * 4  # bytes of the smallest array, one seed
    assert memory.temp_size_in_bytes < ring
    assert memory.alias_size_in_bytes >= n_rings * buffer.bytes
    copies = re.findall(r"= f32\[(?:2,)?300,2,5[\d,]*\]\S* copy\(.*", program.as_text())
    assert copies == []


def test_the_far_end_of_a_million_row_ring_is_reached():
    buffer = make_buffer(n_rounds=2000, n_envs=1, episode_length=499, horizon=3)
    last_tick = 2000 * 500 - 1
    state = jax.jit(buffer.add)(buffer.init(), row_at(1, 1), jnp.int32(last_tick))
    draw = SliceDraw(
        round=jnp.array([1999], jnp.int32),
        env=jnp.array([0], jnp.int32),
        offset=jnp.array([496], jnp.int32),
    )
    batch = buffer.gather(state, draw)
    np.testing.assert_array_equal(batch.obs[:, 0], [[0, 0], [0, 0], [0, 0], [4, 5]])
    np.testing.assert_array_equal(batch.reward[:, 0], [0, 0, 7])


@pytest.mark.parametrize(
    ("capacity", "total", "n_envs", "n_rounds"),
    [
        (1_000_000, 100_000, 1, 201),  # the run is the limit: 200 episodes and the running one
        (50_000, 100_000, 1, 101),
        (50_100, 100_000, 1, 102),
        (1_000_000, 100_000, 4, 51),
        (1_000_000, 1, 4, 2),
    ],
)
def test_a_buffer_for_a_run_is_no_larger_than_the_run_fills(capacity, total, n_envs, n_rounds):
    buffer = EpisodeBuffer.for_run(
        capacity,
        total,
        n_envs=n_envs,
        episode_length=500,
        obs_dim=3,
        action_dim=2,
        horizon=3,
    )
    assert buffer.n_rounds == n_rounds
    shapes = jax.eval_shape(buffer.init)
    assert buffer.bytes == sum(leaf.size * 4 for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(n_rounds=1), "n_rounds must be at least 2, got 1"),
        (dict(n_envs=0), "n_envs must be a whole number of at least 1, got 0"),
        (dict(obs_dim=-3), "obs_dim must be a whole number of at least 1, got -3"),
        (dict(action_dim=1.5), "action_dim must be a whole number of at least 1, got 1.5"),
        (dict(horizon=5), "horizon=5 is longer than an episode of 4 agent steps"),
        (dict(n_rounds=10**6, n_envs=10**3), "more than 32-bit indices reach"),
    ],
)
def test_impossible_sizes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_buffer(**changes)


def test_a_capacity_below_one_round_is_refused():
    with pytest.raises(ValueError, match=r"2 x 4 = 8 agent steps. Use a buffer of at least 8"):
        EpisodeBuffer.for_run(7, 100, **SIZES)
    with pytest.raises(ValueError, match="total_env_steps must be at least 1, got 0"):
        EpisodeBuffer.for_run(8, 0, **SIZES)


def test_rows_of_another_shape_are_refused():
    buffer = make_buffer(obs_dim=5)
    with pytest.raises(ValueError, match=r"takes obs of shape \(2, 5\) here, got \(2, \d\)"):
        buffer.add(buffer.init(), row_at(0, 2), jnp.int32(0))


def test_a_schedule_that_updates_before_the_first_round_is_refused():
    buffer = make_buffer()
    buffer.check_sampleable(4)
    with pytest.raises(ValueError, match="at the end of tick 3, but the first round of episodes"):
        buffer.check_sampleable(3)
