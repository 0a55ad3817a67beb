"""The compilation cache on disk, and a count of what was compiled.

`enable_compile_cache` makes JAX keep every compiled program on disk, so that a second start of the
same run compiles nothing. `count_compilations` tells compiled programs from loaded ones.
`wm_collect.quiet` hides what XLA prints when it loads a program of the CPU.
"""

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from wm_collect.quiet import quiet_xla as quiet_xla


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

    if not _setting("jax_enable_compilation_cache"):
        return None
    chosen = path or _setting("jax_compilation_cache_dir")
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


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


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
