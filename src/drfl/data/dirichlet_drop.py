"""Dirichlet allocation of each class to the clients, after which some clients lose samples."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from drfl import checks
from drfl.data.apportion import apportion
from drfl.data.deal import deal
from drfl.data.dirichlet import dirichlet
from drfl.data.methods import checked_labels, finish
from drfl.data.partition import Partition
from drfl.key import Key


@dataclass(frozen=True)
class DirichletDrop:
    """Each class is split among the clients by a Dirichlet draw; then some clients lose samples.

    The set-up of the SCAFF-PD paper (C.2), after Li et al. 2022 ("Federated learning on non-IID data silos"):
    for each class c, p_c ~ Dir_N(alpha) over the clients. A client left empty gets one sample from the largest
    one. Then round(client_fraction·N) clients, drawn at random, lose round(sample_fraction·n) of their n
    samples and keep at least one; the lost samples are used by nobody. Test data go by what a client held
    before the loss.

    Args:
        clients: N.
        alpha: concentration, positive; infinity splits every class equally.
        client_fraction: share of the clients that lose samples.
        sample_fraction: share of its samples that such a client loses.

    Raises:
        InputError: when a parameter is out of range.
    """

    name: ClassVar[str] = "dirichlet-drop"
    clients: int = 20
    alpha: float = 0.1
    client_fraction: float = 0.3
    sample_fraction: float = 0.7

    def __post_init__(self) -> None:
        checks.whole("clients", self.clients)
        checks.concentration(self.alpha)
        checks.fraction("client_fraction", self.client_fraction)
        checks.fraction("sample_fraction", self.sample_fraction)

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """See `PartitionMethod.split`."""
        y, y_test = checked_labels(self, targets, test_targets, classes)
        shares = dirichlet(self.alpha, classes, self.clients, key.fold("shares"))
        supply = np.bincount(y, minlength=classes)
        counts = np.stack([apportion(int(supply[c]), shares[c]) for c in range(classes)], axis=1)
        _fill_empty(counts)
        train = self._drop(deal(y, counts, key.fold("train")), key.fold("drop"))
        return finish(self, train, (y, y_test), classes, key, counts)

    def _drop(self, train: tuple[np.ndarray, ...], key: Key) -> tuple[np.ndarray, ...]:
        losers = key.fold("clients").generator().permutation(self.clients)
        kept = list(train)
        for i in losers[: math.floor(self.client_fraction * self.clients + 0.5)]:
            n = len(train[i])
            keep = max(n - math.floor(self.sample_fraction * n + 0.5), 1)
            draw = key.fold("samples", int(i)).generator().permutation(n)[:keep]
            kept[i] = np.sort(train[i][draw])
        return tuple(kept)


def _fill_empty(counts: np.ndarray) -> None:
    """Moves one sample of the largest client's most common class to each empty client, in place."""
    sizes = counts.sum(axis=1)
    heap = [(-int(n), i) for i, n in enumerate(sizes)]
    heapq.heapify(heap)  # finding the largest anew for each empty client would be quadratic
    for i in np.flatnonzero(sizes == 0):
        n, largest = heap[0]
        c = counts[largest].argmax()
        counts[largest, c] -= 1
        counts[i, c] += 1
        heapq.heapreplace(heap, (n + 1, largest))
