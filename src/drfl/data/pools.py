"""Checks of sample pools and of the rows that clients hold, and statistics over these rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.data.partition.partition import client_error
from drfl.data.partition.splitting import lengths
from drfl.task.input_fields import InputFields


def check_pool(
    part: str,
    inputs: Tensor,
    targets: Tensor,
    names: Sequence[str],
    lists: Sequence[Sequence[Tensor]],
    *,
    missing: bool = False,
) -> None:
    """Raise InputError unless inputs and targets form a valid pool.

    Args:
        part: "training" or "test".
        inputs: Inputs of the pool (n, …).
        targets: Targets of the pool (n, …).
        names: Names of the clients, for messages.
        lists: The clients' training, validation and test rows, as far as they are in this pool, each by client.
        missing: Whether inputs may be NaN.
    """
    if inputs.ndim < 1 or targets.ndim < 1 or len(inputs) != len(targets):
        raise InputError(
            f"{part} inputs of shape {tuple(inputs.shape)} do not match targets of shape "
            f"{tuple(targets.shape)}. Give one target per sample",
            code="wrong-shape",
            field="targets",
        )

    for what, values in (("inputs", inputs), ("targets", targets)):
        if values.layout != torch.strided:
            raise InputError(
                f"{part} {what} are a sparse tensor. Convert it with .to_dense()", code="wrong-type", field=what
            )

    def owner(row: int) -> tuple[str, int] | None:
        for name, *parts in zip(names, *lists, strict=False):  # the number of validation parts is checked later
            if any(bool((rows == row).any()) for rows in parts):
                # The pool has the rows in the client's order, whether they are for training or testing.
                return name, int((torch.cat(parts).unique() < row).sum())
        return None

    # A NaN would spread to all clients with the first average, and no later error could name its source.
    checks.finite(f"{part} inputs", inputs, missing=missing, owner=owner)
    # Among several labels of a row some may be unknown. Whether the loss can exclude them is checked with the task.
    checks.finite(f"{part} targets", targets, missing=targets.ndim > 1, owner=owner)
    if not targets.is_floating_point() and targets.dtype != torch.int64:
        raise InputError(
            f"{part} targets must be int64 labels or floating-point values, got {targets.dtype}",
            code="wrong-type",
            field="targets",
        )


def check_fields(fields: InputFields | None, inputs: Tensor) -> None:
    """Raise InputError unless the inputs (n, p) are rows of these fields, if there are any."""
    if fields is not None and inputs.shape[1:] != (fields.width,):
        raise InputError(
            f"inputs with the fields {fields} must be rows of {fields.width} numbers, got the shape "
            f"{tuple(inputs.shape)}",
            code="wrong-shape",
            field="fields",
        )


def check_classes(classes: object, targets: Sequence[Tensor]) -> None:
    """Raise InputError unless the names of classes are distinct texts, and every label of the targets has a name."""
    if not isinstance(classes, tuple) or not all(isinstance(name, str) for name in classes):
        raise InputError(
            f"classes must be a tuple of texts such as ('no', 'yes'), got {classes!r:.60}",
            code="wrong-type",
            field="classes",
        )
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise InputError(
            f"classes name '{twice}' twice. Give each class its own name", code="duplicate-name", field="classes"
        )
    # Other targets have no labels that could be compared with the names.
    labels = [int(y.max()) for y in targets if not y.is_floating_point() and y.ndim == 1 and len(y)]
    if labels and max(labels) >= len(classes):
        raise InputError(
            f"classes must have a name for each label from 0 to {max(labels)}, got {classes!r:.60}",
            code="count-mismatch",
            field="classes",
        )


def check_indices(part: str, lists: tuple[Tensor, ...], pool: int, names: tuple[str, ...]) -> None:
    """Raise InputError unless every client has rows and all of them are in the pool."""
    for name, indices in zip(names, lists, strict=True):
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise client_error(name, f"{part} indices must be a 1-D int64 tensor", "wrong-type")
        if not len(indices):
            raise client_error(name, f"has no {part} samples. Add some or remove the client", "no-rows", at="")
    # Check all indices together first; check each client only if something is wrong, to name it.
    together = torch.cat(lists)
    if int(together.min()) >= 0 and int(together.max()) < pool:
        return
    for name, indices in zip(names, lists, strict=True):
        if int(indices.min()) < 0 or int(indices.max()) >= pool:
            raise client_error(
                name,
                f"{part} indices must be in 0..{pool - 1}, got {int(indices.min())}..{int(indices.max())}",
                "out-of-range",
            )


class ConstantAnswer(NamedTuple):
    """Accuracy of always predicting the most frequent class.

    Args:
        label: The most frequent class over all clients; None means each client's own most frequent class.
        overall: Accuracy on the rows of all clients together.
        shares: (N,) float64 Accuracy on each client's rows.
    """

    label: str | None
    overall: float
    shares: Tensor


RARE, MOST = 0.2, 0.5
"""drfl shows the constant prediction beside accuracies if the rarest class has a smaller share than RARE and the most
frequent class a larger share than MOST. A useless model then has a high accuracy."""


def constant_answer(
    targets: Tensor, lists: tuple[Tensor, ...], names: tuple[str, ...] | None = None
) -> ConstantAnswer | None:
    """Score the constant prediction of the most frequent class, if this score looks good.

    Returns:
        None if the targets are not one class label (or 0 or 1) per row, or if no class is rare, or none is frequent.
    """
    if targets.ndim != 1:
        return None
    sizes = lengths(lists)
    # Count over all clients in one call, because there may be a million of them.
    classes, codes, counts = targets[torch.cat(lists)].cpu().unique(return_inverse=True, return_counts=True)
    # Negative labels mark ignored rows, and floats other than 0 and 1 are not classes.
    if bool((classes < 0).any()) or (targets.is_floating_point() and bool(((classes != 0) & (classes != 1)).any())):
        return None
    share = counts.double() / counts.sum()
    if len(classes) < 2 or float(share.min()) >= RARE or float(share.max()) <= MOST:
        return None
    best = int(share.argmax())
    # Accuracy of the constant prediction at each client.
    own = torch.segment_reduce((codes == best).double(), "sum", lengths=sizes) / sizes
    label = int(classes[best])
    return ConstantAnswer(str(label) if names is None else names[label], float(share[best]), own)


def majority_shares(targets: Tensor, lists: tuple[Tensor, ...]) -> Tensor | None:
    """Return the share (N,) of each client's most frequent class; None if the targets are not one label per sample."""
    if targets.is_floating_point() or targets.ndim != 1:
        return None
    sizes = lengths(lists)
    # Map labels to 0..C-1 first: large labels times the number of clients could overflow.
    classes, codes = targets[torch.cat(lists)].cpu().unique(return_inverse=True)
    owners = torch.arange(len(lists)).repeat_interleave(sizes)
    cells, counts = (owners * len(classes) + codes).unique(return_counts=True)
    most = torch.zeros_like(sizes).scatter_reduce(0, cells // len(classes), counts, "amax")
    return most.double() / sizes
