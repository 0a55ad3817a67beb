"""Flax layers both agents share: linear, Mish and SiLU, and the normed MLP.

Needs the extra `nn`: `pip install "wm-numerics[nn]"`.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.nn.initializers import Initializer
from jax.typing import ArrayLike

try:
    import flax.linen as nn
except ImportError as error:
    raise ImportError(
        "wm_numerics.blocks needs flax, which is not installed. Install it with "
        'pip install "wm-numerics[nn]".'
    ) from error

from wm_numerics.dropout import dropout
from wm_numerics.initializers import zeros

ActivationName = Literal["mish", "silu"]
NormName = Literal["layer", "rms"]

# Beyond this x, tanh(softplus(x)) is 1 even in float64; exp(2x) is still far from overflow.
_MISH_SATURATION = 20.0

# dot_general's dimension numbers of left[k, m], right[k, n] -> [m, n].
_CONTRACT_FIRST = (((0,), (0,)), ((), ()))


def linear(
    features: int, *, kernel_init: Initializer, use_bias: bool = True, name: str | None = None
) -> nn.Dense:
    """Return a linear layer x·kernel + bias with kernel `[in, features]` and a zero initial bias.

    Args:
        features: output width.
        kernel_init: initialiser of the kernel.
        use_bias: whether there is a bias `[features]`.
        name: name of the layer's parameters; None lets flax choose.
    """
    return nn.Dense(
        features,
        kernel_init=kernel_init,
        bias_init=zeros,
        use_bias=use_bias,
        name=name,
        dot_general=_dense_product,
    )


def normalization(kind: str, eps: float, name: str | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """Return a normalisation over the last axis, with statistics in float32 or wider.

    Args:
        kind: `"layer"`: (x − mean) / sqrt(var + eps)·scale + bias with the biased variance
            (TD-MPC2: eps 1e-5). `"rms"`: x / sqrt(mean(x²) + eps)·scale (DreamerV3: eps 1e-4).
        eps: added inside the root.
        name: name of the layer's parameters; None lets flax choose.

    Raises:
        ValueError: unknown `kind`.
    """
    _check_choice("norm", kind, get_args(NormName))
    if kind == "rms":
        return nn.RMSNorm(epsilon=eps, name=name)
    # The two-pass variance: flax's default E[x²] − E[x]² loses all digits when the mean is large.
    return nn.LayerNorm(epsilon=eps, use_fast_variance=False, name=name)


def mish(x: ArrayLike) -> jax.Array:
    """Return x·tanh(softplus(x)), elementwise.

    With t = exp(x), tanh(softplus(x)) = (t² + 2t) / (t² + 2t + 2), so one exponential is enough.

    Args:
        x: any shape, floating; dtypes below float32 are computed in float32.

    Returns:
        The shape and dtype of `x`; value and derivative are finite for every finite `x`.

    Source:
        nicklashansen/tdmpc2@b67b21c, tdmpc2/common/layers.py, `NormedLinear` (torch's Mish).
    """
    return _mish(jnp.asarray(x))


def silu(x: ArrayLike) -> jax.Array:
    """Return x·sigmoid(x), elementwise, in the shape and dtype of `x`.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/configs.yaml (`act: silu` in every network).
    """
    return jax.nn.silu(x)


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """Return the activation function called `name`, `"mish"` or `"silu"`.

    Raises:
        ValueError: unknown name.
    """
    _check_choice("activation", name, get_args(ActivationName))
    return {"mish": mish, "silu": silu}[name]


class NormedMLP(nn.Module):
    """Hidden layers linear → [dropout] → norm → activation, then optionally a plain linear layer.

    Parameters: `linear_0` {kernel, bias}, `norm_0` {scale[, bias]}, `linear_1`, …, and `out`
    {kernel, bias} when `out_features` is given.

    The first linear layer can be applied on its own (`preactivation`) and the rest afterwards
    (`from_preactivation`), both through `module.apply(..., method=...)`: a caller whose inputs
    share a part can sum the parts' products instead of repeating them.

    Attributes:
        hidden: widths of the hidden layers, at least one.
        activation: `"mish"` or `"silu"`.
        norm: `"layer"` or `"rms"`.
        norm_eps: eps of the norms, inside the root.
        kernel_init: initialiser of the hidden kernels.
        out_features: width of the last, plain linear layer; None for none.
        out_kernel_init: initialiser of its kernel; None for `kernel_init`.
        dropout: rate of the dropout in the first hidden layer, between linear and norm, in [0, 1).

    Raises:
        ValueError: on first use, when a field is outside the ranges above, or when `dropout` is
            above 0 and no `dropout_key` is given. Dropout has no switch: it is active in every
            call.

    Source:
        nicklashansen/tdmpc2@b67b21c, tdmpc2/common/layers.py, `NormedLinear` and `mlp`;
        danijar/dreamerv3@2411f7d, dreamerv3/nets.py, `MLP`.
    """

    hidden: tuple[int, ...]
    activation: str
    norm: str
    norm_eps: float
    kernel_init: Initializer
    out_features: int | None = None
    out_kernel_init: Initializer | None = None
    dropout: float = 0.0

    def setup(self) -> None:
        """Create the layers, under the parameter names of the class docstring."""
        if not self.hidden:
            raise ValueError("hidden must name at least one width; for none, use linear(features).")
        self._act = activation(self.activation)
        for i, width in enumerate(self.hidden):
            setattr(self, f"linear_{i}", linear(width, kernel_init=self.kernel_init))
            setattr(self, f"norm_{i}", normalization(self.norm, self.norm_eps))
        if self.out_features is not None:
            self.out = linear(
                self.out_features, kernel_init=self.out_kernel_init or self.kernel_init
            )

    def __call__(self, x: jax.Array, dropout_key: jax.Array | None = None) -> jax.Array:
        """Return the output for inputs `[..., in]`.

        Args:
            x: inputs `[..., in]`.
            dropout_key: random key of the dropout mask, consumed; every unit of every row has its
                own draw. Required when `dropout` is above 0, ignored otherwise.

        Returns:
            `[..., out_features]`, or `[..., hidden[-1]]` without `out_features`.
        """
        return self.from_preactivation(self.preactivation(x), dropout_key)

    def preactivation(self, x: jax.Array) -> jax.Array:
        """Return the first linear layer's output `[..., hidden[0]]` for inputs `[..., in]`."""
        return self.linear_0(x)

    def _normed(self, layer: int, h: jax.Array) -> jax.Array:
        """Return activation(norm(h)); only `h` is kept for the backward pass.

        Both are cheap next to reading and writing what they would otherwise store: the backward
        pass of wide layers is limited by memory traffic.
        """

        def normed(module: "NormedMLP", h: jax.Array) -> jax.Array:
            return module._act(getattr(module, f"norm_{layer}")(h))

        return nn.remat(normed, prevent_cse=False)(self, h)

    def from_preactivation(self, h: jax.Array, dropout_key: jax.Array | None = None) -> jax.Array:
        """Return the output for the first linear layer's output `[..., hidden[0]]`."""
        if self.dropout > 0:
            if dropout_key is None:
                raise ValueError(
                    f"NormedMLP with dropout={self.dropout} needs a dropout_key in every call; "
                    "pass one, or build the module with dropout=0.0."
                )
            h = dropout(h, dropout_key, self.dropout)
        h = self._normed(0, h)
        for i in range(1, len(self.hidden)):
            h = self._normed(i, getattr(self, f"linear_{i}")(h))
        return h if self.out_features is None else self.out(h)


def _dense_product(
    x: jax.Array, kernel: jax.Array, dimension_numbers: Any, precision: Any = None, **options: Any
) -> jax.Array:
    """Multiply for `nn.Dense`: x [..., in] by kernel [in, out], whatever else it may ask for."""
    return _product(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], kernel.shape[-1])


@jax.custom_jvp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return x [rows, in] · kernel [in, out]; only the order of its kernel gradient is special."""
    return x @ kernel


def _product_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[Any, Any]
) -> tuple[jax.Array, jax.Array]:
    x, kernel = primals
    x_tangent, kernel_tangent = tangents
    terms = []
    if not isinstance(x_tangent, SymbolicZero):
        terms.append(x_tangent @ kernel)
    if not isinstance(kernel_tangent, SymbolicZero):
        # Transposed for the kernel's gradient, this is columns · cotangent. XLA's CPU products are
        # slower with a transposed left side, by more than a copy in the right order costs; the
        # barrier keeps it from folding that copy away. Elsewhere transposed sides are free.
        columns = jax.lax.platform_dependent(
            x, cpu=lambda x: jax.lax.optimization_barrier(x.T), default=lambda x: x.T
        )
        terms.append(jax.lax.dot_general(columns, kernel_tangent, _CONTRACT_FIRST))
    return x @ kernel, sum(terms[1:], terms[0])


_product.defjvp(_product_jvp, symbolic_zeros=True)


@jax.custom_jvp
def _mish(x: jax.Array) -> jax.Array:
    return _mish_and_slope(x)[0]


@_mish.defjvp
def _mish_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    # By hand so that the backward pass keeps one array, the slope, and needs no second exponential.
    (x,), (x_dot,) = primals, tangents
    value, slope = _mish_and_slope(x)
    return value, slope * x_dot


def _mish_and_slope(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mish(x) and its derivative n/d + 4x·t(t + 1)/d², with n = t² + 2t and d = n + 2."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    saturated = jnp.minimum(wide, _MISH_SATURATION)
    t = jnp.exp(saturated)
    n = t * (t + 2)
    inverse = 1 / (n + 2)
    gate = n * inverse
    # `t·inverse` and `(t + 1)·inverse` separately: t·(t + 1)·inverse² would underflow earlier.
    # The second term is below 1e-15 at saturation and must not grow with x beyond it.
    slope = gate + 4 * saturated * (t * inverse) * ((t + 1) * inverse)
    return (wide * gate).astype(x.dtype), slope.astype(x.dtype)


def _check_choice(name: str, given: str, accepted: tuple[str, ...]) -> None:
    if given not in accepted:
        choices = " or ".join(repr(choice) for choice in accepted)
        raise ValueError(f"{name} must be {choices}, got {given!r}.")
