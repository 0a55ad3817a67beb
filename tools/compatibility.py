"""Do the packages work with the lowest and with the newest versions that their metadata allow?

The lock holds one version of everything, so the tests say nothing about the rest of the ranges.
For each package and each end of the ranges, this script

1. installs the package's wheel, with the wheels it needs from this workspace, into a fresh
   environment in a temporary folder; everything that our metadata name is taken at its lowest, or
   at its newest version, and what these need in turn always at its newest;
2. runs `compatibility_check.py` there: imports, known numbers, tiny runs.

It prints a line as each ends, then a table in Markdown, and exits with 1 if anything failed.

Run it with `uv run python tools/compatibility.py`.
"""

import argparse
import dataclasses
import email
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("wm-numerics", "wm-collect", "wm-tdmpc2", "wm-dreamer", "wm-multitask")
RESOLUTIONS = {"lowest": "lowest-direct", "highest": "highest"}
WRONG_JAX = "0.10.2"  # computes wrong numbers on the CPU


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one package at one end of the ranges.

    Attributes:
        package: name of the package.
        resolution: "lowest" or "highest".
        problem: what did not work, with the end of the output; empty if everything did.
        versions: version of Python and of every package that was installed, by name.
        seconds: how long the installation and the check took.
    """

    package: str
    resolution: str
    problem: str
    versions: dict[str, str]
    seconds: float


def uv() -> str:
    """Return the uv that runs this script, or else the one on the path.

    Raises:
        SystemExit: there is none.
    """
    program = os.environ.get("UV") or shutil.which("uv")
    if program is None:
        raise SystemExit("uv is not on the path; start this with `uv run python ...`.")
    return program


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a program outside this script's own environment, and return what it printed.

    Raises:
        RuntimeError: it failed; the message ends with the end of its output.
    """
    # Neither this environment's packages nor its uv settings belong to the program.
    foreign = re.compile(r"^(VIRTUAL_ENV|PYTHONPATH|UV_PROJECT.*|UV_RUN_.*)$")
    kept = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=kept | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        lines = done.stdout.splitlines()[-25:]
        words = " ".join(str(word) for word in command)
        raise RuntimeError("\n".join([f"{words} ended with {done.returncode}:", *lines]))
    return done.stdout


def build_wheels(folder: Path) -> dict[str, Path]:
    """Build the wheel of every package into `folder`; return their paths by package."""
    run(uv(), "build", "--all-packages", "--wheel", "--out-dir", folder, cwd=ROOT)
    return {
        package: next(folder.glob(f"{package.replace('-', '_')}-*.whl")) for package in PACKAGES
    }


def declared(wheel: Path) -> list[Requirement]:
    """Return the requirements in a wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]


def requirements(package: str, wheels: dict[str, Path]) -> list[str]:
    """Return what to install for one package: its wheel, those below it, and all they declare.

    A resolver takes the lowest version only of what it is given directly, so the requirements that
    stand in the wheels' metadata are written out.
    """
    lines: dict[str, None] = {}
    waiting = [Requirement(package)]
    while waiting:
        wanted = waiting.pop()
        if wanted.name not in wheels:
            lines[str(wanted).partition(";")[0].strip()] = None
            continue
        lines[f"{wanted.name} @ {wheels[wanted.name].as_uri()}"] = None
        extras = wanted.extras or {""}
        waiting += [
            requirement
            for requirement in declared(wheels[wanted.name])
            if requirement.marker is None
            or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return sorted(lines)


def check(
    package: str, resolution: str, python: str, wheels: dict[str, Path], root: Path
) -> Outcome:
    """Install one package into a fresh environment, and see whether it works.

    Args:
        package: name of the package.
        resolution: "lowest" or "highest".
        python: version of Python or path of an interpreter, as uv understands it.
        wheels: paths of the wheels by package.
        root: folder in which the environment is made; it is deleted afterwards.
    """
    began = time.monotonic()
    folder = root / f"{package}-{resolution}"
    folder.mkdir()
    environment = folder / "environment"
    interpreter = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    versions: dict[str, str] = {}
    problem = ""
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(requirements(package, wheels)) + "\n", encoding="utf-8")
    chosen = f"--resolution={RESOLUTIONS[resolution]}"
    installer = (uv(), "--no-config", "pip")
    here = ("--python", interpreter)
    try:
        run(uv(), "venv", "--no-config", "--python", python, environment, cwd=folder)
        run(*installer, "install", *here, chosen, "--requirements", listed, cwd=folder)
        versions["Python"] = run(interpreter, "--version", cwd=folder).split()[-1]
        listing = run(*installer, "list", "--quiet", "--format=json", *here, cwd=folder)
        versions |= {entry["name"]: entry["version"] for entry in json.loads(listing)}
        if versions["jax"] == WRONG_JAX:
            raise RuntimeError(f"jax {WRONG_JAX} was chosen, which the metadata must exclude.")
        script = Path(__file__).with_name("compatibility_check.py")
        # One cache for all environments, and a new one: compiling belongs to what is checked.
        cache = str(root / "compiled")
        work = folder / "work"
        work.mkdir()
        run(interpreter, "-I", script, package, cwd=work, JAX_COMPILATION_CACHE_DIR=cache)
    except RuntimeError as error:
        problem = str(error)
    shutil.rmtree(folder)
    return Outcome(package, resolution, problem, versions, time.monotonic() - began)


def table(outcomes: list[Outcome], wheels: dict[str, Path]) -> str:
    """Return a Markdown table: a row per outcome, with the versions of what our metadata name."""
    ours = set(wheels)
    installed = {name for outcome in outcomes for name in outcome.versions}
    ranged = {requirement.name for wheel in wheels.values() for requirement in declared(wheel)}
    named = ["Python", *sorted((ranged & installed) - ours)]
    lines = [["package", "versions", "result", *named], ["---"] * (3 + len(named))]
    for outcome in outcomes:
        versions = [outcome.versions.get(name, "–") for name in named]
        result = "fails" if outcome.problem else "works"
        lines.append([outcome.package, outcome.resolution, result, *versions])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    """Check what the options ask for; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Check the packages with the lowest and the newest versions they allow."
    )
    parser.add_argument(
        "--package", action="append", choices=PACKAGES, help="only this one; may be repeated"
    )
    parser.add_argument("--resolution", choices=RESOLUTIONS, help="only this end of the ranges")
    parser.add_argument(
        "--python", default="3.11", help="version of Python or path of an interpreter (%(default)s)"
    )
    options = parser.parse_args()
    resolutions = [options.resolution] if options.resolution else list(RESOLUTIONS)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="compatibility-") as temporary:
        root = Path(temporary)
        wheels = build_wheels(root / "wheels")
        for resolution in resolutions:
            for package in options.package or PACKAGES:
                outcome = check(package, resolution, options.python, wheels, root)
                outcomes.append(outcome)
                result = "fails" if outcome.problem else "works"
                print(f"{package}, {resolution}: {result}, {outcome.seconds:.0f} s", flush=True)
                if outcome.problem:
                    print(f"\n{outcome.problem}\n", flush=True)
        print(f"\n{table(outcomes, wheels)}\n")
    failed = [outcome for outcome in outcomes if outcome.problem]
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} work.")
    chosen = {o.versions["jax"] for o in outcomes if "jax" in o.versions}
    if chosen and WRONG_JAX not in chosen:
        print(f"jax {', '.join(sorted(chosen))} was chosen, jax {WRONG_JAX} was not.")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
