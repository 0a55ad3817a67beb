"""Checkpoints of a run: complete or absent, verified when read, and made of arrays only.

A checkpoint is a folder `tick_<tick>` that holds

- `arrays/`: every leaf of the state, written by orbax (OCDBT), one entry per leaf;
- `checkpoint.json`: tick, metric, the caller's metadata and a table of the leaves (path, shape,
  dtype);
- `manifest.json`: size and SHA-256 of every other file, and a checksum of itself.

It is written under a temporary name and renamed once complete, so that a process killed at any
moment leaves the previous checkpoints and possibly a temporary folder, which the next save removes.
Nothing in a checkpoint is executed when it is read. Typed PRNG keys are stored as their raw key
data.

Restoring compares the table of leaves with the state asked for, then every file with the manifest,
and only then reads the arrays. A damaged checkpoint is an error: an older one is used only when
asked for.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from wm_collect.manifest import ManifestError, verify_file, verify_manifest, write_manifest
from wm_collect.state_arrays import Leaf, first_difference, leaf_table, read_arrays, write_arrays

State = TypeVar("State")

_FORMAT = 1
_ARRAYS = "arrays"
_RECORD = "checkpoint.json"
_TEMPORARY = ".unfinished-"
# A second save of the same tick gets a revision, so that the first is complete until the second is.
_NAME = re.compile(r"tick_(\d{12})(?:_r(\d+))?")


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or cannot be used.

    Attributes:
        fallback_tick: tick of the newest older checkpoint that is complete and undamaged, or None.
    """

    def __init__(self, message: str, fallback_tick: int | None = None) -> None:
        super().__init__(message)
        self.fallback_tick = fallback_tick


class Checkpoints:
    """The checkpoints of one run, in one directory.

    Args:
        directory: folder of the checkpoints; made by the first save.
        keep_last: how many of the newest checkpoints to keep, at least 1.
        keep_best: how many of the checkpoints with the highest metric to keep besides, 0 or more.

    Raises:
        ValueError: a count is out of range.
    """

    def __init__(
        self, directory: str | os.PathLike[str], keep_last: int = 3, keep_best: int = 1
    ) -> None:
        if keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, got {keep_last}")
        if keep_best < 0:
            raise ValueError(f"keep_best must be 0 or more, got {keep_best}")
        self.directory = Path(directory).absolute()
        self.keep_last = keep_last
        self.keep_best = keep_best

    # What is there.

    def ticks(self) -> list[int]:
        """Return the ticks of the complete checkpoints, ascending."""
        return sorted({tick for tick, _ in self._folders()})

    def latest_tick(self) -> int | None:
        """Return the tick of the newest checkpoint, or None if there is none."""
        return max(self.ticks(), default=None)

    def best_tick(self) -> int | None:
        """Return the tick of the readable checkpoint with the highest metric, or None.

        Of several with the same metric, the newest counts.
        """
        return max(self._metrics(), default=(None, None))[1]

    def path(self, tick: int) -> Path:
        """Return the folder of the checkpoint of a tick.

        Raises:
            CheckpointError: there is no checkpoint of this tick.
        """
        revisions = [
            (revision, path) for (t, revision), path in self._folders().items() if t == tick
        ]
        if not revisions:
            raise CheckpointError(
                f"{self.directory} has no checkpoint of tick {tick}; {self._have()}"
            )
        return max(revisions)[1]

    def metadata(self, tick: int) -> dict[str, Any]:
        """Return the metadata saved with a checkpoint, and its `tick`.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or foreign.
        """
        path = self.path(tick)
        with self._explained(path, tick):
            return _metadata(_read_record(path))

    # Saving.

    def save(
        self, tick: int, state: Any, metadata: Mapping[str, Any], metric: float | None = None
    ) -> Path:
        """Write a checkpoint, then delete those that are neither among the last nor the best.

        Args:
            tick: absolute tick at whose end the state is taken, 0 or more.
            state: pytree of arrays (typed PRNG keys allowed).
            metadata: plain values for JSON; NumPy scalars are converted.
            metric: what "best" means, higher is better; None or NaN takes part in no comparison.

        Returns:
            The folder written.

        Raises:
            ValueError: the tick is negative.
            TypeError: the metadata are not plain values.
            CheckpointError: it could not be written; the earlier checkpoints are untouched.
        """
        if tick < 0:
            raise ValueError(f"tick must be 0 or more, got {tick}")
        record = {
            "format": _FORMAT,
            "tick": int(tick),
            "metric": None if metric is None or math.isnan(metric) else float(metric),
            "metadata": dict(metadata),
            "leaves": [dataclasses.asdict(leaf) for leaf in leaf_table(state)],
        }
        try:
            text = json.dumps(record, indent=1, default=_plain)
        except (TypeError, ValueError) as error:
            raise TypeError(f"metadata must hold plain values only (JSON): {error}") from error

        revision = max((r for (t, r) in self._folders() if t == tick), default=-1) + 1
        name = f"tick_{tick:012d}" + (f"_r{revision}" if revision else "")
        temporary = self.directory / f"{_TEMPORARY}{name}"
        final = self.directory / name
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            temporary.mkdir()
            write_arrays(temporary / _ARRAYS, state)
            (temporary / _RECORD).write_text(text, encoding="utf-8")
            write_manifest(temporary)
            os.rename(temporary, final)
            _sync(self.directory)
        except Exception as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(
                f"The checkpoint of tick {tick} could not be written to {self.directory}: "
                f"{_reason(error)}. {self._have().capitalize()} and unharmed; make room or choose "
                "another directory, then resume."
            ) from error
        self._prune()
        return final

    def discard_after(self, tick: int) -> None:
        """Delete the checkpoints of later ticks; a run resumed from this one writes them again."""
        for (found, _), path in self._folders().items():
            if found > tick:
                self._delete(path)

    # Restoring.

    def restore(
        self, template: State, tick: int | None = None, *, fallback: bool = False
    ) -> tuple[State, dict[str, Any]]:
        """Read a state back, bit for bit.

        Args:
            template: a state, or its abstract form from `jax.eval_shape`, with the tree, shapes and
                dtypes expected.
            tick: which checkpoint; None means the newest.
            fallback: if that one is damaged, use the newest undamaged one before it.

        Returns:
            The state, as JAX arrays on the default device, and the metadata saved with it, to which
            the checkpoint's `tick` is added.

        Raises:
            CheckpointError: there is no such checkpoint, it is damaged or foreign, or its state has
                another form than the template; the message says which, and what to do.
        """
        if tick is None:
            tick = self.latest_tick()
            if tick is None:
                raise CheckpointError(f"{self.directory} has no checkpoint to restore")
        path = self.path(tick)
        try:
            with self._explained(path, tick):
                return _read_checkpoint(path, template)
        except CheckpointError as error:
            if not fallback or error.fallback_tick is None:
                raise
            return self.restore(template, error.fallback_tick)

    # Helpers.

    def _folders(self) -> dict[tuple[int, int], Path]:
        """Return the complete checkpoints by (tick, revision)."""
        if not self.directory.is_dir():
            return {}
        found = {}
        for path in self.directory.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and path.is_dir():
                found[int(match[1]), int(match[2] or 0)] = path
        return found

    def _metrics(self) -> list[tuple[float, int]]:
        """Return (metric, tick) of the readable checkpoints that have a metric."""
        found = []
        for tick in self.ticks():
            with contextlib.suppress(ManifestError):
                metric = _read_record(self.path(tick))["metric"]
                if metric is not None:
                    found.append((metric, tick))
        return found

    def _prune(self) -> None:
        """Delete what is neither among the last nor among the best."""
        last = self.ticks()[-self.keep_last :]
        best = [tick for _, tick in sorted(self._metrics())[-self.keep_best :]]
        keep = {*last, *(best if self.keep_best else [])}
        newest = {tick: self.path(tick) for tick in keep}
        for (tick, _), path in self._folders().items():
            if path != newest.get(tick):
                self._delete(path)

    def _delete(self, path: Path) -> None:
        # Renamed first: a deletion cut short must not look like a damaged checkpoint.
        doomed = path.with_name(f"{_TEMPORARY}{path.name}-deleted")
        with contextlib.suppress(OSError):
            os.rename(path, doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        for path in self.directory.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _have(self) -> str:
        ticks = self.ticks()
        if not ticks:
            return "no checkpoint is there"
        return f"checkpoints of ticks {', '.join(map(str, ticks))} are there"

    @contextlib.contextmanager
    def _explained(self, path: Path, tick: int) -> Iterator[None]:
        """Turn a damaged checkpoint into one sentence that names an undamaged older one."""
        try:
            yield
        except ManifestError as error:
            older = self._newest_undamaged_before(tick)
            remedy = "no older undamaged checkpoint exists"
            if older is not None:
                remedy = (
                    f"an older undamaged one of tick {older} exists: ask for it with fallback=True "
                    f"or tick={older}"
                )
            raise CheckpointError(
                f"The checkpoint {path} cannot be used: {error}; {remedy}.", older
            ) from error

    def _newest_undamaged_before(self, tick: int) -> int | None:
        for older in reversed([t for t in self.ticks() if t < tick]):
            with contextlib.suppress(ManifestError, CheckpointError):
                verify_manifest(self.path(older))
                return older
        return None


def _read_checkpoint(path: Path, template: State) -> tuple[State, dict[str, Any]]:
    """Read one checkpoint, after comparing it with the template and with its manifest."""
    record = _read_record(path)
    stored = [Leaf.from_json(leaf) for leaf in record["leaves"]]
    difference = first_difference(stored, leaf_table(template))
    if difference is not None:
        raise CheckpointError(
            f"The checkpoint {path} does not fit: {difference}; it was saved by another agent, "
            "model size, environment or number of seeds, so resume with the settings the run was "
            "started with."
        )
    verify_manifest(path)
    try:
        return read_arrays(path / _ARRAYS, stored, template), _metadata(record)
    except Exception as error:
        raise ManifestError(f"its arrays cannot be read ({_reason(error)})") from error


def _read_record(path: Path) -> dict[str, Any]:
    """Read `checkpoint.json`, checked against the manifest."""
    verify_file(path, _RECORD)
    record = json.loads((path / _RECORD).read_text(encoding="utf-8"))
    if record.get("format") != _FORMAT:
        raise ManifestError(
            f"it has format {record.get('format')!r}, and this version reads format {_FORMAT}"
        )
    return record


def _metadata(record: dict[str, Any]) -> dict[str, Any]:
    return {**record["metadata"], "tick": record["tick"]}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return value.tolist()
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _reason(error: BaseException) -> str:
    """Return the first line of an error, without the library's own trace in it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__


def _sync(directory: Path) -> None:
    """Make a rename in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
