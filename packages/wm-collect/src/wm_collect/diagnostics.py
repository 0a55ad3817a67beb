"""What an agent's predictions are worth on episodes it played, as plain arrays.

`Agent.diagnose` returns `Diagnostics`, `wm_collect.report` draws them. Everything here is NumPy on
the host, and each part judges itself by a simple rule: see its `verdict`.

The error over a horizon compares a model with *persistence*, which predicts for ever what was seen
last. A model that does not beat it has learned nothing about what moves.
"""

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np

from wm_collect.evaluate import Trajectory

# A realised return is only compared where at most this share of a distant reward comes after the
# time limit, where the agent's own value stands in for the rewards nobody saw.
MAX_TAIL_SHARE = 0.5
# Below this a deviation counts as none: the values are then called constant.
_CONSTANT = 1e-6


class Grade(enum.Enum):
    """How a verdict is to be taken; `UNKNOWN` where no simple rule applies."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One sentence, and how it is to be taken."""

    grade: Grade
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayedEpisode:
    """An episode of L agent steps as it happened, without padding.

    Attributes:
        obs: observations from the reset on, `[L + 1, O]`.
        reward: reward received after each action, `[L]`.
        terminated: whether the environment ended it; a time limit does not.
    """

    obs: np.ndarray
    reward: np.ndarray
    terminated: bool

    @classmethod
    def of(cls, trajectory: Trajectory) -> "PlayedEpisode":
        """Return a recorded episode without its padding."""
        length = int(trajectory.length)
        return cls(
            obs=np.asarray(trajectory.obs)[: length + 1],
            reward=np.asarray(trajectory.reward)[:length],
            terminated=bool(trajectory.terminated),
        )

    @property
    def length(self) -> int:
        """Return L."""
        return len(self.reward)

    @property
    def reward_entering(self) -> np.ndarray:
        """Return the reward received on entering each row, `[L + 1, 1]`; 0 at the reset."""
        return np.concatenate([[0.0], self.reward])[:, None]

    @property
    def went_on(self) -> np.ndarray:
        """Return whether the episode did not terminate on entering rows 1 to L, bool `[L]`."""
        return ~(self.terminated & (np.arange(1, self.length + 1) == self.length))


@dataclasses.dataclass(frozen=True, kw_only=True)
class HorizonErrors:
    """Errors of open-loop predictions, and of persistence, by the number of steps ahead.

    Attributes:
        quantity: what is predicted, for titles: "observations", "latents", "rewards".
        unit: what the errors are measured in.
        model: root mean square error 1 to K agent steps ahead, `[K]`; NaN where nothing was left
            of the episodes.
        persistence: the same of predicting what was seen last, `[K]`.
        n_predictions: starting points behind each error, `[K]` int.
        relied_on: steps that the agent looks ahead when it plans or imagines.
    """

    quantity: str
    unit: str
    model: np.ndarray
    persistence: np.ndarray
    n_predictions: np.ndarray
    relied_on: int

    @property
    def steps_beaten(self) -> int:
        """Return the number of steps ahead up to which the model beats persistence."""
        better = self.model < self.persistence
        return int(np.argmin(better)) if not better.all() else len(better)

    @property
    def verdict(self) -> Verdict:
        """Judge by how far ahead persistence is beaten, against how far the agent looks ahead."""
        n_known = int(np.sum(self.n_predictions > 0))
        if n_known == 0:
            return Verdict(Grade.UNKNOWN, f"No {self.quantity} could be predicted.")
        if np.nanmax(self.persistence) < _CONSTANT:
            worst = np.nanmax(self.model)
            return Verdict(
                Grade.UNKNOWN,
                f"The {self.quantity} never change, so persistence is right; the model errs by up "
                f"to {worst:.2g}.",
            )
        steps = min(self.steps_beaten, n_known)
        looks = f"the agent looks {self.relied_on} step(s) ahead"
        if steps == 0:
            return Verdict(
                Grade.BAD,
                f"The model's {self.quantity} are worse than persistence already 1 step ahead; "
                f"{looks}.",
            )
        if steps == n_known:
            shown = f"at all {n_known} steps ahead that were measured"
            return Verdict(
                Grade.GOOD, f"The model's {self.quantity} beat persistence {shown}; {looks}."
            )
        grade = Grade.GOOD if steps >= self.relied_on else Grade.DOUBTFUL
        return Verdict(
            grade, f"The model's {self.quantity} beat persistence up to {steps} step(s); {looks}."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardPredictions:
    """Rewards predicted one step ahead, beside the real ones, both in environment units.

    Attributes:
        predicted: `[n]`.
        real: `[n]`.
    """

    predicted: np.ndarray
    real: np.ndarray

    @property
    def error(self) -> float:
        """Return the root mean square error."""
        return float(np.sqrt(np.mean(np.square(self.predicted - self.real))))

    @property
    def explained(self) -> float:
        """Return the share of the real rewards' variance that is predicted; NaN without one."""
        spread = np.std(self.real)
        return 1 - (self.error / float(spread)) ** 2 if spread > _CONSTANT else float("nan")

    @property
    def verdict(self) -> Verdict:
        """Judge by the explained variance, or by the error where the reward is constant."""
        if np.isnan(self.explained):
            level = abs(float(np.mean(self.real)))
            grade = Grade.GOOD if self.error <= 0.05 * max(level, 1.0) else Grade.BAD
            return Verdict(
                grade,
                f"The reward was {np.mean(self.real):.3g} on every step; predictions are off by "
                f"{self.error:.2g}.",
            )
        text = (
            f"Predictions explain {percent(max(self.explained, 0.0))} of the rewards' variance "
            f"(correlation {correlation(self.predicted, self.real):.2f}, error {self.error:.3g})."
        )
        grade = _graded(self.explained, good=0.9, doubtful=0.5)
        return Verdict(grade, text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Continuations:
    """The predicted probability that an episode goes on, one step ahead, and whether it did.

    Attributes:
        probability: of not terminating on entering a row, `[n]`.
        went_on: whether it did not terminate there, bool `[n]`.
        task_terminates: whether the task can terminate at all.
    """

    probability: np.ndarray
    went_on: np.ndarray
    task_terminates: bool

    @property
    def verdict(self) -> Verdict:
        """Judge by the terminations foreseen and by the false alarms."""
        n, n_ended = len(self.went_on), int(np.sum(~self.went_on))
        alarms = self.probability < 0.5
        n_false = int(np.sum(alarms & self.went_on))
        expected = float(np.sum(1 - self.probability))
        if n_ended == 0:
            reason = (
                "No recorded episode terminated" if self.task_terminates else "The task never ends"
            )
            few = expected <= max(0.01 * n, 0.5)
            return Verdict(
                Grade.GOOD if few else Grade.DOUBTFUL,
                f"{reason}, so there is nothing to foresee; the model expected {expected:.2g} "
                f"termination(s) in {n:,} steps.",
            )
        n_foreseen = int(np.sum(alarms & ~self.went_on))
        recall, precision = n_foreseen / n_ended, n_foreseen / max(n_foreseen + n_false, 1)
        return Verdict(
            _graded(min(recall, precision), good=0.7, doubtful=0.3),
            f"The model gave {n_foreseen} of {n_ended} termination(s) a probability above one half "
            f"one step before, with {n_false} false alarm(s); it expected {expected:.1f} in {n:,} "
            "steps.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Values:
    """Discounted returns the agent expected, beside those its episodes realised.

    Attributes:
        name: whose expectation it is, for titles.
        expected: `[n]`, environment units.
        realised: `[n]`: discounted rewards up to the end of the episode, and where a time limit cut
            it, after them the agent's own value of the last observation.
        tail_share: γ to the number of steps up to that value, `[n]`: the share of a constant
            reward's return that nobody saw; 0 where the episode terminated.
    """

    name: str
    expected: np.ndarray
    realised: np.ndarray
    tail_share: np.ndarray

    @property
    def bias(self) -> float:
        """Return the mean of expected minus realised."""
        return float(np.mean(self.expected - self.realised))

    @property
    def relative_bias(self) -> float:
        """Return the bias over the mean size of the realised returns; NaN if those are 0."""
        size = float(np.mean(np.abs(self.realised)))
        return self.bias / size if size > _CONSTANT else float("nan")

    @property
    def verdict(self) -> Verdict:
        """Judge by the relative bias; the correlation and the unseen tail are told with it."""
        if len(self.expected) == 0:
            return Verdict(Grade.UNKNOWN, f"No row has both a {self.name} and a realised return.")
        # Where all returns are nearly one, a correlation would be one of noise.
        varied = np.std(self.realised) > 0.05 * np.mean(np.abs(self.realised))
        relation = correlation(self.expected, self.realised) if varied else float("nan")
        details = [] if np.isnan(relation) else [f"correlation {relation:.2f}"]
        tail = float(np.mean(self.tail_share))
        if tail > 0.005:
            details.append(f"{percent(tail)} of a steady return lies beyond the time limit")
        aside = f" ({'; '.join(details)})" if details else ""
        if np.isnan(self.relative_bias):
            grade, text = Grade.UNKNOWN, "was compared with returns of 0"
            return Verdict(grade, f"The {self.name} {text}: it is off by {self.bias:.3g}{aside}.")
        amount = abs(self.relative_bias)
        if amount <= 0.1:
            text = f"fits the realised returns within {percent(0.1)}"
        else:
            where = "high" if self.bias > 0 else "low"
            text = f"is {percent(amount)} too {where}, by {abs(self.bias):.3g} on average"
        return Verdict(
            _graded(-amount, good=-0.1, doubtful=-0.3), f"The {self.name} {text}{aside}."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """What an agent reports about a trained state; a part that it cannot tell is left out.

    Attributes:
        open_loop: errors by horizon, of each quantity the model predicts.
        rewards: rewards one step ahead.
        continuations: whether the episode goes on, one step ahead.
        values: expected against realised returns.
    """

    open_loop: tuple[HorizonErrors, ...] = ()
    rewards: RewardPredictions | None = None
    continuations: Continuations | None = None
    values: tuple[Values, ...] = ()


@dataclasses.dataclass(frozen=True)
class LogPanel:
    """Metrics of the log that are read together.

    Attributes:
        title: of the picture.
        names: the metrics' names in log rows; those a run does not have are left out.
        how_to_read: one sentence.
    """

    title: str
    names: tuple[str, ...]
    how_to_read: str


def start_rows(length: int, n_starts: int, n_ahead: int, n_before: int = 0) -> np.ndarray:
    """Return rows of an episode from which to predict, evenly spread, `[n_starts]` int.

    Where the episode is long enough, each has `n_before` rows before it and `n_ahead` after it. In
    a short episode rows repeat.

    Args:
        length: agent steps of the episode, at least 1.
        n_starts: number of rows wanted.
        n_ahead: steps to be predicted.
        n_before: rows the model should have seen before.
    """
    first = min(n_before, length - 1)
    last = max(first, length - n_ahead)
    return np.linspace(first, last, n_starts).round().astype(int)


def horizon_errors(
    quantity: str,
    unit: str,
    predicted: Sequence[np.ndarray],
    seen: Sequence[np.ndarray],
    starts: Sequence[np.ndarray],
    *,
    scale: np.ndarray,
    relied_on: int,
) -> HorizonErrors:
    """Return the errors of predictions and of persistence, by horizon, over several episodes.

    Args:
        quantity: what is predicted.
        unit: what the errors are then measured in.
        predicted: of each episode, predictions 1 to K steps after each start, `[S, K, D]`; those
            beyond the episode's last row do not count.
        seen: of each episode, what there was at its rows, `[R, D]`.
        starts: of each episode, the rows predicted from, `[S]` int.
        scale: what errors are divided by, dimension by dimension, `[D]`; dimensions whose scale is
            0 are left out.
        relied_on: steps the agent looks ahead.

    Returns:
        Root mean square errors over episodes, starts and dimensions.
    """
    used = scale > _CONSTANT if (scale > _CONSTANT).any() else np.ones(len(scale), bool)
    divisor = np.where(scale > _CONSTANT, scale, 1.0)
    model: list[np.ndarray] = []
    persistence: list[np.ndarray] = []
    valid = []
    for guess, rows, first in zip(predicted, seen, starts, strict=True):
        index = first[:, None] + 1 + np.arange(guess.shape[1])
        real = rows[np.minimum(index, len(rows) - 1)]
        for kept, prediction in ((model, guess), (persistence, rows[first][:, None])):
            kept.append(np.mean(np.square((prediction - real) / divisor)[..., used], axis=-1))
        valid.append(index < len(rows))
    counted = np.concatenate(valid)
    count = counted.sum(0)

    def root_mean(squares: list[np.ndarray]) -> np.ndarray:
        total = np.sum(np.where(counted, np.concatenate(squares), 0.0), axis=0)
        return np.where(count > 0, np.sqrt(total / np.maximum(count, 1)), np.nan)

    return HorizonErrors(
        quantity=quantity,
        unit=unit,
        model=root_mean(model),
        persistence=root_mean(persistence),
        n_predictions=count,
        relied_on=relied_on,
    )


def realised_returns(reward: np.ndarray, gamma: float, tail: float) -> np.ndarray:
    """Return the discounted returns of an episode, `[L]`: G_t = r_{t+1} + γ G_{t+1}, G_L = tail.

    Args:
        reward: reward received after each action, `[L]`.
        gamma: discount γ of an agent step.
        tail: return after the last row: 0 after a termination, else an estimate.
    """
    returns = np.empty(len(reward))
    later = tail
    for t in reversed(range(len(reward))):
        later = float(reward[t]) + gamma * later
        returns[t] = later
    return returns


def compare_values(
    name: str,
    expected: Sequence[np.ndarray],
    episodes: Sequence[PlayedEpisode],
    last_values: Sequence[float],
    *,
    gamma: float,
) -> Values:
    """Return expected and realised returns of several episodes, row by row.

    Of an episode that a time limit cut, only rows are kept whose `Values.tail_share` is at most
    `MAX_TAIL_SHARE`; where no episode has such rows, all of them are.

    Args:
        name: whose expectation it is.
        expected: of each episode, the expectations at its rows but the last, `[L]`; NaN where there
            is none.
        episodes: the episodes.
        last_values: the agent's value of each episode's last observation, which stands for what a
            time limit cut off.
        gamma: discount of an agent step.
    """
    realised, shares = [], []
    for episode, value in zip(episodes, last_values, strict=True):
        n_left = np.arange(episode.length, 0, -1)
        tail = 0.0 if episode.terminated else value
        realised.append(realised_returns(episode.reward, gamma, tail))
        shares.append(np.zeros(episode.length) if episode.terminated else gamma**n_left)
    all_expected, all_realised, all_shares = map(np.concatenate, (expected, realised, shares))
    known = np.isfinite(all_expected)
    trusted = known & (all_shares <= MAX_TAIL_SHARE)
    rows = trusted if trusted.any() else known
    return Values(
        name=name,
        expected=all_expected[rows],
        realised=all_realised[rows],
        tail_share=all_shares[rows],
    )


def calibration(
    probability: np.ndarray, happened: np.ndarray, n_bins: int = 10
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean probability, observed frequency and count of each bin that is not empty.

    Args:
        probability: predictions, `[n]`, in [0, 1].
        happened: whether it did, bool `[n]`.
        n_bins: B, bins of equal width over [0, 1].

    Returns:
        Three arrays of at most B entries, by rising probability.
    """
    index = np.minimum((probability * n_bins).astype(int), n_bins - 1)
    count = np.bincount(index, minlength=n_bins)
    filled = count > 0
    mean = np.bincount(index, probability, n_bins)[filled] / count[filled]
    frequency = np.bincount(index, happened.astype(float), n_bins)[filled] / count[filled]
    return mean, frequency, count[filled]


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation coefficient, NaN where one of the two is constant."""
    if len(a) < 2 or np.std(a) < _CONSTANT or np.std(b) < _CONSTANT:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def percent(share: float) -> str:
    """Return a share as a whole percentage, `0.123` as `12 %`."""
    return f"{100 * share:.0f} %"


def _graded(number: float, *, good: float, doubtful: float) -> Grade:
    """Grade a number of which more is better."""
    if number >= good:
        return Grade.GOOD
    return Grade.DOUBTFUL if number >= doubtful else Grade.BAD
