"""Tests of whether clients differ at all, and their spread without sampling noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from drfl.assessment.scores import BinaryScores, BoundedScores, RealScores, spreads

DRAWS = 9_999
"""Number of tables drawn under the hypothesis; p-values are multiples of 1/10,000."""

MOST = 10_000_000
"""Maximum count of numbers drawn. With more clients, draws are fewer and p-values coarser, but never too small."""

FEWEST = 199
"""Minimum number of tables drawn."""

ROWS = 1_000_000_000
"""NumPy draws a table only if it has fewer rows than this."""


class Homogeneity(NamedTuple):
    """Whether scores differ over clients by more than the sampling noise of the test sets.

    Args:
        p_spread: p-value of the hypothesis that all true scores are the same, from the spread over clients.
        p_worst: p-value of the same hypothesis, from the worst client's measured score; NaN if unknown.
        exact: Whether the p-values are valid for any sizes of the test sets.
        std: Population standard deviation of the measured scores over clients.
        std_true: Estimate of the same for the true scores, without sampling noise; NaN if a client has fewer than two
            rows.
    """

    p_spread: float
    p_worst: float
    exact: bool
    std: float
    std_true: float


def homogeneity(scores: BinaryScores | BoundedScores | RealScores) -> Homogeneity:
    """Test whether N ≥ 2 clients with rows have the same true score.

    For binary scores the tests are exact, given the total number of right answers, which under the hypothesis carries
    no information about the clients. Tables with the same margins are drawn (multivariate hypergeometric), and the
    observed table is counted among them (Dwass 1957). With 10⁹ rows or more, the clients are divided into parts with
    fewer rows, and the number of right answers is fixed in each part; this is exact too. For other scores the test is
    approximate: the larger p-value of the F test, for rows that vary equally at all clients, however few, and of
    Welch's test (1951), for clients that vary differently and have many rows. If all rows of every client are equal,
    nothing is known of their variance, and the p-value is 1.

    Args:
        scores: Scores of N clients, each with rows.
    """
    measured, std_true = float(np.var(scores.values)), np.nan
    if (scores.n >= 2).all():
        # E var(measured) = var(true) + (1 − 1/N)·mean of the clients' variances; each variance is estimated without
        # bias.
        squares = scores.count * (1 - scores.values) if isinstance(scores, BinaryScores) else spreads(scores)
        noise = float(np.mean(squares / (scores.n * (scores.n - 1)))) * (1 - 1 / len(scores.n))
        std_true = max(0.0, measured - noise) ** 0.5
    spread = measured**0.5, std_true
    if isinstance(scores, BinaryScores):
        # p-values by Pearson's χ² and by the smallest share, from drawn tables.
        # Split the clients until each part has fewer rows than NumPy's sampler accepts.
        count = 1
        while count < len(scores.n) and max(scores.n[k::count].sum() for k in range(count)) >= ROWS:
            count *= 2
        parts = [slice(k, None, count) for k in range(min(count, len(scores.n)))]
        n = scores.n.astype(np.int64)
        draws = int(np.clip(MOST // len(n), FEWEST, DRAWS))
        # The seed is fixed so that the same data give the same p-values.
        rng, below = np.random.Generator(np.random.Philox(0)), np.zeros(2)
        size = max(1, MOST // (10 * len(n)))  # tables per chunk; all at once would take gigabytes
        for start in range(0, draws, size):
            tables = np.tile(scores.count, (min(size, draws - start), 1))
            for part in parts:
                right = int(scores.count[part].sum())
                tables[:, part] = rng.multivariate_hypergeometric(n[part], right, size=len(tables), method="marginals")
            # Up to constants that depend only on the margins, χ² is Σ x²/n. Ties count against the observation.
            below[0] += np.count_nonzero((tables**2 / n).sum(1) >= (scores.count**2 / n).sum() * (1 - 1e-12))
            below[1] += np.count_nonzero((tables / n).min(1) <= scores.values.min() * (1 + 1e-12))
        # The observed table counts as one of the draws, which keeps a Monte Carlo p-value valid and above 0.
        p_spread, p_worst = (below + 1) / (draws + 1)
        return Homogeneity(float(p_spread), float(p_worst), True, *spread)
    return Homogeneity(_means_differ(scores), np.nan, False, *spread)


def _means_differ(scores: BoundedScores | RealScores) -> float:
    """Compute the larger p-value of two tests that all means are the same."""
    within = spreads(scores)
    between = float(scores.n @ (scores.values - scores.total.sum() / scores.n.sum()) ** 2)
    # A client whose rows are equal shows no variance, but its rows may vary. So it gets that of the other clients.
    varies = within > 0
    groups, rest = len(scores.n) - 1, float((scores.n - 1)[varies].sum())
    if not rest:
        return 1.0
    pooled = within.sum() / rest
    p = float(special.fdtrc(groups, rest, between / groups / pooled))
    several = scores.n > 1
    if np.count_nonzero(several) < 2:
        return p
    # Welch's test over the clients with at least two rows.
    n, means = scores.n[several], scores.values[several]
    weight, groups = n * (n - 1) / np.where(varies, within, (scores.n - 1) * pooled)[several], len(n) - 1
    mean = weight @ means / weight.sum()
    off = float(((1 - weight / weight.sum()) ** 2 / (n - 1)).sum()) / (groups * (groups + 2))
    f = float(weight @ (means - mean) ** 2) / groups / (1 + 2 * (groups - 1) * off)
    return max(p, float(special.fdtrc(groups, 1 / (3 * off), f)))
