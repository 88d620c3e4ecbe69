"""Differences between two methods over seeds: paired t-test, sign flips, and Holm's correction for many of them.

A difference is tested from five pairs on. :func:`verdict` takes it as shown where both hold:

- the p-value of the paired t-test, after Holm's correction over the family (:func:`holm_family`), is at most 0.05;
- from six pairs on, the p-value of all sign flips is at most 0.05 too, without a correction.

Sign flips alone cannot decide a table: n pairs have 2ⁿ sign patterns and no p-value below 2/2ⁿ, which is 0.031 at
n = 6 and 0.002 at n = 10, where Holm's correction of 72 differences asks the least one for 0.0007. They check what the
t-test takes for granted, that the differences are normal. A percentile bootstrap over so few seeds is no way out: it
draws from n values and gives an interval that is too short. Of normal differences with mean 0 it leaves 0 out in about
26 % of the cases at n = 3, 16 % at n = 5 and 10 % at n = 10, instead of 5 % (`evidence/bootstrap_null.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from drfl.core.errors import InputError

LEVEL = 0.05
"""Largest p-value at which a difference is shown; intervals have confidence 1 − LEVEL."""
T_FROM = 5
"""Fewest pairs at which a difference is tested."""
FLIPS_FROM = 6
"""Fewest pairs at which sign flips can reach LEVEL: 2/2ⁿ is 0.0625 at n = 5."""
EXACT_TO = 20
"""Most pairs whose sign patterns are all gone through."""
FLIPS = 2**20
"""Sign patterns drawn where there are more pairs."""
EQUAL = 1e-9
"""Relative distance below which two numbers are the same but for rounding."""

FAILED = "failed runs"
"""The verdict on an algorithm of which some runs left no results: the other seeds are no fair part."""

_BLOCK = 2**15


class SeedDifference(NamedTuple):
    """The mean of paired differences, a value a seed, and its tests.

    Args:
        n: pairs.
        mean: of the differences; NaN for none.
        low: lower end of the 95 % t-interval of the mean; NaN for n < 2 and for equal differences.
        high: upper end.
        p_t: two-sided p-value of the paired t-test; NaN for n < 2.
        p_flips: two-sided p-value of the sign flips; NaN for n < 6.
    """

    n: int
    mean: float
    low: float
    high: float
    p_t: float
    p_flips: float


def seed_difference(values: Sequence[float] | np.ndarray) -> SeedDifference:
    """Mean, t-interval and tests of paired differences (Student 1908; sign flips: see :func:`sign_flip_p`).

    Where all differences are equal (to nine digits) the t statistic has no scale: its p-value would be 0 and its
    interval a point, whatever the number of pairs, although n equal values only say that the spread is small. The
    interval is then NaN, and ``p_t`` is the p-value of the sign flips, which need no scale: 2/2ⁿ, or 1 if all are 0.

    Args:
        values: (n,) differences, one a seed that both methods came to the end of.

    Raises:
        InputError: a difference is not finite, or they are no vector.
    """
    from scipy.special import stdtr, stdtrit  # they take a while to load

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
    """Two-sided p-value of |mean| under random signs of the differences (Fisher 1935, §21; Pitman 1937).

    It is exact if the differences are symmetric about 0, whatever their law. Up to 20 differences it is the share of
    all 2ⁿ sign patterns whose |mean| is no smaller than the one seen (to nine digits, so that ties count); beyond
    that it is (1 + #)/(1 + B) of B = 2²⁰ patterns drawn at random, the same at every call (Phipson, Smyth 2010).

    Args:
        values: (n,) differences.

    Returns:
        the p-value, at least 2/2ⁿ; 1 where all differences are 0, NaN for none.

    Raises:
        InputError: a difference is not finite, or they are no vector.
    """
    d = _vector(values)
    n, scale = len(d), float(np.abs(d).max(initial=0))
    if not scale:
        return 1.0 if n else math.nan
    d = d / scale  # so that no sum overflows
    least = abs(float(d.sum())) - EQUAL * float(np.abs(d).sum())
    if n <= EXACT_TO:
        sums = d[:1]  # a pattern and its opposite have the same |sum|: the first sign may stay
        for value in d[1:]:
            sums = np.concatenate([sums + value, sums - value])
        return float((np.abs(sums) >= least).mean())
    from drfl.core.key import Key  # it loads torch, which reports on fewer seeds do without

    rng = Key(0).fold("sign flips", n).generator()
    blocks = (rng.integers(0, 2, (_BLOCK, n), dtype=np.int8) for _ in range(FLIPS // _BLOCK))
    reached = sum(int((np.abs((2 * signs - 1) @ d) >= least).sum()) for signs in blocks)
    return (1 + reached) / (1 + FLIPS)


def holm(p: Sequence[float] | np.ndarray) -> np.ndarray:
    """P-values adjusted for their number (Holm 1979): the k-th smallest of m times m − k + 1, never falling, at most 1.

    The chance that any true null hypothesis of the family is rejected is then at most the level, however they depend
    on each other.

    Args:
        p: (m,) p-values; NaN stands for what was not tested and does not count.

    Returns:
        (m,) adjusted p-values, NaN where there was none.

    Raises:
        InputError: a p-value is outside [0, 1].
    """
    given = np.asarray(p, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(given))
    if ((given[tested] < 0) | (given[tested] > 1)).any():
        raise InputError("a p-value lies between 0 and 1", code="out-of-range", field="p")
    order = tested[np.argsort(given[tested], kind="stable")]
    adjusted = np.full(len(given), math.nan)
    # Multiply the sorted p-values by m, m − 1, …, 1; none may fall below the one before it.
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * np.arange(len(order), 0, -1)))
    return adjusted


def holm_family(differences: Sequence[SeedDifference]) -> np.ndarray:
    """The paired t-tests' p-values, corrected for the number of differences tested: those with at least five pairs.

    Args:
        differences: all that one table shows.

    Returns:
        a value a difference; NaN where there are fewer pairs.
    """
    return holm([d.p_t if d.n >= T_FROM else math.nan for d in differences])


def verdict(difference: SeedDifference, p_holm: float, *, less_is_better: bool = False) -> str:
    """What a difference says of the method that is subtracted from.

    Args:
        difference: what was seen.
        p_holm: its entry of :func:`holm_family`.
        less_is_better: whether a negative difference is the better one.

    Returns:
        "no pair", "one pair only", "not decided" (two to four pairs), "no difference shown", "better" or "worse".
    """
    if difference.n < 2:
        return "one pair only" if difference.n else "no pair"
    if difference.n < T_FROM:
        return "not decided"
    # Both tests must reject. A NaN from the t-test does not; a NaN from the sign flips (too few pairs) is no veto.
    if not p_holm <= LEVEL or difference.p_flips > LEVEL:
        return "no difference shown"
    return "better" if (difference.mean > 0) != less_is_better else "worse"


def _vector(values: Sequence[float] | np.ndarray) -> np.ndarray:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise InputError(
            "differences over seeds are finite numbers, one a seed: leave out the seeds that have none",
            code="not-finite",
            field="differences",
        )
    return found
