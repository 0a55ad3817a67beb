"""The compilation cache on disk, its noise, and a count of what was compiled.

`enable_compile_cache` makes JAX keep every compiled program on disk, so that a second start of the
same run compiles nothing. `quiet_xla` hides the lines XLA prints when it loads a program of the CPU
from there. `count_compilations` tells compiled programs from loaded ones.
"""

import contextlib
import dataclasses
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

# XLA compiles for the CPU with tuning hints (`+prefer-no-gather`) and on loading complains that the
# host does not list them as features. Only these lines are noise: a missing real feature can end in
# SIGILL.
_NOISE = re.compile(rb"cpu_aot_loader\.cc:\d+\].*Target machine feature \+prefer-[a-z0-9-]+ is not")


def enable_compile_cache(path: str | os.PathLike[str] | None = None) -> Path | None:
    """Keep compiled programs on disk from now on.

    A directory that the user already set (`JAX_COMPILATION_CACHE_DIR` or `jax.config`) is left
    alone, unless `path` is given. So is `JAX_ENABLE_COMPILATION_CACHE=false`.

    Args:
        path: directory; None means the user's own setting, else `wm/jax` in the user's cache
            folder.

    Returns:
        The directory in use, or None if the cache is off: switched off by the user, or the default
        directory cannot be written.

    Raises:
        ValueError: the given `path` cannot be written.
    """
    from jax.experimental.compilation_cache import compilation_cache

    if not jax.config.read("jax_enable_compilation_cache"):
        return None
    chosen = path or jax.config.read("jax_compilation_cache_dir")
    if chosen and "://" in str(chosen):  # a bucket, which JAX opens itself
        directory: Path | None = None
    else:
        directory = Path(chosen or _default_directory()).expanduser().absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            writable = os.access(directory, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            if path is not None:
                raise ValueError(
                    f"the compilation cache {directory} cannot be written: choose another directory"
                )
            return None
    jax.config.update("jax_compilation_cache_dir", str(directory or chosen))
    # JAX keeps only programs that took a second to compile; a run has dozens of small ones.
    for name, value in _KEEP_EVERYTHING.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    # JAX decides once per process, at its first compilation, whether it uses a cache.
    compilation_cache.reset_cache()
    return directory


_KEEP_EVERYTHING: dict[str, float] = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def _default_directory() -> Path:
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "wm" / "jax"


@dataclasses.dataclass
class Compilations:
    """Programs built while counting.

    Attributes:
        compiled: names of the programs that XLA compiled.
        loaded: how many were loaded from the cache on disk.
    """

    compiled: list[str] = dataclasses.field(default_factory=list)
    loaded: int = 0


@contextlib.contextmanager
def count_compilations() -> Iterator[Compilations]:
    """Count the programs compiled and those loaded from the cache, in this thread or any other."""
    counts = Compilations()
    hits = threading.local()

    # JAX reports a cache hit, then, from the same thread, the end of the same "compilation".
    def on_event(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            hits.pending = True
            counts.loaded += 1

    def on_duration(event: str, duration_secs: float, **details: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            if not getattr(hits, "pending", False):
                counts.compiled.append(str(details.get("fun_name", "unnamed")))
            hits.pending = False

    jax.monitoring.register_event_listener(on_event)
    jax.monitoring.register_event_duration_secs_listener(on_duration)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_listener(on_event)
        jax.monitoring.unregister_event_duration_listener(on_duration)


_quiet_lock = threading.Lock()
_quiet_depth = 0
_quiet_filter: "_StderrFilter | None" = None


@contextlib.contextmanager
def quiet_xla() -> Iterator[None]:
    """Hide XLA's lines about tuning hints; pass everything else on standard error through.

    Works on the file descriptor, because XLA writes from C++. Nested and concurrent uses share one
    filter. Without an open standard error it does nothing.
    """
    global _quiet_depth, _quiet_filter
    with _quiet_lock:
        _quiet_depth += 1
        if _quiet_depth == 1:
            _quiet_filter = _StderrFilter.install()
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_depth -= 1
            if _quiet_depth == 0 and _quiet_filter is not None:
                _quiet_filter.remove()
                _quiet_filter = None


class _StderrFilter:
    """A pipe in place of file descriptor 2, and a thread that forwards what is not noise."""

    def __init__(self, original: int, read_end: int) -> None:
        self._original = original
        self._read_end = read_end
        self._marker = b"\0" + os.urandom(16) + b"\n"
        self._drained = threading.Event()
        self._thread = threading.Thread(target=self._forward, name="quiet-xla", daemon=True)
        self._thread.start()

    @classmethod
    def install(cls) -> "_StderrFilter | None":
        _flush_stderr()
        try:
            original = os.dup(2)
        except OSError:  # standard error is closed
            return None
        read_end, write_end = os.pipe()
        os.dup2(write_end, 2)
        os.close(write_end)
        return cls(original, read_end)

    def remove(self) -> None:
        _flush_stderr()
        # A child process may keep the pipe open, so its end is no sign that all of ours was
        # forwarded.
        with contextlib.suppress(OSError):
            os.write(2, self._marker)
        os.dup2(self._original, 2)
        self._drained.wait(timeout=5.0)

    def _forward(self) -> None:
        held = b""  # the start of a line that may turn out to be noise
        passing = False  # the current line's start was already passed on
        while block := os.read(self._read_end, 1 << 16):
            *lines, rest = (held + block).split(b"\n")
            for line in lines:
                if line + b"\n" == self._marker or (line + b"\n").endswith(self._marker):
                    self._pass_on(line[: -len(self._marker) + 1])
                    self._drained.set()
                elif passing or not _NOISE.search(line):
                    self._pass_on(line + b"\n")
                passing = False
            # Text without a newline (a prompt) must not wait for one, unless it may begin a log
            # line.
            if rest and (passing or not _may_begin_log_line(rest)):
                self._pass_on(rest)
                passing, held = True, b""
            else:
                held = rest
        self._pass_on(held)
        os.close(self._read_end)
        os.close(self._original)

    def _pass_on(self, text: bytes) -> None:
        with contextlib.suppress(OSError):
            while text:
                text = text[os.write(self._original, text) :]


def _may_begin_log_line(text: bytes) -> bool:
    """Tell whether a line so far may begin like XLA's log, `E1129 23:29:00.966045`."""
    return re.fullmatch(rb"\0.*|[EWIF](\d{0,3}|\d{4}( .*)?)", text, re.DOTALL) is not None


def _flush_stderr() -> None:
    with contextlib.suppress(Exception):
        sys.stderr.flush()
