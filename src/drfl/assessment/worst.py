"""The worst client: an interval for its true score, and the set of clients that could be the worst."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drfl.assessment.scores import Floats, Scores, select

CELLS = (16, 128)
"""Smallest and largest number of cells of θ; a cell's p-value is the one at its worst ends."""

EVALUATIONS = 2_000_000
"""Budget of tail probabilities. With very many clients the cells are wider and the p-values larger, to save time."""

NEGLIGIBLE = 1e-3
"""Cells are narrow if a rival's p-value is further than this from 0 and 1; at most a fiftieth of α."""

TAIL = 10.0 ** -np.geomspace(1, 295, 16)
"""Cells also end at these fractions of ``NEGLIGIBLE``, so that p-values are as small as the rows allow."""


class WorstScore(NamedTuple):
    """min_i μ_i, the true score of the client that is truly the worst, whichever it is.

    Args:
        value: The smallest measured score. It is biased downwards because it is a minimum of noisy numbers.
        low: Lower end of the interval.
        high: Upper end.
    """

    value: float
    low: float
    high: float


def worst_score(scores: Scores, alpha: float = 0.05) -> WorstScore:
    """Compute an interval for min_i μ_i that is valid although the minimum was selected by looking.

    The lower end needs no correction for N. The truly worst client is one client, fixed before the data, and its own
    bound fails with probability α/2; the smallest of all bounds is no larger than that one. The upper end needs one,
    because any client's bound may be the smallest: each bound is at level α/(2N) (Bonferroni).

    Args:
        scores: Scores of N clients.
        alpha: Probability that the interval misses.
    """
    n = np.count_nonzero(scores.n)
    low, high = scores.lower(alpha / 2), scores.upper(alpha / 2 / max(1, n))
    return WorstScore(float(np.nanmin(scores.values)), float(low.min()), float(high.min()))


def could_be_worst(scores: Scores, alpha: float = 0.05, *, independent: bool = True) -> Floats:
    """Compute p-values (N,) of the hypotheses that client i is the worst: μ_i ≤ μ_j for all j.

    The clients with p > α are a confidence set: the client that is truly the worst is missing with probability at most
    α. Under the hypothesis there is a θ, namely μ_i, with μ_i ≤ θ and θ ≤ μ_j for all others. For each θ, the p-value
    of the first statement, from client i's rows, is combined with that of the second, from the others' rows. The result
    is the largest combined p-value over θ.

    Args:
        scores: Scores of N clients.
        alpha: Level of interest. Cells of θ are narrow if they decide this level; p-values far below it are
            conservative.
        independent: Whether no two clients share a test row. If so, the two p-values are combined by Fisher's product,
            otherwise by Bonferroni.
    """
    return Rivals.of(scores, alpha).beat(scores, np.arange(len(scores.n)), independent=independent)


class Rivals(NamedTuple):
    """The evidence that some client's true score is below θ, in C cells of θ that cover the range.

    Within a cell, "the client is above θ" has its largest p-value at the upper end, and "a rival is below θ" at the
    lower end. The two p-values together bound those of every θ of the cell.

    Args:
        high: (C,) Upper ends.
        first: (C,) Smallest p-value of a rival's μ_j ≥ θ at the lower ends.
        second: (C,) Second smallest p-value.
        who: (C,) Index of the client with the smallest p-value.
        many: Number of rivals of a client, N − 1, for which the smallest p-value is corrected (Bonferroni).
        range: Range of the scores.
    """

    high: Floats
    first: Floats
    second: Floats
    who: NDArray[np.intp]
    many: int
    range: tuple[float, float]

    @classmethod
    def of(cls, scores: Scores, alpha: float) -> Rivals:
        """Collect the evidence of N clients, for decisions at level α."""
        (least, most), many = scores.range, len(scores.n) - 1
        others = max(1, np.count_nonzero(scores.n) - 1)
        # The narrow cells cover the θ at which the smallest p-value, times N − 1, is neither 1 nor negligible.
        # A client is compared with rivals at a fraction of α, so `negligible` must be far below α.
        negligible = min(NEGLIGIBLE, alpha / 50)
        start = float(np.min(scores.upper((1 - negligible) / others)))
        if np.isfinite(start):
            upper = scores.upper(negligible / others)
            end = max(start, float(np.min(upper)))
            cells = int(np.clip(EVALUATIONS / len(scores.n), *CELLS))
            narrow = np.linspace(start, end, cells - 1)
            # Any edges are valid. In the far tail use the quantiles of two rivals only, because quantiles are slow to
            # compute there.
            lowest = np.unique([np.argmin(upper), np.argmin(scores.upper(negligible * TAIL[8] / others))])
            beyond = select(scores, lowest).upper(negligible * TAIL[:, None] / others).min(1)
            tail = np.maximum.accumulate(np.clip(np.nan_to_num(beyond, nan=most, posinf=most), end, most))
        else:  # unbounded scores, and no client has two rows
            narrow, tail = np.array([most]), np.array([])
        edges = np.concatenate([[least], narrow, tail, [most]])
        if not many:
            ones = np.ones(len(edges) - 1)
            return cls(edges[1:], ones, ones, np.zeros(len(ones), np.intp), 1, scores.range)
        # Find the clients that may have one of the two smallest p-values in a narrow cell. p falls as θ grows, so the
        # ends suffice. Use the same rivals beyond the narrow cells: leaving out others can only increase a p-value.
        places = np.flatnonzero(scores.below(narrow[-1]) <= np.sort(scores.below(narrow[0]))[1])
        p = select(scores, places).below(edges[:-1, None])
        order = np.argsort(p, axis=1, kind="stable")[:, :2]
        first, second = np.take_along_axis(p, order, 1).T
        return cls(edges[1:], first, second, places[order[:, 0]], many, scores.range)

    def beat(self, scores: Scores, clients: NDArray[np.intp], delta: float = 0.0, *, independent: bool) -> Floats:
        """Compute p-values (k,) of the hypotheses that a client's μ_i − δ is at most every rival's μ_j, j ≠ i.

        Args:
            scores: Scores of the clients; from another model than the rivals' if two models are compared.
            clients: (k,) Indices of the clients.
            delta: The shift δ.
            independent: Whether no two clients share a test row. If so, the p-values of a client and of its rivals are
                combined by Fisher's product, otherwise by Bonferroni.
        """
        combine = fisher if independent else bonferroni
        above = select(scores, clients).above(np.clip(self.high + delta, *self.range)[:, None])
        rival = np.where(clients == self.who[:, None], self.second[:, None], self.first[:, None])
        return combine(above, np.minimum(1.0, self.many * rival)).max(0)


def fisher(p: Floats, q: Floats) -> Floats:
    """Compute the p-value of the product of two independent p-values (Fisher 1932)."""
    product = p * q
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(product > 0, np.minimum(1.0, product * (1 - np.log(product))), 0.0)


def bonferroni(p: Floats, q: Floats) -> Floats:
    """Compute the p-value of the smaller of two p-values with any dependence."""
    return np.minimum(1.0, 2 * np.minimum(p, q))
