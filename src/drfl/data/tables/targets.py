"""Targets of a user's table: classes, numbers, or labels that apply or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.data.dataset import TaskName
from drfl.data.tables.columns import RowName

CLASSES = 1000
"""Largest number of classes. A target with more distinct values is treated as a quantity."""

FAR = 1e15
"""Upper bound of regression targets, because sums of squares of larger numbers can overflow float32."""


def check_count(task: TaskName, targets: int) -> None:
    """Raise InputError unless the number of target columns suits the task."""
    if task == "classification" and targets > 1:
        raise InputError(
            f"task 'classification' has one target, got {targets}. Name only one, or use `task = 'regression'` or "
            "`task = 'multi-label'`",
            code="wrong-task",
            field="target",
        )
    if task == "multi-label" and targets < 2:
        raise InputError(
            "task 'multi-label' requires several targets, a column of 0 and 1 for each label. Name them all as "
            "`target`, or use `task = 'classification'`",
            code="wrong-task",
            field="target",
        )


def encoded(columns: Mapping[str, np.ndarray], task: TaskName) -> tuple[Tensor, int, tuple[str, ...] | None]:
    """Convert target columns to the targets of a :class:`drfl.data.Dataset`.

    Args:
        columns: Name → (n,) numbers, booleans or words, see :func:`check_values`; NaN for unknown labels.
        task: Kind of task.

    Returns:
        The targets: (n,) int64 classes in the sorted order of the values, (n,) or (n, k) float32 numbers, or (n, k)
        float32 labels; the number of outputs that a model needs; and the names of the classes, None unless there are
        classes.
    """
    check_count(task, len(columns))
    for name, values in columns.items():
        check_varies(name, values)
    if task == "classification":
        ((name, values),) = columns.items()
        different, codes = np.unique(values, return_inverse=True)
        if len(different) > CLASSES:
            raise InputError(
                f"the target '{name}' has {len(different)} different values. Name a column of classes, or "
                "use task 'regression'",
                code="wrong-task",
                field=name,
            )
        # The class 1.0 of a column with decimal points is called 1.
        class_names = tuple(str(value).removesuffix(".0" if values.dtype.kind == "f" else "") for value in different)
        return torch.from_numpy(codes.astype(np.int64)), len(different), class_names
    whole = np.stack([values.astype(np.float32) for values in columns.values()], axis=1)
    plain = task == "regression" and len(columns) == 1
    return torch.from_numpy(whole[:, 0] if plain else whole), len(columns), None


def check_varies(name: str, values: np.ndarray, classes: Sequence[str] | None = None) -> None:
    """Raise InputError unless a target column has more than one known value; ``classes`` names classes 0 to C − 1."""
    if values.dtype.kind == "f":
        # NaN is an unknown label, not a second value.
        values = values[~np.isnan(values)]
    if not len(values):
        raise InputError(f"the target '{name}' is unknown in every row", code="constant-target", field=name)
    if (values == values[0]).all():
        shown = values[0] if classes is None else f"'{classes[int(values[0])]}'"
        raise InputError(
            f"the target '{name}' is {shown} in every row, so there is nothing to learn",
            code="constant-target",
            field=name,
        )


def check_values(name: str, values: np.ndarray, task: TaskName, row_name: RowName) -> None:
    """Raise InputError unless a file's target column suits the task."""
    numbers = values.dtype.kind in "biuf"
    if task == "classification":
        # Here and below, comparisons are negated, so that NaN fails too.
        bad = ~(values == np.round(values)) if values.dtype.kind == "f" else np.zeros(len(values), bool)
        # A fraction is a quantity, and each of its values would become a class.
        problem, remedy = "the fraction {}", "Give whole numbers or words, one a class, or use task 'regression'"
    elif task == "regression":
        bad = ~(np.abs(values.astype(np.float64)) < FAR) if numbers else np.ones(len(values), bool)
        problem = "{}, beyond " + f"{FAR:g}" if numbers else "the word '{}'"
        remedy = "Use other units" if numbers else "Regression requires numbers"
    else:
        bad = ~(np.isin(values, (0, 1)) | np.isnan(values)) if numbers else np.ones(len(values), bool)
        problem, remedy = (
            "'{}'",
            "Task 'multi-label' requires 0 or 1, whether the label is there, or a blank if it is unknown",
        )
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"{row_name(row)}: the target '{name}' contains {problem.format(values[row])}. {remedy}",
            code="invalid-value",
            field=name,
        )


def columns_of(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of a target array (n,) or (n, k) by name."""
    return {name: values} if values.ndim == 1 else {f"{name}[{k}]": values[:, k] for k in range(values.shape[1])}
