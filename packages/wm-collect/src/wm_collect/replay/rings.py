"""What the replays share: checking their sizes, and writing and reading rows of rings in place."""

import jax
import numpy as np
from jax import lax


def require_count(name: str, value: int) -> None:
    """Refuse a size that is not a positive whole number.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value}.")


def write_rows(ring: jax.Array, rows: jax.Array, slot: jax.Array) -> jax.Array:
    """Write `rows` `[N, ...]` at `ring[:, slot]`, the form XLA updates in place."""
    start = (0, slot) + (0,) * (ring.ndim - 2)
    return lax.dynamic_update_slice(ring, rows[:, None].astype(ring.dtype), start)


def read_rows(ring: jax.Array, index: jax.Array, n_axes: int = 2) -> jax.Array:
    """Read rows by their place in the ring counted through, its first `n_axes` axes flattened.

    The places must lie inside the ring, which is not checked.
    """
    flat = ring.reshape((-1, *ring.shape[n_axes:]))
    return flat.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
