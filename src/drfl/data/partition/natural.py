"""Clients that the data have themselves: groups of rows by a column."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data.dataset import Dataset
from drfl.data.partition.partition import Partition, PartitionMethod
from drfl.data.partition.splitting import split_rows


def split_groups(groups: np.ndarray, targets: np.ndarray | None, key: Key, test_fraction: float = 0.2) -> Partition:
    """One client a group; each group's rows are split into training and test rows.

    Args:
        groups: (n,) the group of each row: strings or numbers, none missing.
        targets: (n,) integer class labels, to keep each class's share in both parts as nearly as whole
            numbers allow; None for a plain random split.
        key: names the draws. A group's split does not depend on the other groups.
        test_fraction: share of each group's rows for testing, strictly between 0 and 1; at least one row
            each.

    Returns:
        A partition whose training and test indices both count these rows; clients in the groups' sorted
        order.

    Raises:
        InputError: when a group has a single row, a group is missing, or lengths disagree.
    """
    checks.inner_fraction("test_fraction", test_fraction)
    g = np.asarray(groups)
    y = None if targets is None else np.asarray(targets)
    if g.ndim != 1 or not g.size:
        raise InputError(
            f"groups must be one value a row, at least one, not of shape {g.shape}", code="wrong-shape", field="groups"
        )
    if y is not None and y.shape != g.shape:
        raise InputError(
            f"groups of shape {g.shape} and targets of shape {y.shape} must be one value a row",
            code="wrong-shape",
            field="groups",
        )
    if any(value is None or (isinstance(value, float) and math.isnan(value)) for value in g.tolist()):
        raise InputError("some rows have no group: drop them or give them one", code="missing-values", field="groups")
    try:
        values, codes = np.unique(g, return_inverse=True)
    except TypeError:
        raise InputError(
            "groups mix types that cannot be sorted: turn them into strings", code="wrong-type", field="groups"
        ) from None
    names = tuple(str(value) for value in values.tolist())
    rows = np.split(np.argsort(codes, kind="stable").astype(np.int64), np.cumsum(np.bincount(codes))[:-1])
    labels = [None if y is None else y[mine] for mine in rows]
    parts = [
        split_rows(mine, label, key.fold("group", name), test_fraction, name=f"group '{name}'")
        for name, mine, label in zip(names, rows, labels, strict=True)
    ]
    recipe: dict[str, str | int | float] = {"partition": "groups", "test_fraction": test_fraction, "seed": key.seed}
    return Partition(tuple(a for a, _ in parts), tuple(b for _, b in parts), names, recipe)


TEST_FRACTION = 1 / 3
"""Share of the rows for testing where a data set has no test part of its own."""


@dataclass(frozen=True)
class Natural:
    """One client a group of the data set, under the group's name; each group's rows are split, by class where they can.

    Where the data set says itself which rows are for testing, they stay for testing.

    Args:
        clients: N, the groups with the most (training) rows, the others are left out; None = all groups.
        test_fraction: share of each client's rows for testing.

    Raises:
        InputError: when a parameter is out of range.
    """

    name: ClassVar[str] = "natural"
    clients: int | None = None
    test_fraction: float = TEST_FRACTION

    def __post_init__(self) -> None:
        if self.clients is not None:
            checks.integer("clients", self.clients)
        checks.inner_fraction("test_fraction", self.test_fraction)

    def divide(self, dataset: Dataset, key: Key) -> Partition:
        """The groups' rows, split into training and test rows; the key names the draws.

        Raises:
            InputError: when the data set has no groups, or not as many as `clients`.
        """
        if dataset.groups is None:
            raise InputError(
                f"dataset '{dataset.name}' does not say who its rows belong to, which partition 'natural' needs: "
                "take another partition, or another dataset such as heart-disease",
                code="missing-groups",
                field="partition",
            )
        # The largest groups become clients.
        values, counts = np.unique(np.array(dataset.groups), return_counts=True)
        if self.clients is not None and self.clients > len(values):
            raise InputError(
                f"dataset '{dataset.name}' has {len(values)} groups, so partition 'natural' makes at most "
                f"{len(values)} clients, not {self.clients}: give fewer, or leave clients out",
                code="out-of-range",
                field="clients",
            )
        # np.unique sorts by name, and a stable sort keeps that order among groups of equal size.
        names = tuple(sorted(values[np.argsort(-counts, kind="stable")[: self.clients]].tolist()))
        if dataset.test_groups is not None:
            # The data set itself defines the test rows.
            wanted = {*dataset.groups, *dataset.test_groups} if self.clients is None else {*names}
            lone = sorted(wanted - ({*dataset.groups} & {*dataset.test_groups}))
            if lone:
                part = "test" if lone[0] in dataset.groups else "training"
                raise InputError(
                    f"dataset '{dataset.name}': client '{lone[0]}' has no {part} rows: give it some, or a test "
                    "fraction, by which all test rows are redrawn",
                    code="no-rows",
                    field=lone[0],
                )
            place = {who: i for i, who in enumerate(names)}
            parts = []
            for groups in (dataset.groups, dataset.test_groups):
                owners = np.array([place.get(who, -1) for who in groups])
                # Rows are sorted by client and cut where the client changes. Rows without a client, −1, come first and
                # are dropped.
                order = np.argsort(owners, kind="stable").astype(np.int64)[int((owners < 0).sum()) :]
                counts = np.bincount(owners[owners >= 0], minlength=len(names))
                parts.append(tuple(np.split(order, np.cumsum(counts)[:-1])))
            train, test = parts
            return Partition(train, test, names, {"partition": self.name, "clients": len(names), "seed": key.seed})
        groups, y = np.array(dataset.groups), dataset.targets.numpy() if dataset.labels else None
        rows = np.flatnonzero(np.isin(groups, names))
        split = split_groups(groups[rows], None if y is None else y[rows], key, self.test_fraction)
        parameters = {"clients": len(split), "test_fraction": self.test_fraction, "seed": key.seed}
        return dataclasses.replace(
            split,
            train=tuple(rows[mine] for mine in split.train),
            test=tuple(rows[mine] for mine in split.test),
            recipe={"partition": self.name, **parameters},
        )


WITHOUT_CLASSES = ("iid", Natural.name)
"""Partitions that do not go by the rows' classes."""


def by_class(partition: str, task: str) -> str:
    """Why such a partition cannot divide the data of a task without classes, and what can."""
    return (
        f"partition '{partition}' divides rows by their class, and {task} has none: take iid, or natural with a column "
        "that names the client"
    )


def make_partition(
    dataset: Dataset, method: PartitionMethod | Natural, key: Key, test_fraction: float | None = None
) -> Partition:
    """Who holds which samples, for training and for testing.

    A data set of one pool is first split into training and test rows, by class where targets are classes, `Natural`
    does so group by group instead. Both of the partition's parts then count the rows of that pool.

    Args:
        dataset: the data.
        method: how to divide it.
        key: names all draws; equal keys give equal partitions.
        test_fraction: share of the rows of one pool for testing; None = a third.

    Raises:
        InputError: the share is not inside (0, 1), or when the method cannot divide these data.
    """
    if isinstance(method, Natural):
        own = method if test_fraction is None else dataclasses.replace(method, test_fraction=test_fraction)
        return own.divide(dataset, key)
    if not dataset.labels and method.name not in WITHOUT_CLASSES:
        raise InputError(by_class(method.name, dataset.task), code="wrong-task", field="partition")
    # Rows that have no class are all of one.
    y, y_test = (
        t.numpy() if dataset.labels else np.zeros(len(t), int) for t in (dataset.targets, dataset.test_targets)
    )
    classes = dataset.classes if dataset.labels else 1
    if not dataset.one_pool:
        return method.split(y, y_test, classes, key)
    share = TEST_FRACTION if test_fraction is None else test_fraction
    labels = y if dataset.labels else None
    kept, held = split_rows(np.arange(len(y)), labels, key.fold("split"), share, f"dataset '{dataset.name}'")
    parts = method.split(y[kept], y[held], classes, key)
    return dataclasses.replace(
        parts,
        train=tuple(kept[rows] for rows in parts.train),
        test=tuple(held[rows] for rows in parts.test),
        recipe={**parts.recipe, "test_fraction": share},
    )
