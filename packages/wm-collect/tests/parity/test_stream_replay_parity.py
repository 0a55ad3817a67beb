"""The stream replay against the original DreamerV3's.

Recorded from danijar/dreamerv3@29eb964, `embodied.Driver` filling `embodied.replay.Replay` from
environments that count, with episodes of several lengths; some batches were drawn after some of
the ticks, and made-up latents were written back after each. Here the recorded rows are added, the
batches are drawn at the same ticks, and the recorded windows are put in place of the drawn ones.
Sizes come from the recording. Nothing is computed on the way, so everything is compared exactly.

What a recording fixes that no longer applies:

* D27: `meta["capacity_items"]` counts windows of all environments; ours counts rows. The ring has
  the rows that hold these windows. Where the environments do not divide their number, it also
  holds a few older ones, which the reference has dropped.
* D27: rows are dropped in chunks by the original. It serves an online window that has left the
  items as long as all its chunks are there, and skips it afterwards; ours skips what is not whole
  in the ring. The ring is made to hold all windows that were served, and the queue is compared up
  to the first one that was skipped, which needs a queue that waits longer than the ring is long.
* The number of items is compared at the ends of ticks, because all rows of a tick are added at
  once. The recorded batches were drawn there too.
* Which index a window has is compared where nothing was evicted. The original gives a dropped
  window's index to the newest one; with a uniform draw the numbering is no part of the result.
* The sampler's generator cannot be reproduced. The distribution of our draws is the unit tests'.
"""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.replay import StreamReplay, WindowDraw
from wm_collect.row import Row

from .recordings import load

KEY = jax.random.key(0)
BATCH_ROWS = ("action", "reward", "is_first", "is_last", "is_terminal")

recordings = pytest.mark.recordings("dreamerv3/replay_*.npz")


def replay_of(arrays, meta):
    """The replay that holds what the recorded one held."""
    n_envs, length = meta["envs"], meta["L"]
    holds_items = -(-meta["capacity_items"] // n_envs) + length - 1
    holds_drawn = np.max(arrays["batch/tick"][:, None] + 1 - arrays["batch/start"])
    classes = 1 + max(arrays["rows/stoch"].max(), arrays["batch/new_stoch"].max())
    return StreamReplay.for_run(
        n_envs * max(holds_items, int(holds_drawn)),
        n_envs * meta["ticks"],
        n_envs=n_envs,
        batch_length=length - 1,
        batch_size=meta["B"],
        obs_dim=2,
        action_dim=arrays["rows/action"].shape[-1],
        discrete=False,
        deter=meta["deter"],
        stoch=meta["stoch"],
        classes=int(classes),
    )


def stored(replay, ring, env, row):
    """Rows of the given absolute ticks as they are in a ring."""
    return np.asarray(ring)[env, row % replay.capacity]


@functools.cache
def replayed(path):
    """Go through a recording; return it with what our replay made of it, batch by batch."""
    arrays, meta = load(path)
    replay = replay_of(arrays, meta)
    add, draw_batch, gather, write_back = (
        jax.jit(functools.partial(method, replay))
        for method in (
            StreamReplay.add,
            StreamReplay.draw,
            StreamReplay.gather,
            StreamReplay.write_back,
        )
    )
    rows = {name.removeprefix("rows/"): arrays[name] for name in arrays if name[:5] == "rows/"}
    obs = np.stack([rows["env"], rows["row"]], axis=-1).astype(np.float32)
    window = np.arange(meta["L"])
    state, batches = replay.init(), []
    for tick in range(meta["ticks"]):
        row = Row(obs=obs[tick], **{name: rows[name][tick] for name in BATCH_ROWS})
        state = add(state, row, rows["deter"][tick], rows["stoch"][tick], tick)
        for i in np.flatnonzero(arrays["batch/tick"] == tick):
            key = jax.random.fold_in(KEY, i)
            state, draw = draw_batch(state, key, tick)
            recorded = WindowDraw(
                env=arrays["batch/env"][i],
                start=arrays["batch/start"][i],
                online=arrays["batch/online"][i],
            )
            env, row = recorded.env[:, None], recorded.start[:, None] + window[None, :]
            ours = dict(
                draw=draw,
                rows=gather(state, recorded),
                deter=stored(replay, state.deter, env, row),
                stoch=stored(replay, state.stoch, env, row),
                n_popped=state.online_popped,
            )
            batches.append(jax.tree.map(np.asarray, ours))
            state = write_back(
                state, recorded, arrays["batch/new_deter"][i], arrays["batch/new_stoch"][i]
            )
    assert len(batches) == len(arrays["batch/tick"]) > 0
    ours = SimpleNamespace(**jax.tree.map(lambda *leaves: np.stack(leaves), *batches))
    return SimpleNamespace(arrays=arrays, meta=meta, replay=replay, state=state, ours=ours)


def evicts(run):
    """Whether a recording drops windows, so that D27 makes a difference."""
    return run.meta["capacity_items"] < run.meta["ticks"] * run.meta["envs"]


@recordings
def test_windows_hold_the_recorded_rows_and_flags(recording):
    run = replayed(recording)
    for name in BATCH_ROWS:
        recorded = run.arrays[f"batch/{name}"]
        np.testing.assert_array_equal(getattr(run.ours.rows, name), recorded, err_msg=name)
    env, row = run.ours.rows.obs[..., 0], run.ours.rows.obs[..., 1]
    length = np.arange(run.meta["L"])
    np.testing.assert_array_equal(env, run.arrays["batch/env"][..., None] + 0 * length)
    np.testing.assert_array_equal(row, run.arrays["batch/start"][..., None] + length)


@recordings
def test_latents_are_the_last_written_ones_of_acting_or_of_an_update(recording):
    run = replayed(recording)
    deter, stoch = run.arrays["batch/deter"], run.arrays["batch/stoch"]
    np.testing.assert_array_equal(run.ours.deter, deter)
    np.testing.assert_array_equal(run.ours.stoch, stoch)
    np.testing.assert_array_equal(run.ours.rows.context_deter, deter[:, :, 0])
    np.testing.assert_array_equal(run.ours.rows.context_stoch, stoch[:, :, 0])


@recordings
@pytest.mark.parametrize("name", ["deter", "stoch"])
def test_latents_at_the_end_are_those_written_last(recording, name):
    """Read from the recording, or, where it evicts and keeps no end, written there in order."""
    run = replayed(recording)
    expected = np.swapaxes(run.arrays[f"rows/{name}"], 0, 1).copy()
    for i, new in enumerate(run.arrays[f"batch/new_{name}"]):
        for b in range(run.meta["B"]):
            env, start = (run.arrays[f"batch/{where}"][i, b] for where in ("env", "start"))
            expected[env, start + 1 : start + run.meta["L"]] = new[b]
    if f"final/{name}" in run.arrays:
        np.testing.assert_array_equal(expected, run.arrays[f"final/{name}"])
    else:
        assert evicts(run)
    env = np.arange(run.meta["envs"])[:, None]
    row = np.arange(run.meta["ticks"])[-run.replay.capacity :]
    ours = stored(run.replay, getattr(run.state, name), env, row[None, :])
    np.testing.assert_array_equal(ours, expected[:, row])


def batches_before_a_skip(run):
    """How many batches were drawn before the original skipped an online window, if it ever did."""
    meta, tick = run.meta, run.arrays["batch/tick"]
    n_taken = run.arrays["batch/online"].sum(axis=1)
    n_taken_before = np.cumsum(n_taken) - n_taken
    n_pushed = meta["envs"] * (tick // meta["L"])
    skipped = n_pushed - n_taken_before != run.arrays["batch/queue_length"]
    if not skipped.any():
        return len(tick)
    assert evicts(run)
    return int(np.argmax(skipped))


@recordings
def test_online_windows_lead_the_batch_in_the_recorded_order(recording):
    run = replayed(recording)
    n = batches_before_a_skip(run)
    draw, online = run.ours.draw, run.arrays["batch/online"][:n]
    np.testing.assert_array_equal(draw.online[:n], online)
    np.testing.assert_array_equal(draw.env[:n][online], run.arrays["batch/env"][:n][online])
    np.testing.assert_array_equal(draw.start[:n][online], run.arrays["batch/start"][:n][online])
    np.testing.assert_array_equal(run.ours.n_popped[:n], np.cumsum(online.sum(axis=1)))


@recordings
def test_as_many_online_windows_wait_as_recorded(recording):
    """How many there have been is seen by drawing a batch that would take them all."""
    run = replayed(recording)
    tick, online = run.arrays["batch/tick"], run.arrays["batch/online"]
    n = batches_before_a_skip(run)
    ticks = np.arange(run.meta["ticks"] if n == len(tick) else tick[n])
    n_taken_before = np.array([online[tick < t].sum() for t in ticks])
    n_pushed = run.arrays["queue_after_row"][ticks, -1] + n_taken_before
    size = int(n_pushed[-1]) + 1
    taker = dataclasses.replace(run.replay, batch_size=size, capacity=run.meta["ticks"] + size)
    empty = taker.init()
    drawn = jax.jit(jax.vmap(lambda t: taker.draw(empty, KEY, t)[1]))(ticks)
    np.testing.assert_array_equal(drawn.online.sum(axis=1), n_pushed)


@recordings
def test_the_number_of_items_is_the_recorded_one(recording):
    run = replayed(recording)
    n_items = np.array([run.replay.n_items(tick) for tick in range(run.meta["ticks"])])
    kept = np.minimum(n_items, run.meta["capacity_items"])
    np.testing.assert_array_equal(kept, run.arrays["items_after_row"][:, -1])
    np.testing.assert_array_equal(kept[run.arrays["batch/tick"]], run.arrays["batch/num_items"])


@recordings
def test_a_drawn_index_is_the_recorded_window(recording):
    run = replayed(recording)
    uniform = ~run.arrays["batch/online"]
    tick = np.broadcast_to(run.arrays["batch/tick"][:, None], uniform.shape)[uniform]
    high, index = (run.arrays[f"batch/{name}"][uniform] for name in ("draw_high", "draw"))
    recorded = np.stack([run.arrays[f"batch/{n}"][uniform] for n in ("env", "start")], axis=-1)
    n_items = np.array([run.replay.n_items(t) for t in tick])
    np.testing.assert_array_equal(np.minimum(n_items, run.meta["capacity_items"]), high)
    item = jax.jit(jax.vmap(lambda index, tick: jnp.stack(run.replay.item(index, tick))))
    nothing_evicted = n_items == run.meta["envs"] * (tick + 2 - run.meta["L"])
    nothing_evicted &= n_items <= run.meta["capacity_items"]
    assert nothing_evicted.all() or evicts(run)
    np.testing.assert_array_equal(item(index, tick)[nothing_evicted], recorded[nothing_evicted])
    # After an eviction: what was drawn is one of our items all the same.
    start, last = recorded[:, 1], tick + 1 - run.meta["L"]
    assert (start >= np.maximum(0, tick + 1 - run.replay.capacity)).all()
    assert (start <= last).all()


@recordings
def test_the_items_at_the_end_are_the_recorded_ones(recording):
    run = replayed(recording)
    last_tick, order = run.meta["ticks"] - 1, run.arrays["final/sampler_order"]
    index = np.arange(run.replay.n_items(last_tick), dtype=np.int32)[-len(order) :]
    items = np.stack(run.replay.item(index, last_tick), axis=-1)
    if len(order) < run.meta["capacity_items"]:
        np.testing.assert_array_equal(items, order)
    else:
        assert sorted(items.tolist()) == sorted(order.tolist())
