"""Choose a model by its worst client on validation rows, with allowance for noise and for the number of candidates.

The candidates are ordered from simple to complex. A candidate replaces the simplest one if it has less loss both in its
worst group and on average over the groups. If only its worst group is better, the other groups pay for it, or labels in
the worst group are wrong; then the gain must be significant (Holm's correction over the candidates). A group is a
client, or all clients with few rows.

The test is an intersection–union test. "The candidate's worst group is not better than the reference's" says that some
group g of the candidate loses at least as much as every group of the reference. It must be rejected for each g: either
by the paired rows of g, or because the candidate loses less in g than the reference does in another group, each at half
the level. A bootstrap of the two measured maxima cannot replace this: if a candidate improves every group but the worst
one, a bootstrap often calls the worst group better.

Everything follows from sums over the rows of each client, so no row has to leave a client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import binom, stdtr

from drfl.assessment.row_moments import RowMoments
from drfl.assessment.scores import Floats
from drfl.assessment.seeds import EQUAL, LEVEL, holm

FEW = 20
"""Clients with fewer validation rows, or patients, are judged together: a mean of few losses decides nothing."""

ERRORS = 2.0
"""Minimum gain of a client's personal model over the global one, in standard errors."""


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
        sizes: (N,) Validation rows of each client, or its patients among them.

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


def worst_group(losses: RowMoments) -> tuple[int, float]:
    """Return the group with the largest mean loss, and that mean."""
    worst = int(np.argmax(losses.mean))
    return worst, float(losses.mean[worst])


def average_loss(losses: RowMoments) -> float:
    """Return the average over the groups of their mean losses."""
    return float(losses.mean.mean())


def worst_group_p(reference: RowMoments, candidate: RowMoments, gain: RowMoments, *, independent: bool = True) -> float:
    """Compute the p-value of "the candidate's worst group is not better than the reference's".

    It is approximate, because it uses Student's t for losses, which have no bound. Equal values have no t statistic, so
    their p-value is that of the sign flips of n gains, 1/2ⁿ, or of the permutations of two groups.

    Args:
        reference: Losses of the reference in each group.
        candidate: Losses of the candidate on the same rows.
        gain: Their differences on these rows, reference minus candidate.
        independent: Whether no two groups share a row.
    """

    def p_value(gain: Floats, error: Floats, freedom: Floats, least: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            # 0/0 is NaN: models that agree in every row provide no evidence.
            t = np.where(gain == 0, 0.0, gain / np.sqrt(error))
        p = stdtr(np.maximum(1.0, freedom), -t)
        return np.where(error <= (EQUAL * gain) ** 2, np.maximum(p, least), p)

    # Group g with the candidate against the same rows with the reference.
    paired = p_value(gain.mean, gain.error, gain.units - 1, 0.5**gain.units)
    if len(paired) == 1 or not independent:
        return float(paired.max())
    # Group g with the candidate (rows) against group h with the reference (columns), by Welch's test.
    a, a_error, b, b_error = reference.mean, reference.error, candidate.mean, candidate.error
    error = b_error[:, None] + a_error
    scale = np.maximum(1, gain.units - 1)
    with np.errstate(invalid="ignore"):
        freedom = np.nan_to_num(error**2 / ((b_error**2 / scale)[:, None] + a_error**2 / scale), nan=1.0)
    others = p_value(a - b[:, None], error, freedom, 1 / binom(gain.units[:, None] + gain.units, gain.units))
    np.fill_diagonal(others, 1.0)
    # Bonferroni: half of the level for the paired rows, and half for the other G − 1 groups together.
    return float(np.minimum(1.0, 2 * np.minimum(paired, (len(paired) - 1) * others.min(1))).max())


def choose(
    losses: Sequence[RowMoments | None],
    gains: Callable[[int, Sequence[int]], Sequence[RowMoments]],
    eligible: Sequence[bool],
    *,
    independent: bool = True,
) -> Choice:
    """Choose the candidate with the smallest loss in its worst group, among those preferred to the simplest one.

    Args:
        losses: (k) Losses of each candidate in each group, the simplest candidate first; None is not eligible.
        gains: Returns the differences of losses on the same rows, the first candidate's minus those of each other one.
        eligible: (k) Whether a candidate is not excluded; at least one is.
        independent: Whether no two groups share a row.
    """
    known = {k: each for k, (each, may) in enumerate(zip(losses, eligible, strict=True)) if may and each is not None}
    reference, *others = known
    p = np.full(len(losses), np.nan)
    for k, gain in zip(others, gains(reference, others) if others else (), strict=True):
        p[k] = worst_group_p(known[reference], known[k], gain, independent=independent)
    p = holm(p)
    worst = {k: worst_group(each)[1] for k, each in known.items()}
    average = {k: average_loss(each) for k, each in known.items()}
    preferred = [k for k in others if p[k] <= LEVEL or average[k] < average[reference]]
    # The simplest one is the first, so it is chosen if no other one has less loss in its worst group.
    return Choice(min([reference, *preferred], key=worst.__getitem__), reference, p)


def is_clear_gain(gains: Floats, patients: NDArray[np.intp] | None = None) -> bool:
    """Return whether a client's mean gain exceeds :data:`ERRORS` standard errors, with :data:`FEW` rows or patients.

    Args:
        gains: (n,) Paired differences of the losses on the client's validation rows.
        patients: (n,) Patient of each row; None if rows are independent.
    """
    if not len(gains):
        return False
    moments = RowMoments.of(gains, np.zeros(len(gains), dtype=np.intp), patients)
    return bool(moments.units >= FEW and moments.mean > ERRORS * np.sqrt(moments.error))
