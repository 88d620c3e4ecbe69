"""Clients that differ by chance alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from drfl import checks
from drfl.data.apportion import apportion, zipf
from drfl.data.methods import checked_labels, finish
from drfl.data.partition import Partition
from drfl.key import Key


@dataclass(frozen=True)
class IID:
    """Samples are dealt at random whatever their class; every sample is used once.

    Args:
        clients: N.
        sigma: Zipf exponent of the sizes; 0 makes them equal, up to one sample.

    Raises:
        InputError: when a parameter is out of range.
    """

    name: ClassVar[str] = "iid"
    clients: int = 30
    sigma: float = 0.0

    def __post_init__(self) -> None:
        checks.whole("clients", self.clients)
        checks.non_negative("sigma", self.sigma)

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """See `PartitionMethod.split`."""
        y, y_test = checked_labels(self, targets, test_targets, classes)
        sizes = apportion(len(y), zipf(self.clients, self.sigma), minimum=1)
        order = key.fold("train").generator().permutation(len(y)).astype(np.int64)
        train = tuple(np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1]))
        return finish(self, train, (y, y_test), classes, key)
