"""JAX settings and fixtures for every test of the workspace.

The settings are environment variables, set before anything imports JAX, so that the programs
some tests start inherit them. Each is a default: a value that is already set wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time is compilation; the second run reads it from this folder.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax  # noqa: E402
import pytest  # noqa: E402

FOLDERS_WITH_RANK_ERRORS = {"unit", "parity"}


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers this file gives a meaning to, and one harmless warning."""
    config.addinivalue_line(
        "markers",
        "rank_promotion: the module may promote ranks (it runs environments written by others)",
    )
    config.addinivalue_line(
        "markers",
        "full_optimisation: the module's programs are compiled as users get them (it compares to "
        "the last digits)",
    )
    config.addinivalue_line(
        "markers",
        "recordings(pattern): run the test once per recording that matches, as `recording`",
    )
    # Two test runs may share the cache folder; a half-written entry is compiled again.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:Error (reading|writing) persistent compilation cache entry:UserWarning",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what trains first: a long file that starts last would keep one core busy alone."""

    def unit_tests_last(item: pytest.Item) -> int:
        folders = item.path.parts
        return 2 if "unit" in folders else 1 if "parity" in folders else 0

    items.sort(key=unit_tests_last)


def parity_folder(test_file: Path) -> Path:
    """Return the folder with the recordings for a test: `WM_PARITY_DIR`, or its package's own."""
    override = os.environ.get("WM_PARITY_DIR")
    if override:
        return Path(override)
    tests = next(parent for parent in test_file.parents if parent.name == "tests")
    return tests / "fixtures"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test marked `recordings("tdmpc2/update*.npz")` one run per matching file.

    A kind of recording without any file fails the collection: a parity test that silently
    compares nothing would look like one that passed.
    """
    marker = metafunc.definition.get_closest_marker("recordings")
    if marker is None:
        return
    folder = parity_folder(metafunc.definition.path)
    paths = sorted(folder.glob(marker.args[0]))
    if not paths:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: no recording matches {marker.args[0]!r} in {folder}; "
            "set WM_PARITY_DIR to a folder that holds every kind of recording"
        )
    metafunc.parametrize("recording", paths, ids=[path.stem for path in paths])


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root folder of the workspace."""
    return ROOT


@pytest.fixture(scope="module")
def parity_dir(request: pytest.FixtureRequest) -> Path:
    """The folder with the recordings for this test module (see `parity_folder`)."""
    return parity_folder(request.path)


@pytest.fixture(scope="module", autouse=True)
def _rank_promotion_is_an_error(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make an accidental broadcast between ranks an error in unit and parity tests.

    The scope is the module, so that functions compiled by a module's fixtures are compiled once,
    under the same setting as in its tests.
    """
    checked = FOLDERS_WITH_RANK_ERRORS.intersection(request.path.parts)
    if not checked or request.node.get_closest_marker("rank_promotion"):
        yield
        return
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="module", autouse=True)
def _programs_are_compiled_in_a_hurry(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile without most of XLA's optimisations, which take longer than a test's programs run.

    The programs that are compared with recordings, or to the last digits, are those that users
    get. The programs that a test starts inherit the setting.
    """
    as_users = request.node.get_closest_marker("full_optimisation")
    if "parity" in request.path.parts or as_users:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_are_dropped() -> Iterator[None]:
    """Drop a module's compiled programs at its end: together they would take gigabytes."""
    yield
    jax.clear_caches()
