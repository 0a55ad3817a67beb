"""The policy as a program: exported for any number of environments, and read again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from wm_collect.actions import ActionSpace
from wm_collect.deploy.deployable import Deployable

PLATFORMS = ("cpu", "cuda", "tpu")


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by readable path, such as `encoder/linear_0/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def export_program(
    deployable: Deployable, actions: ActionSpace, weights: Any, carry: Any
) -> jax.export.Exported:
    """Return the program of one decision, with the number of environments N left open.

    `program.call(weights, carry, obs, is_first, key_data) -> (action, carry)`: weights and carry
    are dictionaries by the names of `named_leaves`; obs is float32 `[N, O]`, is_first bool `[N]`,
    key_data uint32 `[2]`, the data of a fresh threefry key; actions are in environment units.

    Args:
        deployable: the policy.
        actions: the environment's actions.
        weights: its weights.
        carry: its carry for one environment.
    """
    weights_tree, carry_tree = jax.tree.structure(weights), jax.tree.structure(carry)

    def decide(
        weights: dict[str, jax.Array],
        carry: dict[str, jax.Array],
        obs: jax.Array,
        is_first: jax.Array,
        key_data: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        action, next_carry = deployable.act(
            jax.tree.unflatten(weights_tree, [weights[name] for name in weight_names]),
            jax.tree.unflatten(carry_tree, [carry[name] for name in carry_names]),
            obs,
            is_first,
            jax.random.wrap_key_data(key_data, impl="threefry2x32"),
        )
        return jax.vmap(actions.from_agent)(action), named_leaves(next_carry)

    named_weights, named_carry = named_leaves(weights), named_leaves(carry)
    weight_names, carry_names = list(named_weights), list(named_carry)
    (n,) = jax.export.symbolic_shape("n")

    def shape(*sizes: Any, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    return jax.export.export(jax.jit(decide), platforms=PLATFORMS)(
        {name: shape(*leaf.shape, dtype=leaf.dtype) for name, leaf in named_weights.items()},
        {name: shape(n, *leaf.shape[1:], dtype=leaf.dtype) for name, leaf in named_carry.items()},
        shape(n, deployable.env.spec.obs_dim),
        shape(n, dtype=bool),
        shape(2, dtype=jnp.uint32),
    )


def serialized(program: jax.export.Exported) -> bytes:
    """Return the program as bytes.

    Raises:
        ModuleNotFoundError: `flatbuffers` is missing.
    """
    check_flatbuffers()
    return bytes(program.serialize())


def read_program(data: bytes, folder: Path, description: Mapping[str, Any]) -> jax.export.Exported:
    """Return the program that `serialized` wrote.

    Args:
        data: its bytes.
        folder: where they lie, for messages.
        description: the contract's entry `program`.

    Raises:
        ValueError: this JAX cannot read it, or runs on a platform it was not exported for.
        ModuleNotFoundError: `flatbuffers` is missing.
    """
    check_flatbuffers()
    try:
        program = jax.export.deserialize(bytearray(data))
    except Exception as error:  # whatever a JAX of another version makes of the bytes
        raise ValueError(
            f"JAX {jax.__version__} cannot read the program in {folder}, which JAX "
            f"{description['jax']} wrote ({error}); install that JAX, or export the policy again."
        ) from error
    backend = jax.default_backend()
    platform = "cuda" if backend == "gpu" and "rocm" not in program.platforms else backend
    if platform not in program.platforms:
        raise ValueError(
            f"the program in {folder} runs on {', '.join(program.platforms)}, and JAX uses "
            f"{platform} here; set JAX_PLATFORMS=cpu, or export the policy again."
        )
    return program


def check_flatbuffers() -> None:
    """Raise a `ModuleNotFoundError` that says what to install, if JAX cannot write programs."""
    try:
        import flatbuffers  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "JAX writes and reads programs with the package 'flatbuffers', which is not "
            "installed; install it with: pip install flatbuffers"
        ) from None
