"""Test data for clients whose training data differ in their classes."""

from __future__ import annotations

import numpy as np

from drfl.data.apportion import apportion
from drfl.data.deal import by_class, deal
from drfl.errors import InputError
from drfl.key import Key


def share_test(counts: np.ndarray, test_targets: np.ndarray, key: Key) -> tuple[np.ndarray, ...]:
    """Gives each client test samples of the classes that it trains on.

    The test samples of a class go to the clients in proportion to the training samples of this class that
    they hold, so that each is tested on its own mix and every test sample is used once. Test samples of a
    class that no client trains on are shared in proportion to the clients' sizes. A client that would be left
    without any gets one sample, drawn at random, of its most common class that has test samples; another
    client holds it too.

    Args:
        counts: (N, C) training samples per client and class.
        test_targets: (k,) labels in 0..C-1.
        key: names the draw.

    Returns:
        Per client, sorted int64 indices into the test pool, at least one.

    Raises:
        InputError: when a client left without test samples has no class that the test pool has.
    """
    N, C = counts.shape
    pools = by_class(test_targets, C)
    supply = np.array([len(pool) for pool in pools])
    mine = np.zeros((N, C), dtype=np.int64)
    for c in np.flatnonzero(supply):
        weights = counts[:, c] if counts[:, c].any() else counts.sum(axis=1)
        mine[:, c] = apportion(int(supply[c]), weights)
    test = list(deal(test_targets, mine, key.fold("deal")))
    empty = np.flatnonzero(mine.sum(axis=1) == 0)
    held = np.where(supply > 0, counts[empty], 0)
    if len(empty) and held.max(axis=1).min() == 0:
        i = empty[held.max(axis=1).argmin()]
        classes = np.flatnonzero(counts[i]).tolist()
        raise InputError(f"client {i} cannot be tested: no test sample is of its classes {classes}; give some that are")
    borrowed = held.argmax(axis=1)
    draws = key.fold("borrow").generator().integers(0, supply[borrowed])
    for i, c, draw in zip(empty, borrowed, draws, strict=True):
        test[i] = pools[c][draw : draw + 1].astype(np.int64)
    return tuple(test)
