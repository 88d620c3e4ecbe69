"""The simplex and its parts with bounds on every weight: CVaR and Box."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drfl.ambiguity.base import Constraint, WorstCase, finite, on_simplex
from drfl.core import checks
from drfl.core.errors import InputError

SUM_ERROR = 1e-13
"""A projection whose sum is off by more is corrected."""

PASSES = 6
"""Attempts to find who is in a projection's support without sorting."""

MANY = 2**16
"""Entries of which no more are copied than necessary."""


def onto_simplex(v: Tensor, room: float = 1.0, floor: float = 0.0) -> Tensor:
    """floor + the nearest point to v among those ≥ 0 of sum ``room``: floor + max(v_i − θ, 0).

    Args:
        v: (N,) float64; entries may be −∞ as long as the largest is finite.
        room: ≥ 0.
        floor: Is added to each.
    """
    # Shifting v changes nothing; entries more than `room` below the largest come out at 0 in any case, so cutting them
    # there keeps sums exact however large the entries are.
    v = (v - v.amax()).clamp_(min=-room)  # in place from here: a new vector of a million costs more than the sum
    theta, rows = _threshold(v, room)
    lam = (v if rows is None else v[rows]).sub_(theta).clamp_(min=0)
    # Where one entry leads and very many share the rest, θ's rounding errors add up in the sum.
    for _ in range(3):
        excess = lam.sum() - room
        if abs(excess) <= SUM_ERROR:
            break
        support = lam > 0
        lam.sub_(support.double().mul_(excess / support.count_nonzero())).clamp_(min=0)
    lam = lam.add_(floor) if floor else lam
    return lam if rows is None else v.fill_(floor).index_copy_(0, rows, lam)


def _threshold(v: Tensor, room: float) -> tuple[Tensor, Tensor | None]:
    """θ with Σ_i max(v_i − θ, 0) = room, for v (N,) finite, and entries beside which none is above θ; None = all.

    Entries of v below θ may be raised in place, to θ or less.

    The θ of all entries is at most the one sought, so entries below it are out; what is left has a larger θ (Michelot
    1986). Near the uniform mixture a pass or two leave nothing out, which spares the sorting.
    """
    theta, raised, rows = v.new_zeros(()), 0, None
    for _ in range(PASSES):
        theta = (v.sum() - raised * theta - room) / (v.numel() - raised)
        above = v.numpy() > float(theta)  # NumPy takes a fourth of torch's time, here and below
        left = int(np.count_nonzero(above))
        if left >= v.numel() - raised:
            return theta, rows
        if not left:  # by rounding
            break
        if v.numel() > MANY and left > v.numel() // 8:  # dearer to copy than to have the others at one known value
            v, raised = v.clamp_(min=float(theta)), v.numel() - left
        else:
            at = torch.from_numpy(np.flatnonzero(above))
            v, raised, rows = v[at], 0, at if rows is None else rows[at]
    ordered = ascending(v).flip(0)
    thetas = (ordered.cumsum(0) - room) / torch.arange(1, v.numel() + 1, dtype=v.dtype)
    # The entries above the θ of those up to them come first in descending order; they are the support (Duchi et al.
    # 2008). The clamp is for rounding: the largest entry is always in it.
    return thetas[int((ordered > thetas).sum().clamp(min=1)) - 1], rows


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
    points = ordered.numpy()
    lowered, below = points - cap, np.concatenate([[0.0], np.cumsum(points)])

    def short(theta: float) -> bool:  # whether the sum is below 1
        # Ascending: entries before `positive` give 0, those up to `capped` give v − θ, those after it the cap.
        positive, capped = np.searchsorted(points, theta, "right"), np.searchsorted(lowered, theta, "right")
        return below[capped] - below[positive] - (capped - positive) * theta + (n - capped) * cap < 1

    # The sum falls with θ, so `short` changes once along each of the two sorted lists, and they need no merging.
    last = [(line, bisect_left(line, True, key=short) - 1) for line in (points, lowered)]
    left = float(max(line[k] for line, k in last if k >= 0))
    full = v - cap > left
    free = (v > left) & ~full
    # To the right of `left` the sum is Σ_free (v_i − θ) + cap·#full until the next breakpoint; measured from `left`, so
    # that differences of close numbers stay exact. Where none is free, θ is the breakpoint.
    theta = left + (float((v[free] - left).sum()) - (1 - cap * int(full.sum()))) / max(int(free.sum()), 1)
    lam = (v - theta).clamp(0, cap)
    # What rounding has left of the sum goes to the entries that can move.
    free = (lam > 0) & (lam < cap)
    return (lam - free * ((lam.sum() - 1) / free.sum().clamp(min=1))).clamp(0, cap)


@dataclass(frozen=True)
class Simplex(Constraint):
    """Λ = {λ : λ_i ≥ floor, Σ_i λ_i = 1}, ψ = 0. With floor 0 it is the whole simplex of DRFA, AFL and DRDM, eq. (2).

    Args:
        floor: The least weight of any client; must leave room, N·floor ≤ 1.

    Raises:
        InputError: If floor is negative, or too large for N (when first used).
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        checks.non_negative("floor", self.floor)
        if self.floor > 1:
            raise InputError(f"floor must be in [0, 1], not {self.floor}", code="out-of-range", field="floor")

    def project(self, v: Tensor) -> Tensor:
        """Exact by sorting, O(N log N): λ_i = floor + max(v_i − θ, 0) with θ such that the sum is 1.

        Raises:
            NonFiniteError: If v holds NaN or infinity.
        """
        v = finite(v)
        return onto_simplex(v, self._room(v.numel()), self.floor)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """The floor for each client and the rest on the (first) largest loss.

        Raises:
            NonFiniteError: If a loss is NaN or infinite.
        """
        losses = finite(losses)
        lam = torch.full_like(losses, self.floor)
        lam[losses.argmax()] += self._room(losses.numel())
        return WorstCase(float(lam @ losses), lam)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) sums to 1 and no entry is below the floor, up to the tolerance."""
        lam = finite(lam)
        self._room(lam.numel())
        return on_simplex(lam, tolerance) and bool((lam >= self.floor - tolerance).all())

    def _room(self, n: int) -> float:
        # The tolerance lets a floor pass that is meant as 1/N and is larger by rounding.
        room = 1 - n * self.floor
        if room < -1e-12:
            raise InputError(
                f"floor={self.floor} is too large for {n} clients: at most 1/{n}", code="out-of-range", field="floor"
            )
        return max(room, 0.0)


@dataclass(frozen=True)
class CVaR(Constraint):
    """Λ = {λ : 0 ≤ λ_i ≤ 1/(αN), Σ_i λ_i = 1}, ψ = 0: the worst case is the mean loss of the worst α of the clients.

    SCAFF-PD (Yu et al. 2023), appendix B; the superquantile of Δ-FL with tail α = 1 − θ. CVaR(1) is the uniform point
    alone; with α ≤ 1/N it is the simplex.

    Args:
        alpha: The share of the clients that counts, in (0, 1].

    Raises:
        InputError: If alpha is out of range.
    """

    alpha: float

    def __post_init__(self) -> None:
        checks.positive("alpha", self.alpha)
        if self.alpha > 1:
            raise InputError(f"alpha must be in (0, 1], not {self.alpha}", code="out-of-range", field="alpha")

    def project(self, v: Tensor) -> Tensor:
        """Exact by sorting, O(N log N): λ_i = v_i − θ, cut to [0, 1/(αN)], with θ such that the sum is 1."""
        v = finite(v)
        return onto_capped_simplex(v, self._cap(v.numel()))

    def worst_case(self, losses: Tensor) -> WorstCase:
        """The cap on each of the largest losses, and what is left of 1 on the next; the first of equals come first."""
        losses = finite(losses)
        return _fill(losses, self._cap(losses.numel()))

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) is on the simplex and no entry exceeds 1/(αN), up to the tolerance."""
        lam = finite(lam)
        return on_simplex(lam, tolerance) and bool((lam <= self._cap(lam.numel()) + tolerance).all())

    def _cap(self, n: int) -> float:
        return min(1 / self.alpha / n, 1.0)


@dataclass(frozen=True)
class Box(Constraint):
    """Λ = {λ : 0 ≤ λ_i ≤ cap, Σ_i λ_i = 1}, ψ = 0: no client weighs more than the cap, however many clients there are.

    Args:
        cap: The greatest weight of any client, in (0, 1]; must leave room, N·cap ≥ 1.

    Raises:
        InputError: If cap is out of range, or too small for N (when first used).
    """

    cap: float

    def __post_init__(self) -> None:
        checks.positive("cap", self.cap)
        if self.cap > 1:
            raise InputError(f"cap must be in (0, 1], not {self.cap}", code="out-of-range", field="cap")

    def project(self, v: Tensor) -> Tensor:
        """Exact by sorting, O(N log N): λ_i = v_i − θ, cut to [0, cap], with θ such that the sum is 1."""
        v = self._fitting(v)
        return onto_capped_simplex(v, self.cap)

    def worst_case(self, losses: Tensor) -> WorstCase:
        """The cap on each of the largest losses, and what is left of 1 on the next; the first of equals come first."""
        return _fill(self._fitting(losses), self.cap)

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) is on the simplex and no entry exceeds the cap, up to the tolerance."""
        lam = self._fitting(lam)
        return on_simplex(lam, tolerance) and bool((lam <= self.cap + tolerance).all())

    def _fitting(self, v: Tensor) -> Tensor:
        v, n = finite(v), v.numel()
        if n * self.cap < 1 - 1e-12:
            raise InputError(
                f"cap={self.cap} is too small for {n} clients: at least 1/{n}", code="out-of-range", field="cap"
            )
        return v


def _fill(losses: Tensor, cap: float) -> WorstCase:
    """The mixture capped at ``cap`` that puts its weight on the largest losses."""
    n = losses.numel()
    if n * cap <= 1 + 1e-12:
        lam = torch.full_like(losses, 1 / n)
        return WorstCase(float(lam @ losses), lam)
    full = min(math.floor(1 / cap), n - 1)
    # Stable: which of two equal losses gets the rest must not be left to the sorting.
    order = losses.argsort(descending=True, stable=True)
    lam = torch.zeros_like(losses)
    lam[order[:full]] = cap
    lam[order[full]] = max(1 - full * cap, 0.0)
    return WorstCase(float(lam @ losses), lam)
