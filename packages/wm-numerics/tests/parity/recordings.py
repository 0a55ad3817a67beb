"""Reads the recordings of the two original repositories."""

import json
from pathlib import Path

import numpy as np


def load_tdmpc2(folder: Path):
    """Return (arrays by name, meta data) of tdmpc2/numerics.npz; its meta data is JSON in bytes."""
    with np.load(folder / "tdmpc2" / "numerics.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files if name != "meta_json"}
        return arrays, json.loads(bytes(file["meta_json"]).decode())


def load_dreamerv3(folder: Path):
    """Return the arrays by name of dreamerv3/numerics.npz.

    All arrays of one dtype lie behind each other in one flat vector `packed_<dtype>`; the JSON text
    `index` gives the dtype, offset and shape of every name.
    """
    with np.load(folder / "dreamerv3" / "numerics.npz", allow_pickle=False) as file:
        index = json.loads(str(file["index"]))
        flat = {name: file[name] for name in file.files if name.startswith("packed_")}
    arrays = {}
    for name, (dtype, offset, shape) in index.items():
        size = int(np.prod(shape, dtype=np.int64))
        arrays[name] = flat[f"packed_{dtype}"][offset : offset + size].reshape(shape)
    return arrays


def percentile_tolerance(x):
    """Return the rounding of a reference percentile of `x`.

    Both references compute the position q·(n − 1) in float32, where we use float64: the weight of a
    neighbour is off by up to the spacing of float32 at n, times the widest gap between neighbours.
    The interpolation itself rounds at the size of the values.
    """
    ordered = np.sort(np.asarray(x, np.float64).reshape(-1))
    widest = np.max(np.diff(ordered), initial=0.0)
    return 2.0**-22 * ordered.size * widest + 2.0**-22 * np.abs(ordered).max()
