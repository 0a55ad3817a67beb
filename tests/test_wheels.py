"""The built wheels, installed into environments that hold nothing else.

Third-party versions come from the workspace's lock, so that they are already in uv's cache and
the tests do not change with the day; a cache without them is filled from the index.
"""

from __future__ import annotations

import csv
import math
import sys
import zipfile
from pathlib import Path

import pytest

from . import workspace


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of every package."""
    folder = tmp_path_factory.mktemp("wheels")
    workspace.run(workspace.uv(), "build", "--all-packages", "--out-dir", folder)
    return folder


def install(environment: Path, wheels: Path, *packages: str) -> Path:
    """Make an environment with these of our packages, and return its interpreter.

    The wheels are named by file: nothing of ours may come from an index.
    """
    files = [next(wheels.glob(f"{package.replace('-', '_')}-*.whl")) for package in packages]
    uv = workspace.uv()
    locked = environment.with_suffix(".txt")
    workspace.run(
        *(uv, "export", "--frozen", "--quiet", "--all-packages", "--all-extras", "--no-dev"),
        *("--no-hashes", "--no-emit-workspace", "--no-annotate", "--output-file", locked),
    )
    workspace.run(uv, "venv", "--python", sys.executable, environment)
    python = workspace.python_of(environment)
    workspace.run(uv, "pip", "install", "--python", python, "--constraints", locked, *files)
    return python


@pytest.mark.parametrize("package", workspace.PACKAGES)
def test_a_wheel_holds_its_package_typed_and_licensed_and_no_tests(wheels: Path, package: str):
    module = package.replace("-", "_")
    (wheel,) = wheels.glob(f"{module}-*.whl")
    names = zipfile.ZipFile(wheel).namelist()

    assert f"{module}/__init__.py" in names
    assert f"{module}/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {
        module,
        f"{wheel.name.split('-py3')[0]}.dist-info",
    }


NUMERICS_ALONE = """
import importlib.util
import sys

import numpy as np

from wm_numerics import TwoHot, symexp, symlog

np.testing.assert_allclose(symlog(np.float32(np.e - 1)), 1.0, rtol=1e-6)
np.testing.assert_allclose(symexp(symlog(np.float32(-42.0))), -42.0, rtol=1e-5)
for two_hot in (TwoHot.tdmpc2(), TwoHot.dreamerv3()):
    np.testing.assert_allclose(two_hot.decode(two_hot.encode(np.float32(3.7))), 3.7, rtol=1e-4)

others = "flax optax chex gymnax wm_collect wm_dreamer wm_tdmpc2 wm_multitask".split()
imported = [name for name in others if name in sys.modules]
assert not imported, imported
installed = [name for name in others if importlib.util.find_spec(name)]
assert not installed, installed
print("symlog and two-hot work alone")
"""


@pytest.mark.slow
def test_wm_numerics_works_with_nothing_but_jax_and_numpy(wheels: Path, tmp_path: Path):
    python = install(tmp_path / "numerics", wheels, "wm-numerics")

    printed = workspace.run(python, "-I", "-c", NUMERICS_ALONE, cwd=tmp_path)

    assert printed.endswith("symlog and two-hot work alone\n")


COLLECT_ALONE = """
import importlib.util

import jax

import wm_collect
from wm_collect.testing import CounterEnv, check_rows, collect_rows

public = [getattr(wm_collect, name) for name in wm_collect.__all__]
env = CounterEnv([3, 2], terminates=[False, True])
check_rows(collect_rows(env, n_envs=2, n_ticks=12, key=jax.random.key(0)), env.spec)

installed = [n for n in ("wm_dreamer", "wm_tdmpc2", "wm_multitask") if importlib.util.find_spec(n)]
assert not installed, installed
print("rows are collected without an agent")
"""


@pytest.mark.slow
def test_wm_collect_works_without_an_agent(wheels: Path, tmp_path: Path):
    python = install(tmp_path / "collect", wheels, "wm-numerics", "wm-collect")

    printed = workspace.run(python, "-I", "-c", COLLECT_ALONE, cwd=tmp_path)

    assert printed.endswith("rows are collected without an agent\n")


@pytest.mark.slow
def test_wm_multitask_is_imported_and_shows_its_help_without_dreamer(wheels: Path, tmp_path: Path):
    below = ("wm-numerics", "wm-collect", "wm-tdmpc2")
    python = install(tmp_path / "multitask", wheels, *below, "wm-multitask")

    installed = workspace.run(workspace.uv(), "pip", "list", "--python", python)
    helped = workspace.run(python.parent / "wm-multitask", "--help", cwd=tmp_path)

    assert "wm-tdmpc2" in installed and "wm-dreamer" not in installed
    assert "Train one agent on all tasks of a dataset" in helped


# One-step plans by the smallest networks, on episodes of six steps: what takes time is compiling.
TINY_TDMPC2 = {
    "--episode-length": 6,
    "--seed-steps": 8,
    "--enc-dim": 8,
    "--mlp-dim": 8,
    "--latent-dim": 8,
    "--num-q": 2,
    "--horizon": 1,
    "--batch-size": 4,
    "--num-samples": 8,
    "--num-elites": 4,
    "--num-pi-trajs": 2,
    "--iterations": 1,
}
# The first update after 4 x 2 + 4 rows, then one every two rows.
TINY_DREAMER = {
    "--episode-length": 6,
    "--n-envs": 2,
    "--units": 8,
    "--hidden": 8,
    "--deter": 8,
    "--stoch": 2,
    "--classes": 2,
    "--blocks": 2,
    "--batch-size": 4,
    "--batch-length": 4,
    "--imag-horizon": 2,
    "--train-ratio": 8,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "sizes", "n_updates"),
    [
        # It went on learning after the burst of eight updates.
        pytest.param("wm-tdmpc2", TINY_TDMPC2, 9, id="TD-MPC2"),
        pytest.param("wm-dreamer", TINY_DREAMER, 7, id="DreamerV3"),
    ],
)
def test_an_agent_trains_from_its_wheels_alone(
    wheels: Path, tmp_path: Path, package: str, sizes: dict[str, int], n_updates: int
):
    python = install(tmp_path / package, wheels, "wm-numerics", "wm-collect", package)
    options = sizes | {"--n-timesteps": 24, "--num-episode-test": 1}

    workspace.run(
        *(python.parent / package, "train", "Pendulum-v1", "--name", "tiny", "--no-animation"),
        *(str(word) for pair in options.items() for word in pair),
        cwd=tmp_path,
    )

    with (tmp_path / "runs/tiny/metrics.csv").open(encoding="utf-8", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["timestep"]) == 24
    assert float(last["Train/n_updates"]) >= n_updates
    assert math.isfinite(float(last["Eval/episodic mean reward"]))


@pytest.mark.slow
def test_all_wheels_can_be_installed_together(wheels: Path, tmp_path: Path):
    # Inside the workspace uv ignores the ranges between its members; here they count.
    python = install(tmp_path / "all", wheels, *workspace.PACKAGES)

    workspace.run(workspace.uv(), "pip", "check", "--python", python)
    for package in workspace.PACKAGES:
        module = package.replace("-", "_")
        workspace.run(python, "-I", "-c", f"import {module}; print({module}.__version__)")
