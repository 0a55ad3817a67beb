"""Chunk lengths, with a simulated machine instead of a clock."""

from hypothesis import given, settings
from hypothesis import strategies as st

from wm_collect.pace import Pace

SEED_TICKS, BURST = 1000, 500


def updates_before(tick):
    return 0 if tick <= SEED_TICKS else BURST + (tick - SEED_TICKS - 1)


def simulate(tick_seconds, update_seconds, n_ticks, max_chunk_ticks=1000, boundary=None):
    """Return (start, stop, seconds) of every chunk that a machine of this speed would run."""
    pace = Pace(updates_before, target_seconds=1.5, max_chunk_ticks=max_chunk_ticks)
    tick, chunks = 0, []
    while tick < n_ticks:
        limit = n_ticks if boundary is None else min(n_ticks, (tick // boundary + 1) * boundary)
        stop = pace.next_stop(tick, limit)
        seconds = (stop - tick) * tick_seconds + pace.n_updates(tick, stop) * update_seconds
        pace.measured(tick, stop, seconds)
        chunks.append((tick, stop, seconds))
        tick = stop
    return chunks


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    tick_seconds=st.floats(1e-6, 3.0),
    update_seconds=st.floats(1e-6, 3.0),
    max_chunk_ticks=st.integers(1, 300),
    boundary=st.none() | st.integers(1, 100),
)
def test_chunks_tile_the_run_and_take_about_the_time_asked_for(
    tick_seconds, update_seconds, max_chunk_ticks, boundary
):
    chunks = simulate(tick_seconds, update_seconds, 1300, max_chunk_ticks, boundary)
    assert [c[0] for c in chunks] == [0, *(c[1] for c in chunks[:-1])] and chunks[-1][1] == 1300
    for start, stop, seconds in chunks:
        assert 0 < stop - start <= max_chunk_ticks
        assert boundary is None or start // boundary == (stop - 1) // boundary
        # Costs are constant here, so a chunk overruns only where it cannot be cut.
        assert stop - start == 1 or seconds <= 1.5 * 1.001


def test_the_length_grows_to_fill_the_time():
    chunks = simulate(tick_seconds=0.01, update_seconds=0.0, n_ticks=900)
    assert max(stop - start for start, stop, _ in chunks) >= 64
    assert len(chunks) < 20


def test_the_first_updates_are_a_chunk_of_their_own():
    for start, stop, _ in simulate(tick_seconds=1e-5, update_seconds=0.01, n_ticks=1200):
        if start <= SEED_TICKS < stop:
            assert (start, stop) == (SEED_TICKS, SEED_TICKS + 1)


def test_a_slow_burst_does_not_shorten_the_chunks_for_long():
    chunks = simulate(tick_seconds=0.001, update_seconds=0.01, n_ticks=2000)
    assert max(stop - start for start, stop, _ in chunks if start > SEED_TICKS) >= 64
