"""Splitting rows into a training and a test part, class by class where possible."""

from __future__ import annotations

import numpy as np

from drfl import checks
from drfl.data.apportion import apportion
from drfl.errors import InputError
from drfl.key import Key


def split_rows(
    rows: np.ndarray, targets: np.ndarray | None, key: Key, test_fraction: float, name: str = "the data"
) -> tuple[np.ndarray, np.ndarray]:
    """A random split in which each class keeps its share as nearly as whole numbers allow.

    Args:
        rows: (n,) int64 row numbers.
        targets: (n,) class labels of these rows, any integers; None for a plain random split.
        key: names the draw.
        test_fraction: share of the rows for testing, strictly between 0 and 1; at least one row goes to each
            part.
        name: whose rows they are, for the error.

    Returns:
        Training rows and test rows, each sorted.

    Raises:
        InputError: when there are fewer than two rows or the fraction is out of range.
    """
    checks.inner_fraction("test_fraction", test_fraction)
    n = len(rows)
    if n < 2:
        few = f"{name} has {n} row{'s' * (n != 1)}: at least two are needed to train and to test"
        raise InputError(f"{few}; leave it out or give test data of its own")
    rng = key.generator()
    held = min(max(round(test_fraction * n), 1), n - 1)
    if targets is None:
        order = rng.permutation(n)
        return np.sort(rows[order[held:]]), np.sort(rows[order[:held]])
    _, codes, counts = np.unique(targets, return_inverse=True, return_counts=True)
    # In random class order, or equal remainders would favour the same classes for every client.
    shuffled = rng.permutation(len(counts))
    quota = np.empty(len(counts), dtype=np.int64)
    quota[shuffled] = apportion(held, counts[shuffled])
    order = rng.permutation(n)
    order = order[np.argsort(codes[order], kind="stable")]
    rank = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    test = rank < quota[codes[order]]
    return np.sort(rows[order[~test]]), np.sort(rows[order[test]])
