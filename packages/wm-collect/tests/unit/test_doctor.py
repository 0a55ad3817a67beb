"""The doctor: a failing check is isolated and told, and a sound installation passes."""

import io
import os
import subprocess
import sys

import jax
import pytest
from rich.console import Console

from wm_collect import doctor, self_tests
from wm_collect.doctor import Check, print_checks, run_checks

pytestmark = pytest.mark.rank_promotion  # it runs environments of libraries


def _raise():
    raise OSError("the disk is on fire")


def shown(checks, monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", checks)
    console = Console(file=io.StringIO(), width=200)
    return print_checks(console), console.file.getvalue()


def test_an_exception_is_the_failure_of_its_check_only(monkeypatch):
    checks = {"first": _raise, "second": lambda: ("ok", "fine")}
    status, text = shown(checks, monkeypatch)
    assert status == 1
    assert "OSError: the disk is on fire" in text
    assert "second" in text and "fine" in text and "Failed: first." in text


@pytest.mark.parametrize("result", ["ok", "warning", "skipped", "info"])
def test_only_a_failure_changes_the_exit_status(result, monkeypatch):
    status, text = shown({"only": lambda: (result, "a [detail] of it")}, monkeypatch)
    assert status == 0
    assert result in text and "a [detail] of it" in text


def test_checks_are_told_as_they_end(monkeypatch):
    order = []
    checks = {
        "a": lambda: order.append("a") or ("ok", ""),
        "b": lambda: order.append("b") or ("ok", ""),
    }
    monkeypatch.setattr(doctor, "CHECKS", checks)
    run_checks(lambda check: order.append(check))
    assert order == ["a", Check("a", "ok", ""), "b", Check("b", "ok", "")]


def test_this_installation_passes_without_the_optional_libraries(monkeypatch):
    for module in ("brax", "mujoco_playground", "mujoco"):
        monkeypatch.setitem(sys.modules, module, None)
    checks = {check.name: check for check in run_checks()}
    assert [c for c in checks.values() if c.result in ("failed", "warning")] == []
    assert checks["brax"].result == "skipped"
    assert checks["brax"].detail == 'not installed: pip install "wm-collect[brax]"'
    assert "wm-collect[playground]" in checks["playground"].detail
    assert f"jax {jax.__version__}" in checks["versions"].detail


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Accessing `:DeprecationWarning")
def test_brax_and_playground_reset_and_step():
    for name in ("brax", "playground", "rendering"):
        result, detail = doctor.CHECKS[name]()
        assert result == ("info" if name == "rendering" else "ok"), detail


def test_a_library_that_is_there_but_broken_is_a_failure(monkeypatch):
    import brax  # noqa: F401  # found, but its environments are not

    monkeypatch.setitem(sys.modules, "brax.envs", None)
    monkeypatch.setattr(doctor, "CHECKS", {"brax": doctor.CHECKS["brax"]})
    monkeypatch.delattr("brax.envs", raising=False)
    (check,) = run_checks()
    assert check.result == "failed" and "brax" in check.detail


@pytest.mark.parametrize(
    ("version", "words"),
    [((0, 10, 2), "silently computes wrong"), ((0, 9, 1), "older than 0.10.1")],
)
def test_bad_releases_of_jax_fail(version, words, monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", version)
    result, detail = doctor.CHECKS["versions"]()
    assert result == "failed" and words in detail


@pytest.mark.parametrize(
    ("name", "function", "wrong", "result"),
    [
        ("small matrices", "small_matrix_error", 0.7, "failed"),
        ("jit", "jit_error", float("nan"), "failed"),
        ("vmap", "vmap_error", 1e-3, "failed"),
        ("sharding", "sharding_error", 1e-3, "failed"),
        ("two-hot", "two_hot_at_zero", {"DreamerV3": 0.0, "TD-MPC2": 1e-6}, "failed"),
        ("matmul precision", "matmul_error", 3e-4, "warning"),
    ],
)
def test_wrong_numbers_are_judged(name, function, wrong, result, monkeypatch):
    monkeypatch.setattr(self_tests, function, lambda: wrong)
    assert doctor.CHECKS[name]()[0] == result


def test_a_cache_that_cannot_be_written_is_a_warning_with_a_remedy(monkeypatch):
    monkeypatch.setattr(doctor, "enable_compile_cache", lambda: None)
    result, detail = doctor.CHECKS["compile cache"]()
    assert result == "warning" and "JAX_COMPILATION_CACHE_DIR" in detail


def test_sharding_is_checked_where_there_are_two_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    program = (
        "from wm_collect import doctor\n"
        "print(*doctor.CHECKS['sharding'](), sep='|')\n"
        "print(doctor.CHECKS['devices']()[1])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=True,
    )
    sharding, devices = run.stdout.splitlines()
    assert sharding.startswith("ok|2 devices against one")
    assert devices.count("cpu ") == 2
