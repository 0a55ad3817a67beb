"""Does the installed JAX compute right numbers? Small programs, compared with what is known.

Each function returns an error, so that a caller decides how much of it is too much.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from wm_numerics import TwoHot, symlog

WRONG_JAX = (0, 10, 2)
"""A release that silently computes wrong numbers on the CPU (jax-ml/jax#39103)."""
OLDEST_JAX = (0, 10, 1)
"""The oldest release that the packages accept."""


def small_matrix_error() -> float:
    """Return the largest relative error of many products with one small matrix, on the CPU.

    The wrong release gives a wrong element in a jitted, vmapped matrix-vector product that is
    followed by a square and a sum: of these 32769 elements the last.

    Raises:
        RuntimeError: JAX has no CPU backend here.
    """
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((3, 3)).astype(np.float32)
    vectors = rng.standard_normal((32769, 3)).astype(np.float32)

    @jax.jit
    def squared_norms(matrix: jax.Array, vectors: jax.Array) -> jax.Array:
        return jax.vmap(lambda vector: jnp.sum(jnp.square(matrix @ vector)))(vectors)

    cpu = jax.local_devices(backend="cpu")[0]
    result = squared_norms(jax.device_put(matrix, cpu), jax.device_put(vectors, cpu))
    products = vectors.astype(np.float64) @ matrix.astype(np.float64).T
    exact = np.sum(products**2, axis=-1)
    return float(np.max(np.abs(np.asarray(result, np.float64) - exact) / (exact + 0.1)))


def jit_error() -> float:
    """Return how far a compiled network is from the same one run operation by operation."""
    x, weights = _data()
    return _distance(jax.jit(_network)(x, weights), _network(x, weights))


def vmap_error() -> float:
    """Return how far a vmapped network is from the same one applied to one input after another."""
    x, weights = _data()
    one = jax.jit(_network)
    alone = jnp.stack([one(row, weights) for row in x])
    return _distance(jax.jit(jax.vmap(_network, in_axes=(0, None)))(x, weights), alone)


def sharding_error() -> float | None:
    """Return how far a network on inputs spread over all devices is from one on a single device.

    None if there is only one device.
    """
    devices = jax.local_devices()
    if len(devices) < 2:
        return None
    x, weights = _data(rows=4 * len(devices))
    mesh = Mesh(np.array(devices), ("batch",))
    spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("batch")))
    whole = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
    network = jax.jit(_network)
    # A sum over all devices, as a gradient makes one.
    total = jax.jit(lambda x, w: jnp.sum(_network(x, w), axis=0))
    return max(
        _distance(network(spread, whole), network(x, weights)),
        _distance(total(spread, whole), total(x, weights)),
    )


def two_hot_at_zero() -> dict[str, float]:
    """Return what the agents' two-hot codings make of equal logits, compiled; it must be 0."""
    codings = {"DreamerV3": TwoHot.dreamerv3(), "TD-MPC2": TwoHot.tdmpc2()}
    return {
        name: float(jax.jit(coding.mean)(jnp.zeros(coding.num_bins, jnp.float32)))
        for name, coding in codings.items()
    }


def matmul_error() -> float:
    """Return the relative error of a float32 matrix product in the device's default precision."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    product = np.asarray(jax.jit(jnp.matmul)(a, b), np.float64)
    return float(np.linalg.norm(product - exact) / np.linalg.norm(exact))


def _data(rows: int = 8) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 32)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(rng.standard_normal((32, 32)).astype(np.float32))


def _network(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Two layers with the operations of the agents' networks; `[..., 32]` to `[..., 32]`."""
    # Precision has a check of its own; here it would hide what is looked for.
    hidden = jnp.matmul(x, weights, precision=jax.lax.Precision.HIGHEST)
    centred = hidden - hidden.mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    out = jnp.matmul(jax.nn.silu(normed), weights, precision=jax.lax.Precision.HIGHEST)
    return jax.nn.softmax(symlog(out), axis=-1)


def _distance(one: jax.Array, other: jax.Array) -> float:
    return float(np.max(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64))))
