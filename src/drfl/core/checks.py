"""Checks on single values that a user gives: each raises one clear line."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError

AT_A_TIME = 2**22
"""Numbers looked at together."""


def whole(name: str, value: int, low: int = 1) -> None:
    """Raises InputError unless `value` is an integer (no bool) of at least `low`."""
    # A bool is an int in Python, but not a count.
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise InputError(f"{name} must be an integer of at least {low}, not {value!r}", code="out-of-range", field=name)


def _finite(value: float) -> bool:
    """Whether it is a finite number; what is no number at all, a text or None, is none either."""
    try:
        # Integers too large for a float raise OverflowError; strings and None raise TypeError.
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def positive(name: str, value: float) -> None:
    """Raises InputError unless `value` is a finite number above 0."""
    above(name, value, 0)


def above(name: str, value: float, low: float) -> None:
    """Raises InputError unless `value` is a finite number above `low`."""
    if not (_finite(value) and value > low):
        raise InputError(f"{name} must be a finite number above {low}, not {value}", code="out-of-range", field=name)


def non_negative(name: str, value: float) -> None:
    """Raises InputError unless `value` is a finite number of at least 0."""
    at_least(name, value, 0)


def at_least(name: str, value: float, low: float) -> None:
    """Raises InputError unless `value` is a finite number of at least `low`."""
    if not (_finite(value) and value >= low):
        raise InputError(
            f"{name} must be a finite number of at least {low}, not {value}", code="out-of-range", field=name
        )


def at_most(name: str, value: float, high: float, why: str) -> None:
    """Raises InputError if `value`, a number, is above `high`; `why` says what the limit means."""
    if value > high:
        raise InputError(f"{name} must be at most {high:,}, not {value}: {why}", code="out-of-range", field=name)


def fraction(name: str, value: float) -> None:
    """Raises InputError unless `value` lies in [0, 1]."""
    if not (_finite(value) and 0 <= value <= 1):
        raise InputError(f"{name} must lie between 0 and 1, not {value}", code="out-of-range", field=name)


def inner_fraction(name: str, value: float) -> None:
    """Raises InputError unless `value` lies strictly between 0 and 1."""
    if not (_finite(value) and 0 < value < 1):
        raise InputError(f"{name} must lie strictly between 0 and 1, not {value}", code="out-of-range", field=name)


def decay(name: str, value: float) -> None:
    """Raises InputError unless `value` lies in [0, 1), as the weight of the past in a running mean does."""
    if not (_finite(value) and 0 <= value < 1):
        raise InputError(f"{name} must be in [0, 1), not {value}", code="out-of-range", field=name)


def concentration(alpha: float) -> None:
    """Raises InputError unless a Dirichlet concentration is positive; infinity is allowed."""
    if not alpha > 0:  # written this way round, NaN is refused too
        raise InputError(
            f"alpha must be positive (infinity is allowed), not {alpha}: for the limit of alpha to 0, "
            "one class a client, use partition 'one-class'",
            code="out-of-range",
            field="alpha",
        )


def finite(name: str, values: Tensor) -> None:
    """Raises InputError if a floating tensor of any shape holds NaN or infinity; says how many and where.

    Reads it once, a few rows at a time: memory stays small where it is a file mapped into memory.
    """
    if not values.is_floating_point():
        return
    bad, first, start = 0, (), 0
    # Parts save memory: the mask of a whole float32 data set would take a quarter of its size.
    for part in values.split(max(1, AT_A_TIME // max(1, values[:1].numel()))) if values.ndim else (values,):
        good = torch.isfinite(part)
        if not bool(good.all()):
            places = torch.nonzero(~good)
            if not bad:
                place = places[0].tolist()
                # The place is given in the whole tensor, not in this part.
                first = (place[0] + start, *place[1:]) if place else ()
            bad += len(places)
        start += len(part) if part.ndim else 0
    if bad:
        raise InputError(
            f"{name} must be finite: {bad} of {values.numel()} values are NaN or infinite, the first at "
            f"index {first}; remove or impute them",
            code="not-finite",
            field=name,
        )


def labels(name: str, values: np.ndarray, classes: int) -> np.ndarray:
    """A 1-D int64 array of class labels, checked.

    Args:
        name: what the labels are, for the error.
        values: (n,) integers in 0..classes-1.
        classes: the number of classes, at least 1.

    Raises:
        InputError: when they are not 1-D, not integers, none at all, or out of range.
    """
    whole("classes", classes)
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{name} must be a 1-D array of integers, not {array.dtype} of shape {array.shape}",
            code="wrong-shape",
            field=name,
        )
    if not array.size:
        raise InputError(f"{name} are empty: give at least one sample", code="empty", field=name)
    if array.min() < 0 or array.max() >= classes:
        raise InputError(
            f"{name} must lie in 0..{classes - 1}, but range over {array.min()}..{array.max()}",
            code="out-of-range",
            field=name,
        )
    return array.astype(np.int64)
