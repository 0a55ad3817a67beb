"""The criteria: what counts as a score, which task passes, and when all of them do."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from .validation_tools import acceptance

Result = acceptance.TaskResult
returns = st.floats(0, 1000)
scores = hnp.arrays(np.float64, st.integers(1, 6), elements=returns)
results = st.builds(Result, ours=returns, reference=returns, bar=st.floats(-50, 950))


# Scores.


def test_the_window_is_the_last_tenth_with_both_of_its_ends():
    frames = np.arange(0, 1_100_001, 100_000)
    values = np.arange(12.0)[None]
    # 900,000 and 1,000,000 belong to it; 1,100,000 is beyond the budget.
    assert acceptance.window_means(frames, values, 1_000_000).tolist() == [9.5]


def test_missing_points_are_left_out_and_a_seed_without_any_has_no_score():
    frames = np.array([80, 90, 95, 100])
    values = np.array([[5, 1, np.nan, 3], [5, np.nan, np.nan, np.nan]])
    means = acceptance.window_means(frames, values, 100)
    assert means[0] == 2 and math.isnan(means[1])


@given(
    budget=st.integers(1, 10**8),
    values=hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.just(30)), elements=returns),
    data=st.data(),
)
def test_a_score_lies_between_the_values_of_its_window_and_ignores_the_others(
    budget: int, values: np.ndarray, data: st.DataObject
):
    drawn = data.draw(st.lists(st.integers(0, 2 * budget), min_size=29, max_size=29))
    frames = np.sort([*drawn, budget])
    inside = (frames * 10 >= 9 * budget) & (frames <= budget)
    means = acceptance.window_means(frames, values, budget)
    tolerance = 1e-9 * 1000
    assert (means >= values[:, inside].min(axis=1) - tolerance).all()
    assert (means <= values[:, inside].max(axis=1) + tolerance).all()
    elsewhere = np.where(inside, values, -1e6)
    np.testing.assert_array_equal(acceptance.window_means(frames, elsewhere, budget), means)


# One task.


def test_the_bar_is_fifty_below_the_lowest_seed():
    reference = np.array([600.0, 400.0, 800.0])
    assert acceptance.judge_task(np.array([340.0, 360.0]), reference) == Result(350, 600, 350)
    assert acceptance.judge_task(np.array([350.0]), reference).passed
    assert not acceptance.judge_task(np.array([349.9]), reference).passed


@given(scores)
def test_the_reference_passes_its_own_bar(reference: np.ndarray):
    result = acceptance.judge_task(reference, reference)
    assert result.passed and result.difference == 0


@given(scores, scores, st.floats(0, 500))
def test_higher_returns_never_fail_what_lower_ones_pass(ours, reference, more: float):
    lower = acceptance.judge_task(ours, reference)
    higher = acceptance.judge_task(ours + more, reference)
    assert higher.passed >= lower.passed and higher.bar == lower.bar


@pytest.mark.parametrize("wrong", [np.array([]), np.array([1.0, np.nan])])
def test_a_task_without_every_score_is_not_judged_by_accident(wrong: np.ndarray):
    with pytest.raises(ValueError, match="Every one of our seeds needs a score"):
        acceptance.judge_task(wrong, np.array([1.0]))
    with pytest.raises(ValueError, match="Every one of the reference's seeds needs a score"):
        acceptance.judge_task(np.array([1.0]), wrong)


# All tasks.


def test_eight_of_ten_is_enough_and_seven_is_not():
    good, bad = Result(500, 500, 450), Result(440, 480, 450)
    assert acceptance.judge([good] * 8, 10).passed is True
    assert acceptance.judge([good] * 7, 10).passed is None
    assert acceptance.judge([good] * 8 + [bad] * 2, 10).passed is True
    assert acceptance.judge([good] * 7 + [bad] * 3, 10).passed is False


def test_the_mean_and_the_median_each_have_to_be_within_fifty():
    # All of them pass their bars.
    near, far, lost = Result(500, 500, 0), Result(440, 500, 0), Result(0, 1000, 0)
    verdict = acceptance.judge([near] * 3 + [far] * 4, 7)
    assert list(verdict.criteria.values()) == [True, True, False, True]
    verdict = acceptance.judge([near] * 6 + [lost], 7)
    assert list(verdict.criteria.values()) == [True, True, True, False]
    assert verdict.passed is False and verdict.word == "failed"


@given(st.lists(results, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_the_tasks_does_not_matter(found, random):
    shuffled = random.sample(found, len(found))
    verdict, other = acceptance.judge(found, len(found)), acceptance.judge(shuffled, len(found))
    # Sums in another order may differ by rounding, and then only exactly at the edge.
    differences = [result.difference for result in found]
    edges = (float(np.mean(differences)), float(np.median(differences)))
    if all(abs(edge + 50) > 1e-6 for edge in edges):
        assert verdict.passed == other.passed


@given(st.lists(results, max_size=12), st.integers(0, 5))
def test_there_is_no_verdict_unless_four_of_five_tasks_are_judged(found, n_unjudged: int):
    n_tasks = len(found) + n_unjudged
    if n_tasks:
        verdict = acceptance.judge(found, n_tasks)
        assert (verdict.passed is None) == (5 * len(found) < 4 * n_tasks)


def test_impossible_counts_are_refused():
    for found, n_tasks in (([], 0), ([Result(1, 1, 1)] * 2, 1)):
        with pytest.raises(ValueError, match="tasks cannot have been judged"):
            acceptance.judge(found, n_tasks)


# The agent that learns from data.

Offline = acceptance.OfflineResult


def test_half_of_what_the_sources_earn_is_enough():
    assert Offline(ours=200, source=400, random=10).passed
    assert not Offline(ours=199.9, source=400, random=10).passed


def test_a_task_whose_sources_learned_nothing_is_not_judged():
    learned, idle = Offline(300, 400, 10), Offline(50, 59, 10)
    assert not idle.judged and Offline(50, 60, 10).judged
    assert acceptance.judge_offline([learned] * 4 + [idle], 5).passed is True
    assert acceptance.judge_offline([learned] * 3 + [idle] * 2, 5).passed is None
    assert acceptance.judge_offline([idle] * 5, 5).word == "no verdict"


def test_four_of_five_judged_tasks_have_to_pass():
    good, bad = Offline(300, 400, 0), Offline(100, 400, 0)
    assert acceptance.judge_offline([good] * 4 + [bad], 5).passed is True
    assert acceptance.judge_offline([good] * 3 + [bad] * 2, 5).passed is False
