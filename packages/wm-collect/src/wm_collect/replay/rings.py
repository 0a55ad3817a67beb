"""What the replays share: checks of sizes and rows, and writing and reading rings in place."""

from collections.abc import Iterable, Mapping
from typing import Any

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


def require_indexable(n_rows: int) -> None:
    """Refuse more rows than int32 indices reach.

    Raises:
        ValueError: they are more.
    """
    largest = np.iinfo(np.int32).max
    if n_rows > largest:
        raise ValueError(
            f"{n_rows} rows are more than 32-bit indices reach ({largest}). Use a smaller capacity."
        )


def require_shapes(arrays: Mapping[str, tuple[jax.Array, tuple[int, ...]]]) -> None:
    """Refuse arrays, given with the shapes expected of them, that have others.

    Raises:
        ValueError: the shape of one differs; at trace time.
    """
    for name, (array, expected) in arrays.items():
        if array.shape != expected:
            raise ValueError(
                f"The replay takes {name} of shape {expected} here, got {tuple(array.shape)}."
            )


def require_same(old: Any, new: Any, names: Iterable[str]) -> None:
    """Refuse to move rows between replays that differ in one of these fields.

    Raises:
        ValueError: they do.
    """
    for name in names:
        was, now = getattr(old, name), getattr(new, name)
        if was != now:
            raise ValueError(
                f"A replay can only adopt rows of its own kind: {name} was {was}, here it is {now}."
            )


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
