"""How samples are divided among clients: IID, one class each, and Dirichlet with Zipf sizes or drops."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data.partition.natural import Natural
from drfl.data.partition.partition import Partition, PartitionMethod, checked_labels, finish
from drfl.data.partition.splitting import assign_by_class, dirichlet, largest_remainder, zipf_weights


@dataclass(frozen=True)
class IID:
    """Samples are dealt at random whatever their class; every sample is used once.

    Args:
        clients: N.
        zipf: Zipf exponent of the sizes; 0 makes them equal, up to one sample.

    Raises:
        InputError: when a parameter is out of range.
    """

    name: ClassVar[str] = "iid"
    clients: int = 30
    zipf: float = 0.0

    def __post_init__(self) -> None:
        checks.integer("clients", self.clients)
        checks.non_negative("zipf", self.zipf)

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """See `PartitionMethod.split`."""
        y, y_test = checked_labels(self, targets, test_targets, classes)
        sizes = largest_remainder(len(y), zipf_weights(self.clients, self.zipf), minimum=1)
        order = key.fold("train").generator().permutation(len(y)).astype(np.int64)
        train = tuple(np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1]))
        return finish(self, train, (y, y_test), classes, key)


@dataclass(frozen=True)
class OneClass:
    """Each client holds samples of a single class (DRFA paper, §6); every sample is used once.

    Client i gets class i mod C. Clients of the same class share its samples in proportion to i^-zipf, i from
    1.

    Args:
        clients: N, at least the number of classes.
        zipf: Zipf exponent of the sizes within a class; 0 makes them equal.

    Raises:
        InputError: when a parameter is out of range.
    """

    name: ClassVar[str] = "one-class"
    clients: int = 10
    zipf: float = 0.0

    def __post_init__(self) -> None:
        checks.integer("clients", self.clients)
        checks.non_negative("zipf", self.zipf)

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """See `PartitionMethod.split`.

        Raises:
            InputError: when there are fewer clients than classes, or a class has fewer samples than clients.
        """
        y, y_test = checked_labels(self, targets, test_targets, classes)
        counts = one_class_counts(np.bincount(y, minlength=classes), self.clients, self.zipf)
        train = assign_by_class(y, counts, key.fold("train"))
        return finish(self, train, (y, y_test), classes, key, counts)


def one_class_counts(supply: np.ndarray, clients: int, zipf: float) -> np.ndarray:
    """How many samples of which class each client gets under `OneClass`.

    Args:
        supply: (C,) samples per class.
        clients: N.
        zipf: Zipf exponent.

    Returns:
        (N, C) int64, with one positive number a row and the columns' sums equal to `supply`.

    Raises:
        InputError: when N < C, or a class has fewer samples than clients.
    """
    C = len(supply)
    if clients < C:
        raise InputError(
            f"one class a client needs at least {C} clients for {C} classes, not {clients}",
            code="few-clients",
            field="clients",
        )
    weights = zipf_weights(clients, zipf)
    counts = np.zeros((clients, C), dtype=np.int64)
    for c in range(C):
        members = np.arange(c, clients, C)
        if supply[c] < len(members):
            raise InputError(
                f"class {c} has {supply[c]} training samples for {len(members)} clients: use fewer clients",
                code="few-rows",
                field="clients",
            )
        counts[members, c] = largest_remainder(int(supply[c]), weights[members], minimum=1)
    return counts


@dataclass(frozen=True)
class ZipfDirichlet:
    """The set-up of the DRDM paper (§IV.A.4); every sample is used once.

    Client i, from 1, gets d·i^-zipf / Σ_j j^-zipf of the d samples, and its classes in shares p_i ~
    Dir(alpha·1).

    N independent draws do not add up to the samples that each class has. The paper does not say how it
    resolves that; here it is done so that profiles stay as drawn where possible. Clients choose in order of
    size, the largest first. A client's shares, sorted, go to the classes in order of what is left of them:
    its largest share to the class with most samples left. Dir(alpha·1) is exchangeable in the classes, so the
    ranked shares of each client (how many classes it has, and how unequally) keep exactly their Dirichlet
    law; only the class labels are chosen, and chosen so that the whole is feasible, not independently between
    clients. What a class cannot give any more comes from the client's other classes, in its own proportions,
    or in proportion to what is left if it has none.

    Where each client's rounded shares are one single class and there are at least as many clients as classes,
    the class is kept and the sizes give way: the counts are those of `OneClass` with the same zipf.

    Args:
        clients: N.
        alpha: concentration, positive; infinity gives each client equal shares of all classes.
        zipf: Zipf exponent of the sizes; 0 makes them equal, up to one sample.

    Raises:
        InputError: when a parameter is out of range; alpha = 0 is partition 'one-class'.
    """

    name: ClassVar[str] = "zipf-dirichlet"
    clients: int = 30
    alpha: float = 0.1
    zipf: float = 0.0

    def __post_init__(self) -> None:
        checks.integer("clients", self.clients)
        checks.concentration(self.alpha)
        checks.non_negative("zipf", self.zipf)

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """See `PartitionMethod.split`.

        Raises:
            InputError: when there are more clients than samples, or labels are out of range.
        """
        y, y_test = checked_labels(self, targets, test_targets, classes)
        supply = np.bincount(y, minlength=classes)
        sizes = largest_remainder(len(y), zipf_weights(self.clients, self.zipf), minimum=1)
        shares = dirichlet(self.alpha, self.clients, classes, key.fold("shares"))
        N, C = shares.shape
        single = all(np.count_nonzero(largest_remainder(int(n), p)) == 1 for n, p in zip(sizes, shares, strict=True))
        clients_of_class = np.bincount(np.arange(N) % C, minlength=C)
        # If all shares round to a single class, every client gets one class, and the classes determine the sizes. This
        # needs a client for every class, with a sample for each of its clients. Clients of one sample have a single
        # class anyway.
        if single and N >= C and (supply >= clients_of_class).all() and sizes.max() > 1:
            counts = one_class_counts(supply, self.clients, self.zipf)
        else:
            # The largest client chooses first. Random draws break ties between clients and between classes.
            draws = key.fold("choice")
            # A client's largest share goes to the class of which most samples are left, and so on.
            ranked = -np.sort(-shares, axis=1)
            order = np.lexsort((draws.fold("order").generator().random(N), -sizes))
            lots = draws.fold("ties").generator().random((N, C))
            counts = np.zeros((N, C), dtype=np.int64)
            left = supply.copy()
            for i in order:
                mine = np.empty(C)
                mine[np.lexsort((lots[i], -left))] = ranked[i]
                counts[i] = take(int(sizes[i]), mine, left)
                left -= counts[i]
        train = assign_by_class(y, counts, key.fold("train"))
        return finish(self, train, (y, y_test), classes, key, counts)


def take(size: int, shares: np.ndarray, left: np.ndarray) -> np.ndarray:
    """What one client takes of each class.

    Args:
        size: samples that it takes in all, at most ``left.sum()``.
        shares: (C,) the shares of the classes that it wants.
        left: (C,) int64, samples left of each class.

    Returns:
        (C,) int64 of sum `size`, nowhere more than `left`.
    """
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        rest = left - taken
        weights = np.where(rest > 0, shares, 0.0)
        if not weights.any():
            weights = rest
        # Each pass empties a class or ends, so there are at most as many passes as classes.
        taken += np.minimum(largest_remainder(missing, weights), rest)
    return taken


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
        checks.integer("clients", self.clients)
        checks.concentration(self.alpha)
        checks.fraction("client_fraction", self.client_fraction)
        checks.fraction("sample_fraction", self.sample_fraction)

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """See `PartitionMethod.split`."""
        y, y_test = checked_labels(self, targets, test_targets, classes)
        shares = dirichlet(self.alpha, classes, self.clients, key.fold("shares"))
        supply = np.bincount(y, minlength=classes)
        counts = np.stack([largest_remainder(int(supply[c]), shares[c]) for c in range(classes)], axis=1)
        # Each empty client gets one sample of the largest client's most common class.
        sizes = counts.sum(axis=1)
        heap = [(-int(n), i) for i, n in enumerate(sizes)]
        heapq.heapify(heap)  # a search for the largest for each empty client would be quadratic
        for i in np.flatnonzero(sizes == 0):
            n, largest = heap[0]
            c = counts[largest].argmax()
            counts[largest, c] -= 1
            counts[i, c] += 1
            heapq.heapreplace(heap, (n + 1, largest))
        train = list(assign_by_class(y, counts, key.fold("train")))
        draws = key.fold("drop")
        # Clients and their dropped samples are drawn separately, so that one more such client leaves the others' rows
        # as they are.
        losers = draws.fold("clients").generator().permutation(self.clients)
        for i in losers[: math.floor(self.client_fraction * self.clients + 0.5)]:
            n = len(train[i])
            keep = max(n - math.floor(self.sample_fraction * n + 0.5), 1)
            draw = draws.fold("samples", int(i)).generator().permutation(n)[:keep]
            train[i] = np.sort(train[i][draw])
        return finish(self, tuple(train), (y, y_test), classes, key, counts)


PARTITIONS: dict[str, Callable[..., PartitionMethod | Natural]] = {
    method.name: method for method in (ZipfDirichlet, OneClass, DirichletDrop, IID, Natural)
}
"""Each is a frozen dataclass of parameters that :func:`drfl.data.partition.natural` takes."""
