"""The sum Σ_i λ_i h_i over a table of rows, updated each round without reading every row."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from drfl.federation.client_table import BLOCK, ClientTable

FEW = BLOCK
"""Maximum number of clients without a running sum, for which each round reads all rows."""

REFRESH = 1_000
"""Updates after which all rows are read again, because each update adds a float64 rounding error."""

ROUNDING = 2.0**-50
"""A λ_i this close to the common law counts as following it; the difference is the projection's rounding."""


class WeightedRows(NamedTuple):
    """Rows and their weights.

    Args:
        table: (N, d) The rows h_i.
        lam: (N,) float64, λ.
        along: (N,) float64, the direction in which λ moves for clients with a row but no new report; None if there is
            no such direction.
    """

    table: ClientTable
    lam: Tensor
    along: Tensor | None = None

    def weights(self, rows: Tensor, alike: Tensor) -> Tensor:
        """Return the weights of ``rows`` (k,) in each of the sums of :class:`WeightedSum`, (K, k) float64.

        Args:
            rows: (k,) Clients.
            alike: (k,) bool, True for clients in G.
        """
        in_g, lam = alike.double(), self.lam[rows]
        return torch.stack([lam, in_g] if self.along is None else [lam, in_g, in_g * self.along[rows]])


class Law(NamedTuple):
    """The map u ↦ scale·u − shift, which a projection applies to every λ_i + step·v_i that does not reach a bound."""

    scale: float
    shift: float

    def __call__(self, target: Tensor) -> Tensor:
        """Apply the map to targets (k,)."""
        return self.scale * target - self.shift

    def holds(self, target: Tensor, lam: Tensor) -> Tensor:
        """Return which new λ_i the map reproduces, (k,) bool."""
        return (self(target) - lam).abs() <= ROUNDING


class WeightedSum(NamedTuple):
    """Running sums over rows h_i that follow λ: K = 2 sums, or 3 if all λ_i move along a direction a.

    A projection of λ + step·v onto an ambiguity set maps every λ_i to scale·(λ_i + step·v_i) − shift, except those that
    end at a bound: 0, a floor or a cap. Let G be the clients that did not end at a bound in the last projection. If
    v_i = a_i (0 without a direction) for all but a few clients,

        Σ_i λ'_i h_i = scale·(Σ_i λ_i h_i + step·Σ_G a_i h_i) − shift·Σ_G h_i + Σ_few (λ'_i − the law's value)·h_i

    The last sum runs only over the few clients that reported, reached or left a bound, or have a new row. Scale and
    shift are computed from λ'. All rows are read if that takes fewer reads (a small support), if most λ_i follow no
    such law (as under KL), and after :data:`REFRESH` updates. Sums are in float64.

    Args:
        sums: (K, d) float64: Σ_i λ_i h_i, Σ_G h_i and, if there is a direction, Σ_G a_i h_i.
        alike: (N,) bool, membership in G; undefined for rows that were never written.
        updates: () int64, number of updates since all rows were last read.
    """

    sums: Tensor
    alike: Tensor
    updates: Tensor

    @classmethod
    def first(cls, table: ClientTable, *, along: bool = False) -> Self | None:
        """Return the sums of a table without any rows; None for up to :data:`FEW` clients, for which they save nothing.

        Args:
            table: (N, d) The table.
            along: Whether all λ_i move along a direction.
        """
        (n, d), k = table.shape, 3 if along else 2
        if n <= FEW:
            return None
        sums = torch.zeros(k, d, dtype=torch.float64, device=table.device)
        return cls(sums, torch.zeros(n, dtype=torch.bool), torch.zeros((), dtype=torch.int64))

    def describe_fault(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        return None if 0 <= self.updates < REFRESH else "the number of updates of a running sum is out of range"

    def after(
        self, before: WeightedRows, now: WeightedRows, changed: Tensor, target: Tensor, step: float = 0.0
    ) -> WeightedSum:
        """Return the sums over the rows and λ of ``now``.

        Args:
            before: Rows and weights of the current sums.
            now: Rows and weights one round later.
            changed: (k,) Clients whose row has changed.
            target: (N,) λ + step·v, whose projection is the new λ.
            step: Length of the step; ignored without a direction.
        """
        rows = now.table.clients
        new = torch.isin(rows, changed)
        at, lam = target[rows], now.lam[rows]
        laws = [Law(1.0, 0.0)]
        if lam.numel():
            # A projection preserves the order of its targets, so a λ_i strictly between the smallest and the largest is
            # at no bound. The candidates are, most likely first: the law through two such λ_i, that of the largest, and
            # that of the smallest.
            low, high = int(lam.argmin()), int(lam.argmax())
            laws = [Law(1.0, float(at[j] - lam[j])) for j in (high, low)]
            between = ((lam > lam[low]) & (lam < lam[high])).nonzero().flatten()
            if between.numel():
                a, b = int(between[lam[between].argmin()]), int(between[lam[between].argmax()])
                run, rise = float(at[b] - at[a]), float(lam[b] - lam[a])
                # Two close points cannot distinguish a scale that is nearly 1 from 1.
                scale = rise / run if run > 0 and abs(rise - run) > ROUNDING else 1.0
                laws.insert(0, Law(scale, scale * float(at[b]) - float(lam[b])))
        # The law that most λ_i follow, and which of them follow it. It is inferred from targets and results, so that no
        # ambiguity set has to report it.
        candidates = [(law, law.holds(at, lam)) for law in laws]
        law, alike = max(candidates, key=lambda pair: int((pair[1] & ~new).sum()))
        old_weights, weights = before.weights(rows, self.alike[rows]), now.weights(rows, alike)
        weighted, unchanged = weights[0] != 0, weights[0] == old_weights[0]
        if 2 * (weighted & (alike | unchanged) & ~new).sum() < weighted.sum():
            # Most λ_i follow no common law: start again from the sum over λ alone, in the rows' dtype.
            sums = torch.zeros_like(self.sums)
            sums[0] = now.table.mix(now.lam)
            return WeightedSum(sums, torch.zeros_like(self.alike), torch.zeros_like(self.updates))
        follow = torch.eye(len(old_weights), dtype=torch.float64)  # (K, K) the action of the law on the sums
        # Only the sum over λ changes with the law; Σ_G h_i and Σ_G a_i h_i do not contain λ.
        follow[0] = torch.tensor([law.scale, -law.shift, law.scale * step], dtype=torch.float64)[: len(old_weights)]
        predicted = follow @ old_weights
        deviates = ((weights[0] - predicted[0]).abs() > ROUNDING) | (weights[1:] != predicted[1:]).any(0)
        needed, part = (weights != 0).any(0), deviates & ~new
        members = self.alike.index_copy(0, rows, alike)
        if self.updates + 1 >= REFRESH or part.sum() + 2 * new.sum() >= needed.sum():
            # Reading every row with a weight costs no more than correcting: part rows once, new rows twice.
            sums = now.table.sums(rows[needed], weights[:, needed])
            return WeightedSum(sums, members, torch.zeros_like(self.updates))
        sums = follow.to(self.sums) @ self.sums
        sums += now.table.sums(rows[part], (weights - predicted)[:, part])
        # A changed row leaves the sums with its old vector and returns with its new one.
        sums += now.table.sums(rows[new], weights[:, new])
        sums -= before.table.sums(rows[new], predicted[:, new])
        return WeightedSum(sums, members, self.updates + 1)
