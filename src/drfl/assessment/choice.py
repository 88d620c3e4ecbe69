"""Choose a model by its worst client on validation rows, with allowance for noise and for the number of candidates.

The candidates are ordered from simple to complex. The simplest one is left only for a candidate whose worst group is
significantly better (Holm's correction over the candidates). A group is a client, or all clients with few rows.

The test is an intersection–union test. "The candidate's worst group is not better than the reference's" says that some
group g of the candidate loses at least as much as every group of the reference. It must be rejected for each g: either
by the paired rows of g, or because the candidate loses less in g than the reference does in another group, each at half
the level. No bootstrap of the two measured maxima can replace this. If a candidate improves every group but the worst
one, such a bootstrap calls the worst group better in 37 to 66 % of all cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from drfl.assessment.scores import Floats
from drfl.assessment.seeds import LEVEL, holm

FEW = 20
"""Clients with fewer validation rows are judged together, because the mean of two to four losses decides nothing."""

ERRORS = 2.0
"""Standard errors by which a client's personal model must be better than the global one."""


class Choice(NamedTuple):
    """The outcome of :func:`choose` for k candidates.

    Args:
        chosen: Index of the chosen candidate.
        reference: Index of the simplest candidate that is not excluded.
        p: (k,) p-values of "no better than the reference in the worst group", Holm-adjusted; NaN for the reference and
            for excluded candidates.
    """

    chosen: int
    reference: int
    p: Floats


def group_clients(sizes: Sequence[int]) -> NDArray[np.intp]:
    """Return the group of each client; clients with fewer than :data:`FEW` rows share one.

    If these have fewer rows even together, the smallest other client joins them.

    Args:
        sizes: (N,) Validation rows of each client.

    Returns:
        (N,) Groups, numbered from 0 by their first client.
    """
    n = np.asarray(sizes)
    small = n < FEW
    if 0 < n[small].sum() < FEW and not small.all():
        small[np.flatnonzero(~small)[np.argmin(n[~small])]] = True
    labels = np.where(small, len(n), np.arange(len(n)))
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def worst_group(losses: Floats, groups: NDArray[np.intp]) -> tuple[int, float]:
    """Return the group with the largest mean loss, and that mean.

    Args:
        losses: (n,) Loss of each row.
        groups: (n,) Group of each row.
    """
    means = np.bincount(groups, losses) / np.bincount(groups)
    worst = int(np.argmax(means))
    return worst, float(means[worst])


def worst_group_p(reference: Floats, candidate: Floats, groups: NDArray[np.intp], *, independent: bool = True) -> float:
    """Compute the p-value of "the candidate's worst group is not better than the reference's".

    It is approximate, because it uses Student's t for losses, which have no bound.

    Args:
        reference: (n,) Loss of the reference on each row.
        candidate: (n,) Loss of the candidate on the same rows.
        groups: (n,) Group of each row, numbered from 0.
        independent: Whether no two groups share a row.
    """
    n = np.bincount(groups).astype(np.float64)

    def moments(x: Floats) -> tuple[Floats, Floats]:
        """Return the groups' means and the squared errors of these."""
        mean = np.bincount(groups, x) / n
        return mean, np.bincount(groups, (x - mean[groups]) ** 2) / np.maximum(1, n - 1) / n

    def p_value(gain: Floats, error: Floats, freedom: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            # 0/0 is NaN: models that agree in every row show nothing.
            t = np.where(gain == 0, 0.0, gain / np.sqrt(error))
        return stdtr(np.maximum(1.0, freedom), -t)

    # Group g with the candidate against the same rows with the reference.
    paired = p_value(*moments(reference - candidate), n - 1)
    if len(n) == 1 or not independent:
        return float(paired.max())
    # Group g with the candidate (rows) against group h with the reference (columns), by Welch's test.
    (a, a_error), (b, b_error) = moments(reference), moments(candidate)
    error = b_error[:, None] + a_error
    scale = np.maximum(1, n - 1)
    with np.errstate(invalid="ignore"):
        freedom = np.nan_to_num(error**2 / ((b_error**2 / scale)[:, None] + a_error**2 / scale), nan=1.0)
    others = p_value(a - b[:, None], error, freedom)
    np.fill_diagonal(others, 1.0)
    # Bonferroni: half of the level for the paired rows, and half for the other G − 1 groups together.
    return float(np.minimum(1.0, 2 * np.minimum(paired, (len(n) - 1) * others.min(1))).max())


def choose(
    losses: Sequence[Floats], groups: NDArray[np.intp], eligible: Sequence[bool], *, independent: bool = True
) -> Choice:
    """Choose a candidate by the mean loss of its worst group.

    Args:
        losses: (k) Losses (n,) of each candidate on the same rows, the simplest candidate first.
        groups: (n,) Group of each row, numbered from 0.
        eligible: (k) Whether a candidate is not excluded; at least one is.
        independent: Whether no two groups share a row.
    """
    reference, *others = np.flatnonzero(eligible).tolist()
    p = np.full(len(losses), np.nan)
    for k in others:
        p[k] = worst_group_p(losses[reference], losses[k], groups, independent=independent)
    p = holm(p)
    better = [k for k in others if p[k] <= LEVEL]
    # All of these are significantly better than the simplest candidate, so the measured losses decide among them.
    chosen = min(better, key=lambda k: worst_group(losses[k], groups)[1], default=reference)
    return Choice(chosen, reference, p)


def is_clear_gain(gains: Floats) -> bool:
    """Return whether a client's mean gain exceeds :data:`ERRORS` standard errors, with at least :data:`FEW` rows.

    Args:
        gains: (n,) Paired differences of the losses on the client's validation rows.
    """
    return len(gains) >= FEW and bool(gains.mean() > ERRORS * gains.std(ddof=1) / np.sqrt(len(gains)))
