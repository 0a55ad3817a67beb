"""Does every known fault in the formula code make a parity test fail?

`dreamerv3_faults.py` and `tdmpc2_faults.py` list mistakes that somebody could make. For each of
them, this script

1. puts that one mistake into a copy of the packages, in a temporary folder;
2. runs the tests near it, and then, if they pass, the agent's parity suite: that of its package,
   that of wm-numerics, and that of wm-collect where the mistake lies there;
3. says what came of it: *caught*, a comparison failed; *survived*, everything passed; *crashed*, a
   test stopped with another error than a failed comparison; *broken*, no test could start.

Before the first fault all of these tests run once on the unchanged copy, where they must pass. With
`--out` each verdict is appended to a file as a line of JSON, and faults that have one there are
skipped. It prints a line per fault and a table at the end, and exits with 1 if a fault of the run
was not caught.

Run it with `uv run python tools/mutation/check.py --out docs/data/mutation.jsonl`.
"""

import argparse
import dataclasses
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import dreamerv3_faults
import tdmpc2_faults
from fault import Fault

ROOT = Path(__file__).resolve().parents[2]
FAULTS = {"dreamerv3": dreamerv3_faults.FAULTS, "tdmpc2": tdmpc2_faults.FAULTS}
NUMERICS = "packages/wm-numerics/tests/parity"
SUITES = {
    "dreamerv3": ("packages/wm-dreamer/tests/parity", NUMERICS),
    "tdmpc2": ("packages/wm-tdmpc2/tests/parity", NUMERICS),
}
# What only counts for faults in a package that has recordings of its own.
SUITES_OF_PACKAGES = {"packages/wm-collect/": ("packages/wm-collect/tests/parity",)}

CAUGHT, SURVIVED, CRASHED, BROKEN = VERDICTS = ("caught", "survived", "crashed", "broken")
# A mistake may make a loop endless; no suite takes nearly as long.
TIMEOUT_S = 1200


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the tests say of a copy.

    Attributes:
        verdict: one of `VERDICTS`.
        test: the test that failed first; empty if none did.
        error: first line of its error, or the end of the output if no test could start.
        seconds: how long it took.
    """

    verdict: str
    test: str
    error: str
    seconds: float


def copy_workspace(root: Path, folder: Path) -> None:
    """Copy the packages, and the settings of the tests, from a workspace into a folder."""
    shutil.copytree(root / "packages", folder / "packages")
    for name in ("conftest.py", "pyproject.toml"):
        if (root / name).is_file():
            shutil.copy2(root / name, folder / name)


def run_tests(copy: Path, tests: Iterable[str], cache: Path, *, writes_cache: bool) -> Outcome:
    """Run tests of a copy until the first one fails.

    Args:
        copy: the folder.
        tests: folders, files or single tests, relative to it.
        cache: JAX's compile cache.
        writes_cache: whether programs that are not there yet may be added; the programs of a
            fault are of no use to anybody else.
    """
    report = copy / "first_failure.json"
    report.unlink(missing_ok=True)
    sources = sorted(str(path) for path in copy.glob("packages/*/src"))
    environment = os.environ | {
        # Before the installed packages, which are the workspace itself.
        "PYTHONPATH": os.pathsep.join([*sources, str(Path(__file__).parent)]),
        # Compiled modules are told apart by whole seconds and sizes, which two faults may share.
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "MUTATION_COPY": str(copy),
        "MUTATION_REPORT": str(report),
    }
    if not writes_cache:
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1e9"
    options = ("-p", "first_failure", "-p", "no:cacheprovider", "-x", "-q", "-n0")
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=copy,
            env=environment,
            timeout=TIMEOUT_S,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired:
        return Outcome(CRASHED, "", f"no end within {TIMEOUT_S} seconds", TIMEOUT_S)
    seconds = round(time.monotonic() - start, 1)
    if done.returncode == 0:
        return Outcome(SURVIVED, "", "", seconds)
    failure = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else None
    if done.returncode != 1 or failure is None or failure["collecting"]:
        end = "\n".join(done.stdout.splitlines()[-15:])
        return Outcome(BROKEN, "", failure["error"] if failure else end, seconds)
    verdict = CAUGHT if failure["compared"] else CRASHED
    return Outcome(verdict, failure["test"], failure["error"], seconds)


def suite_of(fault: Fault, suite: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parity suite a fault is tried on, given that of its agent."""
    more = (tests for start, tests in SUITES_OF_PACKAGES.items() if fault.file.startswith(start))
    return sum(more, start=suite)


def judge(fault: Fault, copy: Path, suite: tuple[str, ...], cache: Path) -> Outcome:
    """Put a fault into a copy, run the tests, and take it out again."""
    path = copy / fault.file
    original = path.read_text(encoding="utf-8")
    path.write_text(fault.changed(original), encoding="utf-8")
    outcome = Outcome(SURVIVED, "", "", 0.0)
    try:
        for tests in filter(None, (fault.tests, suite)):
            found = run_tests(copy, tests, cache, writes_cache=False)
            outcome = dataclasses.replace(found, seconds=round(outcome.seconds + found.seconds, 1))
            if outcome.verdict != SURVIVED:
                break
    finally:
        path.write_text(original, encoding="utf-8")
    return outcome


def read_verdicts(path: Path) -> dict[tuple[str, str], dict]:
    """Return the last line of every fault in a file of verdicts, by agent and name."""
    if not path.is_file():
        return {}
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(line["agent"], line["fault"]): line for line in lines}


def line_of(agent: str, fault: Fault, outcome: Outcome) -> dict:
    """Return what is written down of a fault."""
    return {
        "agent": agent,
        "fault": fault.name,
        "digest": fault.digest,
        **dataclasses.asdict(outcome),
        "date": datetime.date.today().isoformat(),
    }


def area_of(fault: Fault) -> str:
    """Return package and file of a fault, in short."""
    package, _, module = fault.file.removeprefix("packages/").partition("/")
    return f"{package} {Path(module).name}"


def table(judged: Iterable[tuple[Fault, str]]) -> str:
    """Return a Markdown table of the number of faults by area and verdict."""
    counts: dict[str, dict[str, int]] = {}
    for fault, verdict in judged:
        row = counts.setdefault(area_of(fault), dict.fromkeys(VERDICTS, 0))
        row[verdict] += 1
    counts["all"] = {v: sum(row[v] for row in counts.values()) for v in VERDICTS}
    lines = [("where", "faults", *VERDICTS), ("---",) * (2 + len(VERDICTS))]
    lines += [(area, sum(row.values()), *row.values()) for area, row in counts.items()]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def chosen(agents: Iterable[str], names: Iterable[str]) -> Iterator[tuple[str, Fault]]:
    """Yield the faults of these agents, or those of them that are named."""
    unknown = set(names) - {fault.name for agent in agents for fault in FAULTS[agent]}
    if unknown:
        raise SystemExit(f"There are no faults called {', '.join(sorted(unknown))}.")
    for agent in agents:
        for fault in FAULTS[agent]:
            if not names or fault.name in names:
                yield agent, fault


def main() -> None:
    """Judge faults, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agent", choices=SUITES, help="only the faults of this agent")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these faults")
    parser.add_argument("--out", type=Path, help="file the verdicts are appended to")
    parser.add_argument("--again", action="store_true", help="also those that have a verdict there")
    options = parser.parse_args()

    faults = list(chosen([options.agent] if options.agent else list(SUITES), options.only))
    known = read_verdicts(options.out) if options.out and not options.again else {}
    judged, waiting = [], []
    for agent, fault in faults:
        line = known.get((agent, fault.name))
        if line is not None and line["digest"] == fault.digest:
            judged.append((fault, line["verdict"]))
        else:
            waiting.append((agent, fault))

    cache = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", ROOT / ".jax_cache"))
    with tempfile.TemporaryDirectory(prefix="mutation_") as folder:
        copy = Path(folder)
        copy_workspace(ROOT, copy)
        if waiting:
            tests = [test for agent, fault in waiting for test in suite_of(fault, SUITES[agent])]
            tests += [test.partition("::")[0] for _, fault in waiting for test in fault.tests]
            unchanged = run_tests(copy, dict.fromkeys(tests), cache, writes_cache=True)
            if unchanged.verdict != SURVIVED:
                raise SystemExit(f"The unchanged packages fail {unchanged.test}: {unchanged.error}")
            print(f"The unchanged packages pass, in {unchanged.seconds:.0f} s.", flush=True)
        for agent, fault in waiting:
            outcome = judge(fault, copy, suite_of(fault, SUITES[agent]), cache)
            judged.append((fault, outcome.verdict))
            what = outcome.test or outcome.error
            print(
                f"{outcome.verdict:8} {agent} {fault.name} ({outcome.seconds:.0f} s) {what}",
                flush=True,
            )
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line_of(agent, fault, outcome)) + "\n")

    print(table(judged))
    missed = [fault.name for fault, verdict in judged if verdict != CAUGHT]
    if missed:
        raise SystemExit(f"Not caught: {', '.join(missed)}.")


if __name__ == "__main__":
    main()
