"""The schedule against a plain Python loop over transitions, written from its description."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_dreamer.config import DreamerV3Settings
from wm_dreamer.schedule import Schedule


def schedule(n_envs=16, train_ratio=512, batch_size=16, batch_length=64):
    return Schedule(
        n_envs=n_envs, batch_size=batch_size, batch_length=batch_length, train_ratio=train_ratio
    )


def updates_after_ticks(case, n_ticks):
    """Count updates transition by transition; returns the count before tick 0, 1, …, n_ticks.

    Within a tick the environments add their rows one after the other. A row that completes a
    window of batch_length + 1 rows of its environment adds an item. From the first row on that
    finds batch_size items, as many updates are made as the ratio says: one at its first call, and
    later the whole part of the rows since the last update, times the updates per row; what was not
    whole is carried over in a float64.
    """
    updates_per_row = case.train_ratio / (case.batch_size * case.batch_length)
    clock, items, made, last_clock = 0, 0, 0, None
    counts = [0]
    for tick in range(n_ticks):
        for _ in range(case.n_envs):
            clock += 1
            items += tick >= case.batch_length
            if items < case.batch_size:
                continue
            if last_clock is None:
                due, last_clock = 1, clock
            else:
                due = int((clock - last_clock) * updates_per_row)
                last_clock += due / updates_per_row
            made += due
        counts.append(made)
    return counts


def traced(case, ticks):
    return np.asarray(compiled(case)(jnp.asarray(ticks, jnp.int32)))


@functools.cache
def compiled(case):
    return jax.jit(lambda tick: case.updates_before(tick))


@pytest.mark.parametrize("train_ratio", [32, 512, 1024, 4096.0])
@pytest.mark.parametrize("n_envs", [1, 4, 16, 32])
def test_the_closed_form_is_a_loop_over_transitions(n_envs, train_ratio):
    case = schedule(n_envs, train_ratio)
    expected = updates_after_ticks(case, 300)
    assert [case.updates_before(tick) for tick in range(301)] == expected
    assert np.flatnonzero(expected)[0] == case.first_update_tick + 1
    ours = traced(case, np.arange(301))
    assert ours.dtype == np.int32
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(
    ("n_envs", "tick", "transition", "first_counts"),
    [
        (1, 79, 80, [1, 0, 1, 0, 1]),
        (4, 67, 272, [1, 2, 2, 2]),
        (16, 64, 1040, [1, 8, 8, 8]),
        (32, 64, 2064, [9, 16, 16, 16]),
    ],
)
def test_first_updates_of_the_papers_protocol(n_envs, tick, transition, first_counts):
    case = schedule(n_envs)
    assert (case.first_update_tick, case.first_transition) == (tick, transition)
    assert case.updates_before(tick) == 0
    counts = [case.updates_before(t + 1) - case.updates_before(t) for t in range(tick, tick + 5)]
    assert counts[: len(first_counts)] == first_counts


def test_updates_of_the_papers_run():
    case = schedule()
    assert case.rows_before(15_625) == 250_000
    assert case.updates_before(15_625) == 124_481


sizes = dict(
    n_envs=st.integers(1, 40),
    batch_size=st.integers(1, 24),
    batch_length=st.integers(2, 70),
    train_ratio=st.integers(1, 4096)
    | st.integers(1, 9000).map(lambda tenths: Fraction(tenths, 10)),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(**sizes, tick=st.integers(0, 2**31 - 2))
def test_counts_follow_from_exact_rationals_at_any_tick(tick, **size):
    case = Schedule(**size)
    rate = Fraction(case.train_ratio) / (case.batch_size * case.batch_length)
    since_first = case.n_envs * tick - (case.batch_length * case.n_envs + case.batch_size)
    expected = 0 if since_first < 0 else 1 + int(since_first * rate)
    assert case.updates_before(tick) == expected
    ours = case.updates_before(jnp.int32(tick))
    assert int(ours) % 2**32 == expected % 2**32


@settings(max_examples=50, deadline=None, derandomize=True)
@given(**sizes, tick=st.integers(0, 10_000))
def test_counts_never_fall_and_rise_by_the_rows_of_a_tick(tick, **size):
    case = Schedule(**size)
    made = case.updates_before(tick + 1) - case.updates_before(tick)
    if tick < case.first_update_tick:
        assert made == 0
    elif tick == case.first_update_tick:
        assert made >= 1
    else:
        assert abs(made - case.n_envs * case.updates_per_row) < 1


@pytest.mark.parametrize("train_ratio", [32, 100, 512, 3000, 102.4])
@pytest.mark.parametrize("n_envs", [1, 16, 512])
def test_updates_of_a_far_tick_are_exact_although_their_sum_wraps(n_envs, train_ratio):
    case = schedule(n_envs, train_ratio)
    far = 100_000_000
    ticks = np.array([0, 63, 64, 10**6 + 1, far, far + 1, far + 7, 2**31 - 2])
    expected = [case.updates_before(int(t) + 1) - case.updates_before(int(t)) for t in ticks]
    ours = traced(case, ticks + 1) - traced(case, ticks)
    np.testing.assert_array_equal(ours, expected)
    if n_envs == 512 and train_ratio >= 512:
        assert case.updates_before(far) > 2**31


@pytest.mark.parametrize(
    ("train_ratio", "rate"),
    [
        (512, Fraction(1, 2)),
        (512.0, Fraction(1, 2)),
        (np.float32(0.5), Fraction(1, 2048)),
        (0.1, Fraction(1, 10240)),
        (1e-3, Fraction(1, 1_024_000)),
        (Fraction(1, 3), Fraction(1, 3072)),
    ],
)
def test_a_train_ratio_is_the_decimal_number_it_is_written_as(train_ratio, rate):
    assert schedule(train_ratio=train_ratio).updates_per_row == rate


@pytest.mark.parametrize(
    "sizes",
    [
        dict(train_ratio=511.999),
        dict(train_ratio=np.pi),
        dict(n_envs=10**8),
        dict(n_envs=2**22, train_ratio=1023),
    ],
)
def test_a_ratio_that_32_bits_cannot_count_is_refused_with_a_sentence(sizes):
    sentence = r"makes \d+/\d+ updates per row, too many digits .* use a train_ratio with fewer"
    with pytest.raises(ValueError, match=sentence):
        schedule(**sizes)


def test_rows_of_ticks():
    case = schedule(16)
    assert case.rows_before(3) == 48
    np.testing.assert_array_equal(case.rows_before(jnp.arange(3)), [0, 16, 32])


def test_the_schedule_of_a_configuration():
    config = DreamerV3Settings(n_envs=3, batch_size=5, batch_length=7, train_ratio=8)
    assert Schedule.of(config) == schedule(3, 8, 5, 7)
