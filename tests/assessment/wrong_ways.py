"""Invalid methods for the worst client that are in common use; the coverage tests must reject each of them."""

from __future__ import annotations

import itertools

import numpy as np
from scipy import special
from tests.assessment.statements import ALPHA, EQUAL, outside, truly_worst

from drfl.assessment.scores import RealScores
from drfl.core.key import Key

RESAMPLES = 500


def unadjusted(setting, drawn):
    """Use each client's own 95 % interval as if it held for all clients."""
    each = ALPHA / 2
    return {
        ("client intervals, unadjusted", ALPHA): outside(drawn.a.lower(each), drawn.a.upper(each), setting.truth[0])
    }


def wald(setting, drawn):
    """Use the measured value ± z standard errors, with z adjusted for the number of clients."""
    p, n = drawn.a.values, drawn.a.n
    half = special.ndtri(1 - ALPHA / (2 * n.shape[1])) * np.sqrt(p * (1 - p) / n)
    return {("client intervals, Wald", ALPHA): outside(p - half, p + half, setting.truth[0])}


def delong_normal(setting, drawn):
    """Use DeLong's interval by the normal law on the logit scale, for any number of rows."""
    a, z = drawn.a, special.ndtri(1 - ALPHA / (2 * setting.truth.shape[1]))
    with np.errstate(all="ignore"):
        half = z * _error(a) / (a.values * (1 - a.values))
        low, high = (special.expit(special.logit(a.values) + sign * half) for sign in (-1, 1))
    low, high = np.where(np.isnan(low), 0.0, low), np.where(np.isnan(high), 1.0, high)
    return {("client intervals, DeLong's normal ones", ALPHA): outside(low, high, setting.truth[0])}


def delong_normal_gain(setting, drawn):
    """Use DeLong's interval of a difference by the normal law."""
    half = special.ndtri(1 - ALPHA / (2 * setting.truth.shape[1])) * 2 * _error(drawn.gains.scores)
    gain, truth = drawn.gains.values, setting.truth[1] - setting.truth[0]
    return {("gains' intervals, DeLong's normal ones", ALPHA): outside(gain - half, gain + half, truth)}


def _error(scores):
    """Return DeLong's standard error without pseudo-rows."""
    parts = ((scores.positive, scores.negative, scores.positive_squares),
             (scores.negative, scores.positive, scores.negative_squares))  # fmt: skip
    spread = (np.maximum(0, own / other**2 - n * scores.values**2) / (n - 1) / n for n, other, own in parts)
    return np.sqrt(sum(spread))


def students_t(setting, drawn):
    """Use Student's t for rows that are far from normal."""
    each, real = ALPHA / (2 * drawn.a.n.shape[1]), RealScores(drawn.a.n, drawn.a.total, drawn.a.squares)
    return {("client intervals, Student's t", ALPHA): outside(real.lower(each), real.upper(each), setting.truth[0])}


def selection_ignored(setting, drawn):
    """Use the interval of the client with the worst measured score, as if it had been chosen beforehand."""
    worst = np.argmin(drawn.a.values, 1)[:, None]
    low, high = (np.take_along_axis(end, worst, 1) for end in (drawn.a.lower(ALPHA / 2), drawn.a.upper(ALPHA / 2)))
    return {("worst client's interval, selection ignored", ALPHA): outside(low, high, setting.truth[0].min())}


def measured_worst(setting, drawn):
    """Claim that only the client with the worst measured score could be the worst."""
    worst = np.argmin(drawn.a.values, 1)
    return {
        (f"only the measured worst could be the worst{name}", ALPHA): worst != i
        for name, i in truly_worst(setting).items()
    }


def bootstrap_of_the_minimum(setting, drawn):
    """Use the percentile interval of the smallest accuracy in resamples of the clients' rows (Efron 1979)."""
    a, rng, ends = drawn.a, Key(0).fold("bootstrap", setting.name).generator(), []
    for n, count in zip(a.n, a.count, strict=True):
        resampled = rng.binomial(n.astype(np.int64), count / n, (RESAMPLES, len(n))) / n
        ends.append(np.quantile(resampled.min(1), [ALPHA / 2, 1 - ALPHA / 2]))
    low, high = np.array(ends).T[:, :, None]
    return {("worst client's interval, bootstrap", ALPHA): outside(low, high, setting.truth[0].min())}


def larger_minimum(setting, drawn):
    """Claim that B's worst client is better if its measured minimum is larger."""
    a, b = setting.truth
    if b.min() - a.min() > EQUAL:
        return {}
    better = drawn.b.values.min(1) > drawn.a.values.min(1)
    return {("worst client said to be better, by the measured minima", ALPHA): better}


def bootstrap_over_seeds(setting, drawn):
    """Use the percentile interval of the mean of few differences."""
    n = drawn.shape[1]
    resamples = np.array(list(itertools.product(range(n), repeat=n)))
    low, high = np.quantile(drawn[:, resamples].mean(2), [ALPHA / 2, 1 - ALPHA / 2], axis=1)
    return {("difference over seeds shown, bootstrap", ALPHA): (low > 0) | (high < 0)}


def smallest_seen(setting, drawn):
    """Claim that a new client scores no worse than the worst seen, for any number of clients."""
    seen, new = drawn
    return {("new client's bound, the smallest seen", ALPHA): new < seen.min(1)}


OF_COUNTS = (unadjusted, wald, selection_ignored, measured_worst, bootstrap_of_the_minimum, larger_minimum)
