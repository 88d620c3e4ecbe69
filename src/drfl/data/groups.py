"""Clients that the data itself names: hospitals, devices, speakers."""

from __future__ import annotations

import math

import numpy as np

from drfl import checks
from drfl.data.partition import Partition
from drfl.data.split_rows import split_rows
from drfl.errors import InputError
from drfl.key import Key


def split_groups(groups: np.ndarray, targets: np.ndarray | None, key: Key, test_fraction: float = 0.2) -> Partition:
    """One client a group; each group's rows are split into training and test rows.

    Args:
        groups: (n,) the group of each row: strings or numbers, none missing.
        targets: (n,) integer class labels, to keep each class's share in both parts as nearly as whole
            numbers allow; None for a plain random split.
        key: names the draws. A group's split does not depend on the other groups.
        test_fraction: share of each group's rows for testing, strictly between 0 and 1; at least one row
            each.

    Returns:
        A partition whose training and test indices both count these rows; clients in the groups' sorted
        order.

    Raises:
        InputError: when a group has a single row, a group is missing, or lengths disagree.
    """
    checks.inner_fraction("test_fraction", test_fraction)
    g = np.asarray(groups)
    y = None if targets is None else np.asarray(targets)
    if g.ndim != 1 or not g.size:
        raise InputError(f"groups must be one value a row, at least one, not of shape {g.shape}")
    if y is not None and y.shape != g.shape:
        raise InputError(f"groups of shape {g.shape} and targets of shape {y.shape} must be one value a row")
    if any(value is None or (isinstance(value, float) and math.isnan(value)) for value in g.tolist()):
        raise InputError("some rows have no group: drop them or give them one")
    try:
        values, codes = np.unique(g, return_inverse=True)
    except TypeError:
        raise InputError("groups mix types that cannot be sorted: turn them into strings") from None
    names = tuple(str(value) for value in values.tolist())
    rows = np.split(np.argsort(codes, kind="stable").astype(np.int64), np.cumsum(np.bincount(codes))[:-1])
    labels = [None if y is None else y[mine] for mine in rows]
    parts = [
        split_rows(mine, label, key.fold("group", name), test_fraction, name=f"group '{name}'")
        for name, mine, label in zip(names, rows, labels, strict=True)
    ]
    recipe: dict[str, str | int | float] = {"partition": "groups", "test_fraction": test_fraction, "seed": key.seed}
    return Partition(tuple(a for a, _ in parts), tuple(b for _, b in parts), names, recipe)
