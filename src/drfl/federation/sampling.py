"""Client sampling: choose the cohort of a round uniformly, by λ, or as all clients, and its weights."""

from __future__ import annotations

import math
import operator
from typing import NamedTuple, Protocol, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from drfl.ambiguity.ambiguity_set import ROUNDING
from drfl.core.errors import InputError
from drfl.core.key import Key

FEW = 10
"""Maximum number of clients for which the default cohort is all clients."""


MANY = 2**16
"""Number of clients above which sampling with replacement uses blocks."""

BLOCK = 1024
"""Number of clients per block."""


class Cohort(NamedTuple):
    """The clients of a round and their weights.

    Args:
        clients: Distinct client indices, ascending, int64 (k,).
        counts: Weights, float64 (k,): how often a client was drawn, or its λ_i.
    """

    clients: Tensor
    counts: Tensor

    def weights_of(self, answered: Tensor) -> Tensor:
        """Return the weights of the clients that answered, in their order and summing to 1, float64 (k',).

        Args:
            answered: Clients of this cohort in any order, (k',).

        Raises:
            ValueError: If a client answered twice, or is not in the cohort.
        """
        if answered.unique().numel() != answered.numel():
            raise ValueError("a client answered twice")
        # Clients are ascending, so bisection finds their positions quickly even in large cohorts.
        positions = torch.searchsorted(self.clients, answered)
        if bool((self.clients[positions.clamp(max=self.clients.numel() - 1)] != answered).any()):
            raise ValueError("a client answered that is not in the cohort")
        counts = self.counts[positions]
        total = counts.sum()
        # If weights are λ_i, possibly only clients of weight 0 answer. Then they have equal weights.
        return counts / total if total > 0 else torch.full_like(counts, 1 / max(counts.numel(), 1))


class Sampling(Protocol):
    """A method to choose the cohort of a round."""

    def __call__(self, weights: Tensor, m: int, key: Key) -> Cohort:
        """Draw a cohort.

        Args:
            weights: Client weights (N,), which sum to 1.
            m: Cohort size.
            key: Key of the random draws.
        """
        ...


def with_replacement(weights: Tensor, m: int, key: Key) -> Cohort:
    """Draw m clients independently with probabilities λ. A client drawn twice counts twice.

    The mean over the cohort is an unbiased estimate of Σ_i λ_i x_i (DRFA and DRDM, Lemma 1).

    Raises:
        InputError: If a weight is negative, or their sum is not a positive number.
    """
    uniforms, numbers = key.generator().random(m), _checked(weights)
    if len(numbers) > MANY:
        # With very many clients, a cumulative sum over all of them would take most of the time.
        drawn = _from_blocks(numbers, uniforms)
    else:
        # NumPy's `choice` does the same but passes over the weights more often.
        cumulative = (numbers / numbers.sum()).cumsum()
        # Divided by itself, the last sum is exactly 1 and above every uniform number.
        drawn = (cumulative / cumulative[-1]).searchsorted(uniforms, side="right")
    # A client drawn twice trains once, and its reply counts twice.
    clients, counts = np.unique(drawn, return_counts=True)
    return Cohort(torch.from_numpy(clients), torch.from_numpy(counts).double())


def without_replacement(weights: Tensor, m: int, key: Key) -> Cohort:
    """Draw m distinct clients one after another, with probabilities λ among those not yet drawn, and equal weights.

    The mean over the cohort is biased towards clients with small λ_i.

    Raises:
        InputError: If a weight is negative, or fewer than m clients have λ_i > 0.
    """
    numbers = _checked(weights)
    positive = int((numbers > 0).sum())
    if positive < m:
        raise InputError(
            f"only {positive} clients have a weight above 0, fewer than the cohort size m={m}. Sample with "
            "replacement, lower m, or set a floor in the ambiguity set.",
            code="few-clients",
            field="m",
        )
    drawn = key.generator().choice(len(weights), size=m, replace=False, p=numbers / numbers.sum())
    return _equal(np.sort(drawn))


def all_clients(weights: Tensor, m: int, key: Key) -> Cohort:
    """Choose all N clients with weights λ_i, ignoring ``m`` and ``key``: Σ_i λ_i x_i without sampling noise.

    Raises:
        InputError: If a weight is negative, or their sum is not a positive number.
    """
    return Cohort(torch.arange(len(weights)), torch.from_numpy(_checked(weights)))


def uniform_weighted(weights: Tensor, m: int, key: Key) -> Cohort:
    """Draw m distinct clients uniformly, with importance weights λ_i normalised over the clients that answer.

    A client with λ_i = 0 may be drawn. It has weight 0 unless all clients that answer have λ_i = 0. The mean over the
    cohort is biased towards the uniform mean. The bias decreases with m. For m = N, the mean is exact, as with
    :func:`all_clients`.

    Raises:
        InputError: If m > N, a weight is negative, or their sum is not a positive number.
    """
    clients = uniform(len(weights), m, key).clients
    return Cohort(clients, torch.from_numpy(_checked(weights))[clients])


def uniform(n: int, m: int, key: Key) -> Cohort:
    """Draw m of n clients uniformly without replacement, with equal weights.

    Raises:
        InputError: If m > n.
    """
    check_size(m, n)
    if m == n:
        return _equal(np.arange(n))
    return _equal(np.sort(key.generator().choice(n, size=m, replace=False)))


def check_sampling(sampling: object) -> None:
    """Raise InputError unless this may be a :class:`Sampling`."""
    # The function `uniform` takes the number of clients instead of their weights.
    if isinstance(sampling, type) or not callable(sampling) or sampling is uniform:
        name = "drfl.sampling.uniform" if sampling is uniform else f"{sampling!r:.60}"
        remedy = " For uniform draws, use drfl.sampling.uniform_weighted." if "uniform" in name else ""
        raise InputError(
            f"sampling must be a function of weights, m and key such as drfl.sampling.without_replacement, got "
            f"{name}.{remedy}",
            code="wrong-type",
            field="sampling",
        )


def draw(sampling: Sampling, weights: Tensor, m: int, key: Key) -> Cohort:
    """Draw a cohort, and check it if the function is a user's.

    Raises:
        InputError: If a user's function returns something else than a cohort of the clients.
    """
    cohort: object = sampling(weights, m, key)
    if getattr(sampling, "__module__", None) == __name__ and isinstance(cohort, Cohort):
        return cohort
    name, n = getattr(sampling, "__name__", type(sampling).__name__), len(weights)
    expected = "drfl.sampling.Cohort(clients, counts), with distinct clients in"
    if not (isinstance(cohort, Cohort) and all(isinstance(part, Tensor) and part.dim() == 1 for part in cohort)):
        raise InputError(
            f"the sampling function {name} must return {expected} 0..{n - 1}, got {cohort!r:.60}",
            code="wrong-type",
            field="sampling",
        )
    clients, counts = cohort.clients.long(), cohort.counts.double()
    distinct = clients.unique()
    is_valid = len(counts) == len(clients) == len(distinct) > 0 and distinct[0] >= 0 and distinct[-1] < n
    if not (is_valid and 0 <= float(counts.min()) <= float(counts.max()) < math.inf):
        raise InputError(
            f"the sampling function {name} must return {expected} 0..{n - 1} and one count of at least 0 per client, "
            f"got clients {clients.tolist()!s:.60} and counts {counts.tolist()!s:.60}",
            code="out-of-range",
            field="sampling",
        )
    order = clients.argsort()
    return Cohort(clients[order], counts[order])


def size(m: int | None, n: int) -> int:
    """Return the cohort size m or its default.

    The default is all clients if there are at most ten, and two thirds of them otherwise, as in DRDM's paper.

    Raises:
        InputError: If m < 1 or m > n.
    """
    if m is None:
        return n if n <= FEW else round(n * 2 / 3)
    check_size(m, n)
    return m


def check_size(m: int, n: int) -> None:
    """Raise InputError unless 1 ≤ m ≤ n."""
    if isinstance(m, bool) or not isinstance(m, SupportsIndex) or not 1 <= operator.index(m) <= n:
        raise InputError(
            f"the cohort size must be between 1 and {n} (the number of clients), got m={m!r}",
            code="out-of-range",
            field="m",
        )


def _equal(clients: np.ndarray) -> Cohort:
    return Cohort(torch.from_numpy(clients), torch.ones(len(clients), dtype=torch.float64))


def _from_blocks(weights: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Draw a client for each uniform number, with probabilities proportional to the weights.

    The result equals that of a cumulative sum over all clients, except for rounding. To visit each weight only once,
    the block is determined first and then the client in the block.
    """
    starts = np.arange(0, len(weights), BLOCK)
    # Cumulative sums over clients are only needed in the blocks that are drawn, below.
    sums = np.add.reduceat(weights, starts)
    ends = sums.cumsum()
    targets = uniforms * ends[-1]
    drawn = np.empty(len(uniforms), dtype=np.int64)
    for j, block in enumerate(ends.searchsorted(targets, side="right").tolist()):
        within = weights[starts[block] : starts[block] + BLOCK].cumsum()
        # Rounding may lead outside the block. Then its first or last client with a weight above 0 is drawn.
        rest = min(max(targets[j] - (ends[block] - sums[block]), 0.0), np.nextafter(within[-1], 0.0))
        drawn[j] = starts[block] + within.searchsorted(rest, side="right")
    return drawn


def _checked(weights: Tensor) -> np.ndarray:
    """Return the weights as float64 (N,), without the rounding errors below 0 that a projection may leave."""
    numbers = weights.double().cpu().numpy()
    least, total = float(numbers.min()), float(numbers.sum())
    if not (least >= -ROUNDING and 0 < total < math.inf):
        raise InputError(
            f"the weights of the clients must be at least 0 and have a positive sum, got a smallest weight of "
            f"{least:.3g} and a sum of {total:.3g}",
            code="out-of-range",
            field="weights",
        )
    return numbers.clip(0) if least < 0 else numbers
