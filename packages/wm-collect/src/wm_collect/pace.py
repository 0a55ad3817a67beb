"""How long the next chunk may be, so that a run stays responsive and still works in long strides.

Between chunks the host shows progress and answers Ctrl-C, so a chunk should take one to two
seconds, whatever the machine. The length starts at one tick and grows with what was measured.
Ticks that make updates, above all the burst of hundreds that ends a seed phase, cost far more
than ticks that do not; both costs are therefore kept apart.
"""

from collections.abc import Callable
from typing import Any

_GROWTH = 4


class Pace:
    """Chooses chunk lengths from the measured seconds per tick and per update."""

    def __init__(
        self,
        updates_before: Callable[[int], Any],
        *,
        target_seconds: float,
        max_chunk_ticks: int,
    ) -> None:
        """Start with chunks of one tick.

        Args:
            updates_before: updates made before a tick, in closed form.
            target_seconds: how long a chunk should take.
            max_chunk_ticks: the longest chunk the compiled program serves.
        """
        self._updates_before = updates_before
        self._target = target_seconds
        self._max_ticks = max_chunk_ticks
        self._ticks = 0
        self._tick_seconds: float | None = None
        self._update_seconds: float | None = None

    def n_updates(self, start: int, stop: int) -> int:
        """Return the updates made at the ticks `start` to `stop − 1`."""
        return int(self._updates_before(stop)) - int(self._updates_before(start))

    def next_stop(self, start: int, limit: int) -> int:
        """Return where the chunk that starts at `start` should end, at most at `limit`."""
        self._ticks = min(max(1, self._ticks * _GROWTH), self._max_ticks)
        while self._ticks > 1 and not self._affordable(start, start + self._ticks):
            self._ticks //= 2
        return min(start + self._ticks, limit)

    def measured(self, start: int, stop: int, seconds: float) -> None:
        """Record how long a chunk took."""
        updates = self.n_updates(start, stop)
        if not updates:
            self._tick_seconds = seconds / (stop - start)
        else:
            ticks_alone = (stop - start) * (self._tick_seconds or 0.0)
            self._tick_seconds = self._tick_seconds or 0.0
            self._update_seconds = max(seconds - ticks_alone, 0.0) / updates

    def _expected_seconds(self, start: int, stop: int) -> float | None:
        """Return the expected duration of a chunk; None while a cost of it is unknown."""
        updates = self.n_updates(start, stop)
        if self._tick_seconds is None or (updates and self._update_seconds is None):
            return None
        return (stop - start) * self._tick_seconds + updates * (self._update_seconds or 0.0)

    def _affordable(self, start: int, stop: int) -> bool:
        seconds = self._expected_seconds(start, stop)
        return seconds is not None and seconds <= self._target
