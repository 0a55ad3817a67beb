"""What the benchmarks share: timing a case, its share of the machine's roofline, and comparing.

Every case is a loop inside one program that works on its state in place, as in training: a single
call would also pay for the pages of its results. Times are per pass of the loop.

The machine is measured in the same run: its peak, XLA's float32 matrix product, before and after
each case, and its memory's speed once. No pass can take less time than its matrix products at the
peak, nor than moving what it must read and write; the larger of the two is the roofline, and a
case's share of it is that time over the measured one. The products are counted in the traced
program (`matmul_flops`). What must be moved is the state, read and written, and the arguments;
what a pass moves besides counts against it.

Compile times are those of a cold start: the compilation cache is not used.
"""

import argparse
import dataclasses
import datetime
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from machine import description, matmul_peak_gflops, memory_gigabytes_per_second
from matmul_flops import matmul_flops

# About how long one call of a loop takes, and the most passes it makes.
_CALL_SECONDS, _MOST_PASSES = 0.5, 10_000
_LEAST_CALLS = 5


@dataclasses.dataclass(frozen=True)
class Case:
    """One timed loop, `state = body(state, args, i)`.

    Attributes:
        body: one pass; `i` is the number of the pass, `[]` int32.
        state: what the passes work on, in place. It holds all that a pass computes, so that
            nothing is left out.
        args: what every pass reads.
        traffic: the bytes a pass must at least move; None for the whole state, read and written,
            and the arguments.
        facts: further columns of its row.
    """

    body: Callable[[Any, Any, jax.Array], Any]
    state: Any
    args: Any
    traffic: int | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def least_bytes(self) -> int:
        """What a pass must at least move, in bytes."""
        if self.traffic is not None:
            return self.traffic
        return 2 * nbytes(self.state) + nbytes(self.args)


Cases = Mapping[str, Callable[[], Case]]


def nbytes(tree: Any) -> int:
    """Return the bytes of a tree's arrays, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def zeros(shapes: Any) -> Any:
    """Return zeros of the shapes and dtypes of a tree's leaves."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


class Loop:
    """A case, compiled, with its state.

    Attributes:
        gflop: of the matrix products of a pass.
        least_bytes: see `Case`.
        compile_seconds: tracing included.
        temporary_mb: what the program needs besides its arguments and results.
        memory_mb: all it needs.
        passes: of a timed call.
    """

    def __init__(self, case: Case) -> None:
        def loop(state: Any, args: Any, n: jax.Array) -> Any:
            return jax.lax.fori_loop(0, n, lambda i, state: case.body(state, args, i), state)

        began = time.perf_counter()
        lowered = jax.jit(loop, donate_argnums=0).lower(case.state, case.args, jnp.int32(1))
        self._compiled = lowered.compile()
        self.compile_seconds = time.perf_counter() - began
        self.gflop = 1e-9 * matmul_flops(case.body, case.state, case.args, jnp.int32(0))
        self.least_bytes = case.least_bytes
        memory: Any = self._compiled.memory_analysis()
        self.temporary_mb = 1e-6 * memory.temp_size_in_bytes
        self.memory_mb = self.temporary_mb + 1e-6 * (
            memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        )
        self._state, self._args = case.state, case.args
        self.passes = 2
        self.seconds_of_a_pass()  # not counted: the first call also pages memory in
        self.passes = min(max(2, round(_CALL_SECONDS / self.seconds_of_a_pass())), _MOST_PASSES)

    def seconds_of_a_pass(self) -> float:
        """Call the program, and return the time of one of its passes."""
        began = time.perf_counter()
        self._state = jax.block_until_ready(
            self._compiled(self._state, self._args, jnp.int32(self.passes))
        )
        return (time.perf_counter() - began) / self.passes


def repeat(calls: Sequence[Callable[[], float]], budget_seconds: float) -> list[list[float]]:
    """Call functions in turn until the time is up; return what each returned."""
    times: list[list[float]] = [[] for _ in calls]
    began = time.perf_counter()
    while len(times[0]) < _LEAST_CALLS or time.perf_counter() - began < budget_seconds:
        for kept, call in zip(times, calls, strict=True):
            kept.append(call())
    return times


def measure(case: Case, *, budget_seconds: float, gigabytes_per_second: float) -> dict[str, Any]:
    """Return the figures of one case; its state is used up."""
    loop = Loop(case)
    peak_before = matmul_peak_gflops()
    (times,) = repeat([loop.seconds_of_a_pass], budget_seconds)
    peak = max(peak_before, matmul_peak_gflops())
    best = min(times)
    roofline = max(loop.gflop / peak, 1e-9 * loop.least_bytes / gigabytes_per_second)
    return {
        "best_ms": 1e3 * best,
        "median_ms": 1e3 * statistics.median(times),
        "passes_per_call": loop.passes,
        "gflop": loop.gflop,
        "gflops": loop.gflop / best,
        "peak_gflops": peak,
        "fraction_of_peak": loop.gflop / best / peak,
        "least_mb": 1e-6 * loop.least_bytes,
        "gigabytes_per_second": gigabytes_per_second,
        "fraction_of_roofline": roofline / best,
        "compile_s": loop.compile_seconds,
        "temporary_mb": loop.temporary_mb,
        "memory_mb": loop.memory_mb,
        **case.facts,
    }


def speed_against(ours: Loop, theirs: Loop, *, budget_seconds: float) -> dict[str, Any]:
    """Return how many times as fast one loop is as the other, called in turn in this process."""
    theirs.passes = ours.passes
    times = repeat([ours.seconds_of_a_pass, theirs.seconds_of_a_pass], 2 * budget_seconds)
    ratios = [there / here for here, there in zip(*times, strict=True)]
    return {
        "best_ms": 1e3 * min(times[0]),
        "other_best_ms": 1e3 * min(times[1]),
        "speed": min(times[1]) / min(times[0]),
        "median_speed": statistics.median(ratios),
        "lowest_speed": min(ratios),
        "highest_speed": max(ratios),
    }


def speed_since(row: Mapping[str, Any], earlier: Mapping[str, Any]) -> float:
    """Return how many times as fast a case is as in an earlier row.

    Times are taken in units of the matrix product's, measured in each row's own run: the two runs
    may have met another machine, or a busier one.
    """
    ours = row["best_ms"] * row["peak_gflops"]
    return float(earlier["best_ms"] * earlier["peak_gflops"] / ours)


def run(cases: Callable[[], Cases], file: str, argv: Sequence[str] | None = None) -> int:
    """Measure cases as a command line asks; return the exit status.

    Args:
        cases: returns what makes each case, by name.
        file: the benchmark's own file, in `tools/bench`.
        argv: the command line without the program; None for this process's.
    """
    name = Path(file).name
    parser = argparse.ArgumentParser(prog=f"tools/bench/{name}")
    parser.add_argument("--cases", nargs="+", default=[""], help="beginnings of the names of cases")
    parser.add_argument("--budget-seconds", type=float, default=5.0, help="per timed case")
    parser.add_argument("--out", type=Path, help="append the rows to this file")
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="show ratios to the last rows of this file"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="time each case alternately with the same one of another checkout of this workspace",
    )
    parser.add_argument(
        "--at-least",
        type=float,
        default=0.0,
        metavar="RATIO",
        help="with --compare or --against: fail if a case is less than so many times as fast",
    )
    options = parser.parse_args(argv)
    if options.compare and options.against:
        parser.error("--compare and --against are two comparisons; give one of them.")
    if options.against and not (options.against / "tools" / "bench" / name).exists():
        parser.error(f"{options.against} has no tools/bench/{name}: give a checkout's root.")
    if options.compare and not options.compare.exists():
        parser.error(f"there is no file {options.compare} to compare with.")
    chosen = {
        case: make
        for case, make in cases().items()
        if any(case.startswith(beginning) for beginning in options.cases)
    }
    if not chosen:
        parser.error(
            f"no case's name begins like {', '.join(options.cases)}; the cases are "
            f"{', '.join(cases())}."
        )
    jax.config.update("jax_enable_compilation_cache", False)
    context = description() | {
        "date": datetime.date.today().isoformat(),
        "command": " ".join([f"tools/bench/{name}", *(sys.argv[1:] if argv is None else argv)]),
    }
    print(", ".join(f"{k} {v}" for k, v in context.items()))
    if options.against:
        rows = _run_against(chosen, options.against.resolve(), name, options.budget_seconds)
    else:
        rows = _run_alone(chosen, options.compare, options.budget_seconds)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(row | context) + "\n" for row in rows)
    slower = [row for row in rows if row.get("speed", options.at_least) < options.at_least]
    for row in slower:
        print(f"{row['case']} is {row['speed']:.2f} times as fast, less than {options.at_least:g}.")
    return 1 if slower else 0


def _run_alone(cases: Cases, baseline: Path | None, budget_seconds: float) -> list[dict[str, Any]]:
    earlier = last_rows(baseline) if baseline else {}
    speed_of_memory = memory_gigabytes_per_second()
    print(f"memory: {speed_of_memory:.1f} GB/s")
    print(
        f"{'case':36} {'best':>11} {'median':>11} {'GFLOP':>8} {'peak':>6} {'share':>6} "
        f"{'roofline':>8} {'compile':>8} {'temporary':>11}"
    )
    rows = []
    for name, make in cases.items():
        measured = measure(
            make(), budget_seconds=budget_seconds, gigabytes_per_second=speed_of_memory
        )
        row = {"case": name} | measured
        gflop, share = f"{row['gflop']:.3f}", f"{row['fraction_of_peak']:.0%}"
        if not row["gflop"]:
            gflop = share = "–"
        text = (
            f"{name:36} {row['best_ms']:8.3f} ms {row['median_ms']:8.3f} ms {gflop:>8} "
            f"{row['peak_gflops']:6.1f} {share:>6} {row['fraction_of_roofline']:8.0%} "
            f"{row['compile_s']:6.1f} s {row['temporary_mb']:8.1f} MB"
        )
        if name in earlier:
            row["speed"] = speed_since(row, earlier[name])
            text += f"   x{row['speed']:.2f} since {earlier[name]['date']}"
        print(text, flush=True)
        rows.append(row)
    return rows


def _run_against(
    cases: Cases, checkout: Path, file: str, budget_seconds: float
) -> list[dict[str, Any]]:
    print(f"{'case':36} {'here':>11} {'there':>11} {'speed':>6} {'median':>6}   lowest, highest")
    other = ModulesOf(checkout)
    with other:
        their_cases = load_file(checkout / "tools" / "bench" / file).cases()
    rows = []
    for name, make in cases.items():
        if name not in their_cases:
            print(f"{name:36} is not a case there")
            continue
        with other:  # making and tracing a case may import
            theirs = Loop(their_cases[name]())
        row = {"case": name} | speed_against(Loop(make()), theirs, budget_seconds=budget_seconds)
        print(
            f"{name:36} {row['best_ms']:8.3f} ms {row['other_best_ms']:8.3f} ms "
            f"x{row['speed']:.2f} x{row['median_speed']:.2f}   "
            f"x{row['lowest_speed']:.2f}, x{row['highest_speed']:.2f}",
            flush=True,
        )
        rows.append(row)
    return rows


class ModulesOf:
    """A context in which this workspace's modules are those of another checkout.

    What was imported in it is there again when it is entered again.
    """

    def __init__(self, checkout: Path) -> None:
        sources = sorted(checkout.glob("packages/*/src"))
        self._paths = [str(path) for path in [*sources, checkout / "tools" / "bench"]]
        self._theirs: dict[str, Any] = {}
        self._ours: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._ours = _take_modules()
        sys.modules.update(self._theirs)
        sys.path[:0] = self._paths

    def __exit__(self, *exception: Any) -> None:
        self._theirs = _take_modules()
        sys.modules.update(self._ours)
        del sys.path[: len(self._paths)]


def load_file(path: Path) -> Any:
    """Import a file that is not on the path."""
    spec = importlib.util.spec_from_file_location(f"other_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def last_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the newest row of each case."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["case"]: row for row in rows}


def _take_modules() -> dict[str, Any]:
    """Take this workspace's modules out of those that are imported."""
    own = {path.stem for path in Path(__file__).parent.glob("*.py")}
    names = [name for name in sys.modules if name.startswith("wm_") or name in own]
    return {name: sys.modules.pop(name) for name in names}
