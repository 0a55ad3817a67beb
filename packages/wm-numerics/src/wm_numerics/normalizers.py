"""Percentile-based normalisers of returns and values.

One percentile function and two exponential moving averages built on it: DreamerV3's return
normaliser and TD-MPC2's running scale. Both are described by a frozen dataclass and carry a small
`NamedTuple`. Both are *updated first and read afterwards*, and let no gradient through.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike


def percentile(x: jax.Array, q: float | Sequence[float]) -> jax.Array:
    """Return percentiles over all elements of an array, linearly interpolated.

    With s the sorted elements and i = q/100·(n − 1): s[⌊i⌋]·(1 − frac i) + s[⌊i⌋ + 1]·frac i.

    Args:
        x: any shape with at least one element, floating.
        q: one percentile or several, in [0, 100]; Python numbers, because the positions are worked
            out on the host in float64.

    Returns:
        `[]` for one percentile, `[len(q)]` for several, in the units and dtype of `x`. NaN if any
        element is NaN.

    Raises:
        ValueError: `x` is empty or not floating, or a percentile lies outside [0, 100].

    Source:
        `jnp.percentile(x, q, method="linear")`, which danijar/dreamerv3@2411f7d uses;
        nicklashansen/tdmpc2@b67b21c, tdmpc2/common/scale.py, `RunningScale._percentile`.
    """
    qs = np.atleast_1d(np.asarray(q, np.float64))
    if not np.all((qs >= 0) & (qs <= 100)):
        raise ValueError(f"q must lie in [0, 100], got {q}.")
    if x.size == 0:
        raise ValueError(f"x must have at least one element, got shape {x.shape}.")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x must be floating, got {x.dtype}; convert it with x.astype('float32').")
    ordered = jnp.sort(x.reshape(-1))
    position = qs / 100 * (x.size - 1)
    below = np.floor(position).astype(np.int32)
    above = np.minimum(below + 1, x.size - 1)
    fraction = position - below
    low_weight, high_weight = (w.astype(x.dtype) for w in (1 - fraction, fraction))
    low = jnp.take(ordered, below)
    value = low * low_weight + jnp.take(ordered, above) * high_weight
    # On an exact position the neighbour must not count: 0·inf would be NaN.
    value = jnp.where(fraction > 0, value, low)
    # Sorting moves NaN to the end, where the percentiles would not see it.
    value = jnp.where(jnp.isnan(ordered[-1]), jnp.full_like(value, jnp.nan), value)
    return value if np.ndim(q) else value[0]


class ReturnNormalizerState(NamedTuple):
    """Moving averages of `ReturnNormalizer`.

    Attributes:
        low: EMA of the low percentile, `[]` float32, return units.
        high: EMA of the high percentile, `[]` float32, return units.
    """

    low: jax.Array
    high: jax.Array


@dataclasses.dataclass(frozen=True)
class ReturnNormalizer:
    """DreamerV3's return normaliser ("retnorm"): the range between two percentiles, averaged.

    low ← (1 − rate)·low + rate·percentile(x, 5), likewise high with 95; then
    scale = max(limit, high − low) and offset = low. Both averages start at 0 and are not debiased.
    Call `update` first, then read.

    Attributes:
        rate: weight of the new percentile in the moving average, in (0, 1].
        limit: smallest scale, in return units, above 0.
        low_percentile: in [0, 100].
        high_percentile: in [0, 100], above `low_percentile`.

    Raises:
        ValueError: a field is outside the ranges above.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/jaxutils.py, `Moments` ("perc"). Deviations: none.
    """

    rate: float = 0.01
    limit: float = 1.0
    low_percentile: float = 5.0
    high_percentile: float = 95.0

    def __post_init__(self) -> None:
        _check_rate("rate", self.rate)
        if not self.limit > 0:
            raise ValueError(f"limit must be above 0, got {self.limit}.")
        _check_percentiles(self.low_percentile, self.high_percentile)

    def init(self) -> ReturnNormalizerState:
        """Return the state of a new run: both averages 0."""
        return ReturnNormalizerState(low=jnp.zeros(()), high=jnp.zeros(()))

    def update(self, state: ReturnNormalizerState, x: jax.Array) -> ReturnNormalizerState:
        """Return the state after one batch of returns.

        Args:
            state: the state before.
            x: returns, any shape with at least one element; every element counts equally.
        """
        low, high = percentile(
            jax.lax.stop_gradient(x), (self.low_percentile, self.high_percentile)
        )
        return ReturnNormalizerState(
            low=_moving_average(state.low, low, self.rate),
            high=_moving_average(state.high, high, self.rate),
        )

    def scale(self, state: ReturnNormalizerState) -> jax.Array:
        """Return what to divide advantages by, `[]`: max(limit, high − low), return units."""
        return jnp.maximum(jnp.asarray(self.limit, state.low.dtype), state.high - state.low)

    def offset(self, state: ReturnNormalizerState) -> jax.Array:
        """Return the low end of the range, `[]`, return units (DreamerV3's loss ignores it)."""
        return state.low


class RunningScaleState(NamedTuple):
    """State of `RunningScale`.

    Attributes:
        scale: S, `[]` float32, at least 1, in the units of the values.
    """

    scale: jax.Array


@dataclasses.dataclass(frozen=True)
class RunningScale:
    """TD-MPC2's scale of the policy loss: an averaged percentile range that never falls below 1.

    v = max(1, percentile(x, 95) − percentile(x, 5)); S ← (1 − tau)·S + tau·v, from S = 1. Update
    before dividing by S. It is a scale only: nothing is subtracted.

    Attributes:
        tau: weight of the new range in the moving average, in (0, 1].

    Raises:
        ValueError: `tau` is outside (0, 1].

    Source:
        nicklashansen/tdmpc2@b67b21c, tdmpc2/common/scale.py, `RunningScale`. Deviations: T25 (the
        average is written (1 − tau)·S + tau·v instead of a lerp; rounding only).
    """

    tau: float = 0.01

    def __post_init__(self) -> None:
        _check_rate("tau", self.tau)

    def init(self) -> RunningScaleState:
        """Return the state of a new run: S = 1."""
        return RunningScaleState(scale=jnp.ones(()))

    def update(self, state: RunningScaleState, x: jax.Array) -> RunningScaleState:
        """Return the state after one batch of values.

        Args:
            state: the state before.
            x: values of the first planning step, any shape with at least one element.
        """
        low, high = percentile(jax.lax.stop_gradient(x), (5.0, 95.0))
        spread = jnp.maximum(jnp.ones_like(high), high - low)
        return RunningScaleState(scale=_moving_average(state.scale, spread, self.tau))


def _moving_average(old: jax.Array, new: ArrayLike, rate: float) -> jax.Array:
    return (1 - rate) * old + rate * jnp.asarray(new, old.dtype)


def _check_rate(name: str, rate: float) -> None:
    if not 0 < rate <= 1:
        raise ValueError(
            f"{name} is the weight of the new value and must lie in (0, 1], got {rate}."
        )


def _check_percentiles(low: float, high: float) -> None:
    if not 0 <= low < high <= 100:
        raise ValueError(
            "low_percentile and high_percentile must satisfy 0 <= low < high <= 100, got "
            f"{low} and {high}."
        )
