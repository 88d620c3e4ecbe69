"""Dealing samples to clients once it is decided how many of which class each one gets."""

from __future__ import annotations

import numpy as np

from drfl.key import Key


def by_class(targets: np.ndarray, classes: int) -> list[np.ndarray]:
    """The indices of the samples of each class, ascending."""
    order = np.argsort(targets, kind="stable")
    return np.split(order, np.cumsum(np.bincount(targets, minlength=classes))[:-1])


def deal(targets: np.ndarray, counts: np.ndarray, key: Key) -> tuple[np.ndarray, ...]:
    """Deals the samples of each class at random.

    Args:
        targets: (n,) labels in 0..C-1.
        counts: (N, C) how many samples of each class each client gets; no column sums to more than there are.
        key: names the draw.

    Returns:
        Per client, the sorted int64 indices of its samples.
    """
    N, C = counts.shape
    owner = np.full(len(targets), -1, dtype=np.int64)
    rng = key.generator()
    for c, pool in enumerate(by_class(targets, C)):
        receivers = np.repeat(np.arange(N), counts[:, c])
        owner[rng.permutation(pool)[: len(receivers)]] = receivers
    # A stable sort by owner leaves the indices of each client ascending.
    order = np.argsort(owner, kind="stable").astype(np.int64)[int((owner < 0).sum()) :]
    return tuple(np.split(order, np.cumsum(counts.sum(axis=1))[:-1]))


def holdings(train: tuple[np.ndarray, ...], targets: np.ndarray, classes: int) -> np.ndarray:
    """How many samples of each class each client holds, (N, C) int64."""
    N = len(train)
    owner = np.repeat(np.arange(N), [len(indices) for indices in train])
    cells = np.bincount(owner * classes + targets[np.concatenate(train)], minlength=N * classes)
    return cells.reshape(N, classes)
