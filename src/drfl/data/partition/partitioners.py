"""Partition methods: IID, one class per client, and Dirichlet with Zipf sizes or with dropped samples."""

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
from drfl.data.partition.partition import Partition, PartitionMethod, check_labels, finish
from drfl.data.partition.splitting import assign_by_class, dirichlet, largest_remainder, zipf_weights


@dataclass(frozen=True)
class IID:
    """Distributes all samples at random, regardless of their class; every sample is used once.

    Args:
        clients: N.
        zipf: Zipf exponent of the client sizes; with 0 they are equal, up to one sample.

    Raises:
        InputError: If a parameter is out of range.
    """

    name: ClassVar[str] = "iid"
    clients: int = 30
    zipf: float = 0.0

    def __post_init__(self) -> None:
        checks.integer("clients", self.clients)
        checks.non_negative("zipf", self.zipf)

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """See `PartitionMethod.split`."""
        y, y_test = check_labels(self, targets, test_targets, classes)
        sizes = largest_remainder(len(y), zipf_weights(self.clients, self.zipf), minimum=1)
        order = key.fold("train").generator().permutation(len(y)).astype(np.int64)
        train = tuple(np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1]))
        return finish(self, train, (y, y_test), classes, key)


@dataclass(frozen=True)
class OneClass:
    """Gives each client samples of a single class (DRFA paper, §6); every sample is used once.

    Client i gets class i mod C. Clients of the same class divide its samples in proportion to i^-zipf, with i from 1.

    Args:
        clients: N, at least the number of classes.
        zipf: Zipf exponent of the client sizes within a class; with 0 they are equal.

    Raises:
        InputError: If a parameter is out of range.
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
            InputError: If there are fewer clients than classes, or a class has fewer samples than clients.
        """
        y, y_test = check_labels(self, targets, test_targets, classes)
        counts = one_class_counts(np.bincount(y, minlength=classes), self.clients, self.zipf)
        train = assign_by_class(y, counts, key.fold("train"))
        return finish(self, train, (y, y_test), classes, key, counts)


def one_class_counts(supply: np.ndarray, clients: int, zipf: float) -> np.ndarray:
    """Return the number of samples of each class that each client gets under `OneClass`, from their supply (C,).

    Returns:
        (N, C) int64 with one positive number per row and column sums equal to `supply`.
    """
    C = len(supply)
    if clients < C:
        raise InputError(
            f"partition 'one-class' requires at least {C} clients for {C} classes, got {clients}",
            code="few-clients",
            field="clients",
        )
    weights = zipf_weights(clients, zipf)
    counts = np.zeros((clients, C), dtype=np.int64)
    for c in range(C):
        members = np.arange(c, clients, C)
        if supply[c] < len(members):
            raise InputError(
                f"class {c} has {supply[c]} training samples for {len(members)} clients. Use fewer clients",
                code="few-rows",
                field="clients",
            )
        counts[members, c] = largest_remainder(int(supply[c]), weights[members], minimum=1)
    return counts


@dataclass(frozen=True)
class ZipfDirichlet:
    """Divides samples as in the DRDM paper (§IV.A.4), with Zipf client sizes and Dirichlet class shares.

    Every sample is used once.

    Client i, with i from 1, gets d·i^-zipf / Σ_j j^-zipf of the d samples, with class shares p_i ~ Dir(alpha·1).

    N independent draws do not add up to the number of samples of each class, and the paper does not say how it resolves
    this. Here the shares stay as drawn if possible. Clients choose in order of size, the largest first. A client's
    largest share goes to the class with the most samples left, its second largest share to the next class, and so on.
    Dir(alpha·1) is exchangeable in the classes, so each client's ranked shares (the number of its classes and their
    imbalance) follow their Dirichlet law exactly. Only the assignment of classes is chosen, so that the whole is
    feasible; it is therefore not independent between clients. If a class runs out, the remaining samples come from the
    client's other classes in the proportions of its shares, or in proportion to the samples left if it has none.

    If each client's shares round to a single class and there are at least as many clients as classes, the class is kept
    and the sizes are adjusted instead: the counts are those of `OneClass` with the same zipf.

    Args:
        clients: N.
        alpha: Dirichlet concentration, positive; infinity gives each client equal shares of all classes.
        zipf: Zipf exponent of the client sizes; with 0 they are equal, up to one sample.

    Raises:
        InputError: If a parameter is out of range. For alpha = 0 use partition 'one-class'.
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
            InputError: If there are more clients than samples, or labels are out of range.
        """
        y, y_test = check_labels(self, targets, test_targets, classes)
        supply = np.bincount(y, minlength=classes)
        sizes = largest_remainder(len(y), zipf_weights(self.clients, self.zipf), minimum=1)
        shares = dirichlet(self.alpha, self.clients, classes, key.fold("shares"))
        N, C = shares.shape
        single = all(np.count_nonzero(largest_remainder(int(n), p)) == 1 for n, p in zip(sizes, shares, strict=True))
        clients_of_class = np.bincount(np.arange(N) % C, minlength=C)
        # If all shares round to a single class, every client gets one class, and the classes determine the sizes. This
        # needs a client for every class and a sample for each of its clients. Clients with one sample have a single
        # class anyway.
        if single and N >= C and (supply >= clients_of_class).all() and sizes.max() > 1:
            counts = one_class_counts(supply, self.clients, self.zipf)
        else:
            # The largest client chooses first. Random draws break ties between clients and between classes.
            draws = key.fold("choice")
            # Assign a client's largest share to the class with the most samples left, and so on.
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
    """Take one client's samples from the classes, aiming for these shares (C,), while numbers (C,) of samples are left.

    Returns:
        (C,) int64 with sum `size`, at most `left`.
    """
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        rest = left - taken
        weights = np.where(rest > 0, shares, 0.0)
        if not weights.any():
            weights = rest
        # Each pass exhausts a class or finishes, so the number of passes is at most the number of classes.
        taken += np.minimum(largest_remainder(missing, weights), rest)
    return taken


@dataclass(frozen=True)
class DirichletDrop:
    """Divides each class among the clients by a Dirichlet draw; some clients then lose samples.

    This is the setting of the SCAFF-PD paper (C.2), after Li et al. 2022 ("Federated learning on non-IID data silos").
    For each class c, p_c ~ Dir_N(alpha) over the clients. A client without samples gets one from the largest client.
    Then round(client_fraction·N) random clients lose round(sample_fraction·n) of their n samples, keeping at least one.
    Lost samples are not used. Test data are divided according to the samples that clients held before the loss.

    Args:
        clients: N.
        alpha: Dirichlet concentration, positive; infinity divides every class equally.
        client_fraction: Share of the clients that lose samples.
        sample_fraction: Share of its samples that such a client loses.

    Raises:
        InputError: If a parameter is out of range.
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
        y, y_test = check_labels(self, targets, test_targets, classes)
        shares = dirichlet(self.alpha, classes, self.clients, key.fold("shares"))
        supply = np.bincount(y, minlength=classes)
        counts = np.stack([largest_remainder(int(supply[c]), shares[c]) for c in range(classes)], axis=1)
        # Give each empty client one sample of the largest client's most common class.
        sizes = counts.sum(axis=1)
        heap = [(-int(n), i) for i, n in enumerate(sizes)]
        heapq.heapify(heap)  # searching for the largest each time would be quadratic
        for i in np.flatnonzero(sizes == 0):
            n, largest = heap[0]
            c = counts[largest].argmax()
            counts[largest, c] -= 1
            counts[i, c] += 1
            heapq.heapreplace(heap, (n + 1, largest))
        train = list(assign_by_class(y, counts, key.fold("train")))
        draws = key.fold("drop")
        # Draw clients and their dropped samples separately, so that one more such client does not change the others'
        # rows.
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
"""Partition methods by name: frozen dataclasses of parameters, accepted by :func:`drfl.data.partition.natural`."""
