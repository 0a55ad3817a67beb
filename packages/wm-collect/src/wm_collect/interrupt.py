"""Ctrl-C or SIGTERM during training: the first asks for a stop in good order, the second aborts.

While a chunk computes, the main thread waits in Python, in short sleeps: inside JAX's own wait a
signal would not be seen before the computation is over.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_LONGEST_SLEEP = 0.02
_EXIT_STATUS_OF_CTRL_C = 128 + signal.SIGINT


class StopRequest:
    """Context manager that remembers the first Ctrl-C or SIGTERM.

    A second one raises `KeyboardInterrupt` at once. Python delivers signals to the main thread
    only; elsewhere this does nothing and signals keep their usual meaning.

    Attributes:
        signal: the signal that arrived, `signal.SIGINT` or `signal.SIGTERM`; None before.
    """

    def __init__(self, on_request: Callable[[], None] = lambda: None) -> None:
        """Remember what to call when the first one arrives."""
        self.signal: signal.Signals | None = None
        self._on_request = on_request
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether the run is to stop."""
        return self.signal is not None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.signal = signal.Signals(signum)
        self._on_request()


def wait_until_ready(array: Any) -> None:
    """Wait for the computation that makes the `jax.Array`, answering signals meanwhile.

    A computation cannot be cancelled, and at its end Python would wait for one that was abandoned.
    So if the wait is interrupted and the program then ends, it does so without waiting.
    """
    sleep = 1e-4
    try:
        while not array.is_ready():
            time.sleep(sleep)
            sleep = min(2 * sleep, _LONGEST_SLEEP)
    except KeyboardInterrupt:
        atexit.register(_exit_if_computing, array)
        raise


def _exit_if_computing(array: Any) -> None:
    if not array.is_ready():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_EXIT_STATUS_OF_CTRL_C)
