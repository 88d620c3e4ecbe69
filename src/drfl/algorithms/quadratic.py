"""Small quadratic programs over client weights, solved exactly."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

RIDGE = 1e-12
"""Share of the mean curvature that is added to the curvature, so that equal clients get equal weights."""

SMALL = 1e-13
"""A step of the weights, or a violated optimality condition relative to the gradient, that counts as zero."""


def best_weights(P: Tensor, q: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return argmin ½·xᵀPx + qᵀx over weights x with Σ x_i = 1 and low ≤ x_i ≤ high, by an active-set method.

    Args:
        P: (n, n) float64, positive semidefinite.
        q: (n,) float64.
        low: Lower bound ≤ 1/n.
        high: Upper bound ≥ 1/n.

    Returns:
        (n,) float64.
    """
    n = len(q)
    if not low < 1 / n < high:
        return torch.full((n,), 1 / n, dtype=torch.float64)
    c = q.double().cpu().numpy()
    A = P.double().cpu().numpy()
    A = A + (RIDGE * np.trace(A) / n + np.finfo(np.float64).tiny) * np.eye(n)
    x, bound = np.full(n, 1 / n), np.zeros(n, dtype=np.int64)  # −1 and 1: at the lower and the upper bound
    for _ in range(100 * n + 100):
        free = np.flatnonzero(bound == 0)
        # The optimum over the free weights, with the multiplier ν of their sum.
        system = np.block([[A[np.ix_(free, free)], -np.ones((len(free), 1))], [np.ones(len(free)), np.zeros(1)]])
        fixed = np.where(bound == 0, 0.0, x)
        *target, nu = np.linalg.lstsq(system, np.append(-c[free] - A[free] @ fixed, 1 - fixed.sum()), rcond=None)[0]
        step = np.array(target) - x[free]
        if np.abs(step).max() > SMALL:
            ends = np.where(step < 0, low, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.where(step == 0, np.inf, (ends - x[free]) / step)
            first = int(room.argmin())
            x[free] += min(1.0, room[first]) * step
            if room[first] < 1:
                x[free[first]], bound[free[first]] = ends[first], np.sign(step[first])
            continue
        gradient = A @ x + c
        # A weight at a bound that would gain by leaving it.
        gain = bound * (gradient - nu)
        worst = int(gain.argmax())
        if gain[worst] <= SMALL * (1 + np.abs(gradient).max()):
            break
        bound[worst] = 0
    return torch.from_numpy(x)
