"""Mark the parameters of a test that only `make test-all` runs; `make test` runs the others."""

from __future__ import annotations

from itertools import product

import pytest


def long_beyond(first, values, ids=None):
    """Return all parameters; those after the first few are marked as long.

    Args:
        first: number of parameters that `make test` runs.
        values: all parameters.
        ids: their names; None = the values as text.
    """
    values = list(values)
    names = [str(value) for value in values] if ids is None else list(ids)
    return long_except(names[:first], values, names)


def long_except(kept, values, ids=None):
    """Return all parameters; those whose ids are not in ``kept`` are marked as long."""
    values = list(values)
    names = [str(value) for value in values] if ids is None else list(ids)
    assert set(kept) <= set(names), set(kept) - set(names)
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            id=name,
            marks=() if name in kept else pytest.mark.long,
        )
        for value, name in zip(values, names, strict=True)
    ]


def crossed(*parameters, last_in_turn=False):
    """Return all combinations of the values of several arguments; most are marked as long.

    `make test` runs the combination of all first values, that of all second values, and so on; shorter lists are
    repeated. So each value occurs at least once.

    Args:
        parameters: for each argument its values, or ids with values. A value made by `pytest.param`, with an id, can
            give several arguments. If it is marked as long, `make test` does not use it.
        last_in_turn: whether each combination of the others has only one value of the last argument. These values
            alternate, so that every pair of values of two arguments still occurs if the lists are long enough.
    """
    lists = [
        [_parameter(*item) for item in (p.items() if isinstance(p, dict) else zip(p, p, strict=True))]
        for p in parameters
    ]
    short = [[k for k, value in enumerate(values) if not value.marks] for values in lists]
    tried = {tuple(places[k % len(places)] for places in short) for k in range(max(map(len, short)))}
    found = []
    for places in product(*(range(len(values)) for values in lists)):
        if last_in_turn and places not in tried and places[-1] != sum(places[:-1]) % len(lists[-1]):
            continue
        combination = [values[place] for values, place in zip(lists, places, strict=True)]
        found.append(
            pytest.param(
                *(part for value in combination for part in value.values),
                id="-".join(str(value.id) for value in combination),
                marks=() if places in tried else pytest.mark.long,
            )
        )
    return found


def _parameter(name, value):
    if hasattr(value, "marks") and hasattr(value, "values"):
        return value
    return pytest.param(value, id=str(getattr(name, "__name__", name)))
