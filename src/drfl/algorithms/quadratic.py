"""Small quadratic programs over client weights, solved exactly."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SINGULAR = 1e-12
"""Curvature, relative to the largest, that counts as zero."""

SMALL = 1e-13
"""A step of the weights, or a violated optimality condition of the scaled problem, that counts as zero."""


def best_weights(P: Tensor, q: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return argmin ½·xᵀPx + qᵀx over weights x with Σ x_i = 1 and low ≤ x_i ≤ high, by an active-set method.

    It starts from equal weights and takes the shortest step that solves each subproblem, so equal clients get equal
    weights.

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
    A, c = P.double().cpu().numpy(), q.double().cpu().numpy()
    scale = max(np.abs(A).max(), np.abs(c).max())
    A, c = (A / scale, c / scale) if scale > 0 else (A, c)
    x, bound = np.full(n, 1 / n), np.zeros(n, dtype=np.int64)  # −1 and 1: at the lower and the upper bound
    for _ in range(100 * n + 100):
        free, gradient = np.flatnonzero(bound == 0), A @ x + c
        curvature = A[np.ix_(free, free)]
        # The step to the optimum over the free weights, with the multiplier ν of their sum.
        system = np.block([[curvature, -np.ones((len(free), 1))], [np.ones(len(free)), np.zeros(1)]])
        *solution, nu = np.linalg.lstsq(system, np.append(-gradient[free], 0.0), rcond=SINGULAR)[0]
        step, most = np.array(solution), 1.0
        residual = curvature @ step + gradient[free] - nu
        if np.abs(residual).max() > 100 * SMALL:
            # Along a direction without curvature, the value falls until a weight reaches its bound.
            step, most = -residual, np.inf
        step = step - step.mean()
        if np.abs(step).max() > SMALL:
            ends = np.where(step < 0, low, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.where(step == 0, np.inf, (ends - x[free]) / step)
            first = int(room.argmin())
            x[free] += min(most, room[first]) * step
            if room[first] < most:
                x[free[first]], bound[free[first]] = ends[first], np.sign(step[first])
            continue
        # Find the weight whose release from its bound lowers the value most.
        gain = bound * (gradient - nu)
        worst = int(gain.argmax())
        if gain[worst] <= 100 * SMALL:
            break
        bound[worst] = 0
    return torch.from_numpy(x)
