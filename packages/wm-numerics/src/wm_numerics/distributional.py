"""Symlog, symexp and two-hot encoded scalars.

A scalar (reward, value) is predicted as a categorical over bins. Three spaces occur, and every
docstring says which one it means: *raw* (the scalar's own units), *symlog*
(sign(x)·ln(1 + abs x), without unit) and *logits* (one unnormalised score per bin).
Scalars carry no trailing unit axis: a scalar `[...]` belongs to logits `[..., K]`.

Everything here keeps the floating dtype it is given (float32 in, float32 out; float64 in,
float64 out), and is safe under `jax.jit`, `jax.vmap` and `jax.grad`.
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

BinSpace = Literal["raw", "symlog"]

# The largest limit whose symexp is a finite float32.
_MAX_LIMIT = 88.0


def symlog(x: ArrayLike) -> jax.Array:
    """Return sign(x)·ln(1 + abs x), a logarithm that is defined on both sides of 0.

    The derivative is 1 / (1 + abs x), which is 1 at 0.

    Args:
        x: any shape `[...]`, raw units. Integers are taken as floats.

    Returns:
        `[...]`, symlog units, in the floating dtype of `x`. NaN stays NaN, ±inf stays ±inf.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/jaxutils.py, `symlog`;
        nicklashansen/tdmpc2@b67b21c, tdmpc2/common/math.py, `symlog`. Deviations: D22, T24
        (log1p where tdmpc2 writes log(1 + ·); at most 1e-7 apart, near 0).
    """
    return _symlog(_as_floating(x))


def symexp(x: ArrayLike) -> jax.Array:
    """Return sign(x)·(exp(abs x) − 1), the inverse of `symlog`.

    The derivative is exp(abs x), which is 1 at 0.

    Args:
        x: any shape `[...]`, symlog units. Integers are taken as floats.

    Returns:
        `[...]`, raw units, in the floating dtype of `x`. Infinite where the dtype overflows
        (float32: abs x above 88.7). NaN stays NaN.

    Source:
        danijar/dreamerv3@2411f7d, dreamerv3/jaxutils.py, `symexp`;
        nicklashansen/tdmpc2@b67b21c, tdmpc2/common/math.py, `symexp`. Deviations: D22, T24
        (expm1 where tdmpc2 writes exp(·) − 1; at most 1e-7 apart near 0).
    """
    return _symexp(_as_floating(x))


@dataclasses.dataclass(frozen=True)
class TwoHot:
    """A scalar written as weights on the two bins around it.

    The object is a hashable, immutable description (safe as a static argument or a module field);
    its methods are pure functions. Use `TwoHot.dreamerv3` or `TwoHot.tdmpc2`.

    Attributes:
        num_bins: number of bins K, at least 2.
        limit: the outermost bins are at ±limit in symlog units, more than 0 and at most 88.
        bin_space: where bins live and where interpolation and expectation happen. `"raw"`: bins
            are symexp of equally spaced points and the scalar itself is interpolated (DreamerV3).
            `"symlog"`: bins are equally spaced, and the scalar is transformed by symlog before it
            is encoded and by symexp after it is decoded (TD-MPC2).

    Raises:
        ValueError: a field is outside the ranges above.
    """

    num_bins: int
    limit: float
    bin_space: BinSpace

    def __post_init__(self) -> None:
        if self.num_bins < 2:
            raise ValueError(f"num_bins must be at least 2, got {self.num_bins}.")
        if not 0.0 < self.limit <= _MAX_LIMIT:
            raise ValueError(
                f"limit must be above 0 and at most {_MAX_LIMIT:g} (symlog units; beyond that "
                f"the raw value is no finite float32), got {self.limit}."
            )
        if self.bin_space not in get_args(BinSpace):
            raise ValueError(f"bin_space must be 'raw' or 'symlog', got {self.bin_space!r}.")

    @classmethod
    def dreamerv3(cls, num_bins: int = 255, limit: float = 20.0) -> "TwoHot":
        """Return DreamerV3's two-hot: bins symexp(linspace(−limit, limit)), interpolated raw.

        With an even `num_bins` the two middle bins are both 0, as in the reference.

        Source:
            danijar/dreamerv3@2411f7d, dreamerv3/nets.py, `Dist` ("symexp_twohot") and
            dreamerv3/jaxutils.py, `TwoHotDist`. Deviations: D22 (bins are float32 roundings of
            float64 constants; mirrored sum).
        """
        return cls(num_bins=num_bins, limit=float(limit), bin_space="raw")

    @classmethod
    def tdmpc2(cls, num_bins: int = 101, limit: float = 10.0) -> "TwoHot":
        """Return TD-MPC2's two-hot: bins linspace(−limit, limit) in symlog space.

        Source:
            nicklashansen/tdmpc2@b67b21c, tdmpc2/common/math.py, `two_hot`, `two_hot_inv`,
            `soft_ce`. Deviations: T24 (symmetric ranges only; bins are float32 roundings of float64
            constants; mirrored sum).
        """
        return cls(num_bins=num_bins, limit=float(limit), bin_space="symlog")

    @property
    def bins(self) -> jax.Array:
        """Bin positions `[K]`, float32, in bin space; bins[k] = −bins[K − 1 − k] exactly."""
        return jnp.asarray(_grid(self, "float32").bins)

    def encode(self, y: ArrayLike) -> jax.Array:
        """Return the two-hot weights of scalars.

        With x the scalar in bin space, clipped to the outermost bins, and b_k ≤ x < b_{k+1}:
        w_k = (b_{k+1} − x) / (b_{k+1} − b_k) and w_{k+1} = (x − b_k) / (b_{k+1} − b_k).

        Args:
            y: scalars `[...]`, raw units. ±inf is clipped to the outermost bin like every value
                beyond it; NaN gives NaN weights on all bins, so that a broken target stays visible.

        Returns:
            Weights `[..., K]`, non-negative, sum 1, at most two of them non-zero; where x is a bin,
            exactly 1 there and 0 elsewhere.
        """
        y = _as_floating(y)
        grid = _grid(self, y.dtype.name)
        x = symlog(y) if self.bin_space == "symlog" else y
        x = jnp.clip(x, grid.bins[0], grid.bins[-1])[..., None]
        bins, lower, upper, width_below, width_above = (_along_last(c, x.ndim) for c in grid)
        # Every bin computes its own hat function: comparisons only, no gather or scatter, so the
        # weights fuse into whatever consumes them and are never stored.
        below = x < bins
        distance = jnp.where(below, x - lower, upper - x)
        return jnp.maximum(distance / jnp.where(below, width_below, width_above), 0)

    def decode(self, probs: ArrayLike) -> jax.Array:
        """Return the scalars that probabilities stand for.

        e = Σ (p_j − p_i)·b_j over the mirror pairs b_j = −b_i > 0, which is Σ_k p_k·b_k but exactly
        0 for uniform probabilities, compiled or not. Then symexp(e) in symlog bin space, e itself
        in raw bin space.

        Args:
            probs: `[..., K]`, sum 1 along the last axis.

        Returns:
            `[...]`, raw units.

        Raises:
            ValueError: the last axis has not K entries.
        """
        probs = _as_floating(probs)
        self._check_last_axis("probs", probs)
        return self._from_bin_space(_mirrored_sum(self, probs))

    def mean(self, logits: ArrayLike) -> jax.Array:
        """Return the decoded mean of softmax(logits).

        It is `decode(softmax(logits))` with the division done after the sum. Exactly 0 for equal
        logits. The gradient of the mean in bin space, e, is p_k·(b_k − e).

        Args:
            logits: `[..., K]`.

        Returns:
            `[...]`, raw units.

        Raises:
            ValueError: the last axis has not K entries.
        """
        logits = _as_floating(logits)
        self._check_last_axis("logits", logits)
        return self._from_bin_space(_bin_space_mean(self, logits))

    def mode(self, logits: ArrayLike) -> jax.Array:
        """Return the position of the most probable bin (the lowest one, where several tie).

        What DreamerV3's code calls `mode` is not this but its mean, summed in plain order.

        Args:
            logits: `[..., K]`.

        Returns:
            `[...]`, raw units. The gradient is 0.

        Raises:
            ValueError: the last axis has not K entries.
        """
        logits = _as_floating(logits)
        self._check_last_axis("logits", logits)
        bins = jnp.asarray(_grid(self, logits.dtype.name).bins)
        return self._from_bin_space(bins[jnp.argmax(logits, axis=-1)])

    def loss(self, logits: ArrayLike, y: ArrayLike) -> jax.Array:
        """Return the cross-entropy −Σ_k encode(y)_k · log softmax(logits)_k.

        The gradient with respect to the logits is softmax(logits) − encode(y); none flows into y.

        Args:
            logits: `[..., K]`.
            y: target scalars `[...]`, raw units. A NaN target gives a NaN loss, ±inf counts as the
                outermost bin.

        Returns:
            `[...]`, in nats; ln K for equal logits.

        Raises:
            ValueError: the last axis of `logits` has not K entries, or `y` has not the shape of
                `logits` without its last axis.
        """
        logits = _as_floating(logits)
        y = _as_floating(y)
        self._check_last_axis("logits", logits)
        if y.shape != logits.shape[:-1]:
            raise ValueError(
                f"y must have the shape of logits without the bin axis, {logits.shape[:-1]}, got "
                f"{y.shape}. Scalars have no trailing axis of length 1: use y[..., 0] if yours do."
            )
        weights = self.encode(jax.lax.stop_gradient(y))
        # Σ_k w_k = 1, so −Σ w·log softmax = logsumexp − Σ w·logits. The shift by the maximum keeps
        # both terms small, and carries no gradient because it cancels between them.
        shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
        return jnp.log(jnp.sum(jnp.exp(shifted), axis=-1)) - jnp.sum(weights * shifted, axis=-1)

    def _from_bin_space(self, x: jax.Array) -> jax.Array:
        return symexp(x) if self.bin_space == "symlog" else x

    def _check_last_axis(self, name: str, x: jax.Array) -> None:
        if x.ndim == 0 or x.shape[-1] != self.num_bins:
            raise ValueError(
                f"{name} must have shape [..., {self.num_bins}], one entry per bin, got {x.shape}."
            )


class _Grid(NamedTuple):
    """Constants of one two-hot, each `[K]`: bins, their neighbours, and the distances to them."""

    bins: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    width_below: np.ndarray
    width_above: np.ndarray


@functools.lru_cache(maxsize=64)
def _grid(two_hot: TwoHot, dtype: str) -> _Grid:
    """Return the constants in `dtype`; the bins' values are float32 roundings in every dtype."""
    bins = _bins(two_hot).astype(np.float64)
    # The outermost bins get a neighbour at a distance that clipped values never reach.
    span = bins[-1]
    lower = np.concatenate([[bins[0] - span], bins[:-1]])
    upper = np.concatenate([bins[1:], [bins[-1] + span]])
    # Of two equal bins (even num_bins, raw space) the distance between them is never used but as a
    # divisor of something that is not positive.
    width_below = np.where(bins > lower, bins - lower, 1.0)
    width_above = np.where(upper > bins, upper - bins, 1.0)
    return _Grid(*(c.astype(dtype) for c in (bins, lower, upper, width_below, width_above)))


def _bins(two_hot: TwoHot) -> np.ndarray:
    """Return float32 bins `[K]`, the upper half being the exact mirror image of the lower half."""
    half, odd = divmod(two_hot.num_bins, 2)
    if two_hot.bin_space == "raw":
        points = np.linspace(-two_hot.limit, 0.0, half + odd)
        lower = -np.expm1(-points)
    else:
        lower = np.linspace(-two_hot.limit, two_hot.limit, two_hot.num_bins)[: half + odd]
    lower = lower.astype(np.float32)
    if odd:
        lower[-1] = 0.0
    # `+ 0.0` turns the −0.0 of a mirrored zero into 0.0.
    return np.concatenate([lower, -lower[:half][::-1]]) + np.float32(0.0)


def _mirrored_sum(two_hot: TwoHot, weights: jax.Array) -> jax.Array:
    """Return Σ_k weights_k·b_k as Σ (w_j − w_i)·b_j over mirror pairs: `[..., K]` to `[...]`."""
    half = two_hot.num_bins // 2
    upper_bins = _along_last(_grid(two_hot, weights.dtype.name).bins[-half:], weights.ndim)
    # A fused multiply-add cannot break this order: the difference of equal weights is 0 before
    # anything is multiplied.
    difference = weights[..., -half:] - weights[..., :half][..., ::-1]
    return jnp.sum(difference * upper_bins, axis=-1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _bin_space_mean(two_hot: TwoHot, logits: jax.Array) -> jax.Array:
    """Return the mean of softmax(logits) in bin space."""
    unnormalised = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    # Dividing after the sum keeps equal logits at exactly 0 however the division is compiled.
    return _mirrored_sum(two_hot, unnormalised) / jnp.sum(unnormalised, axis=-1)


@_bin_space_mean.defjvp
def _bin_space_mean_jvp(
    two_hot: TwoHot, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (logits,) = primals
    (logits_dot,) = tangents
    bins = _along_last(_grid(two_hot, logits.dtype.name).bins, logits.ndim)
    mean = _bin_space_mean(two_hot, logits)
    # One elementwise expression instead of the transposes of slices and reversals.
    slope = jax.nn.softmax(logits, axis=-1) * (bins - mean[..., None])
    return mean, jnp.sum(slope * logits_dot, axis=-1)


@jax.custom_jvp
def _symlog(x: jax.Array) -> jax.Array:
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


@_symlog.defjvp
def _symlog_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # By hand because the derivative of sign(x)·f(abs x) comes out as 0 at x = 0, where it is 1.
    (x,), (x_dot,) = primals, tangents
    return _symlog(x), x_dot / (1 + jnp.abs(x))


@jax.custom_jvp
def _symexp(x: jax.Array) -> jax.Array:
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


@_symexp.defjvp
def _symexp_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (x_dot,) = primals, tangents
    return _symexp(x), x_dot * jnp.exp(jnp.abs(x))


def _as_floating(x: ArrayLike) -> jax.Array:
    """Return `x` as an array, integers as the default float, floating dtypes unchanged."""
    return jnp.asarray(x, dtype=jnp.result_type(x, float))


def _along_last(constant: np.ndarray, ndim: int) -> Any:
    """Return a constant `[K]` with leading axes of length 1, to meet arrays of `ndim` axes."""
    return constant.reshape((1,) * (ndim - 1) + constant.shape)
