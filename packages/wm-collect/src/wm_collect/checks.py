"""Checks of settings, each of which refuses a value with one sentence."""

import numbers
from typing import Any


def is_number(value: Any) -> bool:
    """Return whether `value` is a real number; a bool is none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_count(name: str, value: Any, minimum: int) -> None:
    """Raise a `ValueError` unless `value` is a whole number of at least `minimum`; no bool."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not (whole and int(value) >= minimum):
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")


def check_positive(name: str, value: Any) -> None:
    """Raise a `ValueError` unless `value` is a finite number above 0."""
    if not (is_number(value) and 0 < value < float("inf")):
        raise ValueError(f"{name} must be a positive number, got {value!r}.")


def check_range(
    name: str,
    value: Any,
    low: float,
    high: float,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> None:
    """Raise a `ValueError` unless `value` is a number between `low` and `high`.

    The ends belong to the range unless they are said to be open.
    """
    inside = is_number(value) and (low < value or (value == low and not low_open))
    if not (inside and (value < high or (value == high and not high_open))):
        left, right = "(" if low_open else "[", ")" if high_open else "]"
        raise ValueError(f"{name} must lie in {left}{low:g}, {high:g}{right}, got {value!r}.")
