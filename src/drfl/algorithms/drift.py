"""Dynamic regularisation: the weight μ of FedDyn's penalty, and sums of the local models' moves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.optim.local import LocalSGD

KAPPA = 0.2
"""κ of the built-in rule μ = κ/(ητ)."""


LARGEST = 1e30
"""A larger μ would leave the numbers of a float32 model."""


def check_penalty(mu: float | None) -> None:
    """Raise an :class:`drfl.core.errors.InputError` unless μ is None or a number above 0 and at most
    :data:`LARGEST`.
    """
    if mu is None:
        return
    checks.positive("mu", mu)
    if mu > LARGEST:
        raise InputError(f"mu must be at most {LARGEST:g}, not {mu}", code="out-of-range", field="mu")


def penalty(mu: float | None, local: LocalSGD) -> float:
    """μ; where it is None, κ/(η·τ) with τ the effective number of local steps.

    With κ = 1, −μ(w_i − w̄) is the mean direction along client i's local steps, so that h_i becomes the mean gradient
    of f_i(u) + (μ/2)·‖u − w̄‖² met there, much as c_i does in SCAFFOLD's option II. A smaller κ lengthens the server's
    step −c/μ, which helps where local steps go a short way (the usual case), but credits h_i with less than the client
    saw, which is slower where they go a long way and clients take part rarely. ``docs/defaults.md`` says how κ was
    found.

    Args:
        mu: the user's value, or None.
        local: what a client runs.
    """
    return KAPPA / (local.eta * local.effective_steps) if mu is None else mu


COLUMNS = 2**16
"""Columns made at a time."""


def summed(rows: Callable[[slice], Tensor], d: int, weights: Tensor | None = None) -> Tensor:
    """Σ_j of the rows of a matrix (k, d) that is made a few columns at a time, (d,).

    Args:
        rows: some columns → (k, columns) of the matrix.
        d: its width.
        weights: (k,) of the sum; None = all 1.
    """
    # The whole matrix (k, d) would take as much memory as the local models.
    parts = (rows(slice(start, start + COLUMNS)) for start in range(0, d, COLUMNS))
    return torch.cat([part.sum(0) if weights is None else weights @ part for part in parts])


def moves(w_i: Tensor, w: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ_i (w_i − w), (d,): how far local models w_i (k, d) are from w (d,), summed or weighted by ``weights`` (k,)."""
    return summed(lambda part: w_i[:, part] - w[part], w.numel(), weights)
