"""Which recordings a parity test runs on, and the precision it runs with.

A test that takes an argument such as `update_recording` runs once per recording of that kind. The
folder is `fixtures/tdmpc2` beside these tests, or `$WM_PARITY_DIR/tdmpc2`. A kind without any file
is an error, because a test that compares nothing would look like one that passed; unless the folder
holds a file `PARTIAL` that lists the kinds it leaves out, one per line. The two kinds that do not
depend on a set's sizes, `counts` and `dropout`, are taken from the fixtures where another folder
has none.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from wm_tdmpc2 import TDMPC2Settings

from .recordings import Recording, read

KINDS = {
    "update": "update*.npz",
    "update_clip": "update*.npz",
    "plan": "plan*.npz",
    "multitask": "multitask*.npz",
    "episodic": "episodic*.npz",
    "control_flow": "control_flow_*.npz",
    "control_flow_later": "control_flow_later_*.npz",
    "numerics": "numerics*.npz",
    "counts": "init_and_counts*.json",
    "dropout": "dropout_trace_paper*.json",
}

# Test arguments that stand for several kinds. The later code's policy loss is another one, so what
# it makes of the policy is not compared.
ARGUMENTS = {f"{kind}_recording": (kind,) for kind in KINDS} | {
    "update_recording": ("update", "multitask", "episodic"),
    "paper_update_recording": ("update", "multitask"),
    "plan_recording": ("plan", "multitask", "episodic"),
    "single_plan_recording": ("plan",),
}

FIXTURES = Path(__file__).parents[1] / "fixtures"


def find(kind: str, folder: Path) -> list[Recording]:
    """Return the recordings of a kind, in order of their names."""
    found = [read(path) for path in sorted(folder.glob(KINDS[kind]))]
    found = [r for r in found if r.is_later == (kind in ("episodic", "control_flow_later"))]
    if kind == "update_clip":
        usual = TDMPC2Settings().grad_clip_norm
        found = [r for r in found if r.config.grad_clip_norm != usual]
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = Path(os.environ.get("WM_PARITY_DIR") or FIXTURES) / "tdmpc2"
    for argument, kinds in ARGUMENTS.items():
        if argument in metafunc.fixturenames:
            cases = [case for kind in kinds for case in cases_of(kind, folder, metafunc)]
            metafunc.parametrize(argument, cases)


def cases_of(kind: str, folder: Path, metafunc: pytest.Metafunc) -> list[Any]:
    """Return the recordings of a kind as parameters, or a skipped one if it is left out."""
    found = find(kind, folder)
    if not found and KINDS[kind].endswith(".json"):
        found = find(kind, FIXTURES / "tdmpc2")
    if found:
        return [pytest.param(r, id=r.name) for r in found]
    left_out = folder / "PARTIAL"
    if left_out.is_file() and kind in left_out.read_text().split():
        reason = f"{left_out} says that the folder holds no recording of the kind {kind!r}"
        return [pytest.param(None, id=f"no-{kind}", marks=pytest.mark.skip(reason=reason))]
    raise pytest.UsageError(
        f"{metafunc.definition.nodeid}: no recording of the kind {kind!r} ({KINDS[kind]}) in "
        f"{folder}; set WM_PARITY_DIR to a folder whose subfolder tdmpc2 holds every kind, "
        f"or list {kind!r} in a file {left_out} if it is left out on purpose"
    )


@pytest.fixture(scope="module", autouse=True)
def _full_precision() -> Iterator[None]:
    with jax.default_matmul_precision("highest"):
        yield
