"""Which parameters of a test `make test` tries; the others are for `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def only(kept, values, ids=None):
    """The parameters, those that are not kept marked as long.

    Args:
        kept: how many of the first ones `make test` tries, or which ones, by their ids.
        values: all parameters.
        ids: their names; None = themselves.
    """
    values = list(values)
    names = [str(value) for value in values] if ids is None else list(ids)
    chosen = set(names[:kept] if isinstance(kept, int) else kept)
    assert chosen <= set(names), chosen - set(names)
    return [
        pytest.param(*as_tuple(value), id=name, marks=() if name in chosen else pytest.mark.long)
        for value, name in zip(values, names, strict=True)
    ]


def as_tuple(value) -> Iterable:
    """A parameter's values: several where it is a tuple."""
    return value if isinstance(value, tuple) else (value,)


def every(step, values, ids=None):
    """The parameters, of which `make test` tries the first and then every ``step``-th."""
    values = list(values)
    names = [str(value) for value in values] if ids is None else list(ids)
    return only(names[::step], values, names)
