"""From the agent's actions to the environment's.

An agent acts in *agent units*: every continuous action dimension lies in [-1, 1], and a discrete
action is the index of a choice. An environment has its own bounds. The two spaces below describe
an environment's actions, and `ContinuousActions.from_agent` and `DiscreteActions.from_agent` turn
what the agent chose into what the environment expects. Replay always stores the agent's action.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

# Libraries write "no bound" either as infinity or as the largest float32.
_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class DiscreteActions:
    """A choice among `n` alternatives.

    Attributes:
        n: number of choices; an action is an int32 index in 0 to n - 1.
    """

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(
                f"A discrete action needs at least one choice, but {self.n} was given."
            )

    def zero(self) -> jax.Array:
        """Return the first choice, int32 `[]`."""
        return jnp.zeros((), jnp.int32)

    def from_agent(self, action: jax.Array) -> jax.Array:
        """Return the index as a scalar int32, kept inside the choices.

        Args:
            action: index of the choice, integer `[]`. An index outside 0 to n - 1 becomes the
                nearest one, so that no environment ever sees an action it does not have.

        Returns:
            The index, int32 `[]`.

        Raises:
            ValueError: the action is not a single integer.
        """
        if jnp.shape(action) != () or not jnp.issubdtype(jnp.result_type(action), jnp.integer):
            raise ValueError(
                f"A discrete action is one integer index of shape (), but an array of shape "
                f"{jnp.shape(action)} and type {jnp.result_type(action)} was given; pass the "
                f"index of the choice, and vmap over environments outside."
            )
        return jnp.clip(jnp.asarray(action, jnp.int32), 0, self.n - 1)


@dataclasses.dataclass(frozen=True)
class ContinuousActions:
    """A vector of real numbers, each dimension with its own bounds.

    Attributes:
        low: lower bound of each dimension, `[A]`, in environment units; -inf where unbounded.
        high: upper bound of each dimension, `[A]`, in environment units; inf where unbounded.
        shape: shape of the array the environment expects; its size is A.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]

    @classmethod
    def from_box(
        cls, low: ArrayLike, high: ArrayLike, shape: tuple[int, ...]
    ) -> "ContinuousActions":
        """Return the action space of a box whose bounds broadcast to `shape`.

        Args:
            low: lower bounds, a number or an array, in environment units. Infinite values, and
                the largest float32, mean "no bound".
            high: upper bounds, likewise.
            shape: shape of one action in the environment.

        Returns:
            The space, with one pair of bounds per dimension.

        Raises:
            ValueError: a bound is NaN, a lower bound lies above its upper one, or a dimension
                with one bound only does not contain [-1, 1].
        """
        lows = np.broadcast_to(np.asarray(low, np.float64), shape).reshape(-1)
        highs = np.broadcast_to(np.asarray(high, np.float64), shape).reshape(-1)
        lows = np.where(lows <= -_LARGEST, -math.inf, lows)
        highs = np.where(highs >= _LARGEST, math.inf, highs)
        for dimension, (a, b) in enumerate(zip(lows, highs, strict=True)):
            if not a <= b:
                raise ValueError(
                    f"Action dimension {dimension} has the bounds [{a}, {b}]; a lower bound must "
                    f"not be NaN and must not lie above its upper bound. Correct the "
                    f"environment's action space."
                )
            half_open = math.isinf(a) != math.isinf(b)
            if half_open and not (a <= -1.0 and b >= 1.0):
                raise ValueError(
                    f"Action dimension {dimension} has the bounds [{a}, {b}]: with one bound only "
                    f"the agent's range [-1, 1] is passed on as it is, and it does not fit. Give "
                    f"the environment's action space a finite bound on both sides."
                )
        return cls(tuple(map(float, lows)), tuple(map(float, highs)), tuple(shape))

    @property
    def size(self) -> int:
        """Number of dimensions A."""
        return len(self.low)

    def zero(self) -> jax.Array:
        """Return the centre of the agent's range, float32 `[A]`."""
        return jnp.zeros((self.size,), jnp.float32)

    def from_agent(self, action: jax.Array) -> jax.Array:
        """Return the environment's action for an action in agent units.

        a_env = c + h · clip(a, -1, 1) in every dimension with two finite bounds, with the centre
        c = (high + low) / 2 and the half-range h = (high - low) / 2; a_env = clip(a, -1, 1) in
        every other. On a [-1, 1] box this is exactly the clip. NaN stays NaN: it shows in the
        observation and the reward instead of becoming an action nobody chose.

        Args:
            action: the agent's action, float `[A]`, in agent units.

        Returns:
            The action in environment units, float32, of the environment's `shape`, never outside
            its bounds.

        Raises:
            ValueError: the action does not have shape `[A]`.

        Source:
            danijar/dreamerv3@2411f7d, embodied/core/wrappers.py, `NormalizeAction` and
            `ClipAction`; nicklashansen/tdmpc2@b67b21c, envs/dmcontrol.py, `action_scale`.
        """
        if jnp.shape(action) != (self.size,):
            raise ValueError(
                f"A continuous action of this environment has the shape ({self.size},), but "
                f"{jnp.shape(action)} was given; pass one action, and vmap over environments "
                f"outside."
            )
        low = np.asarray(self.low)
        high = np.asarray(self.high)
        bounded = np.isfinite(low) & np.isfinite(high)
        centre = np.where(bounded, (np.where(bounded, high, 0) + np.where(bounded, low, 0)) / 2, 0)
        half_range = np.where(
            bounded, (np.where(bounded, high, 1) - np.where(bounded, low, -1)) / 2, 1
        )
        unit = jnp.clip(jnp.asarray(action, jnp.float32), -1.0, 1.0)
        mapped = jnp.asarray(centre, jnp.float32) + jnp.asarray(half_range, jnp.float32) * unit
        # Rounding c + h can leave the box by one unit in the last place.
        inside = jnp.clip(mapped, jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32))
        return inside.reshape(self.shape)


ActionSpace = DiscreteActions | ContinuousActions
