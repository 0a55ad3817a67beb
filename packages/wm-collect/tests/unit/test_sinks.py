"""Log sinks: exact numbers, nothing lost when killed, nothing logged twice after a resume."""

import csv
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from wm_collect.sinks import CsvSink, JsonlSink, Sink, TensorBoardSink, WandbSink, read_rows

names = st.sampled_from(["Loss/reward", "Eval/episodic mean reward", 'a "quoted", name', "Train/é"])
values = st.one_of(st.floats(), st.integers(-(2**60), 2**60), st.floats(width=32).map(np.float32))
rows_of_any_kind = st.lists(st.dictionaries(names, values, max_size=4), max_size=6).map(
    lambda rows: [{"tick": 3 * i, **row} for i, row in enumerate(rows)]
)


def write_all(sink: Sink, rows: list[Mapping[str, Any]]) -> None:
    for row in rows:
        sink.write(row)


def read_csv(path: Path) -> list[dict[str, float]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        float(a[k]) == float(b[k]) or (math.isnan(a[k]) and math.isnan(b[k])) for k in a
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(rows=rows_of_any_kind)
def test_every_number_comes_back_exactly(rows: Any, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("log")
    write_all(jsonl := JsonlSink(folder / "m.jsonl"), rows)
    write_all(table := CsvSink(folder / "m.csv"), rows)
    for found in (read_rows(folder / "m.jsonl"), read_csv(folder / "m.csv")):
        assert len(found) == len(rows)
        assert all(same(a, b) for a, b in zip(found, rows, strict=True))
    jsonl.close()
    table.close()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(rows=rows_of_any_kind, saved=st.integers(-1, 20), killed=st.integers(0, 6))
def test_a_killed_and_resumed_log_is_the_uninterrupted_one(
    rows: Any, saved: int, killed: int, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("log")
    for make, name in ((JsonlSink, "m.jsonl"), (CsvSink, "m.csv")):
        whole = make(folder / f"whole {name}")
        write_all(whole, rows)
        whole.close()
        gone = make(folder / name)
        write_all(gone, rows[:killed])
        # Not closed: the process is gone. The next one starts from the checkpoint of tick `saved`.
        resumed = make(folder / name)
        resumed.truncate_after(saved)
        done = sum(row["tick"] <= saved for row in rows[:killed])
        write_all(resumed, rows[done:])
        resumed.close()
        gone.close()  # only for the warning about open files
        assert (folder / name).read_bytes() == (folder / f"whole {name}").read_bytes()


def test_rows_are_on_disk_before_write_returns(tmp_path: Path) -> None:
    jsonl, table = JsonlSink(tmp_path / "m.jsonl"), CsvSink(tmp_path / "m.csv")
    for sink in (jsonl, table):
        sink.write({"tick": 1, "Loss/q": jnp.float32(0.1)})
    assert (tmp_path / "m.jsonl").read_text() == '{"tick": 1, "Loss/q": 0.10000000149011612}\n'
    assert (tmp_path / "m.csv").read_text() == "tick,Loss/q\n1,0.10000000149011612\n"
    jsonl.close()
    table.close()
    jsonl.close()


def test_nan_and_infinity_are_written_as_documented(tmp_path: Path) -> None:
    row = {"tick": 1, "a": float("nan"), "b": -math.inf, "c": np.float64(2.5), "d": np.int64(3)}
    with_json, with_csv = JsonlSink(tmp_path / "m.jsonl"), CsvSink(tmp_path / "m.csv")
    with_json.write(row)
    with_csv.write(row)
    with_json.close()
    with_csv.close()
    text = (tmp_path / "m.jsonl").read_text()
    assert text == '{"tick": 1, "a": null, "b": -1e999, "c": 2.5, "d": 3}\n'
    assert json.loads(text)["b"] == -math.inf
    assert (tmp_path / "m.csv").read_text().splitlines()[1] == "1,NaN,-inf,2.5,3"


def test_a_late_metric_becomes_a_last_column(tmp_path: Path) -> None:
    sink = CsvSink(tmp_path / "m.csv")
    write_all(sink, [{"tick": 1, "a": 1.0}, {"tick": 2, "b": 2.0, "a": 3.0}, {"tick": 3, "b": 4.0}])
    sink.close()
    assert (tmp_path / "m.csv").read_text() == "tick,a,b\n1,1.0,\n2,3.0,2.0\n3,,4.0\n"


@pytest.mark.parametrize("make", [JsonlSink, CsvSink])
def test_a_line_cut_short_is_removed_on_opening(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    sink = make(path)
    write_all(sink, [{"tick": 1, "a": 1.0}, {"tick": 2, "a": 2.0}])
    sink.close()
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 2)
    sink = make(path)
    sink.write({"tick": 2, "a": 2.0})
    sink.close()
    assert path.read_bytes() == whole


def test_a_line_cut_short_is_left_out_on_reading(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"tick": 1, "a": null}\n{"tick": 2, "a"')
    (row,) = read_rows(tmp_path / "m.jsonl")
    assert row["tick"] == 1 and math.isnan(row["a"])


def test_a_file_that_is_no_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"tick": 1}\nhello\n')
    with pytest.raises(ValueError, match=r"line 2 of .*m\.jsonl is not a row of metrics: 'hello"):
        read_rows(tmp_path / "m.jsonl")
    (tmp_path / "m.csv").write_text("date,price\n1,2\n")
    with pytest.raises(ValueError, match="not a log of metrics: it has no column tick"):
        CsvSink(tmp_path / "m.csv")


@pytest.mark.parametrize("bad", [np.zeros(3), "text", None, [1.0, 2.0]])
def test_what_is_no_number_is_rejected(bad: Any, tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    with pytest.raises(TypeError, match="a metric must be one number"):
        sink.write({"tick": 1, "a": bad})
    sink.close()
    assert (tmp_path / "m.jsonl").read_text() == ""


def tensorboard_events(folder: Path) -> list[Any]:
    """Read TensorBoard's records: length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.iterdir()
    data, events = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[12 + size + 4 :]
    return events


def test_tensorboard_has_every_finite_number_over_environment_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra tensorboard is not installed")
    sink = TensorBoardSink(tmp_path / "tb")
    sink.truncate_after(0)
    sink.write({"tick": 3, "timestep": 30, "Loss/q": 0.5, "Loss/r": float("nan")})
    events = tensorboard_events(tmp_path / "tb")  # before close: a killed run keeps it
    found = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    sink.close()
    sink.close()
    assert found == [(30, "Loss/q", 0.5)]


def test_a_resumed_tensorboard_voids_what_is_logged_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra tensorboard is not installed")
    from tensorboardX.proto.event_pb2 import SessionLog

    for first in (10, 20):
        sink = TensorBoardSink(tmp_path / f"{first}")
        sink.write({"tick": 1, "timestep": first, "Loss/q": 0.5})
        sink.close()
        starts = [
            e.step
            for e in tensorboard_events(tmp_path / f"{first}")
            if e.session_log.status == SessionLog.START
        ]
        assert starts == [first]


def test_wandb_offline_keeps_the_rows_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    sink = WandbSink(
        "wm", "run", tmp_path / "wandb files", config={"seed": 0}, run_id="abc", mode="offline"
    )
    sink.truncate_after(0)
    write_all(sink, [{"tick": 1, "Loss/q": 0.5}, {"tick": 2, "Loss/q": np.float32(0.25)}])
    sink.close()
    sink.close()
    (log,) = tmp_path.glob("wandb files/wandb/offline-run-*abc/run-abc.wandb")
    assert b"Loss/q" in log.read_bytes()


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("tensorboardX", lambda path: TensorBoardSink(path), "tensorboard"),
        ("wandb", lambda path: WandbSink("p", "n", path), "wandb"),
    ],
)
def test_a_missing_extra_says_what_to_install(
    module: str, make: Any, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(ImportError) as caught:
        make(tmp_path)
    assert f'pip install "wm-collect[{extra}]"' in str(caught.value)
