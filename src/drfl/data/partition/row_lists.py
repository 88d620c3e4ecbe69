"""Lists of row numbers, one per client, and their division into parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drfl.core.key import Key
from drfl.data.partition.splitting import split_rows


def split_validation(
    targets: Tensor, rows: Tensor, fraction: float, key: Key, patients: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return one client's training rows and validation rows. With patients (n,), all rows of one go to one part."""
    units = None if patients is None else patients[rows].numpy(force=True)
    # A single row or patient cannot be divided, so it is used for both.
    if len(rows) == 1 or (units is not None and (units == units[0]).all()):
        return rows, rows
    labels = targets[rows]
    mine = None if labels.is_floating_point() or labels.ndim > 1 else labels.numpy(force=True)
    kept, held = split_rows(rows.numpy(force=True), mine, key, fraction, patients=units)
    return torch.from_numpy(kept).to(rows.device), torch.from_numpy(held).to(rows.device)


def join(parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copy the parts into one piece of memory: a hundred thousand small tensors would take more."""
    return pieces(torch.cat(list(parts)), lengths(parts))


def as_tensors(lists: Sequence[np.ndarray]) -> tuple[Tensor, ...]:
    """Convert row numbers to tensors in one piece of memory: a hundred thousand small tensors would take more."""
    lengths = torch.tensor([len(indices) for indices in lists], dtype=torch.int64)
    whole = np.concatenate(lists) if len(lists) else np.empty(0)
    return pieces(torch.from_numpy(whole.astype(np.int64)), lengths)


def pieces(index: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """Return consecutive pieces of one tensor, as views."""
    return index.split(lengths.tolist())


def lengths(lists: Sequence[Tensor]) -> Tensor:
    """Return the length of each list of rows, (N,) int64."""
    return torch.tensor([len(indices) for indices in lists], dtype=torch.int64)


def blocks(sizes: Sequence[int]) -> list[np.ndarray]:
    """Return the row numbers of clients whose rows are stored one client after the other."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def split_blocks(
    names: Sequence[str],
    sizes: Sequence[int],
    targets: Tensor,
    key: Key,
    test_fraction: float,
    patients: np.ndarray | None = None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return training and test rows of clients stored one after the other, split by class if the targets are labels."""
    labels = None if targets.is_floating_point() or targets.ndim > 1 else targets.numpy(force=True)
    parts = []
    for name, rows in zip(names, blocks(sizes), strict=True):
        mine = None if labels is None else labels[rows]
        units = None if patients is None else patients[rows]
        parts.append(split_rows(rows, mine, key.fold("group", name), test_fraction, f"client '{name}'", units))
    return as_tensors([kept for kept, _ in parts]), as_tensors([held for _, held in parts])
