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

import jax
import pytest

from wm_tdmpc2 import TDMPC2Settings

from .recordings import Recording, read

KINDS = {
    "update": "update*.npz",
    "update_clip": "update*.npz",
    "plan": "plan*.npz",
    "control_flow": "control_flow_*.npz",
    "numerics": "numerics*.npz",
    "counts": "init_and_counts*.json",
    "dropout": "dropout_trace_paper*.json",
}


FIXTURES = Path(__file__).parents[1] / "fixtures"


def find(kind: str, folder: Path) -> list[Recording]:
    """Return the recordings of a kind, in order of their names.

    The folder may also hold recordings of the later code or of several tasks.
    """
    found = [r for r in map(read, sorted(folder.glob(KINDS[kind]))) if r.is_ours]
    if kind == "update_clip":
        usual = TDMPC2Settings().grad_clip_norm
        found = [r for r in found if r.config.grad_clip_norm != usual]
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = Path(os.environ.get("WM_PARITY_DIR") or FIXTURES) / "tdmpc2"
    for kind, pattern in KINDS.items():
        argument = f"{kind}_recording"
        if argument not in metafunc.fixturenames:
            continue
        found = find(kind, folder)
        if not found and pattern.endswith(".json"):
            found = find(kind, FIXTURES / "tdmpc2")
        cases = [pytest.param(r, id=r.name) for r in found]
        left_out = folder / "PARTIAL"
        if not cases and left_out.is_file() and kind in left_out.read_text().split():
            reason = f"{left_out} says that the folder holds no recording of the kind {kind!r}"
            cases = [pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))]
        if not cases:
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: no recording of the kind {kind!r} ({pattern}) in "
                f"{folder}; set WM_PARITY_DIR to a folder whose subfolder tdmpc2 holds every kind, "
                f"or list {kind!r} in a file {left_out} if it is left out on purpose"
            )
        metafunc.parametrize(argument, cases)


@pytest.fixture(scope="module", autouse=True)
def _full_precision() -> Iterator[None]:
    with jax.default_matmul_precision("highest"):
        yield
