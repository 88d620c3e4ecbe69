"""The worst client: an interval for its true score, and the clients that it could be."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drfl.assessment.scores import Floats, Scores, select

CELLS = (16, 128)
"""Into how many cells the values of θ are divided, fewest and most; a cell's p-value is that of its worst ends."""

EVALUATIONS = 2_000_000
"""Of tails: with very many clients cells are wider, so p-values larger, in place of minutes of work."""

NEGLIGIBLE = 1e-3
"""Cells are narrow where a rival's p-value is more than this away from 0 and 1; of α at most a fiftieth."""

TAIL = 10.0 ** -np.geomspace(1, 295, 16)
"""Cells end at these fractions of it too, so that p-values are as small as the rows make them."""


class WorstScore(NamedTuple):
    """min_i μ_i, the true score of the client that is truly the worst, whoever that is.

    Args:
        value: the smallest measured score, which is biased downwards: it is a minimum of noisy numbers.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


def worst_score(scores: Scores, alpha: float = 0.05) -> WorstScore:
    """An interval for min_i μ_i that is valid although the minimum was chosen by looking.

    The lower end needs no correction for N: the truly worst client is one client, fixed before the data, whose own
    bound fails with probability α/2, and the smallest of all bounds is no larger than its. The upper end does, as any
    client's bound may be the smallest: each is at α/(2N) (Bonferroni).

    Args:
        scores: of N clients.
        alpha: the probability that the interval misses.
    """
    n = np.count_nonzero(scores.n)
    low, high = scores.lower(alpha / 2), scores.upper(alpha / 2 / max(1, n))
    return WorstScore(float(np.nanmin(scores.values)), float(low.min()), float(high.min()))


def could_be_worst(scores: Scores, alpha: float = 0.05, *, independent: bool = True) -> Floats:
    """p-values (N,) of the hypotheses that client i is the worst: μ_i ≤ μ_j for all j.

    The clients with p > α are a confidence set: a client that is truly the worst is left out with probability at most
    α. Under the hypothesis there is a θ, which is μ_i, with μ_i ≤ θ and θ ≤ μ_j for all others. For each θ the p-value
    of the first, from client i's rows, and that of the second, from the others', are combined, and the largest over θ
    is taken.

    Args:
        scores: of N clients.
        alpha: level of interest: cells are narrow where it is decided; smaller p-values are larger than they need be.
        independent: whether no two clients share a test row; then the two are combined by Fisher's product, else by
            Bonferroni.
    """
    return Rivals.of(scores, alpha).beat(scores, np.arange(len(scores.n)), independent=independent)


class Rivals(NamedTuple):
    """The evidence that some client's true score lies below θ, in C cells of θ that cover the range.

    Within a cell "the client is above θ" is least surprising at the upper end, "a rival is below θ" at the lower one:
    p-values of the two together bound those of every θ of the cell.

    Args:
        high: (C,) upper ends.
        first: (C,) smallest p-value of a rival's μ_j ≥ θ at the lower ends.
        second: (C,) smallest but one.
        who: (C,) whose the smallest is.
        many: rivals of a client, N − 1, for whom the smallest is corrected (Bonferroni).
        range: of scores.
    """

    high: Floats
    first: Floats
    second: Floats
    who: NDArray[np.intp]
    many: int
    range: tuple[float, float]

    @classmethod
    def of(cls, scores: Scores, alpha: float) -> Rivals:
        """Of N clients, for decisions at level α."""
        (least, most), many = scores.range, len(scores.n) - 1
        others = max(1, np.count_nonzero(scores.n) - 1)
        # The narrow cells cover the θ at which the smallest p-value, times N − 1, is neither 1 nor negligible. A client
        # is compared with rivals at a fraction of α, so `negligible` has to be far below it.
        negligible = min(NEGLIGIBLE, alpha / 50)
        start = float(np.min(scores.upper((1 - negligible) / others)))
        if np.isfinite(start):
            upper = scores.upper(negligible / others)
            end = max(start, float(np.min(upper)))
            cells = int(np.clip(EVALUATIONS / len(scores.n), *CELLS))
            narrow = np.linspace(start, end, cells - 1)
            # Any edges are valid. In the far tail use the quantiles of two rivals: those of many clients are slow
            # there.
            lowest = np.unique([np.argmin(upper), np.argmin(scores.upper(negligible * TAIL[8] / others))])
            beyond = select(scores, lowest).upper(negligible * TAIL[:, None] / others).min(1)
            tail = np.maximum.accumulate(np.clip(np.nan_to_num(beyond, nan=most, posinf=most), end, most))
        else:  # unbounded scores, and no client has two rows
            narrow, tail = np.array([most]), np.array([])
        edges = np.concatenate([[least], narrow, tail, [most]])
        if not many:
            none = np.ones(len(edges) - 1)
            return cls(edges[1:], none, none, np.zeros(len(none), np.intp), 1, scores.range)
        # Who may have one of the two smallest in a narrow cell: p falls as θ grows, so that the ends tell. Beyond them
        # the same rivals will do: without the others a p-value is larger, at most.
        places = np.flatnonzero(scores.below(narrow[-1]) <= np.sort(scores.below(narrow[0]))[1])
        p = select(scores, places).below(edges[:-1, None])
        order = np.argsort(p, axis=1, kind="stable")[:, :2]
        first, second = np.take_along_axis(p, order, 1).T
        return cls(edges[1:], first, second, places[order[:, 0]], many, scores.range)

    def beat(self, scores: Scores, clients: NDArray[np.intp], delta: float = 0.0, *, independent: bool) -> Floats:
        """p-values (k,) of the hypotheses that some clients' μ_i − δ is at most every rival's μ_j, j ≠ i.

        Args:
            scores: those of the clients; of another model than the rivals' where two are compared.
            clients: (k,) who.
            delta: δ.
            independent: whether no two clients share a test row; then the p-values of a client and of its rivals are
                combined by Fisher's product, else by Bonferroni.
        """
        combine = fisher if independent else bonferroni
        above = select(scores, clients).above(np.clip(self.high + delta, *self.range)[:, None])
        rival = np.where(clients == self.who[:, None], self.second[:, None], self.first[:, None])
        return combine(above, np.minimum(1.0, self.many * rival)).max(0)


def fisher(p: Floats, q: Floats) -> Floats:
    """The p-value of the product of two independent p-values (Fisher 1932)."""
    product = p * q
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(product > 0, np.minimum(1.0, product * (1 - np.log(product))), 0.0)


def bonferroni(p: Floats, q: Floats) -> Floats:
    """That of the smaller of two p-values, however they depend on each other."""
    return np.minimum(1.0, 2 * np.minimum(p, q))
