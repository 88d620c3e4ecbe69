"""One class a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from drfl import checks
from drfl.data.apportion import apportion, zipf
from drfl.data.deal import deal
from drfl.data.methods import checked_labels, finish
from drfl.data.partition import Partition
from drfl.errors import InputError
from drfl.key import Key


@dataclass(frozen=True)
class OneClass:
    """Each client holds samples of a single class (DRFA paper, §6); every sample is used once.

    Client i gets class i mod C. Clients of the same class share its samples in proportion to i^-sigma, i from
    1.

    Args:
        clients: N, at least the number of classes.
        sigma: Zipf exponent of the sizes within a class; 0 makes them equal.

    Raises:
        InputError: when a parameter is out of range.
    """

    name: ClassVar[str] = "one-class"
    clients: int = 10
    sigma: float = 0.0

    def __post_init__(self) -> None:
        checks.whole("clients", self.clients)
        checks.non_negative("sigma", self.sigma)

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """See `PartitionMethod.split`.

        Raises:
            InputError: when there are fewer clients than classes, or a class has fewer samples than clients.
        """
        y, y_test = checked_labels(self, targets, test_targets, classes)
        counts = one_class_counts(np.bincount(y, minlength=classes), self.clients, self.sigma)
        train = deal(y, counts, key.fold("train"))
        return finish(self, train, (y, y_test), classes, key, counts)


def one_class_counts(supply: np.ndarray, clients: int, sigma: float) -> np.ndarray:
    """How many samples of which class each client gets under `OneClass`.

    Args:
        supply: (C,) samples per class.
        clients: N.
        sigma: Zipf exponent.

    Returns:
        (N, C) int64, with one positive number a row and the columns' sums equal to `supply`.

    Raises:
        InputError: when N < C, or a class has fewer samples than clients.
    """
    C = len(supply)
    if clients < C:
        raise InputError(f"one class a client needs at least {C} clients for {C} classes, not {clients}")
    weights = zipf(clients, sigma)
    counts = np.zeros((clients, C), dtype=np.int64)
    for c in range(C):
        members = np.arange(c, clients, C)
        if supply[c] < len(members):
            raise InputError(
                f"class {c} has {supply[c]} training samples for {len(members)} clients: use fewer clients"
            )
        counts[members, c] = apportion(int(supply[c]), weights[members], minimum=1)
    return counts
