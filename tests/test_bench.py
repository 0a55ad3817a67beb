"""The benchmarks' harness on toy loops; what it measures of the machine is never judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from . import workspace

BENCH = workspace.ROOT / "tools" / "bench"
BASELINES = {"dreamer_bench": "dreamer_bench.jsonl", "tdmpc2_bench": "bench.jsonl"}
N = 64

# A benchmark of a checkout: its own package says how many products a pass makes.
TOY = """
import jax.numpy as jnp
from harness import Case
from wm_toy import PRODUCTS

def cases():
    def body(state, args, i):
        for _ in range(PRODUCTS):
            state = args @ state
        return state
    return {"toy/product": lambda: Case(body, jnp.ones((64, 64)), jnp.eye(64))}
"""


@pytest.fixture(scope="module")
def harness():
    sys.path.insert(0, str(BENCH))
    try:
        import harness

        yield harness
    finally:
        sys.path.remove(str(BENCH))


@pytest.fixture(autouse=True)
def a_fast_machine(harness, monkeypatch):
    """Measuring the machine itself takes seconds."""
    monkeypatch.setattr(harness, "matmul_peak_gflops", lambda: 100.0)
    monkeypatch.setattr(harness, "memory_gigabytes_per_second", lambda: 10.0)
    yield
    jax.config.update("jax_enable_compilation_cache", True)


def product_case(harness, products: int = 1):
    def body(state, args, i):
        for _ in range(products):
            state = args @ state
        return state

    return harness.Case(body, jnp.ones((N, N)), jnp.eye(N))


def test_a_row_counts_the_products_and_the_bytes_of_a_pass(harness):
    row = harness.measure(
        product_case(harness, products=3), budget_seconds=0.0, gigabytes_per_second=10.0
    )
    assert row["gflop"] == pytest.approx(3 * 2e-9 * N**3)
    assert row["least_mb"] == pytest.approx(3 * 4e-6 * N**2)  # state read and written, kernel read
    assert row["gflops"] == pytest.approx(row["gflop"] / (1e-3 * row["best_ms"]))
    assert row["fraction_of_peak"] == pytest.approx(row["gflops"] / 100.0)
    # At these rates moving takes 4.9 microseconds and multiplying 15.7.
    assert row["fraction_of_roofline"] == pytest.approx(row["fraction_of_peak"])


def test_the_roofline_of_a_loop_without_products_is_its_traffic(harness):
    case = harness.Case(lambda state, args, i: state + 1, jnp.zeros(1000), (), traffic=10**6)
    row = harness.measure(case, budget_seconds=0.0, gigabytes_per_second=10.0)
    assert row["gflop"] == 0
    assert row["fraction_of_roofline"] == pytest.approx(0.1 / row["best_ms"])


def test_the_state_of_a_loop_goes_from_call_to_call(harness):
    loop = harness.Loop(
        harness.Case(lambda state, args, i: state + args, jnp.zeros(()), jnp.float32(1))
    )
    passed = 2 * 2 + loop.passes
    loop.seconds_of_a_pass()
    assert float(loop._state) == passed


def test_rows_are_written_and_compared_in_units_of_the_peak(harness, tmp_path, capsys):
    cases = {"toy/a": lambda: product_case(harness), "toy/b": lambda: product_case(harness)}
    out = tmp_path / "rows.jsonl"
    args = ["--budget-seconds", "0", "--cases", "toy/a"]
    assert harness.run(lambda: cases, "toy.py", [*args, "--out", str(out)]) == 0
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["case"] == "toy/a"
    assert {"machine", "cores", "jax", "date", "command"} <= set(row)

    slow_before = row | {"best_ms": 1e6}
    out.write_text(json.dumps(row | {"best_ms": 1e-9}) + "\n" + json.dumps(slow_before) + "\n")
    compare = [*args, "--compare", str(out), "--at-least", "0.9"]
    assert harness.run(lambda: cases, "toy.py", compare) == 0
    out.write_text(json.dumps(row | {"best_ms": 1e-9}) + "\n")
    assert harness.run(lambda: cases, "toy.py", compare) == 1
    assert "toy/a is 0.00 times as fast, less than 0.9." in capsys.readouterr().out


def test_speed_is_relative_to_each_runs_own_peak(harness):
    then = {"best_ms": 10.0, "peak_gflops": 200.0}
    assert harness.speed_since({"best_ms": 20.0, "peak_gflops": 100.0}, then) == 1.0
    assert harness.speed_since({"best_ms": 10.0, "peak_gflops": 100.0}, then) == 2.0


def test_against_runs_another_checkouts_case_with_its_own_packages(harness, tmp_path, monkeypatch):
    roots = {}
    for name, products in {"here": 1, "there": 8}.items():
        roots[name] = tmp_path / name
        package = roots[name] / "packages" / "toy" / "src" / "wm_toy"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"PRODUCTS = {products}\n")
        bench = roots[name] / "tools" / "bench"
        bench.mkdir(parents=True)
        (bench / "toy.py").write_text(TOY)
        for path in BENCH.glob("*.py"):
            (bench / path.name).write_text(path.read_text())
    monkeypatch.syspath_prepend(str(roots["here"] / "packages" / "toy" / "src"))
    ours = harness.load_file(roots["here"] / "tools" / "bench" / "toy.py")
    other = harness.ModulesOf(roots["there"])
    with other:
        theirs = harness.load_file(roots["there"] / "tools" / "bench" / "toy.py")
        loop = harness.Loop(theirs.cases()["toy/product"]())
    assert loop.gflop == pytest.approx(8 * harness.Loop(ours.cases()["toy/product"]()).gflop)
    assert sys.modules["wm_toy"].PRODUCTS == 1
    assert sys.modules["harness"] is harness

    out = tmp_path / "rows.jsonl"
    args = ["--budget-seconds", "0", "--against", str(roots["there"]), "--out", str(out)]
    assert harness.run(ours.cases, "toy.py", args) == 0
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["speed"] == pytest.approx(row["other_best_ms"] / row["best_ms"])
    assert row["lowest_speed"] <= row["median_speed"] <= row["highest_speed"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--cases", "nothing"], "no case's name begins like nothing; the cases are toy/a"),
        (["--compare", "missing.jsonl"], "there is no file missing.jsonl"),
        (["--against", "."], "has no tools/bench/toy.py"),
    ],
)
def test_a_wrong_argument_is_refused(harness, args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        harness.run(lambda: {"toy/a": lambda: None}, "toy.py", args)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", BASELINES)
def test_every_case_has_a_row_in_the_committed_baseline(harness, name: str):
    module = harness.load_file(BENCH / f"{name}.py")
    baseline: Path = workspace.ROOT / "docs" / "data" / BASELINES[name]
    rows = harness.last_rows(baseline)
    assert set(module.cases()) <= set(rows)
    assert all("fraction_of_roofline" in rows[case] for case in module.cases())
