"""Vectors over clients: checked on the way in, and kept exact however large or small their entries are."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.errors import InputError, NonFiniteError


def finite(v: Tensor) -> Tensor:
    """v (N,) in float64 on the CPU, without its history of gradients.

    Raises:
        InputError: v is not a vector of at least one entry.
        NonFiniteError: v holds NaN or infinity.
    """
    v = v.detach().to("cpu", torch.float64)
    if v.dim() != 1 or v.numel() == 0:
        raise InputError(f"expected a vector (N,) with N ≥ 1, got shape {tuple(v.shape)}")
    if not bool(torch.isfinite(v).all()):
        bad = int((~torch.isfinite(v)).nonzero()[0])
        raise NonFiniteError(f"entry {bad} of the vector is {float(v[bad])}: λ would be poisoned for good")
    return v


def on_simplex(lam: Tensor, tolerance: float) -> bool:
    """Whether λ (N,), checked already, is nonnegative and sums to 1, up to the tolerance."""
    return bool((lam >= -tolerance).all()) and abs(float(lam.sum()) - 1) <= tolerance


def quarter_gaps(v: Tensor) -> Tensor:
    """(v − max_i v_i)/4 (N,), at most 0: all that a mixture of sum 1 depends on, and it cannot overflow."""
    return v / 4 - v.max() / 4
