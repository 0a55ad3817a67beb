"""Where a run's log rows go: JSON lines, CSV, TensorBoard, Weights & Biases.

A row is a flat mapping from a metric's name to a number. Every row has `tick`, an int: the absolute
tick at whose end it was taken. Rows come in order of their tick.

Every sink writes a row out before `write` returns, so a killed run loses none. A run resumed from a
checkpoint calls `truncate_after(tick)` first: rows logged after the checkpoint are dropped, because
the resumed run logs them again. The files then hold what an uninterrupted run's hold.

Numbers keep full precision. NaN is `null` in JSON and `NaN` in CSV; infinities are `1e999` in JSON
(which every reader of double precision takes as infinity) and `inf` in CSV.
"""

import contextlib
import csv
import importlib
import io
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

Number = int | float
Row = Mapping[str, Any]


class Sink(Protocol):
    """A place for log rows."""

    def write(self, row: Row) -> None:
        """Write one row out; its values are Python, NumPy or JAX numbers."""

    def truncate_after(self, tick: int) -> None:
        """Drop the rows of later ticks; called before the first `write`."""

    def close(self) -> None:
        """Finish; a second call does nothing."""


class JsonlSink:
    """One JSON object per row, one row per line.

    Args:
        path: the file; rows are appended to what is there. A last line cut short is removed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(self.path)
        self._file = self.path.open("a", encoding="utf-8", newline="\n")

    def write(self, row: Row) -> None:
        """Append a row."""
        self._file.write(_json_line(row))
        self._file.flush()

    def truncate_after(self, tick: int) -> None:
        """Rewrite the file without the rows of later ticks."""
        self._file.close()
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        ticks = [row["tick"] for row in read_rows(self.path)]
        kept = [line for line, found in zip(lines, ticks, strict=True) if found <= tick]
        _replace(self.path, "".join(kept))
        self._file = self.path.open("a", encoding="utf-8", newline="\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvSink:
    """A table with a header line; a metric without a value in a row is an empty cell.

    A metric first seen later becomes a new last column, and the file is rewritten once for it.

    Args:
        path: the file; rows are appended to what is there. A last line cut short is removed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(self.path)
        self._columns, _ = self._read()
        self._file = self._append()

    def write(self, row: Row) -> None:
        """Append a row, after widening the table if the row has a new metric."""
        values = {name: _csv_cell(_number(value)) for name, value in row.items()}
        new = [name for name in values if name not in self._columns]
        if new:
            _, rows = self._read()
            self._rewrite([*self._columns, *new], rows)
        csv.DictWriter(self._file, self._columns, lineterminator="\n").writerow(values)
        self._file.flush()

    def truncate_after(self, tick: int) -> None:
        """Rewrite the table without the rows of later ticks, and without columns only they had."""
        columns, rows = self._read()
        rows = [row for row in rows if int(row["tick"]) <= tick]
        self._rewrite([name for name in columns if any(row[name] for row in rows)], rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self) -> io.TextIOBase:
        return self.path.open("a", encoding="utf-8", newline="")

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        if not self.path.exists():
            return [], []
        with self.path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restval="")
            columns = list(reader.fieldnames or [])
            if columns and "tick" not in columns:
                raise ValueError(f"{self.path} is not a log of metrics: it has no column tick")
            return columns, list(reader)

    def _rewrite(self, columns: list[str], rows: list[dict[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        if columns:
            writer.writeheader()
            writer.writerows(rows)
        self._file.close()
        _replace(self.path, text.getvalue())
        self._columns = columns
        self._file = self._append()


class TensorBoardSink:
    """Scalars for TensorBoard over environment steps (`timestep`), without NaN and infinities.

    A resumed run starts a new event file that tells TensorBoard to forget every older point at or
    after its first step.

    Args:
        directory: folder of the event files.

    Raises:
        ImportError: the extra is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        _extra("tensorboardX", "TensorBoard", "tensorboard")
        self._writer: Any = None

    def write(self, row: Row) -> None:
        """Add one point to each metric's curve."""
        from tensorboardX.proto.summary_pb2 import Summary

        values = {name: _number(value) for name, value in row.items()}
        step = int(values.get("timestep", values["tick"]))
        self._open(step)
        points = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if name not in ("tick", "timestep") and math.isfinite(value)
        ]
        self._add(step, summary=Summary(value=points))

    def truncate_after(self, tick: int) -> None:
        """Do nothing: the first row written afterwards voids the older points."""

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, step: int) -> None:
        """Start the event file; only the first row tells from which step older points are void."""
        if self._writer is not None:
            return
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        self.directory.mkdir(parents=True, exist_ok=True)
        # Not the usual SummaryWriter: its queue and thread lose the last rows of a killed run.
        self._writer = EventsWriter(str(self.directory / "events"), f".{os.getpid()}")
        self._add(step, session_log=SessionLog(status=SessionLog.START))

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(step=step, wall_time=time.time(), **content))
        self._writer.flush()


class WandbSink:
    """A Weights & Biases run.

    Args:
        project: name of the W&B project.
        name: name of the run.
        directory: folder of W&B's local files.
        config: settings to show beside the run.
        run_id: identifier by which a resumed run continues the same W&B run; None makes a new one.
        mode: `online`, `offline` or `disabled`; None leaves the choice to `WANDB_MODE`.

    Raises:
        ImportError: the extra is not installed.
    """

    def __init__(
        self,
        project: str,
        name: str,
        directory: str | os.PathLike[str],
        *,
        config: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        mode: Any = None,
    ) -> None:
        wandb = _extra("wandb", "Weights & Biases", "wandb")
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=project,
            name=name,
            dir=str(directory),
            config=dict(config or {}),
            id=run_id,
            resume="allow",
            mode=mode,
            # The progress display owns the terminal.
            settings=wandb.Settings(console="off", silent=True),
        )

    def write(self, row: Row) -> None:
        """Log a row at its tick."""
        values = {name: _number(value) for name, value in row.items()}
        self._run.log(values, step=int(values["tick"]))

    def truncate_after(self, tick: int) -> None:
        """Do nothing: W&B keeps the first row of a tick, and the row logged again is the same."""

    def close(self) -> None:
        """Finish the W&B run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Number]]:
    """Read a `JsonlSink`'s rows; `null` becomes NaN, and a last line cut short is left out.

    Raises:
        ValueError: the file is not such a log.
    """
    rows = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(True), 1):
        if not line.endswith("\n"):
            break
        try:
            row = json.loads(line)
            _ = row["tick"]
            rows.append({name: math.nan if v is None else v for name, v in row.items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"line {number} of {path} is not a row of metrics: {line!r}") from None
    return rows


def _number(value: Any) -> Number:
    """Return a Python number; float32 becomes the float of exactly the same value."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)  # NumPy's float64 is one too, and prints differently
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind in "OSU":
        raise TypeError(f"a metric must be one number, got {value!r}")
    return _number(array.item())


def _json_line(row: Row) -> str:
    cells = (f"{json.dumps(name)}: {_json_cell(_number(v))}" for name, v in row.items())
    return "{" + ", ".join(cells) + "}\n"


def _json_cell(value: Number) -> str:
    if math.isnan(value):
        return "null"
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return json.dumps(value)


def _csv_cell(value: Number) -> str:
    return "NaN" if math.isnan(value) else repr(value)


def _drop_torn_line(path: Path) -> None:
    """Cut a file back to its last complete line."""
    if path.exists():
        text = path.read_bytes()
        complete = text.rfind(b"\n") + 1
        if complete < len(text):
            os.truncate(path, complete)


def _replace(path: Path, text: str) -> None:
    """Exchange a file's content at once, so that a kill leaves the old one or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _extra(module: str, product: str, extra: str) -> ModuleType:
    with contextlib.suppress(ImportError):
        return importlib.import_module(module)
    raise ImportError(
        f"Logging to {product} needs the package {module}, which is not installed: "
        f'pip install "wm-collect[{extra}]"'
    )
