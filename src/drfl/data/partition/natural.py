"""Natural partitions: each group of rows, such as a hospital, is a client."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from drfl.core import checks
from drfl.core.errors import InputError, Notice
from drfl.core.key import Key
from drfl.data.dataset import TEST_FRACTION, Dataset
from drfl.data.partition.partition import Partition, PartitionMethod
from drfl.data.partition.splitting import by_class, split_clients, split_rows


def split_groups(
    groups: np.ndarray,
    targets: np.ndarray | None,
    key: Key,
    test_fraction: float = TEST_FRACTION,
    patients: np.ndarray | None = None,
) -> Partition:
    """Make each group of rows a client, and split its rows into training and test rows.

    Args:
        groups: (n,) Group of each row: strings or numbers, none missing.
        targets: (n,) Integer class labels, to keep the class shares in both parts as equal as integers allow; None
            splits at random.
        key: Key of the draws. A group's split does not depend on the other groups.
        test_fraction: Share of each group's rows for testing, strictly between 0 and 1; each part gets at least one
            row.
        patients: (n,) Patient of each row; all rows of one go to one part. None if rows are independent.

    Returns:
        A partition whose training and test indices both refer to these rows, with clients in the order of
        :func:`client_order`.

    Raises:
        InputError: If a group has only one row or patient, a row has no group, or lengths differ.
    """
    checks.inner_fraction("test_fraction", test_fraction)
    g = np.asarray(groups)
    y = None if targets is None else np.asarray(targets)
    if g.ndim != 1 or not g.size:
        raise InputError(
            f"groups must have one value per row, for at least one row, got shape {g.shape}",
            code="wrong-shape",
            field="groups",
        )
    if y is not None and y.shape != g.shape:
        raise InputError(
            f"groups and targets must both have one value per row, got shapes {g.shape} and {y.shape}",
            code="wrong-shape",
            field="groups",
        )
    if any(value is None or (isinstance(value, float) and math.isnan(value)) for value in g.tolist()):
        raise InputError(
            "some rows have no group. Drop them or give them a group", code="missing-values", field="groups"
        )
    try:
        values, codes = np.unique(g, return_inverse=True)
    except TypeError:
        raise InputError(
            "groups mix types that cannot be sorted. Convert them to strings", code="wrong-type", field="groups"
        ) from None
    known = [str(value) for value in values.tolist()]
    order = client_order(known)
    names = tuple(known[i] for i in order)
    by_value = by_class(codes, len(known))
    train, test = split_clients(names, [by_value[i] for i in order], y, key, test_fraction, patients)
    recipe: dict[str, str | int | float] = {"partition": "groups", "test_fraction": test_fraction, "seed": key.seed}
    return Partition(train, test, names, recipe)


def client_order(names: Sequence[str]) -> list[int]:
    """Return the positions of clients' names in order: as numbers if all are numbers, otherwise as texts.

    Names read from a file are texts, and those of a data frame may be numbers. Both have the same order.
    """
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        return sorted(range(len(names)), key=lambda i: names[i])
    return sorted(range(len(names)), key=lambda i: (numbers[i], names[i]))


LEFT_OUT = "left-out"
"""Code of the notice that names the clients excluded for their size."""


def without_small_groups(dataset: Dataset, least: int) -> Dataset:
    """Exclude groups with fewer rows and, if there are patients, groups with a single patient, which cannot be split.

    The data set gets a notice that names them.
    """
    if dataset.groups is None:
        return dataset
    # A client is judged by all of its rows.
    names, counts = np.unique(np.array([*dataset.groups, *(dataset.test_groups or ())]), return_counts=True)
    small = counts < least
    if dataset.patients is not None:
        pairs = {*zip(dataset.groups, dataset.patients, strict=True)}
        units, each = np.unique(np.array([group for group, _ in pairs]), return_counts=True)
        small |= each[np.searchsorted(units, names)] < 2
    few = f"fewer than {least} rows" + ("" if dataset.patients is None else ", or with one patient")
    if np.count_nonzero(~small) < 2:
        # Name the two largest, because two clients are needed.
        largest = " and ".join(f"{count:,}" for count in np.sort(counts)[:-3:-1])
        raise InputError(
            f"`min_rows` excludes clients with {few}, and {np.count_nonzero(~small)} of {len(names)} "
            f"remain. At least two are needed: lower `min_rows`. The largest clients have {largest} rows",
            code="few-clients",
            field="min_rows",
        )
    if not small.any():
        return dataset
    listed = ", ".join(f"{name} ({count:,})" for name, count in zip(names[small], counts[small], strict=True))
    text = f"excluded {np.count_nonzero(small)} of {len(names)} clients with {few}: {listed}"
    stays = set(names[~small].tolist())
    rows = np.flatnonzero([group in stays for group in dataset.groups])
    inputs, targets = dataset.inputs[rows], dataset.targets[rows]
    tests, test_groups = (inputs, targets), None
    if dataset.test_groups is not None:
        at = np.flatnonzero([group in stays for group in dataset.test_groups])
        tests = dataset.test_inputs[at], dataset.test_targets[at]
        test_groups = tuple(dataset.test_groups[i] for i in at)
    return dataclasses.replace(
        dataset,
        inputs=inputs,
        targets=targets,
        test_inputs=tests[0],
        test_targets=tests[1],
        groups=tuple(dataset.groups[i] for i in rows),
        test_groups=test_groups,
        patients=None if dataset.patients is None else tuple(dataset.patients[i] for i in rows),
        notices=(*dataset.notices, Notice(text, LEFT_OUT)),
    )


@dataclass(frozen=True)
class Natural:
    """Makes each group of the data set a client with the group's name, and splits its rows into training and test rows.

    Rows are split by class if the targets are classes.

    If the data set has a separate test part, its test rows remain test rows instead.

    Args:
        clients: N; the groups with the most training rows become clients and the others are not used. None uses all
            groups.
        test_fraction: Share of each client's rows for testing; None uses the share of the data set.

    Raises:
        InputError: If a parameter is out of range.
    """

    name: ClassVar[str] = "natural"
    clients: int | None = None
    test_fraction: float | None = None

    def __post_init__(self) -> None:
        if self.clients is not None:
            checks.integer("clients", self.clients)
        if self.test_fraction is not None:
            checks.inner_fraction("test_fraction", self.test_fraction)

    def divide(self, dataset: Dataset, key: Key) -> Partition:
        """Divide a data set by its groups, and split each group's rows into training and test rows.

        Args:
            dataset: The data set.
            key: Key of the draws.

        Raises:
            InputError: If the data set has no groups, or fewer than `clients`.
        """
        if dataset.groups is None:
            raise InputError(
                f"dataset '{dataset.name}' has no groups, which partition 'natural' requires. Use another "
                "partition, or a dataset such as heart-disease",
                code="missing-groups",
                field="partition",
            )
        # The largest groups become clients.
        values, counts = np.unique(np.array(dataset.groups), return_counts=True)
        if self.clients is not None and self.clients > len(values):
            raise InputError(
                f"dataset '{dataset.name}' has {len(values)} groups, so partition 'natural' makes at most "
                f"{len(values)} clients, got {self.clients}. Lower `clients`, or remove it",
                code="out-of-range",
                field="clients",
            )
        # The stable sort keeps the order by name among groups of equal size.
        order = client_order(values.tolist())
        largest = np.array(order)[np.argsort(-counts[order], kind="stable")[: self.clients]]
        names = tuple(str(values[i]) for i in order if i in largest)
        if dataset.test_groups is not None:
            # The data set itself defines the test rows.
            wanted = {*dataset.groups, *dataset.test_groups} if self.clients is None else {*names}
            lone = sorted(wanted - ({*dataset.groups} & {*dataset.test_groups}))
            if lone:
                part = "test" if lone[0] in dataset.groups else "training"
                raise InputError(
                    f"dataset '{dataset.name}': client '{lone[0]}' has no {part} rows. Add some, or set a "
                    "test fraction to redraw all test rows",
                    code="no-rows",
                    field=lone[0],
                )
            place = {who: i for i, who in enumerate(names)}
            # Rows of other clients have the last number, and are dropped.
            train, test = (
                tuple(by_class(np.array([place.get(who, len(names)) for who in groups]), len(names) + 1)[:-1])
                for groups in (dataset.groups, dataset.test_groups)
            )
            return Partition(train, test, names, {"partition": self.name, "clients": len(names), "seed": key.seed})
        groups, y = np.array(dataset.groups), dataset.targets.numpy() if dataset.has_labels else None
        rows = np.flatnonzero(np.isin(groups, names))
        share = dataset.test_fraction if self.test_fraction is None else self.test_fraction
        patients = None if dataset.patients is None else np.array(dataset.patients)[rows]
        split = split_groups(groups[rows], None if y is None else y[rows], key, share, patients)
        parameters = {"clients": len(split), "test_fraction": share, "seed": key.seed}
        return dataclasses.replace(
            split,
            train=tuple(rows[mine] for mine in split.train),
            test=tuple(rows[mine] for mine in split.test),
            recipe={"partition": self.name, **parameters},
        )


WITHOUT_CLASSES = ("iid", Natural.name)
"""Partitions that do not use the classes of the rows."""


def needs_classes_message(partition: str, task: str) -> str:
    """Explain why a partition cannot divide data without classes, and what to use instead."""
    return (
        f"partition '{partition}' divides rows by class, but {task} has no classes. Use iid, or natural "
        "with a column that names the client"
    )


def make_partition(
    dataset: Dataset, method: PartitionMethod | Natural, key: Key, test_fraction: float | None = None
) -> Partition:
    """Divide the training and test rows of a data set among clients.

    A data set without a separate test part is first split into training and test rows, by class if its targets are
    classes; `Natural` splits each group instead. Both parts of the partition then refer to rows of the same pool.

    Args:
        dataset: The data set.
        method: The partition method.
        key: Key of all draws; equal keys give equal partitions.
        test_fraction: Share of the pool's rows for testing if the data have no test part; None uses the share of
            the data set.

    Raises:
        InputError: If the share is not strictly between 0 and 1, or the method cannot divide these data.
    """
    if isinstance(method, Natural):
        own = method if test_fraction is None else dataclasses.replace(method, test_fraction=test_fraction)
        return own.divide(dataset, key)
    if dataset.patients is not None:
        raise InputError(
            f"partition '{method.name}' divides single rows, so it would separate those of one patient. "
            "Use `partition = 'natural'`",
            code="unsupported-combination",
            field="partition",
        )
    if not dataset.has_labels and method.name not in WITHOUT_CLASSES:
        raise InputError(needs_classes_message(method.name, dataset.task), code="wrong-task", field="partition")
    # Without classes, treat all rows as one class.
    y, y_test = (
        t.numpy() if dataset.has_labels else np.zeros(len(t), int) for t in (dataset.targets, dataset.test_targets)
    )
    classes = dataset.classes if dataset.has_labels else 1
    if not dataset.is_one_pool:
        return method.split(y, y_test, classes, key)
    share = dataset.test_fraction if test_fraction is None else test_fraction
    labels = y if dataset.has_labels else None
    kept, held = split_rows(np.arange(len(y)), labels, key.fold("split"), share, f"dataset '{dataset.name}'")
    parts = method.split(y[kept], y[held], classes, key)
    return dataclasses.replace(
        parts,
        train=tuple(kept[rows] for rows in parts.train),
        test=tuple(held[rows] for rows in parts.test),
        recipe={**parts.recipe, "test_fraction": share},
    )
