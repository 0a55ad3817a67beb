"""The clock of a run: from absolute ticks to what users count, and to the moments for logging.

Users ask for a log row every 1,000 env steps; the loop counts ticks. Every such moment is a
function of the absolute tick alone, so a resumed run logs, evaluates and saves exactly where the
uninterrupted run would have.
"""

import bisect
import dataclasses
from collections.abc import Callable

_ENDLESS = 2**48


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clock:
    """What `n_timesteps` counts, and the papers' x-axis, as functions of the number of ticks.

    Attributes:
        timestep: `timestep(tick)`: what has been counted when `tick` ticks are done; 0 at 0,
            non-decreasing, and growing without end. Rows for DreamerV3, env steps for TD-MPC2,
            whose held ticks count nothing.
        env_frames: `env_frames(tick)`: the same moment on the papers' x-axis.
        unit: what a timestep is, in the plural, for messages.
    """

    timestep: Callable[[int], int]
    env_frames: Callable[[int], int]
    unit: str = "env steps"

    def first_tick_at(self, timestep: int) -> int:
        """Return the smallest number of ticks after which at least `timestep` is counted."""
        return self._search(timestep, bisect.bisect_left)

    def last_tick_at(self, timestep: int) -> int:
        """Return the largest number of ticks after which at most `timestep` is counted."""
        return self._search(timestep, bisect.bisect_right) - 1

    def next_multiple(self, tick: int, every: int) -> int:
        """Return the first tick after `tick` at which a multiple of `every` is completed.

        Multiple k is completed at the first tick that counts `k · every` or more, and at once
        moved past the ticks that count nothing: an episode that ends with that timestep is then
        recorded before the log row is written. The result depends on `tick` only through "after".

        Args:
            tick: ticks done, 0 or more.
            every: period in timesteps, at least 1.
        """
        passed = self.timestep(tick) // every
        if passed > 0 and self.completed_at(passed * every) > tick:
            return self.completed_at(passed * every)
        return self.completed_at((passed + 1) * every)

    def completed_at(self, timestep: int) -> int:
        """Return the ticks after which `timestep` is counted and its rows are recorded.

        This is where a run of so many timesteps ends: at the first tick that counts them, or after
        the ticks behind it that count nothing.
        """
        return self.last_tick_at(self.timestep(self.first_tick_at(timestep)))

    def _search(self, timestep: int, find: Callable[..., int]) -> int:
        beyond = 1
        while self.timestep(beyond) <= timestep:
            beyond *= 2
            if beyond > _ENDLESS:
                raise ValueError(
                    f"the clock never counts more than {timestep} {self.unit}: its timestep must "
                    "grow without end."
                )
        return find(range(beyond + 1), timestep, key=self.timestep)
