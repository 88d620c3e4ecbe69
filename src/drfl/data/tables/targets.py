"""What is to be predicted, as a user's table has it: classes, numbers, or labels that are there or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.data.dataset import TaskName
from drfl.data.tables.columns import RowName

CLASSES = 1000
"""More different targets are taken for a quantity."""

FAR = 1e15
"""The square of a number beyond is hardly a float32, and a mean of such squares none."""


def check_count(task: TaskName, targets: int, where: str = "") -> None:
    """Make sure that a task has as many target columns as it takes.

    Raises:
        InputError: classification has several, or multi-label only one.
    """
    if task == "classification" and targets > 1:
        raise InputError(
            f"{where}task 'classification' has one target, not {targets}: leave the others out, or give task "
            "'regression' or 'multi-label'",
            code="wrong-task",
            field="target",
        )
    if task == "multi-label" and targets < 2:
        raise InputError(
            f"{where}task 'multi-label' needs several targets, a column of 0 and 1 for each label: name them all as "
            "target, or give task 'classification'",
            code="wrong-task",
            field="target",
        )


def encoded(columns: Mapping[str, np.ndarray], task: TaskName) -> tuple[Tensor, int, tuple[str, ...] | None]:
    """Target columns as a :class:`drfl.data.Dataset` has them.

    Args:
        columns: name → (n,) numbers, truth values or words, none missing; see :func:`check_values`.
        task: what they are.

    Returns:
        (n,) int64 classes in the values' sorted order, (n,) or (n, k) float32 numbers, or (n, k) float32 labels; how
        many outputs a model needs; and the classes' names, None unless there are classes.

    Raises:
        InputError: a target is the same in every row, or there are too many classes, or not as many columns as the
            task takes.
    """
    check_count(task, len(columns))
    for name, values in columns.items():
        check_varies(name, values)
    if task == "classification":
        ((name, values),) = columns.items()
        different, codes = np.unique(values, return_inverse=True)
        if len(different) > CLASSES:
            raise InputError(
                f"the target '{name}' has {len(different)} different values: give a column of classes, or task "
                "'regression'",
                code="wrong-task",
                field=name,
            )
        class_names = tuple(f"{value:g}" if values.dtype.kind == "f" else str(value) for value in different)
        return torch.from_numpy(codes.astype(np.int64)), len(different), class_names
    whole = np.stack([values.astype(np.float32) for values in columns.values()], axis=1)
    plain = task == "regression" and len(columns) == 1
    return torch.from_numpy(whole[:, 0] if plain else whole), len(columns), None


def check_varies(name: str, values: np.ndarray, classes: Sequence[str] | None = None) -> None:
    """Make sure that a column of targets has more than one value.

    Args:
        name: of the column.
        values: (n,) its values.
        classes: what the classes 0 to C - 1 are called, if values are classes.

    Raises:
        InputError: it has not.
    """
    if (values == values[0]).all():
        shown = values[0] if classes is None else classes[int(values[0])]
        raise InputError(
            f"the target '{name}' is {shown} in every row: there is nothing to learn",
            code="constant-target",
            field=name,
        )


def check_values(name: str, values: np.ndarray, task: TaskName, row_name: RowName) -> None:
    """Make sure that one file's column of targets is what the task needs.

    Args:
        name: of the column.
        values: (n,) numbers, truth values or words; object arrays are words.
        task: what they should be.
        row_name: what a row is called in errors.

    Raises:
        InputError: words or numbers beyond all measure in place of numbers, anything but 0 and 1 as labels, fractions
            as classes; names the row.
    """
    numbers = values.dtype.kind in "biuf"
    if task == "classification":
        bad = ~(values == np.round(values)) if values.dtype.kind == "f" else np.zeros(len(values), bool)
        problem, remedy = "the fraction {}", "give whole numbers or words, one a class, or task 'regression'"
    elif task == "regression":
        bad = ~(np.abs(values.astype(np.float64)) < FAR) if numbers else np.ones(len(values), bool)
        problem = "{}, beyond " + f"{FAR:g}" if numbers else "the word '{}'"
        remedy = "give it in other units" if numbers else "regression needs numbers"
    else:
        bad = ~np.isin(values, (0, 1)) if numbers else np.ones(len(values), bool)
        problem, remedy = "'{}'", "multi-label needs 0 or 1, whether the label is there"
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"{row_name(row)}: the target '{name}' holds {problem.format(values[row])}: {remedy}",
            code="invalid-value",
            field=name,
        )


def columns_of(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """An array of targets (n,) or (n, k) as its columns."""
    return {name: values} if values.ndim == 1 else {f"{name}[{k}]": values[:, k] for k in range(values.shape[1])}
