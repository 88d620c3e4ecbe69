"""Choose a model by its worst client on validation rows, with allowance for noise and for the number of candidates.

The candidates are ordered from simple to complex. The simplest one is left only for a candidate whose worst group is
significantly better (Holm's correction over the candidates). A group is a client, or all clients with few rows.

The test is an intersection–union test. "The candidate's worst group is not better than the reference's" says that some
group g of the candidate loses at least as much as every group of the reference. It must be rejected for each g: either
by the paired rows of g, or because the candidate loses less in g than the reference does in another group, each at half
the level. A bootstrap of the two measured maxima cannot replace this: if a candidate improves every group but the worst
one, a bootstrap often calls the worst group better.

Rows of one patient may agree, so standard errors and degrees of freedom count patients, if there are some.
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
"""Clients with fewer validation rows, or patients, are judged together: a mean of few losses decides nothing."""

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


def worst_group(losses: Floats, groups: NDArray[np.intp]) -> tuple[int, float]:
    """Return the group with the largest mean loss, and that mean.

    Args:
        losses: (n,) Loss of each row.
        groups: (n,) Group of each row.
    """
    means = np.bincount(groups, losses) / np.bincount(groups)
    worst = int(np.argmax(means))
    return worst, float(means[worst])


def _means(x: Floats, groups: NDArray[np.intp], patients: NDArray[np.intp] | None) -> tuple[Floats, Floats, Floats]:
    """Return the groups' means, the squared errors of these, and the numbers of independent units.

    Args:
        x: (n,) Values of rows.
        groups: (n,) Group of each row.
        patients: (n,) Patient of each row; None if rows are independent.
    """
    n = np.bincount(groups)
    mean = np.bincount(groups, x) / n
    _, first, units = np.unique(
        np.arange(len(x)) if patients is None else patients, return_index=True, return_inverse=True
    )
    count = np.bincount(groups[first], minlength=len(n)).astype(np.float64)
    squares = np.bincount(groups[first], np.bincount(units, x - mean[groups]) ** 2, minlength=len(n))
    # The error of a mean over a single patient cannot be estimated.
    error = np.where(count > 1, count / np.maximum(1, count - 1) * squares / n**2, np.inf)
    return mean, error, count


def worst_group_p(
    reference: Floats,
    candidate: Floats,
    groups: NDArray[np.intp],
    *,
    patients: NDArray[np.intp] | None = None,
    independent: bool = True,
) -> float:
    """Compute the p-value of "the candidate's worst group is not better than the reference's".

    It is approximate, because it uses Student's t for losses, which have no bound.

    Args:
        reference: (n,) Loss of the reference on each row.
        candidate: (n,) Loss of the candidate on the same rows.
        groups: (n,) Group of each row, numbered from 0.
        patients: (n,) Patient of each row, each in one group; None if rows are independent.
        independent: Whether no two groups share a row.
    """

    def p_value(gain: Floats, error: Floats, freedom: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            # 0/0 is NaN: models that agree in every row show nothing.
            t = np.where(gain == 0, 0.0, gain / np.sqrt(error))
        return stdtr(np.maximum(1.0, freedom), -t)

    # Group g with the candidate against the same rows with the reference.
    gain, error, count = _means(reference - candidate, groups, patients)
    paired = p_value(gain, error, count - 1)
    if len(count) == 1 or not independent:
        return float(paired.max())
    # Group g with the candidate (rows) against group h with the reference (columns), by Welch's test.
    (a, a_error, _), (b, b_error, _) = (_means(x, groups, patients) for x in (reference, candidate))
    error = b_error[:, None] + a_error
    scale = np.maximum(1, count - 1)
    with np.errstate(invalid="ignore"):
        freedom = np.nan_to_num(error**2 / ((b_error**2 / scale)[:, None] + a_error**2 / scale), nan=1.0)
    others = p_value(a - b[:, None], error, freedom)
    np.fill_diagonal(others, 1.0)
    # Bonferroni: half of the level for the paired rows, and half for the other G − 1 groups together.
    return float(np.minimum(1.0, 2 * np.minimum(paired, (len(count) - 1) * others.min(1))).max())


def choose(
    losses: Sequence[Floats],
    groups: NDArray[np.intp],
    eligible: Sequence[bool],
    *,
    patients: NDArray[np.intp] | None = None,
    independent: bool = True,
) -> Choice:
    """Choose a candidate by the mean loss of its worst group.

    Args:
        losses: (k) Losses (n,) of each candidate on the same rows, the simplest candidate first.
        groups: (n,) Group of each row, numbered from 0.
        eligible: (k) Whether a candidate is not excluded; at least one is.
        patients: (n,) Patient of each row, each in one group; None if rows are independent.
        independent: Whether no two groups share a row.
    """
    reference, *others = np.flatnonzero(eligible).tolist()
    p = np.full(len(losses), np.nan)
    for k in others:
        p[k] = worst_group_p(losses[reference], losses[k], groups, patients=patients, independent=independent)
    p = holm(p)
    better = [k for k in others if p[k] <= LEVEL]
    # All of these are significantly better than the simplest candidate, so the measured losses decide among them.
    chosen = min(better, key=lambda k: worst_group(losses[k], groups)[1], default=reference)
    return Choice(chosen, reference, p)


def is_clear_gain(gains: Floats, patients: NDArray[np.intp] | None = None) -> bool:
    """Return whether a client's mean gain exceeds :data:`ERRORS` standard errors, with :data:`FEW` rows or patients.

    Args:
        gains: (n,) Paired differences of the losses on the client's validation rows.
        patients: (n,) Patient of each row; None if rows are independent.
    """
    if not len(gains):
        return False
    (mean,), (error,), (count,) = _means(gains, np.zeros(len(gains), dtype=np.intp), patients)
    return bool(count >= FEW and mean > ERRORS * np.sqrt(error))
