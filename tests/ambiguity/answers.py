"""Compute many answers of a set at once, with their KKT residuals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from tests.ambiguity.kkt import LARGE, definition, residual

from drfl.ambiguity import AmbiguitySet


class Residuals(NamedTuple):
    """Residuals (draws,) of each operation, and the error of the worst case's value Σλ_i f_i − ψ(λ)."""

    project: np.ndarray
    prox: np.ndarray
    worst_case: np.ndarray
    value: np.ndarray

    def worst(self) -> float:
        """Return the largest residual, or NaN if one is NaN."""
        return float(np.concatenate(self).max())


def residuals(ambiguity: AmbiguitySet, v: np.ndarray, steps: np.ndarray) -> Residuals:
    """Return the residuals of project, prox and worst_case for each row of v (draws, n)."""
    draws, n = v.shape
    what, rows = definition(ambiguity, n), torch.from_numpy(v)
    project = np.stack([ambiguity.project(row).numpy() for row in rows])
    prox = np.stack([ambiguity.prox(row, float(step)).numpy() for row, step in zip(rows, steps, strict=True)])
    worst = [ambiguity.worst_case(row) for row in rows]
    lam, values = np.stack([w.lam.numpy() for w in worst]), np.array([w.value for w in worst])
    plain = what._replace(rho=0.0)
    attained = (lam * v).sum(1) - (what.rho * what.divergence(lam) if what.rho else 0)
    return Residuals(
        residual(plain, v, project, 1.0, np.zeros(draws)),
        residual(what, v, prox, 1.0, steps),
        residual(what, v, lam, 0.0, np.ones(draws)),
        np.abs(values - attained) / np.maximum(1, np.abs(v).max(1) / LARGE),
    )
