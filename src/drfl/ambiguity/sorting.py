"""Projections that sorting makes exact, O(N log N): onto the simplex, and onto the simplex with a cap on entries."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import torch
from torch import Tensor

SUM_ERROR = 1e-13
"""A projection whose sum is off by more is corrected."""

PASSES = 6
"""Attempts to find who is in a projection's support without sorting."""


def onto_simplex(v: Tensor, room: float = 1.0) -> Tensor:
    """The nearest point to v among those ≥ 0 of sum ``room``: max(v_i − θ, 0).

    Args:
        v: (N,) float64; entries may be −∞ as long as the largest is finite.
        room: ≥ 0.
    """
    # Shifting v changes nothing; entries more than `room` below the largest come out at 0 in any case, so cutting them
    # there keeps sums exact however large the entries are.
    v = (v - v.max()).clamp(min=-room)
    lam = (v - _threshold(v, room)).clamp(min=0)
    for _ in range(3):  # where one entry leads and very many share the rest, θ's rounding errors add up
        excess = lam.sum() - room
        if abs(excess) <= SUM_ERROR:
            break
        lam = torch.where(lam > 0, lam - excess / (lam > 0).sum(), lam).clamp(min=0)
    return lam


def _threshold(v: Tensor, room: float) -> Tensor:
    """θ with Σ_i max(v_i − θ, 0) = room, for v (N,) finite.

    The θ of all entries is at most the one sought, so entries below it are out; what is left has a larger θ (Michelot
    1986). Near the uniform mixture a pass or two leave nothing out, which spares the sorting.
    """
    for _ in range(PASSES):
        theta = (v.sum() - room) / v.numel()
        above = v > theta
        left = int(above.sum())
        if left == v.numel():
            return theta
        if not left:  # by rounding
            break
        v = v[above]
    ordered = ascending(v).flip(0)
    thetas = (ordered.cumsum(0) - room) / torch.arange(1, v.numel() + 1, dtype=v.dtype)
    return thetas[int((ordered > thetas).sum().clamp(min=1)) - 1]


def ascending(v: Tensor) -> Tensor:
    """v (N,) sorted; NumPy takes a third of torch's time."""
    return torch.from_numpy(np.sort(v.numpy()))


def onto_capped_simplex(v: Tensor, cap: float) -> Tensor:
    """The nearest point to v among those of sum 1 with 0 ≤ λ_i ≤ cap: λ_i = v_i − θ, cut to [0, cap].

    The sum of these falls with θ, in straight pieces between the 2N breakpoints v_i and v_i − cap. The piece on which
    it passes 1 is found by bisection over the sorted breakpoints.

    Args:
        v: (N,) float64, finite.
        cap: N·cap ≥ 1, up to rounding.
    """
    n = v.numel()
    if n * cap <= 1 + 1e-12:
        return torch.full_like(v, 1 / n)
    # With K = ⌈1/cap⌉, θ lies between v_(K) − cap and v_(K): there the sum is at least, here at most 1. Measured from
    # v_(K) and cut to [−cap, cap], entries of any size leave every λ_i as it was.
    ordered = ascending(v)
    pivot = ordered[n - math.ceil(1 / cap)]
    v, ordered = (v - pivot).clamp(-cap, cap), (ordered - pivot).clamp(-cap, cap)
    left = _left_breakpoint(ordered.numpy(), cap)
    full = v - cap > left
    free = (v > left) & ~full
    theta = left + (float((v[free] - left).sum()) - (1 - cap * int(full.sum()))) / max(int(free.sum()), 1)
    lam = (v - theta).clamp(0, cap)
    free = (lam > 0) & (lam < cap)  # once more, for what rounding has left
    return (lam - free * ((lam.sum() - 1) / free.sum().clamp(min=1))).clamp(0, cap)


def _left_breakpoint(ordered: np.ndarray, cap: float) -> float:
    """The largest of the breakpoints v_i and v_i − cap at which Σ_i of v_i − θ, cut to [0, cap], is at least 1."""
    n, full, below = len(ordered), ordered - cap, np.concatenate([[0.0], np.cumsum(ordered)])

    def short(theta: float) -> bool:  # whether the sum is below 1
        positive, capped = np.searchsorted(ordered, theta, "right"), np.searchsorted(full, theta, "right")
        return below[capped] - below[positive] - (capped - positive) * theta + (n - capped) * cap < 1

    last = [bisect_left(points, True, key=short) - 1 for points in (ordered, full)]
    return float(max(points[k] for points, k in zip((ordered, full), last, strict=True) if k >= 0))
