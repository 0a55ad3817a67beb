"""Diagnostics against cases worked out by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.diagnostics import (
    Continuations,
    Grade,
    HorizonErrors,
    PlayedEpisode,
    RewardPredictions,
    Values,
    calibration,
    compare_values,
    horizon_errors,
    realised_returns,
    start_rows,
)
from wm_collect.evaluate import Trajectory


def episode(rewards, terminated=False):
    """An episode whose observation at row k is `[k, 7]`."""
    rows = np.arange(len(rewards) + 1.0)
    return PlayedEpisode(
        obs=np.stack([rows, np.full(len(rows), 7.0)], axis=-1),
        reward=np.asarray(rewards, float),
        terminated=terminated,
    )


def counter_errors(lengths, starts, offset=0.0, n_ahead=4, scale=(2.0, 0.0)):
    """Errors of a model that predicts a counter, `offset` too high."""
    seen = [episode(np.zeros(n)).obs for n in lengths]
    starts = [np.asarray(rows) for rows in starts]
    ahead = 1 + np.arange(n_ahead)
    predicted = [
        np.stack([rows[:, None] + ahead + offset, np.full((len(rows), n_ahead), 5.0)], axis=-1)
        for rows in starts
    ]
    return horizon_errors(
        "counts", "twos", predicted, seen, starts, scale=np.asarray(scale), relied_on=2
    )


def test_a_recorded_episode_loses_its_padding():
    trajectory = Trajectory(
        env_state=None,
        obs=jnp.arange(10.0).reshape(5, 2),
        action=jnp.zeros((4, 1)),
        reward=jnp.array([1.0, 2.0, 9.0, 9.0]),
        length=jnp.int32(2),
        terminated=jnp.bool_(True),
    )
    played = PlayedEpisode.of(trajectory)
    np.testing.assert_array_equal(played.obs, [[0, 1], [2, 3], [4, 5]])
    np.testing.assert_array_equal(played.reward_entering, [[0], [1], [2]])
    np.testing.assert_array_equal(played.went_on, [True, False])
    assert dataclasses.replace(played, terminated=False).went_on.all()


def test_a_perfect_model_has_no_error_and_persistence_grows_with_the_horizon():
    errors = counter_errors([10], [[0, 3, 5]])
    np.testing.assert_array_equal(errors.model, np.zeros(4))
    # k steps ahead a counter has moved by k; the constant dimension is left out.
    np.testing.assert_allclose(errors.persistence, np.arange(1, 5) / 2)
    np.testing.assert_array_equal(errors.n_predictions, [3, 3, 3, 3])


def test_predictions_beyond_the_end_of_an_episode_do_not_count():
    errors = counter_errors([3, 2], [[0, 2], [1]], offset=6.0)
    np.testing.assert_array_equal(errors.n_predictions, [3, 1, 1, 0])
    np.testing.assert_allclose(errors.model, [3, 3, 3, np.nan])
    np.testing.assert_allclose(errors.persistence, [0.5, 1, 1.5, np.nan])


@pytest.mark.parametrize(
    ("model", "grade", "sentence"),
    [
        ([0.5, 0.5, 0.5], Grade.GOOD, "at all 3 steps ahead"),
        ([0.5, 0.5, 1.5], Grade.GOOD, "up to 2 step(s); the agent looks 2"),
        ([0.5, 1.5, 0.5], Grade.DOUBTFUL, "up to 1 step(s)"),
        ([1.5, 0.5, 0.5], Grade.BAD, "worse than persistence already 1 step ahead"),
        ([0.5, 0.5, np.nan], Grade.GOOD, "at all 2 steps ahead"),
    ],
)
def test_the_verdict_says_how_far_persistence_is_beaten(model, grade, sentence):
    known = np.isfinite(model)
    errors = HorizonErrors(
        quantity="latents",
        unit="units",
        model=np.array(model),
        persistence=np.where(known, 1.0, np.nan),
        n_predictions=known.astype(int),
        relied_on=2,
    )
    assert errors.verdict.grade == grade and sentence in errors.verdict.text


def test_where_nothing_moves_persistence_cannot_be_beaten():
    seen, starts = [np.ones((4, 1))], [np.array([0])]
    errors = horizon_errors(
        "rewards", "units", [np.full((1, 2, 1), 1.5)], seen, starts, scale=np.zeros(1), relied_on=1
    )
    np.testing.assert_array_equal(errors.model, [0.5, 0.5])
    assert errors.verdict.grade == Grade.UNKNOWN and "never change" in errors.verdict.text


def test_starting_rows_leave_room_before_and_after_where_there_is_room():
    rows = start_rows(100, 5, n_ahead=10, n_before=4)
    assert rows[0] == 4 and rows[-1] == 90 and len(set(rows)) == 5
    for length in (1, 2, 5):
        rows = start_rows(length, 5, n_ahead=10, n_before=4)
        assert len(rows) == 5 and rows.min() >= 0 and rows.max() < length


def test_realised_returns_are_discounted_sums():
    rewards, gamma = np.array([1.0, -2.0, 3.0]), 0.5
    expected = [
        sum(gamma**k * r for k, r in enumerate([*rewards[t:], 8.0])) for t in range(len(rewards))
    ]
    np.testing.assert_allclose(realised_returns(rewards, gamma, tail=8.0), expected)


def test_values_are_compared_with_what_came_after_the_row():
    """A reward of 1 for ever is worth 10 at γ = 0.9; 4 steps before its end a limit leaves 0.66."""
    cut, ended = episode(np.ones(12)), episode(np.ones(2), terminated=True)
    values = compare_values(
        "value", [np.full(12, 14.0), np.array([np.nan, 1.0])], [cut, ended], [10.0, 99.0], gamma=0.9
    )
    # Rows 0 to 5 of the first episode have at least 7 steps left: 0.9**7 < 1/2 < 0.9**6.
    np.testing.assert_allclose(values.realised, [10.0] * 6 + [1.0])
    np.testing.assert_allclose(values.tail_share, [*(0.9 ** np.arange(12, 6, -1)), 0.0])
    np.testing.assert_allclose(values.expected, [14.0] * 6 + [1.0])


def test_in_short_episodes_every_row_is_compared():
    values = compare_values("value", [np.full(3, 1.0)], [episode(np.ones(3))], [10.0], gamma=0.9)
    np.testing.assert_allclose(values.realised, [10.0] * 3)


@pytest.mark.parametrize(
    ("factor", "grade", "words"),
    [
        (1.05, Grade.GOOD, "fits the realised returns within 10 %"),
        (1.2, Grade.DOUBTFUL, "20 % too low"),
        (0.6, Grade.BAD, "40 % too high"),
    ],
)
def test_the_verdict_on_values_states_their_bias(factor, grade, words):
    """Returns are costs here, so that a larger size is a lower value."""
    realised = -np.arange(1.0, 9.0)
    values = Values(
        name="value", expected=factor * realised, realised=realised, tail_share=np.zeros(8)
    )
    assert values.verdict.grade == grade and words in values.verdict.text
    assert "correlation 1.00" in values.verdict.text
    assert "beyond the time limit" not in values.verdict.text


def test_rewards_are_judged_by_the_variance_they_explain():
    real = np.array([1.0, -1.0, 1.0, -1.0])
    half = RewardPredictions(predicted=0.5 * real, real=real)
    assert half.error == 0.5 and half.explained == pytest.approx(0.75)
    assert half.verdict.grade == Grade.DOUBTFUL and "75 %" in half.verdict.text
    constant = RewardPredictions(predicted=np.full(4, 1.01), real=np.ones(4))
    assert np.isnan(constant.explained) and constant.verdict.grade == Grade.GOOD
    assert "was 1 on every step" in constant.verdict.text


def test_calibration_counts_each_bin():
    mean, frequency, count = calibration(
        np.array([0.0, 0.1, 0.3, 0.9, 1.0]), np.array([False, True, True, True, False]), n_bins=4
    )
    np.testing.assert_allclose(mean, [0.05, 0.3, 0.95])
    np.testing.assert_allclose(frequency, [0.5, 1.0, 0.5])
    np.testing.assert_array_equal(count, [2, 1, 2])


def test_terminations_foreseen_missed_and_imagined_are_told_apart():
    ends = Continuations(
        probability=np.array([0.9, 0.2, 0.3, 0.8]),
        went_on=np.array([True, True, False, False]),
        task_terminates=True,
    )
    assert ends.verdict.grade == Grade.DOUBTFUL
    assert "1 of 2 termination(s)" in ends.verdict.text and "1 false alarm(s)" in ends.verdict.text


@pytest.mark.parametrize(("terminates", "words"), [(False, "never ends"), (True, "No recorded")])
def test_without_a_termination_it_says_so(terminates, words):
    steps = np.ones(4, bool)
    ends = Continuations(probability=np.ones(4), went_on=steps, task_terminates=terminates)
    assert words in ends.verdict.text and ends.verdict.grade == Grade.GOOD
    afraid = Continuations(probability=np.full(4, 0.4), went_on=steps, task_terminates=terminates)
    assert afraid.verdict.grade == Grade.DOUBTFUL
