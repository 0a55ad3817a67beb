"""Means over windows, series and rows for the log files."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_collect import metrics
from wm_collect.health import Health
from wm_collect.loop import TickRecords

N_TICKS, N_ENVS = 12, 3


def records(seed_shape, rng):
    finished = rng.random((*seed_shape, N_TICKS, N_ENVS)) < 0.3
    return TickRecords(
        finished=finished,
        episode_return=np.where(finished, rng.normal(size=finished.shape), 0).astype(np.float32),
        episode_length=np.where(finished, rng.integers(1, 9, finished.shape), 0),
        n_updates=np.broadcast_to(rng.integers(0, 4, N_TICKS), (*seed_shape, N_TICKS)),
        metrics={"a": rng.normal(size=(*seed_shape, N_TICKS)).astype(np.float32)},
    )


def cut(ticks, start, stop):
    """Return the records as a chunk would: from row 0 on, with other rows behind."""
    return TickRecords(
        finished=ticks.finished[..., start:, :],
        episode_return=ticks.episode_return[..., start:, :],
        episode_length=ticks.episode_length[..., start:, :],
        n_updates=ticks.n_updates[..., start:],
        metrics={"a": ticks.metrics["a"][..., start:]},
    )


def summary(ticks, cuts, seed_shape):
    window = metrics.MetricWindow.empty(["a"], seed_shape)
    for start, stop in zip([0, *cuts], [*cuts, N_TICKS], strict=True):
        window.add(cut(ticks, start, stop), stop - start)
        # As if the run were saved and resumed here.
        window = metrics.MetricWindow.from_plain(json.loads(json.dumps(window.to_plain())))
    return window.summary()


@pytest.mark.parametrize("seed_shape", [(), (2,)], ids=["one-seed", "seed-list"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(cuts=st.sets(st.integers(1, N_TICKS - 1)), seed=st.integers(0, 5))
def test_a_window_is_the_same_to_the_bit_however_it_is_cut(seed_shape, cuts, seed):
    ticks = records(seed_shape, np.random.default_rng(seed))
    whole, pieces = summary(ticks, [], seed_shape), summary(ticks, sorted(cuts), seed_shape)
    for name in whole:
        np.testing.assert_array_equal(whole[name], pieces[name])


def test_a_window_averages_over_updates_and_over_episodes():
    ticks = records((), np.random.default_rng(0))
    row = summary(ticks, [], ())
    finished = ticks.finished
    assert row["Train/n_episodes"] == finished.sum()
    np.testing.assert_allclose(
        row["Train/episodic mean reward"], ticks.episode_return[finished].mean(), rtol=1e-6
    )
    np.testing.assert_allclose(
        row["Train/episodic mean length"], ticks.episode_length[finished].mean()
    )
    np.testing.assert_allclose(
        row["Loss/a"], np.average(ticks.metrics["a"], weights=ticks.n_updates), rtol=1e-6
    )


def test_an_empty_window_has_no_means():
    row = metrics.MetricWindow.empty(["a"], (2,)).summary()
    assert np.isnan(row["Loss/a"]).tolist() == [True, True]
    assert np.isnan(row["Train/episodic mean reward"]).all()
    assert row["Train/n_episodes"].tolist() == [0, 0]


def test_series_have_one_entry_per_row_and_nan_where_a_row_has_none():
    series = metrics.Series((2,))
    series.append({"timestep": 5, "Eval/x": np.array([1.0, 2.0])})
    series.append({"timestep": 9})
    arrays = series.arrays()
    np.testing.assert_array_equal(arrays["timestep"], [[5, 9], [5, 9]])
    np.testing.assert_array_equal(arrays["Eval/x"], [[1, np.nan], [2, np.nan]])
    assert metrics.Series(()).arrays() == {}


def test_a_log_row_leaves_out_what_is_undefined_and_averages_over_seeds():
    row = {
        "timestep": 5,
        "Loss/a": np.array([1.0, 4.0]),
        "Train/episodic mean reward": np.array([np.nan, 3.0]),
        "Eval/episodic mean reward": np.array([np.nan, np.nan]),
    }
    plain = metrics.sink_row(row, seeds=[7, 8])
    assert plain == {
        "timestep": 5,
        "Loss/a": 2.5,
        "Loss/a/iqm": 2.5,
        "Loss/a/min": 1.0,
        "Loss/a/max": 4.0,
        "Loss/a (seed 7)": 1.0,
        "Loss/a (seed 8)": 4.0,
        "Train/episodic mean reward": 3.0,
        "Train/episodic mean reward/iqm": 3.0,
        "Train/episodic mean reward/min": 3.0,
        "Train/episodic mean reward/max": 3.0,
        "Train/episodic mean reward (seed 8)": 3.0,
    }
    assert isinstance(plain["timestep"], int)
    assert metrics.sink_row({"Loss/a": np.float64(2)}, seeds=None) == {"Loss/a": 2.0}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 3.0], 2.0),
        ([9.0, 2.0, 1.0, 3.0], 2.5),  # the middle two
        # Of five, 1.25 at each end are left out: 0.75·2 + 3 + 0.75·4 over 2.5.
        ([1.0, 2.0, 3.0, 4.0, 100.0], 3.0),
        ([1.0, 2.0, 3.0, 8.0, 100.0], 4.2),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(values, expected):
    assert metrics.interquartile_mean(np.array(values)) == pytest.approx(expected)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12))
def test_the_interquartile_mean_lies_between_the_quartiles_whatever_the_order(values):
    mean = metrics.interquartile_mean(np.array(values))
    assert mean == metrics.interquartile_mean(np.array(values[::-1]))
    ordered = sorted(values)
    quarter = len(values) // 4
    tolerance = 1e-9 * max(1.0, abs(mean))
    assert ordered[quarter] - tolerance <= mean <= ordered[len(values) - 1 - quarter] + tolerance


def test_a_stopped_seed_counts_up_to_its_stop_and_the_others_throughout():
    ticks = records((2,), np.random.default_rng(0))
    ticks.metrics["a"][1, 5:] = np.nan
    stopped = Health(
        tick=np.array([-1, 105]),
        update=np.array([-1, 9]),
        source=np.array([-1, 3]),
        value=np.array([0.0, np.nan]),
    )
    window = metrics.MetricWindow.empty(["a"], (2,))
    window.add(ticks, N_TICKS, stopped, start=100)
    row = window.summary()
    healthy, sick = ticks.finished[0], ticks.finished[1, :5]
    assert row["Train/n_episodes"].tolist() == [healthy.sum(), sick.sum()]
    np.testing.assert_allclose(
        row["Loss/a"],
        [
            np.average(ticks.metrics["a"][0], weights=ticks.n_updates[0]),
            np.average(ticks.metrics["a"][1, :5], weights=ticks.n_updates[1, :5]),
        ],
        rtol=1e-6,
    )
    # In a window after its stop it has nothing.
    window = metrics.MetricWindow.empty(["a"], (2,))
    window.add(ticks, N_TICKS, stopped, start=200)
    assert np.isnan(window.summary()["Loss/a"]).tolist() == [False, True]
    plain = metrics.sink_row(metrics.stopped_seeds(stopped), seeds=[7, 8])
    assert plain["Health/stopped seeds"] == 1
    assert plain["Health/stopped at update (seed 8)"] == 10
    assert "Health/stopped at update (seed 7)" not in plain


def test_a_metric_without_a_group_is_a_loss():
    assert metrics.metric_key("reward") == "Loss/reward"
    assert metrics.metric_key("Train/grad_norm") == "Train/grad_norm"
    assert metrics.metric_key("solved", "Eval") == "Eval/solved"
