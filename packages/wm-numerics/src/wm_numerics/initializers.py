"""Weight initialisers of both agents, as JAX initialisers `(key, shape, dtype) -> array`."""

import jax
from jax.nn.initializers import Initializer

zeros: Initializer = jax.nn.initializers.zeros
"""All zeros: biases, and output layers that must predict 0 at the start."""


def fan_in_truncated_normal(outscale: float = 1.0) -> Initializer:
    """Return DreamerV3's kernel initialiser: truncated normal of variance outscale² / fan_in.

    fan_in is the product of all axes but the last, so a block-linear kernel `[G, in / G, out / G]`
    counts its full input width. The normal is truncated at two of its own standard deviations,
    and rescaled so that the variance after truncation is the stated one.

    Args:
        outscale: factor on the standard deviation, at least 0; 0 gives zeros.

    Raises:
        ValueError: `outscale` is negative.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/nets.py, `Initializer` ("normal", fan "in").
        Deviations: D23 (the exact constant 1.13684723 where the reference has 1.1368).
    """
    if outscale < 0:
        raise ValueError(f"outscale must be at least 0, got {outscale}.")
    if outscale == 0:
        return zeros
    return jax.nn.initializers.variance_scaling(outscale**2, "fan_in", "truncated_normal")


def normal(stddev: float = 0.02) -> Initializer:
    """Return TD-MPC2's kernel initialiser: a normal of mean 0, not truncated.

    The reference truncates at ±2 in absolute terms, which is 100 standard deviations.

    Args:
        stddev: standard deviation, at least 0.

    Raises:
        ValueError: `stddev` is negative.

    Source:
        nicklashansen/tdmpc2@b67b21c, tdmpc2/common/init.py, `weight_init`. Deviations: none.
    """
    if stddev < 0:
        raise ValueError(f"stddev must be at least 0, got {stddev}.")
    return jax.nn.initializers.normal(stddev)
