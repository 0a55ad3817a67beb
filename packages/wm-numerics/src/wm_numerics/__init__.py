"""Numerics that world-model agents share.

Needs jax and numpy only. Two submodules are public besides the names below: `wm_numerics.dropout`,
and `wm_numerics.blocks`, the flax layers, which is not imported here and needs the extra `nn`.
"""

from importlib.metadata import version

from wm_numerics.distributional import TwoHot, symexp, symlog
from wm_numerics.initializers import fan_in_truncated_normal, normal, zeros
from wm_numerics.normalizers import (
    ReturnNormalizer,
    ReturnNormalizerState,
    RunningScale,
    RunningScaleState,
    percentile,
)

__all__ = [
    "ReturnNormalizer",
    "ReturnNormalizerState",
    "RunningScale",
    "RunningScaleState",
    "TwoHot",
    "fan_in_truncated_normal",
    "normal",
    "percentile",
    "symexp",
    "symlog",
    "zeros",
]

__version__ = version("wm-numerics")
