"""What the workspace's own tests share: its packages, its tools, and how to run a program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path.parent.name for path in (ROOT / "packages").glob("*/pyproject.toml"))


def read_toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def load_file(path: str) -> ModuleType:
    """Import a file of the workspace that is in no package, by its path from the root."""
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def uv() -> str:
    """Return the uv that runs these tests, or else the one on the path."""
    program = os.environ.get("UV") or shutil.which("uv")
    assert program, "these tests build and install wheels: start them with `uv run pytest`"
    return program


def run(*command: str | Path, cwd: Path = ROOT, timeout: float = 600) -> str:
    """Run a program outside the test's own environment and return what it printed.

    A failure shows the program's whole output.
    """
    # Neither this environment's packages nor its uv settings belong to the program under test.
    dropped = re.compile(r"^(VIRTUAL_ENV|PYTHONPATH|UV_PROJECT.*|UV_RUN_.*)$")
    environment = {name: value for name, value in os.environ.items() if not dropped.match(name)}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        timeout=timeout,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    words = " ".join(str(part) for part in command)
    assert done.returncode == 0, f"{words}\nexited with {done.returncode}:\n{done.stdout}"
    return done.stdout


def python_of(environment: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
