"""The types a library's environment state must keep, so that programs compile once.

Libraries return states whose leaves change type between reset and step (Gymnax counts time in
weakly typed integers), or that hold typed random keys, which no checkpoint stores. A `StateLayout`
fixes one plain type per leaf and converts at the border.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from wm_collect.backends.simulator import Simulator


@dataclasses.dataclass(frozen=True)
class StateLayout:
    """Structure and types of a simulator's state.

    Attributes:
        treedef: its tree structure.
        dtypes: the type of each leaf; an extended key type for a leaf holding typed keys.
    """

    treedef: Any
    dtypes: tuple[Any, ...]

    @classmethod
    def of(cls, simulator: Simulator, inner: Any) -> "StateLayout":
        """Find the layout that both reset and step can keep.

        Args:
            simulator: the environment.
            inner: shapes and types of the state after a reset.

        Returns:
            The layout: for each leaf, the type to which the reset's and the step's promote.

        Raises:
            ValueError: a step changes the structure or a shape.
        """
        key = jax.eval_shape(lambda: jax.random.key(0))
        action = jax.eval_shape(simulator.actions.from_agent, simulator.actions.zero())
        strong = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), inner)
        stepped = jax.eval_shape(simulator.step, key, strong, action).inner
        treedef: Any
        treedef_after: Any
        before, treedef = jax.tree.flatten(inner)
        after, treedef_after = jax.tree.flatten(stepped)
        if treedef != treedef_after:
            raise ValueError(
                f"The state of {simulator.env_id!r} changes its structure from {treedef} after a "
                f"reset to {treedef_after} after a step; return the same structure from both."
            )
        dtypes = []
        paths = [
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(inner)
        ]
        for path, old, new in zip(paths, before, after, strict=True):
            if old.shape != new.shape:
                raise ValueError(
                    f"The state of {simulator.env_id!r} changes shape at {path} from {old.shape} "
                    f"after a reset to {new.shape} after a step; return the same shape from both."
                )
            same = old.dtype == new.dtype
            dtypes.append(old.dtype if same else jnp.promote_types(old.dtype, new.dtype))
        return cls(treedef, tuple(dtypes))

    def pack(self, inner: Any) -> Any:
        """Return the state with plain, strongly typed arrays only.

        Args:
            inner: the library's state after a reset or a step.

        Returns:
            The same structure; typed keys become their uint32 data.
        """
        leaves = self.treedef.flatten_up_to(inner)
        return self.treedef.unflatten(
            [
                jax.random.key_data(leaf) if _is_key(dtype) else _strong(leaf, dtype)
                for leaf, dtype in zip(leaves, self.dtypes, strict=True)
            ]
        )

    def unpack(self, packed: Any) -> Any:
        """Return the library's state again; the inverse of `pack`.

        Args:
            packed: what `pack` returned.

        Returns:
            The same structure; key data become typed keys.
        """
        leaves = self.treedef.flatten_up_to(packed)
        return self.treedef.unflatten(
            [
                jax.random.wrap_key_data(leaf) if _is_key(dtype) else leaf
                for leaf, dtype in zip(leaves, self.dtypes, strict=True)
            ]
        )


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _strong(leaf: Any, dtype: Any) -> jax.Array:
    """Return the leaf with exactly this type; `convert_element_type` drops weakness."""
    return jax.lax.convert_element_type(leaf, dtype)
