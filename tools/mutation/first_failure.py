"""A pytest plugin for `check.py`: what failed first, and were the copies of the packages tested?

It runs in the process of the tests. `MUTATION_COPY` names the folder with the changed workspace,
`MUTATION_REPORT` the file the first failure is written to.
"""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest


def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop if a package would be imported from somewhere else than the changed workspace."""
    copy = Path(os.environ["MUTATION_COPY"]).resolve()
    for source in copy.glob("packages/*/src/*/__init__.py"):
        spec = importlib.util.find_spec(source.parent.name)
        origin = spec.origin if spec else None
        if origin is None or Path(origin).resolve() != source:
            raise pytest.UsageError(f"{source} was to be tested, but Python would import {origin}.")


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector,
    call: pytest.CallInfo[Any],
    report: pytest.CollectReport | pytest.TestReport,
) -> None:
    """Write down the first failure."""
    path = Path(os.environ["MUTATION_REPORT"])
    if path.exists() or call.excinfo is None:
        return
    failure = {
        "test": node.nodeid,
        "collecting": isinstance(report, pytest.CollectReport),
        "compared": issubclass(call.excinfo.type, AssertionError | pytest.fail.Exception),
        "error": call.excinfo.exconly().splitlines()[0][:200],
    }
    path.write_text(json.dumps(failure), encoding="utf-8")
