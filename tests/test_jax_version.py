"""The installed JAX computes right numbers on the CPU, and no package admits the one that does not.

jax 0.10.2 silently gives a wrong element in a jitted, vmapped matrix-vector product that is
followed by a square and a sum (jax-ml/jax#39103). Such an error would look like an agent that
learns badly, so it is excluded in the metadata and looked for in what is installed.
"""

from pathlib import Path

import jax
import pytest
from packaging.requirements import Requirement

from wm_collect import self_tests

from . import workspace

WRONG_JAX = ".".join(map(str, self_tests.WRONG_JAX))


def test_installed_jax_multiplies_small_matrices_correctly_on_the_cpu():
    assert self_tests.small_matrix_error() < 1e-4


@pytest.mark.parametrize("package", workspace.PACKAGES)
def test_every_package_that_asks_for_jax_excludes_the_wrong_version(
    package: str, repository: Path
) -> None:
    project = workspace.read_toml(repository / "packages" / package / "pyproject.toml")["project"]
    requirements = [Requirement(line) for line in project["dependencies"]]
    jax_ranges = [r.specifier for r in requirements if r.name == "jax"]
    # A package without its own jax line gets the range of wm-numerics, which is checked here too.
    assert jax_ranges or package != "wm-numerics"
    assert not any(jax_range.contains(WRONG_JAX) for jax_range in jax_ranges)
    oldest = ".".join(map(str, self_tests.OLDEST_JAX))
    assert all(jax_range.contains(oldest) for jax_range in jax_ranges)


def test_the_wrong_version_is_not_installed():
    assert jax.__version__ != WRONG_JAX
