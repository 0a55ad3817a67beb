"""When to learn and how often: closed forms of the absolute tick.

The clock of the reference counts *transitions*, which are rows, one environment after the other
within a tick. With E environments and items of L = batch_length + 1 rows, the first B items exist
from transition t0 = (L − 1) E + B on (counted from 1). One update is made there, and after
transition t, with r = train_ratio / (batch_size · batch_length) updates per row,

    U(t) = 1 + ⌊(t − t0) r⌋ for t ≥ t0, else 0

updates have been made. Here the updates of a tick's transitions are made together, after all of its
rows were stored.

Source: danijar/dreamerv3@2411f7d, embodied/run/train.py, `train_step`; embodied/core/when.py,
`Ratio`; embodied/replay/replay.py, `Replay.add`. Deviations: D26, D31.
"""

import dataclasses
import numbers
from fractions import Fraction
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from wm_dreamer.config import DreamerV3Settings

Tick = TypeVar("Tick", int, jax.Array)

INT32_MAX = int(np.iinfo(np.int32).max)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The schedule of one run; every method is static arithmetic.

    Ticks are Python integers, for which every count is exact, or traced int32, for which counts
    are exact modulo 2³². So the updates of one tick, a difference of two counts, are exact at
    every tick, also where the counts themselves have passed 2³¹.

    Attributes:
        n_envs: environments in lockstep, E.
        batch_size: sequences per update, B.
        batch_length: trained rows per sequence, L − 1.
        train_ratio: trained rows per collected row. An integer or a `Fraction` is exact; a float
            is the decimal number it is printed as, 0.1 is 1/10.

    Raises:
        ValueError: the numbers of environments or rows are so large, or the train ratio has so
            many digits, that the arithmetic would leave 32 bits.
    """

    n_envs: int
    batch_size: int
    batch_length: int
    train_ratio: float

    def __post_init__(self) -> None:
        p, q = self.updates_per_row.as_integer_ratio()
        largest = max(self.n_envs * (q - 1), (q - 1) * p, self.n_envs * p, q, self.first_transition)
        if largest > INT32_MAX:
            raise ValueError(
                f"train_ratio={self.train_ratio} with {self.n_envs} environment(s) and batches of "
                f"{self.batch_size} x {self.batch_length} rows makes {p}/{q} updates per row, too "
                "many digits for counting in 32 bits; use a train_ratio with fewer digits (a whole "
                "number, if it can be), or smaller batches."
            )

    @classmethod
    def of(cls, config: DreamerV3Settings) -> "Schedule":
        """Return the schedule of a configuration (nothing in it depends on the task)."""
        return cls(
            n_envs=config.n_envs,
            batch_size=config.batch_size,
            batch_length=config.batch_length,
            train_ratio=config.train_ratio,
        )

    @property
    def updates_per_row(self) -> Fraction:
        """Updates per collected row once learning has begun, r."""
        ratio = self.train_ratio
        # Fraction(0.1) would be the binary float next to 1/10, with a denominator of 2^55.
        exact = ratio if isinstance(ratio, numbers.Rational) else str(float(ratio))
        return Fraction(exact) / (self.batch_size * self.batch_length)

    @property
    def first_transition(self) -> int:
        """The transition of the first update, t0, counted from 1."""
        return self.batch_length * self.n_envs + self.batch_size

    @property
    def first_update_tick(self) -> int:
        """The tick with transition t0, whose updates are the first."""
        return -(-self.first_transition // self.n_envs) - 1

    def rows_before(self, tick: Tick) -> Tick:
        """Return the rows, over all environments, collected before `tick`."""
        return self.n_envs * tick

    def updates_before(self, tick: Tick) -> Tick:
        """Return the updates made before `tick`.

        Args:
            tick: absolute tick, a Python integer or int32 of any shape.

        Returns:
            U(E · tick): a Python integer, or int32 of the shape of `tick`, modulo 2³².
        """
        p, q = self.updates_per_row.as_integer_ratio()
        # With tick = a q + b and x = E b − t0, (E tick − t0) p / q = E p a + x p / q. Neither x nor
        # (x mod q) p leaves 32 bits; the other products may wrap, as the count itself does.
        x = self.n_envs * (tick % q) - self.first_transition
        since_first = self.n_envs * p * (tick // q) + (x // q) * p + (x % q) * p // q
        if isinstance(tick, int):
            return 1 + since_first if tick > self.first_update_tick else 0
        return jnp.where(tick > self.first_update_tick, 1 + since_first, 0)
