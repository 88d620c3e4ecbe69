"""Sums over a cohort's rows, without a second matrix as large as the cohort's models."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

COLUMNS = 2**16
"""Columns made at a time."""


def summed(rows: Callable[[slice], Tensor], d: int, weights: Tensor | None = None) -> Tensor:
    """Σ_j of the rows of a matrix (k, d) that is made a few columns at a time, (d,).

    Args:
        rows: some columns → (k, columns) of the matrix.
        d: its width.
        weights: (k,) of the sum; None = all 1.
    """
    parts = (rows(slice(start, start + COLUMNS)) for start in range(0, d, COLUMNS))
    return torch.cat([part.sum(0) if weights is None else weights @ part for part in parts])


def moves(w_i: Tensor, w: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ_i (w_i − w), (d,): how far local models w_i (k, d) are from w (d,), summed or weighted by ``weights`` (k,)."""
    return summed(lambda part: w_i[:, part] - w[part], w.numel(), weights)
