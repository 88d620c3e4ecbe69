"""Checks of single values from the user. Each raises InputError with a one-line message."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError

AT_A_TIME = 2**22
"""Number of tensor entries checked at a time."""


def is_integer(value: object) -> bool:
    """Return whether a value is an integer; a bool does not count as one."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def integer(name: str, value: int, low: int = 1, *, field: str | None = None) -> None:
    """Raise InputError unless `value` is an integer of at least `low`; a bool does not count as an integer.

    The error's field is `field`, or else `name`.
    """
    if not is_integer(value) or value < low:
        raise InputError(
            f"{name} must be an integer of at least {low}, got {value!r}", code="out-of-range", field=field or name
        )


def _is_finite(value: float) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    try:
        # Integers too large for a float raise OverflowError; strings and None raise TypeError.
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def finite_number(name: str, value: float) -> None:
    """Raise InputError unless `value` is a finite number."""
    if not _is_finite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}", code="out-of-range", field=name)


def positive(name: str, value: float) -> None:
    """Raise InputError unless `value` is a finite number above 0."""
    above(name, value, 0)


def above(name: str, value: float, low: float) -> None:
    """Raise InputError unless `value` is a finite number above `low`."""
    if not (_is_finite(value) and value > low):
        raise InputError(f"{name} must be a finite number above {low}, got {value!r}", code="out-of-range", field=name)


def non_negative(name: str, value: float) -> None:
    """Raise InputError unless `value` is a finite number of at least 0."""
    at_least(name, value, 0)


def at_least(name: str, value: float, low: float) -> None:
    """Raise InputError unless `value` is a finite number of at least `low`."""
    if not (_is_finite(value) and value >= low):
        raise InputError(
            f"{name} must be a finite number of at least {low}, got {value!r}", code="out-of-range", field=name
        )


def at_most(name: str, value: float, high: float, why: str) -> None:
    """Raise InputError if `value`, a number, is above `high`; `why` explains the limit."""
    if value > high:
        raise InputError(f"{name} must be at most {high:,}, got {value!r}: {why}", code="out-of-range", field=name)


def fraction(name: str, value: float) -> None:
    """Raise InputError unless `value` is in [0, 1]."""
    if not (_is_finite(value) and 0 <= value <= 1):
        raise InputError(f"{name} must be between 0 and 1, got {value!r}", code="out-of-range", field=name)


def inner_fraction(name: str, value: float) -> None:
    """Raise InputError unless `value` is strictly between 0 and 1."""
    if not (_is_finite(value) and 0 < value < 1):
        raise InputError(f"{name} must be strictly between 0 and 1, got {value!r}", code="out-of-range", field=name)


def decay(name: str, value: float) -> None:
    """Raise InputError unless `value` is in [0, 1), the range of a weight of the past in a running mean."""
    if not (_is_finite(value) and 0 <= value < 1):
        raise InputError(f"{name} must be in [0, 1), got {value!r}", code="out-of-range", field=name)


def concentration(alpha: float) -> None:
    """Raise InputError unless a Dirichlet concentration is positive; infinity is allowed."""
    if not alpha > 0:  # Written in this form, the check also rejects NaN.
        raise InputError(
            f"`alpha` must be positive (infinity is allowed), got {alpha!r}. For one class per client, the "
            "limit as alpha approaches 0, use `partition = 'one-class'`.",
            code="out-of-range",
            field="alpha",
        )


def one_of(name: str, value: object, known: Sequence[str]) -> None:
    """Raise InputError unless a setting has one of at least two known values."""
    if value not in known:
        choices = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        raise InputError(f"`{name}` must be {choices}, got {value!r}", code="invalid-value", field=name)


def distinct(name: str, values: Iterable[object], *, field: str | None = None) -> None:
    """Raise InputError if a value occurs twice. The error's field is `field`, or else `name`."""
    seen = set[object]()
    for value in values:
        if value in seen:
            raise InputError(f"{name} has {value} twice: remove one", code="given-twice", field=field or name)
        seen.add(value)


def finite(
    name: str, values: Tensor, *, missing: bool = False, owner: Callable[[int], tuple[str, int] | None] | None = None
) -> None:
    """Raise InputError if a floating-point tensor holds NaN or infinity; the message counts and locates the values.

    The tensor is read once, a few rows at a time, so a tensor mapped from a file needs little memory.

    Args:
        name: Name of the tensor in the message.
        values: The tensor, of any shape.
        missing: Whether NaN represents a missing value and is allowed.
        owner: Returns the client of a row and the number of the row among the client's, so that the message names them
            instead of the row; None = the rows belong to no client.
    """
    if not values.is_floating_point():
        return
    bad, first, start = 0, (), 0
    # Split to save memory: the mask of a whole float32 data set would take a quarter of its size.
    for part in values.split(max(1, AT_A_TIME // max(1, values[:1].numel()))) if values.ndim else (values,):
        good = ~torch.isinf(part) if missing else torch.isfinite(part)
        if not bool(good.all()):
            places = torch.nonzero(~good)
            if not bad:
                place = places[0].tolist()
                # Indices in the message refer to the whole tensor, not to this part.
                first = (place[0] + start, *place[1:]) if place else ()
            bad += len(places)
        start += len(part) if part.ndim else 0
    if bad:
        known = owner(first[0]) if owner and first else None
        place = f"index {first}" if known is None else f"index {(known[1], *first[1:])} of client '{known[0]}'"
        raise InputError(
            f"{name} must be finite, but {bad} of {values.numel()} values are NaN or infinite, the first at {place}. "
            "Remove or impute them.",
            code="not-finite",
            field=name,
        )


def labels(name: str, values: np.ndarray, classes: int) -> np.ndarray:
    """Check class labels and return them as a 1-D int64 array.

    Args:
        name: Name of the labels in error messages.
        values: Integers in 0..classes-1, shape (n,).
        classes: Number of classes, at least 1.

    Raises:
        InputError: If the labels are not 1-D, not integers, empty, or out of range.
    """
    integer("classes", classes)
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{name} must be a 1-D array of integers, got {array.dtype} of shape {array.shape}",
            code="wrong-shape",
            field=name,
        )
    if not array.size:
        raise InputError(f"{name} must have at least one sample, got none", code="empty", field=name)
    if array.min() < 0 or array.max() >= classes:
        raise InputError(
            f"{name} must be in 0..{classes - 1}, but range from {array.min()} to {array.max()}",
            code="out-of-range",
            field=name,
        )
    return array.astype(np.int64)
