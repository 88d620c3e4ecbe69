"""What every partition method is and does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Protocol, cast, runtime_checkable

import numpy as np

from drfl import checks
from drfl.data.deal import holdings
from drfl.data.held_out import share_test
from drfl.data.partition import Partition, client_names
from drfl.errors import InputError
from drfl.key import Key

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@runtime_checkable
class PartitionMethod(Protocol):
    """A frozen dataclass of parameters that splits labelled samples among clients.

    A split is a function of the labels, the parameters and the key alone.
    """

    name: ClassVar[str]

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        ...

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """Splits a training and a test pool.

        Args:
            targets: (n,) integer labels in 0..classes-1 of the training pool.
            test_targets: (k,) those of the test pool.
            classes: C, the number of classes.
            key: names the draws.

        Raises:
            InputError: when labels are out of range or the samples do not suffice.
        """
        ...


def checked_labels(
    method: PartitionMethod, targets: np.ndarray, test_targets: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Both label arrays as int64, checked, and enough for the method's clients.

    Raises:
        InputError: when they are not labels, or there are more clients than training samples.
    """
    y = checks.labels("training labels", targets, classes)
    y_test = checks.labels("test labels", test_targets, classes)
    if method.clients > len(y):
        raise InputError(
            f"{method.clients} clients are more than the {len(y)} training samples: use fewer clients or more data"
        )
    return y, y_test


def finish(
    method: PartitionMethod,
    train: tuple[np.ndarray, ...],
    labels: tuple[np.ndarray, np.ndarray],
    classes: int,
    key: Key,
    counts: np.ndarray | None = None,
) -> Partition:
    """Adds the test data, the names and the recipe to the training indices.

    Args:
        method: the method that made them; a dataclass.
        train: per client, sorted indices.
        labels: of the training and the test pool.
        classes: C.
        key: the key that the split was called with.
        counts: (N, C) training samples that the test data go by; those of `train` if None.
    """
    if counts is None:
        counts = holdings(train, labels[0], classes)
    test = share_test(counts, labels[1], key.fold("test"))
    # The protocol cannot say that every method is a dataclass of plain values.
    fields = dataclasses.fields(cast("DataclassInstance", method))
    parameters: dict[str, str | int | float] = {field.name: getattr(method, field.name) for field in fields}
    recipe: dict[str, str | int | float] = {"partition": method.name, **parameters, "seed": key.seed}
    return Partition(train, test, client_names(len(train)), recipe)
