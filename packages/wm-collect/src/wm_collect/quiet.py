"""Silence for the lines that XLA prints when it loads a cached program of the CPU."""

import contextlib
import os
import secrets
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_lock = threading.Lock()
_depth = 0
_filter: "_StderrFilter | None" = None
_SCRIPT = Path(__file__).with_name("stderr_filter.py")
_PATIENCE_SECONDS = 5.0


@contextlib.contextmanager
def quiet_xla() -> Iterator[None]:
    """Hide XLA's lines about tuning hints; pass everything else on standard error through.

    Works on the file descriptor, because XLA writes from C++: within the context, standard error is
    a pipe to a small filter process. Nested and concurrent uses share one filter. Without an open
    standard error nothing is done.
    """
    global _depth, _filter
    with _lock:
        _depth += 1
        if _depth == 1:
            _filter = _StderrFilter.install()
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and _filter is not None:
                _filter.remove()
                _filter = None


class _StderrFilter:
    """A pipe to the filter process in place of file descriptor 2."""

    def __init__(self, process: subprocess.Popen[bytes], marker: str, original: int) -> None:
        self._process = process
        self._marker = marker
        self._original = original

    @classmethod
    def install(cls) -> "_StderrFilter | None":
        # With standard error closed, descriptor 2 may belong to any file opened since.
        if sys.__stderr__ is None or sys.__stderr__.closed:
            return None
        _flush()
        # The marker tells that everything was forwarded; a child process that inherited the pipe
        # may keep it open for long, so the pipe's end does not.
        marker = secrets.token_hex(16)
        try:
            original = os.dup(2)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SCRIPT), marker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the run, not for its messages
            )
        except OSError:
            return None
        assert process.stdin is not None
        os.dup2(process.stdin.fileno(), 2)
        process.stdin.close()
        return cls(process, marker, original)

    def remove(self) -> None:
        _flush()
        with contextlib.suppress(OSError):
            os.write(2, f"\0{self._marker}\n".encode())
        os.dup2(self._original, 2)
        os.close(self._original)
        assert self._process.stdout is not None
        with self._process.stdout as drained:
            select.select([drained], [], [], _PATIENCE_SECONDS)
        # Reaped in the background, for it lives as long as children that inherited the pipe.
        threading.Thread(target=self._process.wait, name="quiet-xla", daemon=True).start()


def _flush() -> None:
    with contextlib.suppress(Exception):
        sys.stderr.flush()
