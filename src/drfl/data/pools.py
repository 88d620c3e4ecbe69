"""Pools of samples and the rows of them that clients hold: checks, and what is counted over them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError


def check_pool(part: str, inputs: Tensor, targets: Tensor, missing: bool = False) -> None:
    """Make sure that a pool is one.

    Args:
        part: "training" or "test", for errors.
        inputs: (n, ...).
        targets: (n, ...).
        missing: Whether inputs may be NaN.

    Raises:
        InputError: lengths differ, a value is not finite, or targets are neither labels nor floating.
    """
    if inputs.ndim < 1 or targets.ndim < 1 or len(inputs) != len(targets):
        raise InputError(
            f"{part} inputs of shape {tuple(inputs.shape)} do not go with targets of shape "
            f"{tuple(targets.shape)}; give one target a sample",
            code="wrong-shape",
            field="targets",
        )
    # A NaN would reach all clients with the first average, and no later error could name its source.
    checks.finite(f"{part} inputs", inputs, missing=missing)
    checks.finite(f"{part} targets", targets)
    if targets.is_floating_point():
        return
    if targets.dtype != torch.int64:
        raise InputError(
            f"{part} targets must be int64 labels or floating values, not {targets.dtype}",
            code="wrong-type",
            field="targets",
        )


def check_indices(part: str, lists: tuple[Tensor, ...], pool: int, names: tuple[str, ...]) -> None:
    """Make sure that every client has rows, and that they are in the pool.

    Args:
        part: "training" or "test", for errors.
        lists: per client, its row numbers.
        pool: how many rows there are.
        names: of the clients.

    Raises:
        InputError: names the client.
    """
    for name, indices in zip(names, lists, strict=True):
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise InputError(
                f"client '{name}': {part} indices must be a 1-D int64 tensor", code="wrong-type", field=name
            )
        if not len(indices):
            raise InputError(
                f"client '{name}' has no {part} samples: remove it or give it some", code="no-rows", field=name
            )
    # One look at all indices together; only where something is wrong, at each client, to name it.
    together = torch.cat(lists)
    if int(together.min()) >= 0 and int(together.max()) < pool:
        return
    for name, indices in zip(names, lists, strict=True):
        if int(indices.min()) < 0 or int(indices.max()) >= pool:
            raise InputError(
                f"client '{name}': {part} indices must lie in 0..{pool - 1}, but range over "
                f"{int(indices.min())}..{int(indices.max())}",
                code="out-of-range",
                field=name,
            )


class ConstantAnswer(NamedTuple):
    """The accuracy of always giving the most frequent class of all clients' rows.

    Args:
        label: that class; None = each client's own most frequent class.
        overall: on the rows of all clients together.
        shares: (N,) float64, on each client's rows.
    """

    label: str | None
    overall: float
    shares: Tensor


RARE, MOST = 0.2, 0.5
"""A constant answer is shown beside accuracies if a class has a smaller share than the first, and one a larger one than
the second: then a useless model looks good."""


def constant_answer(
    targets: Tensor, lists: tuple[Tensor, ...], names: tuple[str, ...] | None = None
) -> ConstantAnswer | None:
    """What a model would score that always says the same, where that looks good.

    Args:
        targets: (n, ...) of the pool.
        lists: per client, its row numbers, at least one.
        names: of the classes 0 … C − 1; None = their numbers.

    Returns:
        None if targets are not one class label, or 0 or 1, a row; or no class is rare, or none is frequent.
    """
    if targets.ndim != 1:
        return None
    sizes = torch.tensor([len(rows) for rows in lists])
    # One call serves all clients, as there may be a million of them.
    classes, codes, counts = targets[torch.cat(lists)].cpu().unique(return_inverse=True, return_counts=True)
    # Negative labels mark ignored rows, and floats other than 0 and 1 are not classes.
    if bool((classes < 0).any()) or (targets.is_floating_point() and bool(((classes != 0) & (classes != 1)).any())):
        return None
    share = counts.double() / counts.sum()
    if len(classes) < 2 or float(share.min()) >= RARE or float(share.max()) <= MOST:
        return None
    best = int(share.argmax())
    # How often the constant answer is right at each client.
    own = torch.segment_reduce((codes == best).double(), "sum", lengths=sizes) / sizes
    label = int(classes[best])
    return ConstantAnswer(str(label) if names is None else names[label], float(share[best]), own)


def majority_shares(targets: Tensor, lists: tuple[Tensor, ...]) -> Tensor | None:
    """The share of each client's most frequent class: what a model scores there that always says the same.

    Args:
        targets: (n, ...) of the pool.
        lists: per client, its row numbers, at least one.

    Returns:
        (N,) float64 in (0, 1]; None where targets are not one class label a sample.
    """
    if targets.is_floating_point() or targets.ndim != 1:
        return None
    sizes = torch.tensor([len(rows) for rows in lists])
    # Labels as 0..C-1 first: they may be so large that a product with the number of clients overflows.
    classes, codes = targets[torch.cat(lists)].cpu().unique(return_inverse=True)
    owners = torch.arange(len(lists)).repeat_interleave(sizes)
    cells, counts = (owners * len(classes) + codes).unique(return_counts=True)
    most = torch.zeros_like(sizes).scatter_reduce(0, cells // len(classes), counts, "amax")
    return most.double() / sizes
