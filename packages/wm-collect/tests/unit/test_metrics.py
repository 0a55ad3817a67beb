"""Means over windows, series and rows for the log files."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_collect import metrics
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
        "Train/episodic mean reward": 3.0,
        "Train/episodic mean reward (seed 8)": 3.0,
    }
    assert isinstance(plain["timestep"], int)
    assert metrics.sink_row({"Loss/a": np.float64(2)}, seeds=None) == {"Loss/a": 2.0}


def test_a_metric_without_a_group_is_a_loss():
    assert metrics.metric_key("reward") == "Loss/reward"
    assert metrics.metric_key("Train/grad_norm") == "Train/grad_norm"
    assert metrics.metric_key("solved", "Eval") == "Eval/solved"
