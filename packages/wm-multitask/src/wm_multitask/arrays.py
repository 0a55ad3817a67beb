"""Large arrays, possibly memory-mapped, read some episodes at a time."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

# Bytes of an array looked at together.
CHUNK_BYTES = 32 * 2**20


def chunks(indices: np.ndarray, array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield episode indices in groups whose rows in `array` take about `CHUNK_BYTES`."""
    size = episodes_per_chunk(array)
    for start in range(0, len(indices), size):
        yield indices[start : start + size]


def episodes_per_chunk(array: np.ndarray) -> int:
    """Return how many episodes of an array `[N, ...]` take about `CHUNK_BYTES`, at least one."""
    return max(1, CHUNK_BYTES * max(1, len(array)) // max(1, array.nbytes))


def hash_of(description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of a description and of each array's name, dtype, shape and bytes."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, array in arrays.items():
        digest.update(json.dumps([name, array.dtype.str, list(array.shape)]).encode())
        size = episodes_per_chunk(array)
        for start in range(0, len(array), size):
            digest.update(np.ascontiguousarray(array[start : start + size]).data)
    return digest.hexdigest()
