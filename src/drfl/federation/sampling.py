"""Who takes part in a round: clients drawn uniformly, by λ, or everybody, and how much each counts."""

from __future__ import annotations

import operator
from typing import NamedTuple, Protocol, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.key import Key

FEW = 10
"""Clients up to which everybody is asked where no cohort's size is given."""


MANY = 2**16
"""Clients above which draws with replacement go by blocks."""

BLOCK = 1024
"""Clients in such a block."""


class Cohort(NamedTuple):
    """The clients of a round and how much each counts.

    Args:
        clients: (k,) distinct client indices, ascending, int64.
        counts: (k,) float64 weights: how often a client was drawn, or its λ_i.
    """

    clients: Tensor
    counts: Tensor

    def weights_of(self, answered: Tensor) -> Tensor:
        """Weights (k',) float64 of those who answered, in their order, summing to 1.

        Args:
            answered: (k',) clients of this cohort in any order.

        Raises:
            ValueError: If somebody answered who was not asked, or twice.
        """
        if answered.unique().numel() != answered.numel():
            raise ValueError("a client answered twice")
        # Bisection suits large cohorts, whose clients are ascending.
        at = torch.searchsorted(self.clients, answered)
        if bool((self.clients[at.clamp(max=self.clients.numel() - 1)] != answered).any()):
            raise ValueError("a client answered who was not asked")
        counts = self.counts[at]
        total = counts.sum()
        # Of clients weighted by λ only those of weight 0 may answer: then they count alike.
        return counts / total if total > 0 else torch.full_like(counts, 1 / max(counts.numel(), 1))


class Sampling(Protocol):
    """A way to choose a round's clients, given weights (N,) that sum to 1 and the cohort's size m."""

    def __call__(self, weights: Tensor, m: int, key: Key) -> Cohort:
        """Draw the cohort of this key."""
        ...


def with_replacement(weights: Tensor, m: int, key: Key) -> Cohort:
    """m independent draws i ~ λ; a client drawn twice counts twice.

    The mean over the cohort is then an unbiased estimate of Σ_i λ_i x_i (DRFA and DRDM, Lemma 1).
    """
    uniforms = key.generator().random(m)
    if len(weights) > MANY:
        # With very many clients a cumulative sum over all of them would take most of the time.
        drawn = _from_blocks(weights.double().cpu().numpy(), uniforms)
    else:
        law = _probabilities(weights).cumsum()  # numpy's `choice` does the same, and looks at every weight more often
        drawn = (law / law[-1]).searchsorted(uniforms, side="right")
    # A client drawn twice trains once, and its reply counts twice.
    clients, counts = np.unique(drawn, return_counts=True)
    return Cohort(torch.from_numpy(clients), torch.from_numpy(counts).double())


def without_replacement(weights: Tensor, m: int, key: Key) -> Cohort:
    """m distinct clients, drawn one after another by λ among those not yet drawn; all count alike.

    The mean over such a cohort is biased towards clients with small λ_i.

    Raises:
        InputError: If fewer than m clients have λ_i > 0.
    """
    positive = int((weights > 0).sum())
    if positive < m:
        raise InputError(
            f"only {positive} clients have a weight above 0, fewer than the cohort's m={m}: draw with replacement, "
            "lower m, or give the ambiguity set a floor",
            code="few-clients",
            field="m",
        )
    drawn = key.generator().choice(len(weights), size=m, replace=False, p=_probabilities(weights))
    return _equal(np.sort(drawn))


def everybody(weights: Tensor, m: int, key: Key) -> Cohort:
    """All N clients, each counting λ_i: the exact mean Σ_i λ_i x_i without the noise of sampling. Ignores m and key."""
    return Cohort(torch.arange(len(weights)), weights.double().cpu())


def uniform_weighted(weights: Tensor, m: int, key: Key) -> Cohort:
    """m distinct clients, drawn uniformly, each counting λ_i: importance weights, normalised over who answers.

    A client with λ_i = 0 may be drawn, and then counts nothing unless all who answer have λ_i = 0. The mean over such a
    cohort is biased towards the uniform mean, less the larger m is; with m = N it is exact, as with :func:`everybody`.

    Raises:
        InputError: If m > N.
    """
    clients = uniform(len(weights), m, key).clients
    return Cohort(clients, weights.double().cpu()[clients])


def uniform(n: int, m: int, key: Key) -> Cohort:
    """m of n clients, uniform without replacement; all count alike.

    Raises:
        InputError: If m > n.
    """
    check_size(m, n)
    if m == n:
        return _equal(np.arange(n))
    return _equal(np.sort(key.generator().choice(n, size=m, replace=False)))


def size(m: int | None, n: int) -> int:
    """The cohort's size m; where it is None, all of up to ten clients, and else two thirds of them, as in DRDM's paper.

    Raises:
        InputError: If m < 1 or m > n.
    """
    if m is None:
        return n if n <= FEW else round(n * 2 / 3)
    check_size(m, n)
    return m


def check_size(m: int, n: int) -> None:
    """Raise an :class:`InputError` unless 1 ≤ m ≤ n."""
    if not isinstance(m, SupportsIndex) or not 1 <= operator.index(m) <= n:
        raise InputError(
            f"the cohort's size m={m} must be between 1 and the number of clients, {n}", code="out-of-range", field="m"
        )


def _equal(clients: np.ndarray) -> Cohort:
    return Cohort(torch.from_numpy(clients), torch.ones(len(clients), dtype=torch.float64))


def _from_blocks(weights: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """A draw for each uniform, with probabilities in the ratio of the weights.

    The draws of the sum up to every client, but for rounding: first the block is found, then the client in it, so that
    every weight is only looked at once.
    """
    starts = np.arange(0, len(weights), BLOCK)
    # Cumulative sums are only needed within the blocks that are drawn, below.
    sums = np.add.reduceat(weights, starts)
    ends = sums.cumsum()
    at = uniforms * ends[-1]
    drawn = np.empty(len(uniforms), dtype=np.int64)
    for j, block in enumerate(ends.searchsorted(at, side="right").tolist()):
        within = weights[starts[block] : starts[block] + BLOCK].cumsum()
        # Rounding may lead to either side of the block: to its first or last client of a weight above 0 then.
        rest = min(max(at[j] - (ends[block] - sums[block]), 0.0), np.nextafter(within[-1], 0.0))
        drawn[j] = starts[block] + within.searchsorted(rest, side="right")
    return drawn


def _probabilities(weights: Tensor) -> np.ndarray:
    p = weights.double().cpu().numpy()
    return p / p.sum()
