"""Reads the recordings of the original DreamerV3."""

import json
from pathlib import Path

import numpy as np


def load(path: Path):
    """Return (arrays by name, meta data) of one file.

    All arrays of one dtype lie behind each other in one flat vector `packed_<dtype>`; the JSON text
    `index` gives the dtype, offset and shape of every name, the JSON text `meta` the sizes.
    """
    with np.load(path, allow_pickle=False) as file:
        index, meta = json.loads(str(file["index"])), json.loads(str(file["meta"]))
        flat = {name: file[name] for name in file.files if name.startswith("packed_")}
    arrays = {}
    for name, (dtype, offset, shape) in index.items():
        size = int(np.prod(shape, dtype=np.int64))
        arrays[name] = flat[f"packed_{dtype}"][offset : offset + size].reshape(shape)
    return arrays, meta
