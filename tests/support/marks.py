"""Which parameters of a test `make test` tries; the others are for `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest


def long_beyond(first, values, ids=None):
    """The parameters, of which those after the first ones are long.

    Args:
        first: how many `make test` tries.
        values: all parameters.
        ids: their names; None = themselves.
    """
    values = list(values)
    names = [str(value) for value in values] if ids is None else list(ids)
    return long_except(names[:first], values, names)


def long_except(kept, values, ids=None):
    """The parameters, of which those whose ids are not kept are long."""
    values = list(values)
    names = [str(value) for value in values] if ids is None else list(ids)
    assert set(kept) <= set(names), set(kept) - set(names)
    return [
        pytest.param(*as_tuple(value), id=name, marks=() if name in kept else pytest.mark.long)
        for value, name in zip(values, names, strict=True)
    ]


def crossed(*parameters):
    """All combinations of the values of several arguments; `make test` tries so many that each value is in one.

    It tries the first values together, the second values together, and so on; a list that ends starts again.

    Args:
        parameters: for each argument its values, or ids with values. A value made by `pytest.param`, with
            an id, can stand for several arguments, and `make test` leaves it out if it is marked as long.
    """
    lists = [
        [_parameter(*item) for item in (p.items() if isinstance(p, dict) else zip(p, p, strict=True))]
        for p in parameters
    ]
    short = [[k for k, value in enumerate(values) if not value.marks] for values in lists]
    tried = {tuple(places[k % len(places)] for places in short) for k in range(max(map(len, short)))}
    return [
        pytest.param(
            *(part for value in combination for part in value.values),
            id="-".join(str(value.id) for value in combination),
            marks=() if places in tried else pytest.mark.long,
        )
        for places, combination in zip(product(*(range(len(values)) for values in lists)), product(*lists), strict=True)
    ]


def _parameter(name, value):
    if hasattr(value, "marks") and hasattr(value, "values"):
        return value
    return pytest.param(value, id=str(getattr(name, "__name__", name)))


def as_tuple(value) -> Iterable:
    """A parameter's values: several where it is a tuple."""
    return value if isinstance(value, tuple) else (value,)
