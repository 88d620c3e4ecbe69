"""Differences between two methods over seeds: paired t-test, sign flips, and Holm's correction for many of them.

A difference is tested if there are at least five pairs. :func:`verdict` calls it significant if both conditions hold:

- The p-value of the paired t-test, after Holm's correction over the family (:func:`holm_family`), is at most 0.05.
- With at least six pairs, the p-value of all sign flips is also at most 0.05, without a correction.

Sign flips alone cannot decide a table: n pairs have 2ⁿ sign patterns and no p-value below 2/2ⁿ. That is 0.031 at n = 6
and 0.002 at n = 10, but Holm's correction of 72 differences requires 0.0007 for the smallest one. The sign flips check
the assumption of the t-test that the differences are normal. A percentile bootstrap of few seeds cannot replace them:
it draws from n values, and its interval is too short. For normal differences with mean 0 it excludes 0 in about 26 % of
the cases at n = 3, 16 % at n = 5 and 10 % at n = 10, instead of 5 % (`evidence/bootstrap_null.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from drfl.core.errors import InputError

LEVEL = 0.05
"""Largest p-value at which a difference is significant; intervals have confidence 1 − LEVEL."""
T_FROM = 5
"""Minimum number of pairs for a test."""
FLIPS_FROM = 6
"""Minimum number of pairs for sign flips to reach LEVEL: 2/2ⁿ is 0.0625 at n = 5."""
EXACT_TO = 20
"""Maximum number of pairs for which all sign patterns are enumerated."""
FLIPS = 2**20
"""Number of sign patterns drawn if there are more pairs."""
EQUAL = 1e-9
"""Relative distance below which two numbers differ only by rounding."""

FAILED = "failed runs"
"""Verdict on an algorithm with runs that left no results: its other seeds are not a fair sample."""

UNTRAINED = "untrained models"
"""Verdict on an algorithm with runs that returned the initial model, see :func:`drfl.core.run_end.untrained_runs`."""

_BLOCK = 2**15


class SeedDifference(NamedTuple):
    """Mean and tests of paired differences, one value per seed.

    Args:
        n: Number of pairs.
        mean: Mean of the differences; NaN without pairs.
        low: Lower end of the 95 % t-interval of the mean; NaN for n < 2 and for equal differences.
        high: Upper end.
        p_t: Two-sided p-value of the paired t-test; NaN for n < 2.
        p_flips: Two-sided p-value of the sign flips; NaN for n < 6.
    """

    n: int
    mean: float
    low: float
    high: float
    p_t: float
    p_flips: float


def seed_difference(values: Sequence[float] | np.ndarray) -> SeedDifference:
    """Compute mean, t-interval and tests of paired differences (Student 1908; sign flips: see :func:`sign_flip_p`).

    If all differences are equal (to nine digits), the t statistic has no scale: its p-value would be 0 and its interval
    a point for any number of pairs, although n equal values only show that the spread is small. The interval is then
    NaN, and ``p_t`` is the p-value of the sign flips, which need no scale: 2/2ⁿ, or 1 if all differences are 0.

    Args:
        values: (n,) Differences, one per seed that both methods finished.

    Raises:
        InputError: If a difference is not finite, or the differences are not a vector.
    """
    from scipy.special import stdtr, stdtrit  # slow to load

    d = _vector(values)
    n = len(d)
    flips = sign_flip_p(d) if n >= FLIPS_FROM else math.nan
    if n < 2:
        return SeedDifference(n, float(d[0]) if n else math.nan, math.nan, math.nan, math.nan, flips)
    mean = float(d.mean())
    if np.ptp(d) <= EQUAL * np.abs(d).max():
        return SeedDifference(n, mean, math.nan, math.nan, sign_flip_p(d), flips)
    error = float(d.std(ddof=1)) / math.sqrt(n)
    half = float(stdtrit(n - 1, 1 - LEVEL / 2)) * error
    return SeedDifference(n, mean, mean - half, mean + half, 2 * float(stdtr(n - 1, -abs(mean) / error)), flips)


def sign_flip_p(values: Sequence[float] | np.ndarray) -> float:
    """Compute the two-sided p-value of |mean| under random signs of the differences (Fisher 1935, §21; Pitman 1937).

    It is exact if the differences are symmetric about 0, for any distribution. For up to 20 differences it is the share
    of all 2ⁿ sign patterns whose |mean| is at least the observed one (to nine digits, so that ties count). For more it
    is (1 + #)/(1 + B) from B = 2²⁰ random patterns, the same in every call (Phipson and Smyth 2010).

    Args:
        values: (n,) Differences.

    Returns:
        The p-value, at least 2/2ⁿ; 1 if all differences are 0, NaN without any.

    Raises:
        InputError: If a difference is not finite, or the differences are not a vector.
    """
    d = _vector(values)
    n, scale = len(d), float(np.abs(d).max(initial=0))
    if not scale:
        return 1.0 if n else math.nan
    d = d / scale  # avoids overflow of the sums
    least = abs(float(d.sum())) - EQUAL * float(np.abs(d).sum())
    if n <= EXACT_TO:
        sums = d[:1]  # a pattern and its opposite have the same |sum|, so the first sign is fixed
        for value in d[1:]:
            sums = np.concatenate([sums + value, sums - value])
        return float((np.abs(sums) >= least).mean())
    from drfl.core.key import Key  # loads torch, which reports on fewer seeds do not need

    rng = Key(0).fold("sign flips", n).generator()
    blocks = (rng.integers(0, 2, (_BLOCK, n), dtype=np.int8) for _ in range(FLIPS // _BLOCK))
    reached = sum(int((np.abs((2 * signs - 1) @ d) >= least).sum()) for signs in blocks)
    return (1 + reached) / (1 + FLIPS)


def holm(p: Sequence[float] | np.ndarray) -> np.ndarray:
    """Adjust p-values for their number (Holm 1979).

    The k-th smallest of m p-values is multiplied by m − k + 1, then made non-decreasing and at most 1. The probability
    of rejecting any true null hypothesis of the family is then at most the level, for any dependence.

    Args:
        p: (m,) p-values; NaN marks a difference that was not tested and does not count.

    Returns:
        (m,) Adjusted p-values, NaN for those not tested.

    Raises:
        InputError: If a p-value is outside [0, 1].
    """
    values = np.asarray(p, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(values))
    if ((values[tested] < 0) | (values[tested] > 1)).any():
        raise InputError("p-values must be between 0 and 1", code="out-of-range", field="p")
    order = tested[np.argsort(values[tested], kind="stable")]
    adjusted = np.full(len(values), math.nan)
    # Multiply the sorted p-values by m, m − 1, …, 1, and keep them non-decreasing.
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)))
    return adjusted


def holm_family(differences: Sequence[SeedDifference]) -> np.ndarray:
    """Correct the p-values of the paired t-tests for the number of differences tested, those with at least five pairs.

    Args:
        differences: All differences of one table.

    Returns:
        One value per difference; NaN if it has fewer pairs.
    """
    return holm([d.p_t if d.n >= T_FROM else math.nan for d in differences])


def verdict(difference: SeedDifference, p_holm: float, *, less_is_better: bool = False) -> str:
    """Return the verdict on the first method of a difference (first − second).

    Args:
        difference: The difference with its tests.
        p_holm: Its entry of :func:`holm_family`.
        less_is_better: Whether a negative difference is better.

    Returns:
        "no pair", "one pair only", "not decided" (two to four pairs), "not significant", "better" or "worse".
    """
    if difference.n < 2:
        return "one pair only" if difference.n else "no pair"
    if difference.n < T_FROM:
        return "not decided"
    # Both tests must reject. A NaN from the t-test does not reject. A NaN from the sign flips (too few pairs) is
    # ignored.
    if not p_holm <= LEVEL or difference.p_flips > LEVEL:
        return "not significant"
    return "better" if (difference.mean > 0) != less_is_better else "worse"


def _vector(values: Sequence[float] | np.ndarray) -> np.ndarray:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise InputError(
            "differences over seeds must be a vector of finite numbers, one per seed. Remove seeds without a value.",
            code="not-finite",
            field="differences",
        )
    return vector
