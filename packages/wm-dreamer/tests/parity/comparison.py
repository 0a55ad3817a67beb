"""Comparing our arrays with recorded ones, and how far rounding may move them.

Both sides compute in float32 and differ in the order of their sums. A bound is written for each
array in its own units; where rounding is amplified (a decoded value, a two-hot weight, a quotient),
the bound follows the amplification, element by element. Bounds on two-hot values also hold the
registered deviation D22: the original computes its bins in float32, ours are exact.
"""

import numpy as np

EPS = 2.0**-23
# The output of a network, relative to its largest entry: some ten roundings.
NETWORK = 2e-6
# Two-hot logits, relative to the largest one. A few bins stand far out, by their bias; what is
# summed up besides is smaller, so the error is little more than the last addition's.
LOGITS = 4e-7
# Bins are this far apart, relative (D22), and neighbours are a factor of about exp(0.157) apart.
BINS = 1.5e-6


def assert_near(ours, theirs, tolerance, what=""):
    """Compare with a tolerance in the values' own units, one for all or one per element."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape, f"{what}: {ours.shape} is compared with {theirs.shape}"
    error = np.abs(ours - theirs)
    excess = error - tolerance
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    assert np.all(excess <= 0), f"{what}: an error of {error[worst]} at {worst} is too large"


def assert_near_largest(ours, theirs, relative, what=""):
    """Compare with a tolerance relative to the largest recorded entry."""
    assert_near(ours, theirs, relative * np.abs(theirs).max(initial=0), what)


def softmax(logits):
    logits = np.float64(logits)
    unnormalised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return unnormalised / unnormalised.sum(axis=-1, keepdims=True)


def decoded(logits, bins):
    """Return the bound of decoded two-hot logits `[..., bins]`: `[...]`.

    Terms p·b cancel: each is off by its bin's error and some roundings, and by the error of p,
    which moves the mean by the distance of the bin from it.
    """
    probs, bins = softmax(logits), np.float64(bins)
    mean = probs @ bins
    size, spread = probs @ np.abs(bins), (probs * np.abs(bins - mean[..., None])).sum(axis=-1)
    return (BINS + 8 * EPS) * size + LOGITS * np.abs(logits).max() * spread


def two_hot_loss(logits, target, of_target, bins):
    """Return the bound of −log p(target) for logits `[..., bins]` and a target off by `of_target`.

    The error of the two weights moves probability from one logit to its neighbour.
    """
    bins, logits, target = np.float64(bins), np.float64(logits), np.float64(target)
    below = np.clip(np.searchsorted(bins, target, side="right") - 1, 0, len(bins) - 2)
    width = bins[below + 1] - bins[below]
    pair = np.stack([below, below + 1], axis=-1)
    jump = np.abs(np.diff(np.take_along_axis(logits, pair, axis=-1), axis=-1))[..., 0]
    # On a bin the error decides which pair it is.
    beyond = np.clip(np.stack([below - 1, below + 2], axis=-1), 0, len(bins) - 1)
    other = np.abs(
        np.take_along_axis(logits, beyond, axis=-1) - np.take_along_axis(logits, pair, -1)
    )
    outer = np.abs(bins[pair]).max(axis=-1)
    of_weight = (2 * BINS * outer + of_target) / width + 2 * EPS
    return 2 * LOGITS * np.abs(logits).max() + np.maximum(jump, other.max(axis=-1)) * of_weight
