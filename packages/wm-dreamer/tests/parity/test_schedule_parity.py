"""The update schedule against danijar/dreamerv3@29eb964, `embodied.run.train`.

`schedule.npz` holds the updates made at each transition by the original's own training loop, with
an agent that only counts and with batches drawn when they are used, for several numbers of
environments and train ratios (with a last digit that float64 cannot hold among them, D26).
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_dreamer.schedule import Schedule

from .recordings import load

pytestmark = pytest.mark.recordings("dreamerv3/schedule*.npz")


def cases(path):
    """Yield the schedule and the recorded counts of every ratio and number of environments."""
    recording = load(path)
    meta = recording.meta
    names = {name.rpartition("/")[0] for name in recording.arrays}
    assert {name.split("/")[0] for name in names} == {f"ratio{r}" for r in meta["ratios"]}
    for name in sorted(names):
        ratio, n_envs = name.split("/")
        schedule = Schedule(
            n_envs=int(n_envs.removeprefix("envs")),
            batch_size=meta["batch_size"],
            batch_length=meta["batch_length"],
            train_ratio=Fraction(ratio.removeprefix("ratio")),
        )
        yield schedule, recording.group(name)


def float64_holds_the_inverse(ratio):
    return Fraction(float(1 / ratio)) == 1 / ratio


def test_updates_of_every_tick_are_those_of_the_original(recording):
    exact = 0
    for schedule, recorded in cases(recording):
        if not float64_holds_the_inverse(schedule.updates_per_row):
            continue
        exact += 1
        theirs = recorded["updates_after_tick"]
        ticks = range(1, len(theirs) + 1)
        assert [schedule.updates_before(tick) for tick in ticks] == theirs.tolist()
        traced = jax.jit(schedule.updates_before)(jnp.arange(1, len(theirs) + 1, dtype=jnp.int32))
        np.testing.assert_array_equal(traced, theirs)
    assert exact


def test_the_first_update_is_on_the_recorded_transition(recording):
    for schedule, recorded in cases(recording):
        updates = recorded["updates_per_transition"]
        first = int(np.flatnonzero(updates)[0])
        assert schedule.first_transition == first + 1
        assert schedule.first_update_tick == first // schedule.n_envs
        assert updates[first] == 1


def test_the_original_is_one_transition_late_at_most_where_its_float_rounds(recording):
    """D26: its running float64 may fall short of a whole number that ours reaches exactly."""
    for schedule, recorded in cases(recording):
        theirs = np.cumsum(recorded["updates_per_transition"])
        since_first = np.arange(1, len(theirs) + 1) - schedule.first_transition
        ours = np.array(
            [0 if x < 0 else 1 + int(x * schedule.updates_per_row) for x in since_first]
        )
        late = np.flatnonzero(theirs != ours)
        np.testing.assert_array_equal(theirs[late], ours[late] - 1)
        np.testing.assert_array_equal(theirs[late], ours[late - 1])
        if float64_holds_the_inverse(schedule.updates_per_row):
            assert len(late) == 0
        after_tick = ours[schedule.n_envs - 1 :: schedule.n_envs]
        ticks = range(1, len(after_tick) + 1)
        assert [schedule.updates_before(tick) for tick in ticks] == after_tick.tolist()
