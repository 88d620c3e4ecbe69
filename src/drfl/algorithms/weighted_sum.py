"""Σ_i λ_i h_i over a table of rows, followed from round to round without reading every row."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from drfl.federation.client_table import BLOCK, ClientTable

FEW = BLOCK
"""Clients up to which nothing is kept: all rows are read in every round."""

REFRESH = 1_000
"""Updates after which all rows are read again: each adds a rounding error of float64."""

ROUNDING = 2.0**-50
"""A λ_i this close to the common law follows it: the rounding of a projection."""


class WeightedRows(NamedTuple):
    """Rows and what they are weighed by.

    Args:
        table: (N, d) the rows h_i.
        lam: (N,) float64, λ.
        along: (N,) float64, the direction in which λ moves for clients with a row and no new report; None = they have
            none.
    """

    table: ClientTable
    lam: Tensor
    along: Tensor | None = None

    def weights(self, rows: Tensor, alike: Tensor) -> Tensor:
        """(K, k) float64, what the sums of :class:`WeightedSum` weigh ``rows`` (k,) by.

        Args:
            rows: (k,) clients.
            alike: (k,) bool, who of them is in G.
        """
        own, lam = alike.double(), self.lam[rows]
        return torch.stack([lam, own] if self.along is None else [lam, own, own * self.along[rows]])


class Law(NamedTuple):
    """u ↦ scale·u − shift: what a projection makes of every λ_i + step·v_i that it does not cut off."""

    scale: float
    shift: float

    def __call__(self, target: Tensor) -> Tensor:
        """Of targets (k,)."""
        return self.scale * target - self.shift

    def holds(self, target: Tensor, lam: Tensor) -> Tensor:
        """(k,) bool, whose new λ_i it gives."""
        return (self(target) - lam).abs() <= ROUNDING


class WeightedSum(NamedTuple):
    """Sums over rows h_i that follow λ, of K = 2 kinds, or 3 where all clients' λ_i move along a direction a.

    A projection of λ + step·v on a set of mixtures makes scale·(λ_i + step·v_i) − shift of every λ_i, but for those
    that end at a bound: 0, a floor or a cap. Let G be the clients whom the last one did not cut off. Where v_i is a_i
    (0 without a direction) for all but a few,

        Σ_i λ'_i h_i = scale·(Σ_i λ_i h_i + step·Σ_G a_i h_i) − shift·Σ_G h_i + (λ'_i less what the law gives)·h_i

    summed over those few alone: who has reported, reached a bound or left one, or whose row is new. Scale and shift are
    read off λ'. All rows are read where that takes fewer reads (a small support), where most λ_i follow no such law (as
    with KL), and after :data:`REFRESH` updates. Sums are in float64.

    Args:
        sums: (K, d) float64: Σ_i λ_i h_i, Σ_G h_i and, where there is a direction, Σ_G a_i h_i.
        alike: (N,) bool, G; of no meaning where the row was never written.
        updates: () int64, since all rows were read.
    """

    sums: Tensor
    alike: Tensor
    updates: Tensor

    @classmethod
    def first(cls, table: ClientTable, *, along: bool = False) -> Self | None:
        """Of a table in which nothing is written; None up to :data:`FEW` clients, where nothing is to be saved.

        Args:
            table: (N, d).
            along: whether all clients' λ_i move along a direction.
        """
        (n, d), k = table.shape, 3 if along else 2
        if n <= FEW:
            return None
        sums = torch.zeros(k, d, dtype=torch.float64, device=table.device)
        return cls(sums, torch.zeros(n, dtype=torch.bool), torch.zeros((), dtype=torch.int64))

    def wrong(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        return None if 0 <= self.updates < REFRESH else "the number of updates of a sum is out of range"

    def after(
        self, before: WeightedRows, now: WeightedRows, changed: Tensor, target: Tensor, step: float = 0.0
    ) -> WeightedSum:
        """The sums over the rows and λ of ``now``.

        Args:
            before: what the present sums are over.
            now: the same a round later.
            changed: (k,) clients whose row is another.
            target: (N,) λ + step·v, of which the new λ is the projection.
            step: its length; of no meaning without a direction.
        """
        rows = now.table.clients
        new = torch.isin(rows, changed)
        law, alike = _law_of(target[rows], now.lam[rows], ~new)
        was, weights = before.weights(rows, self.alike[rows]), now.weights(rows, alike)
        weighed, stays = weights[0] != 0, weights[0] == was[0]
        if 2 * (weighed & (alike | stays) & ~new).sum() < weighed.sum():
            # Most λ_i follow no common law: start again from the sum over λ alone, in the rows' dtype.
            sums = torch.zeros_like(self.sums)
            sums[0] = now.table.mix(now.lam)
            return WeightedSum(sums, torch.zeros_like(self.alike), torch.zeros_like(self.updates))
        follow = torch.eye(len(was), dtype=torch.float64)  # (K, K) what the law makes of the sums
        follow[0] = torch.tensor([law.scale, -law.shift, law.scale * step], dtype=torch.float64)[: len(was)]
        led = follow @ was
        other = ((weights[0] - led[0]).abs() > ROUNDING) | (weights[1:] != led[1:]).any(0)
        needed, part = (weights != 0).any(0), other & ~new
        everybody = self.alike.index_copy(0, rows, alike)
        if self.updates + 1 >= REFRESH or part.sum() + 2 * new.sum() >= needed.sum():
            sums = now.table.sums(rows[needed], weights[:, needed])
            return WeightedSum(sums, everybody, torch.zeros_like(self.updates))
        sums = follow.to(self.sums) @ self.sums
        sums += now.table.sums(rows[part], (weights - led)[:, part])
        sums += now.table.sums(rows[new], weights[:, new])
        sums -= before.table.sums(rows[new], led[:, new])
        return WeightedSum(sums, everybody, self.updates + 1)


def _law_of(target: Tensor, lam: Tensor, usual: Tensor) -> tuple[Law, Tensor]:
    """The law that most λ_i (k,) follow, and which of them do, (k,) bool.

    A projection keeps the order of its targets, so that λ_i between the least and the greatest are at no bound. The
    candidates are, most likely first, the law through two such λ_i, that of the greatest and that of the least.
    """
    if lam.numel():
        low, high = int(lam.argmin()), int(lam.argmax())
        laws = [Law(1.0, float(target[j] - lam[j])) for j in (high, low)]
        between = ((lam > lam[low]) & (lam < lam[high])).nonzero().flatten()
        if between.numel():
            a, b = int(between[lam[between].argmin()]), int(between[lam[between].argmax()])
            way, rise = float(target[b] - target[a]), float(lam[b] - lam[a])
            # Two close points do not tell a scale that is nearly 1 from 1.
            scale = rise / way if way > 0 and abs(rise - way) > ROUNDING else 1.0
            laws.insert(0, Law(scale, scale * float(target[b]) - float(lam[b])))
    else:
        laws = [Law(1.0, 0.0)]
    found = [(law, law.holds(target, lam)) for law in laws]
    return max(found, key=lambda pair: int((pair[1] & usual).sum()))
