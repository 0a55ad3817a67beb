"""A pytree of arrays on disk: a table of its leaves, and their values, written by orbax (OCDBT).

The table gives each leaf's path in the tree, shape and dtype; it is plain JSON. The values are
stored under flat, readable names. Typed PRNG keys are stored as their raw key data.
"""

import contextlib
import dataclasses
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

State = TypeVar("State")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """One leaf of a state: where it is in the tree, and what it holds.

    Attributes:
        path: path in the tree, as `jax.tree_util.keystr` writes it.
        name: name among the stored arrays.
        shape: shape; of typed keys, the shape of the key array.
        dtype: name of the dtype; of typed keys, `key<fry>` and the like.
        key_impl: PRNG implementation of typed keys, else None.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    key_impl: str | None

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> "Leaf":
        """Make a leaf from what `dataclasses.asdict` gave, after a passage through JSON."""
        return cls(**{**entry, "shape": tuple(entry["shape"])})

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def leaf_table(state: Any) -> list[Leaf]:
    """Describe the leaves of a state, or of its abstract form, in tree order."""
    return [
        _describe(index, path, value)
        for index, (path, value) in enumerate(jax.tree_util.tree_leaves_with_path(state))
    ]


def first_difference(stored: list[Leaf], wanted: list[Leaf]) -> str | None:
    """Compare two tables; return a clause on the first leaf that differs, or None."""
    have = {leaf.path: leaf for leaf in stored}
    for leaf in wanted:
        found = have.pop(leaf.path, None)
        if found is None:
            return f"it has no {leaf.path}, which this run has as {leaf}"
        if (found.shape, found.dtype) != (leaf.shape, leaf.dtype):
            return f"its {leaf.path} is {found}, and this run's is {leaf}"
    for leaf in have.values():
        return f"it has {leaf.path} as {leaf}, which this run does not have"
    return None


def write_arrays(folder: Path, state: Any) -> None:
    """Write the values of a state's leaves into a new folder."""
    import orbax.checkpoint as ocp

    # Orbax refuses arrays without elements; their shape and dtype in the table say all about them.
    stored = {
        leaf.name: _plain_array(leaf, value)
        for leaf, value in zip(leaf_table(state), jax.tree.leaves(state), strict=True)
        if math.prod(leaf.shape)
    }
    if not stored:
        folder.mkdir()
        return
    with _orbax() as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(stored))


def read_arrays(folder: Path, leaves: list[Leaf], template: State) -> State:
    """Read a state written by `write_arrays`, in the form of a template with equal leaves.

    Args:
        folder: what `write_arrays` wrote.
        leaves: table of the stored state.
        template: gives the tree; its paths, shapes and dtypes equal the table's.

    Returns:
        The state, as JAX arrays on the default device.
    """
    import orbax.checkpoint as ocp

    wanted = {
        leaf.name: ocp.RestoreArgs(restore_type=np.ndarray)
        for leaf in leaves
        if math.prod(leaf.shape)
    }
    arrays: dict[str, Any] = {}
    if wanted:
        with _orbax() as checkpointer:
            arguments = ocp.args.PyTreeRestore(restore_args=wanted)
            arrays = dict(checkpointer.restore(folder, args=arguments))
    # Popped one by one, so that host copies of a large replay do not pile up.
    values = {leaf.path: _to_device(leaf, arrays.pop(leaf.name, None)) for leaf in leaves}
    ordered = [values[leaf.path] for leaf in leaf_table(template)]
    return jax.tree.unflatten(jax.tree.structure(template), ordered)


def _describe(index: int, path: Any, value: Any) -> Leaf:
    if not hasattr(value, "dtype"):  # a Python number: what JAX makes of it
        value = jax.eval_shape(lambda: jax.numpy.asarray(value))
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    readable = jax.tree_util.keystr(path, simple=True, separator=".")
    return Leaf(
        path=jax.tree_util.keystr(path) or "the state itself",
        name=f"{index:05d}.{re.sub(r'[^A-Za-z0-9_.-]+', '_', readable)}",
        shape=tuple(value.shape),
        dtype=str(value.dtype) if is_key else np.dtype(value.dtype).name,
        # An abstract key does not tell its implementation; its dtype does, for comparing.
        key_impl=str(jax.random.key_impl(value))
        if is_key and isinstance(value, jax.Array)
        else None,
    )


def _plain_array(leaf: Leaf, value: Any) -> jax.Array | np.ndarray:
    if leaf.key_impl is not None:
        return jax.random.key_data(value)
    return value if isinstance(value, jax.Array) else np.asarray(value, leaf.dtype)


def _to_device(leaf: Leaf, array: np.ndarray | None) -> jax.Array:
    if leaf.key_impl is None:
        return jax.numpy.array(np.zeros(leaf.shape, leaf.dtype) if array is None else array)
    if array is None:
        return jax.random.split(jax.random.key(0, impl=leaf.key_impl), leaf.shape)
    return jax.random.wrap_key_data(jax.numpy.array(array), impl=leaf.key_impl)


@contextlib.contextmanager
def _orbax() -> Iterator[Any]:
    """Yield an orbax checkpointer, with its progress notes (absl's logger) off the terminal."""
    import orbax.checkpoint as ocp

    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.closing(
            ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=True))
        ) as checkpointer:
            yield checkpointer
    finally:
        logger.setLevel(level)
