"""Sizes by Zipf's law and classes by Dirichlet's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from drfl import checks
from drfl.data.apportion import apportion, zipf
from drfl.data.deal import deal
from drfl.data.dirichlet import dirichlet
from drfl.data.methods import checked_labels, finish
from drfl.data.one_class import one_class_counts
from drfl.data.partition import Partition
from drfl.key import Key


@dataclass(frozen=True)
class ZipfDirichlet:
    """The set-up of the DRDM paper (§IV.A.4); every sample is used once.

    Client i, from 1, gets d·i^-sigma / Σ_j j^-sigma of the d samples, and its classes in shares p_i ~
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
    the class is kept and the sizes give way: the counts are those of `OneClass` with the same sigma.

    Args:
        clients: N.
        alpha: concentration, positive; infinity gives each client equal shares of all classes.
        sigma: Zipf exponent of the sizes; 0 makes them equal, up to one sample.

    Raises:
        InputError: when a parameter is out of range; alpha = 0 is partition 'one-class'.
    """

    name: ClassVar[str] = "zipf-dirichlet"
    clients: int = 30
    alpha: float = 0.1
    sigma: float = 0.0

    def __post_init__(self) -> None:
        checks.whole("clients", self.clients)
        checks.concentration(self.alpha)
        checks.non_negative("sigma", self.sigma)

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """See `PartitionMethod.split`.

        Raises:
            InputError: when there are more clients than samples, or labels are out of range.
        """
        y, y_test = checked_labels(self, targets, test_targets, classes)
        supply = np.bincount(y, minlength=classes)
        sizes = apportion(len(y), zipf(self.clients, self.sigma), minimum=1)
        shares = dirichlet(self.alpha, self.clients, classes, key.fold("shares"))
        if _single_class(sizes, shares) and _one_class_fits(sizes, supply):
            counts = one_class_counts(supply, self.clients, self.sigma)
        else:
            counts = _choose(sizes, shares, supply, key.fold("choice"))
        train = deal(y, counts, key.fold("train"))
        return finish(self, train, (y, y_test), classes, key, counts)


def _single_class(sizes: np.ndarray, shares: np.ndarray) -> bool:
    """Whether every client's shares round to one class at its size."""
    return all(np.count_nonzero(apportion(int(size), row)) == 1 for size, row in zip(sizes, shares, strict=True))


def _one_class_fits(sizes: np.ndarray, supply: np.ndarray) -> bool:
    """Whether sizes can give way to single classes, and need to: one sample is of one class anyway."""
    N, C = len(sizes), len(supply)
    clients_of_class = np.bincount(np.arange(N) % C, minlength=C)
    return bool(N >= C and (supply >= clients_of_class).all() and sizes.max() > 1)


def _choose(sizes: np.ndarray, shares: np.ndarray, supply: np.ndarray, key: Key) -> np.ndarray:
    """Lets the clients choose one after the other; (N, C) int64 with the given row and column sums."""
    N, C = shares.shape
    ranked = -np.sort(-shares, axis=1)
    order = np.lexsort((key.fold("order").generator().random(N), -sizes))
    lots = key.fold("ties").generator().random((N, C))
    counts = np.zeros((N, C), dtype=np.int64)
    left = supply.copy()
    for i in order:
        mine = np.empty(C)
        mine[np.lexsort((lots[i], -left))] = ranked[i]
        counts[i] = take(int(sizes[i]), mine, left)
        left -= counts[i]
    return counts


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
        taken += np.minimum(apportion(missing, weights), rest)
    return taken
