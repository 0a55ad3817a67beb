"""What must hold for the runs to agree with the published curves: fixed before any run was made.

All functions are pure. A score of a seed is its *window mean*: the mean of the values in the last
tenth of the budget, the points x with 0.9 · budget ≤ x ≤ budget, where x and the budget are
environment frames. The same window is used for our runs and for the reference's; points without a
value are left out.

One task passes if the mean of our seeds' scores reaches the task's *bar*: the score of the
reference's lowest seed, minus 50. All tasks together pass if

- at least 80 % of the tasks are judged: their runs followed the registered protocol to its end,
  with at least as many seeds as registered;
- at least 80 % of the judged tasks pass;
- the median and the mean, over the judged tasks, of our mean score minus the reference's mean score
  are each at least −50.

Returns of all tasks lie between 0 and 1,000.

The agent that learns several tasks from data is judged against the agents that made the data
instead: see `judge_offline`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

WINDOW = Fraction(1, 10)
MARGIN = 50.0
SHARE_OF_TASKS = Fraction(4, 5)
SHARE_OF_SOURCE = 0.5


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """One judged task.

    Attributes:
        ours: mean score of our seeds.
        reference: mean score of the reference's seeds.
        bar: what our mean has to reach.
    """

    ours: float
    reference: float
    bar: float

    @property
    def difference(self) -> float:
        """Return by how much our mean exceeds the reference's."""
        return self.ours - self.reference

    @property
    def passed(self) -> bool:
        """Return whether our mean reaches the bar."""
        return self.ours >= self.bar


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the tasks say together.

    Attributes:
        passed: whether all criteria hold; None if too few tasks are judged to say.
        criteria: whether each criterion holds, by a sentence that states it with its figures.
    """

    passed: bool | None
    criteria: Mapping[str, bool]

    @property
    def word(self) -> str:
        """Return the verdict in a word or two."""
        return {True: "passed", False: "failed", None: "no verdict"}[self.passed]


def window_start(budget: int) -> int:
    """Return the first frame of the window of a budget of frames."""
    return math.ceil((1 - WINDOW) * budget)


def window_means(frames: np.ndarray, returns: np.ndarray, budget: int) -> np.ndarray:
    """Return each seed's score.

    Args:
        frames: environment frames, `[n]`.
        returns: episode returns, NaN where there is none, `[S, n]`.
        budget: environment frames of the whole run.

    Returns:
        The window means, NaN for a seed without a value in the window, `[S]` float64.
    """
    inside = (frames >= window_start(budget)) & (frames <= budget)
    values = np.asarray(returns, np.float64)[:, inside]
    counted = np.isfinite(values)
    n = counted.sum(axis=1)
    sums = np.where(counted, values, 0.0).sum(axis=1)
    return np.where(n > 0, sums / np.maximum(n, 1), np.nan)


def bar_of(reference: np.ndarray) -> float:
    """Return what our mean score has to reach on a task.

    Args:
        reference: scores of the reference's seeds, `[R]`, R at least 1.
    """
    return float(np.min(reference)) - MARGIN


def judge_task(ours: np.ndarray, reference: np.ndarray) -> TaskResult:
    """Judge one task.

    Args:
        ours: scores of our seeds, `[S]`.
        reference: scores of the reference's seeds, `[R]`.

    Raises:
        ValueError: there is no seed, or one has no score.
    """
    for whose, scores in (("our", ours), ("the reference's", reference)):
        if not np.size(scores) or not np.isfinite(scores).all():
            raise ValueError(
                f"Every one of {whose} seeds needs a score, a mean over the last tenth of the "
                f"budget; got {np.asarray(scores).tolist()}."
            )
    return TaskResult(
        ours=float(np.mean(ours)),
        reference=float(np.mean(reference)),
        bar=bar_of(reference),
    )


def judge(results: Sequence[TaskResult], n_tasks: int) -> Verdict:
    """Judge all tasks together.

    Args:
        results: those of the judged tasks.
        n_tasks: how many tasks there are.

    Raises:
        ValueError: there are more results than tasks, or no task.
    """
    enough = _enough_judged(len(results), n_tasks)
    if not results:
        return Verdict(None, enough)
    differences = [result.difference for result in results]
    median, mean = float(np.median(differences)), float(np.mean(differences))
    criteria = _enough_passed([result.passed for result in results]) | {
        f"the median over tasks of our score minus the reference's is {median:+.1f} "
        f"(at least {-MARGIN:.0f} wanted)": median >= -MARGIN,
        f"the mean over tasks of our score minus the reference's is {mean:+.1f} "
        f"(at least {-MARGIN:.0f} wanted)": mean >= -MARGIN,
    }
    return _together(enough, criteria)


@dataclasses.dataclass(frozen=True)
class OfflineResult:
    """One task of the agent that learned several tasks from data.

    Attributes:
        ours: its mean return.
        source: mean return of the agents that made the data, at the end of their training.
        random: mean return of random actions.
    """

    ours: float
    source: float
    random: float

    @property
    def judged(self) -> bool:
        """Return whether the sources learned something: half of nothing would prove nothing."""
        return self.source >= self.random + MARGIN

    @property
    def passed(self) -> bool:
        """Return whether the agent reaches half of its sources' return."""
        return self.ours >= SHARE_OF_SOURCE * self.source


def judge_offline(results: Sequence[OfflineResult], n_tasks: int) -> Verdict:
    """Judge the agent that learned several tasks from data.

    A task is judged if its source agents earn at least 50 more than random actions, and passes if
    the agent's mean return is at least half of theirs. At least 80 % of the tasks must be judged,
    and at least 80 % of the judged tasks must pass.

    Args:
        results: those of all tasks whose runs followed the registered protocol to its end.
        n_tasks: how many tasks there are.

    Raises:
        ValueError: there are more results than tasks, or no task.
    """
    judged = [result for result in results if result.judged]
    enough = _enough_judged(len(judged), n_tasks)
    if not judged:
        return Verdict(None, enough)
    return _together(enough, _enough_passed([result.passed for result in judged]))


def _enough_judged(n_judged: int, n_tasks: int) -> dict[str, bool]:
    if not 1 <= n_tasks or n_judged > n_tasks:
        raise ValueError(f"{n_judged} of {n_tasks} tasks cannot have been judged.")
    text = f"{n_judged} of {n_tasks} tasks are judged (at least 80 % wanted)"
    return {text: n_judged >= SHARE_OF_TASKS * n_tasks}


def _enough_passed(passed: Sequence[bool]) -> dict[str, bool]:
    n_passed = sum(passed)
    text = f"{n_passed} of {len(passed)} judged tasks pass (at least 80 % wanted)"
    return {text: n_passed >= SHARE_OF_TASKS * len(passed)}


def _together(enough: dict[str, bool], criteria: dict[str, bool]) -> Verdict:
    passed = all(criteria.values()) if all(enough.values()) else None
    return Verdict(passed, enough | criteria)
