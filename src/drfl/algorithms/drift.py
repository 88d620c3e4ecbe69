"""Dynamic regularisation: the weight μ of FedDyn's penalty, and sums of local updates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.intraop import column_slices, in_parallel
from drfl.optim.local import LocalSGD

KAPPA = 0.2
"""κ of the built-in rule μ = κ/(ητ)."""


LARGEST = 1e30
"""The largest μ allowed; a larger one could overflow in a float32 model."""


def check_penalty(mu: float | None) -> None:
    """Check that μ is None, or above 0 and at most :data:`LARGEST`.

    Raises:
        InputError: If it is not.
    """
    if mu is None:
        return
    checks.positive("mu", mu)
    if mu > LARGEST:
        raise InputError(f"mu must be at most {LARGEST:g}, got {mu}", code="out-of-range", field="mu")


def penalty(mu: float | None, local: LocalSGD) -> float:
    """Return μ; for None, κ/(η·τ) with the effective number of local steps τ.

    With κ = 1, −μ(w_i − w̄) is the mean direction along client i's local steps. h_i then becomes the mean gradient of
    f_i(u) + (μ/2)·‖u − w̄‖² along these steps, much like c_i in SCAFFOLD's option II. A smaller κ lengthens the server's
    correction −c/μ, which helps if local steps move the model only a little (the usual case). But h_i then gets a
    smaller gradient than the client computed, which slows convergence if local steps move the model far and clients
    participate rarely. ``docs/defaults.md`` describes how κ was chosen.

    Args:
        mu: The user's value, or None.
        local: Local solver.
    """
    return KAPPA / (local.eta * local.effective_steps) if mu is None else mu


COLUMNS = 2**16
"""Columns computed at a time."""


def by_columns(part: Callable[[slice], Tensor], like: Tensor) -> Tensor:
    """Compute a vector (d,) from functions of wide tables, a few columns at a time, so that each table is read once.

    Args:
        part: Maps a slice of columns to that part of the vector.
        like: (d,) A vector with the length and the device of the result.
    """
    # All intermediate results of a slice stay in the caches.
    return torch.cat(in_parallel(part, column_slices(COLUMNS, like)))


def sum_rows(rows: Callable[[slice], Tensor], like: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum the rows of a (k, d) matrix that is computed a few columns at a time; the result is (d,).

    Args:
        rows: Maps a slice of columns to that part of the matrix, (k, columns).
        like: (d,) A vector with the width and the device of the matrix.
        weights: (k,) Weights of the sum; None = all 1.
    """
    # The whole matrix (k, d) would take as much memory as the local models.
    return by_columns(lambda part: rows(part).sum(0) if weights is None else weights @ rows(part), like)


def sum_updates(w_i: Tensor, w: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum the updates w_i − w of local models w_i (k, d) from w (d,), weighted by ``weights`` (k,) if given."""
    return sum_rows(lambda part: w_i[:, part] - w[part], w, weights)
