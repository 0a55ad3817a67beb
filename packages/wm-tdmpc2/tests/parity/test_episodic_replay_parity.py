"""Which slices are drawn, against nicklashansen/tdmpc2@e9f5932, common/buffer.py.

The recordings `control_flow_later_*.npz` come from the later code's own trainer and replay on an
environment that counts, with episodes that terminate, that run into the time limit, and that are
too short for a slice. Here its rows go into our replay, and its draws are put to our table: the
n-th of the episodes with at least H + 1 rows, in the order in which they ended, and from the number
u the first row ⌊u (rows − H)⌋.

Not compared, because it differs by design: when updates are made, and how many. The original counts
environment steps, we count rows, reset rows included (T43), so its burst lies on another tick.
Neither are its random bits, which are put in here.

The original's ring holds the rows of complete episodes, one after the other, and a whole run just
overfills it. The oldest episode then loses its first rows, as with us, but the episodes are counted
in the order in which they lie in the ring. Our rings also hold the running episode (T44), so that
ours is made as much longer as that has rows at the moment of the update.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.replay import VariableEpisodeBuffer, VariableSliceDraw
from wm_collect.row import Row

from .recordings import Recording


class Run(NamedTuple):
    """The recorded rows, tick after tick, and our replay after each of them."""

    buffer: VariableEpisodeBuffer  # large enough to keep everything
    rows: Row  # [n_ticks, 1, ...]
    states: Any  # [n_ticks, ...]
    tick_of_step: np.ndarray  # tick on which an environment step is taken


class Episode(NamedTuple):
    """A stored episode: its number in the recording, and the rows of it that are left."""

    number: int
    first_row: int
    n_rows: int


def recorded_rows(recording: Recording) -> Row:
    """Return the run's rows: those that a step was taken from, and the last ones of episodes."""
    case = recording.meta["case"]
    columns = ("step/episode", "step/row_after", "step/done")
    steps = zip(*(recording[name].tolist() for name in columns), strict=True)
    obs, action, last, terminal = [], [], [], []
    for step, (episode, row_after, done) in enumerate(steps):
        obs.append((episode, row_after - 1, step))
        action.append(step)
        last.append(False)
        terminal.append(False)
        if done:
            obs.append((episode, row_after, step + 1))
            action.append(0)
            last.append(True)
            terminal.append(case["terminates"][episode % len(case["terminates"])])
    numbers = np.array(obs, np.float32)[:, None]
    first = numbers[..., 1] == 0
    return Row(
        obs=numbers,
        action=np.array(action, np.float32)[:, None, None],
        reward=np.where(first, 0, numbers[..., 2]),
        is_first=first,
        is_last=np.array(last)[:, None],
        is_terminal=np.array(terminal, bool)[:, None],
    )


@functools.cache
def stored(recording: Recording) -> Run:
    rows = recorded_rows(recording)
    n_ticks = len(rows.obs)
    buffer = VariableEpisodeBuffer(
        capacity=n_ticks, n_envs=1, obs_dim=3, action_dim=1, horizon=recording.meta["horizon"]
    )

    @jax.jit
    def run():
        def one_tick(state, inputs):
            tick, row = inputs
            state = buffer.add(state, row, tick)
            return state, state

        ticks = jnp.arange(n_ticks, dtype=jnp.int32)
        return jax.lax.scan(one_tick, buffer.init(), (ticks, rows))[1]

    states = jax.tree.map(np.asarray, run())
    return Run(buffer, rows, states, np.flatnonzero(~rows.is_last[:, 0]))


def ticks_of_updates(recording: Recording) -> np.ndarray:
    """Return the tick at whose end every recorded update is made."""
    return stored(recording).tick_of_step[
        recording["update/step"][: len(recording["draw/trajectory"])]
    ]


def n_rows_added(recording: Recording) -> np.ndarray:
    """Return the rows that the original had added to its ring before every recorded update."""
    added = recording["update/episodes_added"][: len(recording["draw/trajectory"])]
    return np.concatenate([[0], np.cumsum(recording["adds"][:, 2])])[added]


@functools.cache
def at_update(recording: Recording, u: int) -> tuple[VariableEpisodeBuffer, Any]:
    """Return a replay that keeps what the original's ring keeps at an update, and its state."""
    run = stored(recording)
    tick = int(ticks_of_updates(recording)[u])
    state = jax.tree.map(lambda leaf: leaf[tick], run.states)
    if n_rows_added(recording)[u] <= recording.meta["capacity"]:
        return run.buffer, state
    n_running = int(run.rows.obs[tick, 0, 1]) + 1
    capacity = recording.meta["capacity"] + n_running
    smaller = VariableEpisodeBuffer(
        capacity=capacity, n_envs=1, obs_dim=3, action_dim=1, horizon=run.buffer.horizon
    )
    return smaller, jax.tree.map(np.asarray, smaller.adopt(run.buffer, state, tick + 1))


def ours(recording: Recording, u: int) -> list[Episode]:
    """Return the episodes of our table at an update, in its order."""
    run, (buffer, state) = stored(recording), at_update(recording, u)
    tick = int(ticks_of_updates(recording)[u])
    listed = np.arange(state.n_expired, state.n_added) % buffer.n_entries
    episodes = []
    for end, rows in zip(state.episode_end[listed], state.episode_rows[listed], strict=True):
        first = max(end - rows + 1, tick - buffer.capacity + 1)
        number, row, _ = run.rows.obs[first, 0]
        assert run.rows.obs[end, 0, 0] == number and run.rows.is_last[end, 0]
        episodes.append(Episode(int(number), int(row), int(end - first + 1)))
    return episodes


def theirs(recording: Recording, u: int) -> list[tuple[int, Episode]]:
    """Return place in the ring and episode of all that the original can draw from at an update."""
    n_added = recording["update/episodes_added"][u]
    ends = np.cumsum(recording["adds"][:, 2])[:n_added]
    oldest = ends[-1] - recording.meta["capacity"]
    found = []
    for (_, number, n_rows), end in zip(recording["adds"][:n_added].tolist(), ends, strict=True):
        left = int(min(n_rows, end - oldest))
        if left > recording.meta["horizon"]:
            place = int(end - 1) % recording.meta["capacity"]
            found.append((place, Episode(number, n_rows - left, left)))
    return found


def drawn_slices(recording: Recording, u: int) -> VariableSliceDraw:
    """Return a recorded draw as places in our rings."""
    buffer, state = at_update(recording, u)
    tick = int(ticks_of_updates(recording)[u])
    places = [place for place, _ in theirs(recording, u)]
    nth = np.argsort(places)[recording["draw/trajectory"][u]]
    entry = (state.n_expired + nth) % buffer.n_entries
    end, rows = state.episode_end[entry], state.episode_rows[entry]
    first = np.maximum(end - rows + 1, tick - buffer.capacity + 1)
    n_offsets = (end - first + 1 - buffer.horizon).astype(np.float32)
    offset = np.floor(recording["draw/start_uniform"][u] * n_offsets)
    return VariableSliceDraw(
        env=np.zeros(len(first), np.int32), tick=(first + offset).astype(np.int32)
    )


def updates_of(recording: Recording) -> range:
    return range(len(recording["draw/trajectory"]))


def test_the_table_lists_the_episodes_that_the_original_draws_from(control_flow_later_recording):
    """At every update: those with at least H + 1 rows, in the order in which they ended."""
    recording = control_flow_later_recording
    for u in updates_of(recording):
        buffer, state = at_update(recording, u)
        expected = [episode for _, episode in theirs(recording, u)]
        assert ours(recording, u) == expected, u
        assert int(buffer.n_sampleable(state)) == len(expected)
        assert recording["draw/trajectory"][u].max() < len(expected)


def test_episodes_end_before_the_same_steps_with_all_their_rows(control_flow_later_recording):
    """The original adds them before the step that follows, we list them with their last row."""
    recording = control_flow_later_recording
    rows = stored(recording).rows
    last = np.flatnonzero(rows.is_last[:, 0])
    number, row, step = rows.obs[last, 0].T
    adds = recording["adds"]
    np.testing.assert_array_equal(np.stack([step, number, row + 1], axis=1), adds)
    for u, tick in enumerate(ticks_of_updates(recording)):
        assert np.sum(last <= tick) == recording["update/episodes_added"][u]


def test_the_recorded_draws_address_the_recorded_slices(control_flow_later_recording):
    """Same episode, same first row, all rows of one episode, and the same terminations."""
    recording = control_flow_later_recording
    slices, horizon = recording["update/slices"], recording.meta["horizon"]
    assert len(slices) == len(updates_of(recording))
    gather = jax.jit(VariableEpisodeBuffer.gather, static_argnums=0)
    n_overfull = 0
    for u in updates_of(recording):
        buffer, state = at_update(recording, u)
        n_overfull += buffer is not stored(recording).buffer
        batch = jax.tree.map(np.asarray, gather(buffer, state, drawn_slices(recording, u)))
        steps = np.arange(horizon + 1)[:, None]
        np.testing.assert_array_equal(batch.obs[..., 0], np.tile(slices[u, :, 0], (len(steps), 1)))
        np.testing.assert_array_equal(batch.obs[..., 1], slices[u, :, 1] + steps)
        # Rows are aligned: the action was taken on the row's step, the reward came with the next.
        np.testing.assert_array_equal(batch.action[..., 0], batch.obs[:-1, :, 2])
        np.testing.assert_array_equal(batch.reward, batch.obs[1:, :, 2])
        np.testing.assert_array_equal(batch.terminated, recording["update/terminated"][u])
    assert n_overfull < len(slices) // 2


def test_every_offset_of_an_episode_occurs_and_the_last_one_too(control_flow_later_recording):
    """0 … rows − 1 − H, in the recorded draws and in ours; the last one shows a termination."""
    recording = control_flow_later_recording
    horizon, n_rows = recording.meta["horizon"], dict(recording["adds"][:, 1:].tolist())
    slices = recording["update/slices"]
    whole = np.flatnonzero(n_rows_added(recording) <= recording.meta["capacity"])
    drawn = [tuple(pair) for pair in slices[whole].reshape(-1, 2).tolist()]
    complete = 0
    for rows in sorted(set(n_rows.values())):
        first_rows = [first for number, first in drawn if n_rows[number] == rows]
        assert set(first_rows) <= set(range(rows - horizon)), rows
        if len(first_rows) >= 20 * (rows - horizon) > 0:
            assert set(first_rows) == set(range(rows - horizon)), rows
            complete += 1
    assert complete > 0

    run = stored(recording)
    last_tick = len(run.rows.obs) - 1
    state = jax.tree.map(lambda leaf: leaf[last_tick], run.states)
    draw = run.buffer.draw(state, jax.random.key(0), last_tick, 20_000)
    ours = run.rows.obs[np.asarray(draw.tick), 0, :2].astype(int)
    assert set(map(tuple, ours.tolist())) == {
        (number, first) for number, rows in n_rows.items() for first in range(rows - horizon)
    }


def test_terminations_show_only_at_the_end_of_slices(control_flow_later_recording):
    """In the original's batches; ours are equal to them (see the recorded draws above)."""
    recording = control_flow_later_recording
    terminated, slices = recording["update/terminated"], recording["update/slices"]
    case, n_rows = recording.meta["case"], dict(recording["adds"][:, 1:].tolist())
    assert not terminated[:, :-1].any()
    number, first = np.moveaxis(slices, -1, 0)
    ends = first + recording.meta["horizon"] == np.vectorize(n_rows.__getitem__)(number) - 1
    terminates = np.array(case["terminates"])[number % len(case["terminates"])]
    np.testing.assert_array_equal(terminated[:, -1], ends & (terminates == 1))
