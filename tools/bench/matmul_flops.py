"""Count the floating-point operations of a function's matrix products.

The count is taken from the traced program, so it is what the program does, not what a formula
says it should do: loops count their trips, both branches of a condition count the larger one.
"""

import math
from collections.abc import Callable
from typing import Any

import jax


def matmul_flops(function: Callable[..., Any], *args: Any) -> int:
    """Return the floating-point operations (2 per multiply-add) of all matrix products.

    Args:
        function: traceable by JAX; its loops must have a fixed number of trips (`lax.scan`).
        args: its arguments, or their shapes.
    """
    return _flops(jax.make_jaxpr(function)(*args).jaxpr)


def _flops(jaxpr: Any) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            total += _dot_flops(eqn)
        elif eqn.primitive.name == "while":
            inner = _flops(eqn.params["body_jaxpr"].jaxpr)
            if inner:
                raise ValueError("a while loop with matrix products has no fixed count")
        elif eqn.primitive.name == "cond":
            total += max(_flops(branch.jaxpr) for branch in eqn.params["branches"])
        else:
            trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
            for value in eqn.params.values():
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    total += trips * _flops(inner)
    return total


def _dot_flops(eqn: Any) -> int:
    (lhs_contract, _), _ = eqn.params["dimension_numbers"]
    contracted = math.prod(eqn.invars[0].aval.shape[axis] for axis in lhs_contract)
    return 2 * contracted * math.prod(eqn.outvars[0].aval.shape)
