"""The installed JAX computes right numbers on the CPU, and no package admits the one that does not.

jax 0.10.2 silently gives a wrong element in a jitted, vmapped matrix-vector product that is
followed by a square and a sum (jax-ml/jax#39103). Such an error would look like an agent that
learns badly, so it is excluded in the metadata and looked for in what is installed.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packaging.requirements import Requirement

from . import workspace

WRONG_JAX = "0.10.2"


def test_installed_jax_multiplies_small_matrices_correctly_on_the_cpu():
    # One matrix for all vectors: the wrong version errs in the last of 32769 elements.
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((3, 3)).astype(np.float32)
    vectors = rng.standard_normal((32769, 3)).astype(np.float32)

    @jax.jit
    def squared_norms(matrix: jax.Array, vectors: jax.Array) -> jax.Array:
        return jax.vmap(lambda vector: jnp.sum(jnp.square(matrix @ vector)))(vectors)

    cpu = jax.local_devices(backend="cpu")[0]
    result = squared_norms(jax.device_put(matrix, cpu), jax.device_put(vectors, cpu))

    products = vectors.astype(np.float64) @ matrix.astype(np.float64).T
    np.testing.assert_allclose(result, np.sum(products**2, axis=-1), rtol=1e-4, atol=1e-5)


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
    assert all(jax_range.contains("0.10.1") for jax_range in jax_ranges)


def test_the_wrong_version_is_not_installed():
    assert jax.__version__ != WRONG_JAX
