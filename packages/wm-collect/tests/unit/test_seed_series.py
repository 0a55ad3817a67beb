"""Metrics of a log seed by seed, whatever columns a log has."""

import numpy as np
import pytest

from wm_collect.seed_series import metric_names, seed_series

NAN = float("nan")
ROWS = [
    {"tick": 1, "timestep": 10, "Loss/q": 2.0, "Loss/q (seed 3)": 1.0, "Loss/q (seed 12)": 3.0},
    {"tick": 2, "timestep": 20, "Loss/q": NAN, "Loss/q (seed 3)": NAN},
    {"tick": 3, "timestep": 30, "Loss/q": 5.0, "Loss/q (seed 12)": 5.0},
    {"tick": 4, "timestep": 40, "Loss/q/min": 9.0, "Loss/q2": 4.0},
]


def test_the_seeds_own_columns_are_used_where_there_are_any():
    series = seed_series(ROWS, "Loss/q")
    assert series.seeds == (3, 12)
    np.testing.assert_array_equal(series.timestep, [10, 30])
    np.testing.assert_array_equal(series.values, [[1, NAN], [3, 5]])
    np.testing.assert_array_equal(series.mean, [2, 5])
    np.testing.assert_array_equal(series.low, [1, 5])
    np.testing.assert_array_equal(series.high, [3, 5])


def test_a_log_of_one_seed_has_one_series():
    series = seed_series([{"tick": 7, "Loss/q": 1.5}], "Loss/q")
    assert series.seeds == () and series.values.tolist() == [[1.5]]
    assert series.timestep.tolist() == [7]
    assert seed_series(ROWS, "Loss/unknown").values.shape == (1, 0)


@pytest.mark.parametrize(
    ("values", "mean"),
    [([1, 2, 3], 2), ([0, 1, 2, 90], 1.5), ([-50, 0, 1, 2, 3, 4, 5, 900], 2.5)],
)
def test_the_interquartile_mean_leaves_out_the_outer_quarters(values, mean):
    row = {"tick": 1} | {f"Eval/r (seed {i})": float(v) for i, v in enumerate(values)}
    assert seed_series([row], "Eval/r").interquartile_mean == [mean]


def test_names_are_those_of_metrics_not_of_their_columns():
    assert metric_names(ROWS, "Loss/") == ["Loss/q", "Loss/q2"]
