"""Exponential tilts: the projections, proximal steps and worst cases under a Kullback-Leibler divergence."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

SMALL = 0.03
"""Up to here l e^l − (e^l − 1) is summed as a series."""

LARGEST = 700.0
"""Upper bound on l, a little more than −log of the least prior allowed, 1e-300: e^l stays finite."""

CHUNK = 8192
"""Entries treated at a time: what they need stays in the processor's cache, which makes it three times as fast."""


def log_mean_exp(p: np.ndarray, x: np.ndarray) -> float:
    """log Σ_i p_i e^{x_i} for x ≤ 0 with largest entry 0 and Σp = 1, to full relative precision where x is small."""
    # Near 0, Σ p e^x is near 1 and its logarithm would lose what x holds: Σ p (e^x − 1) and log1p keep it. Below 1/2
    # the logarithm is well conditioned.
    below = float(p @ np.expm1(x))
    return math.log1p(below) if below > -0.5 else math.log(float(p @ np.exp(x)))


def divergence(p: np.ndarray, log_ratio: np.ndarray, lam: np.ndarray) -> float:
    """KL(λ‖p) of λ = p·e^l of sum 1: Σ_i λ_i l_i, or Σ_i p_i·(l e^l − (e^l − 1)) where the former would cancel."""
    # The terms λ_i l_i are of the order of l, their sum of the order of l²: near λ = p nearly all of it cancels.
    plain = float(lam @ log_ratio)
    if plain > 1e-2:
        return plain
    parts = []
    for i in _chunks(len(p)):
        # The difference l e^l − (e^l − 1) cancels for small l. Below SMALL its series Σ_{k≥2} l^k·(k − 1)/k! takes its
        # place, up to l⁸: the next term is less than 1e-15 of the sum.
        small = np.abs(log_ratio[i]) < SMALL
        x = np.where(small, log_ratio[i], 0.0)
        series = 1 / 30 + x * (1 / 144 + x * (1 / 840 + x / 5760))
        terms = np.square(x) * (1 / 2 + x * (1 / 3 + x * (1 / 8 + x * series)))
        if not small.all():
            x = np.where(small, 0.0, log_ratio[i])
            terms += x * np.exp(x) - np.expm1(x)
        parts.append(float(p[i] @ terms))
    return math.fsum(parts)


def solve_log_ratio(a: np.ndarray, c: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """The l with l + c·e^l = a, entry by entry: Halley's method, each step cubing the error.

    In terms of Wright's ω, c·e^l = ω(a + log c).

    Args:
        a: (N,) finite.
        c: (N,) ≥ 0.
        start: (N,) a guess at l; without one, an approximation of ω.
    """
    return np.concatenate([_halley(a[i], c[i], None if start is None else start[i]) for i in _chunks(len(a))])


def _chunks(n: int) -> list[slice]:
    return [slice(k, k + CHUNK) for k in range(0, n, CHUNK)]


def _halley(a: np.ndarray, c: np.ndarray, log_ratio: np.ndarray | None) -> np.ndarray:
    # For c = 0, where l = a, a number in place of log 0.
    log_c = np.log(np.maximum(c, np.finfo(np.float64).tiny))
    # The root lies below both: l ≤ a, as c·e^l ≥ 0; and where l > 0, c·e^l ≤ a, that is l ≤ log a − log c.
    bound = np.minimum(a, np.clip(np.log(np.maximum(a, 1.0)) - log_c, 0.0, LARGEST))
    if log_ratio is None:
        # The root is l = a − ω(ζ) = log(ω(ζ)) − log c with Wright's function ω. This start is right to a few tenths:
        # ω(ζ) is near e^ζ/(1 + e^ζ) for ζ ≤ 1, and near ζ − log ζ above. The second form avoids the cancellation of a
        # and a large ω.
        zeta = a + log_c
        low, high = np.exp(np.minimum(zeta, 1.0)), np.maximum(zeta, 1.0)
        log_ratio = np.where(zeta <= 1, a - low / (1 + low), np.log(high - np.log(high)) - log_c)
    log_ratio = np.minimum(log_ratio, bound)
    for _ in range(100):
        weight = c * np.exp(log_ratio)
        off, slope = log_ratio + weight - a, 1 + weight
        # f = l + c·e^l − a has f' = slope and f'' = weight, and Halley's step is f·f'/(f'² − f·f''/2).
        step = off * slope / (np.square(slope) - 0.5 * off * weight)
        # Cut to the bound, so that a step too far cannot overflow e^l.
        log_ratio = np.minimum(log_ratio - step, bound)
        # The error after a step is at most about step³/12, as f''²/(4f'²) − f'''/(6f') is between −1/36 and 1/12: here
        # below 1e-16.
        if float(np.abs(step).max()) < 1e-5:
            break
    return log_ratio


TINY = float(np.finfo(np.float64).tiny)
LOG_TINY = math.log(TINY)
EXACT, ROUGH = 1e-16, 1e-4
LEAST_KAPPA, STIFFEST = 1e-305, 1e15
"""Lower bound on κ, and upper bound on κq, where λ is within 1e-13 of its limit."""
LEAST = -1e150
"""κg_i is cut here: λ_i is 0 long before, and the square of this is finite."""


# A tilt λ = p·e^l solves l_i + κq·λ_i = κg_i − y with y such that Σλ = 1. With q = 0 it is λ ∝ p·e^{κg}; with q > 0 it
# is the prox of a KL penalty, whose quadratic term adds κq·λ.
class Tilt(NamedTuple):
    """A tilt of p.

    Args:
        kappa: κ.
        y: Y.
        log_ratio: (N,) l = log(λ/p).
        lam: (N,) λ = p·e^l, of sum 1.
        divergence: D = KL(λ‖p).
        slope: dD/dlog κ.
        rise: dy/dlog κ.
        drift: (N,) dl/dlog κ.
        error: By how much the sum of p·e^l may miss 1.
    """

    kappa: float
    y: float
    log_ratio: np.ndarray
    lam: np.ndarray
    divergence: float
    slope: float
    rise: float
    drift: np.ndarray
    error: float


class Direction(NamedTuple):
    """What p is tilted along.

    Args:
        p: (N,) the prior, positive, of sum 1.
        g: (N,) ≤ 0, the largest 0.
        q: The curvature q ≥ 0.
        pull: KL(λ‖p) of the limit of λ for κ → ∞.
        peak: The largest entry of that limit; serves q > 0 only.
    """

    p: np.ndarray
    g: np.ndarray
    q: float
    pull: float
    peak: float = 1.0

    def at(self, kappa: float, near: Tilt | None = None, tolerance: float = EXACT) -> Tilt:
        """The tilt for κ > 0, its ``error`` at most the tolerance; one for a κ nearby makes it faster to find."""
        with np.errstate(over="ignore"):
            lean, curvature = np.maximum(kappa * self.g, LEAST), kappa * self.q
        if self.q == 0:
            y = log_mean_exp(self.p, lean)
            return self._tilt(kappa, lean, y, lean - y, 0.0)
        # The range of y. At the largest g, 0, y = −l − κq·λ with λ ≤ 1 and l ≤ −log p ≤ −LOG_TINY. As λ and p both sum
        # to 1, some l_i is ≥ 0, and there y = κg_i − l_i − κq·λ_i ≤ 0.
        low, high = LOG_TINY - curvature, 0.0
        y, log_ratio = self._guess(kappa, lean, near)
        for _ in range(200):
            log_ratio = solve_log_ratio(lean - y, curvature * self.p, log_ratio)
            lam = self.p * np.exp(log_ratio)
            stiff = 1 + curvature * lam
            total = float(lam.sum())
            # dλ/dy = −λ/stiff, from the equation's derivative by y.
            dy = _correction(total, lam, stiff)
            # The last correction is applied to first order, in y and in l, which leaves the square of total − 1.
            if (total - 1) ** 2 < tolerance:
                return self._tilt(kappa, lean, y + dy, log_ratio - dy / stiff, (total - 1) ** 2)
            # Σλ falls with y.
            low, high = (max(low, y), high) if total > 1 else (low, min(high, y))
            if not low < y + dy < high:
                dy = (low + high) / 2 - y
            y, log_ratio = y + dy, log_ratio - dy / stiff
        raise ArithmeticError(f"no tilt found for κ = {kappa}: this is a defect of drfl, please report it")

    def _guess(self, kappa: float, lean: np.ndarray, near: Tilt | None) -> tuple[float, np.ndarray | None]:
        """y, and l where that is near enough, to start from: a tangent, or what holds for small or for large κ."""
        step = kappa / near.kappa - 1 if near else math.inf
        # The tangent in κ, not in log κ: for large κ, y is linear in κ.
        if near and abs(step) < 0.5:
            return near.y + step * near.rise, near.log_ratio + step * near.drift
        y = log_mean_exp(self.p, lean)
        lam = self.p * np.exp(lean - y)
        # Little curvature: y to first order in κq around the exponential tilt, where it moves by −κq·Σλ².
        if kappa * self.q * float(lam.max()) < 1:
            return y - kappa * self.q * float(lam @ lam), None
        # Much curvature: λ is near its limit, on whose support g_i − q·λ_i is the same, −q·peak; the equation's mean
        # over λ is then y = −κq·peak − KL(λ‖p).
        return -kappa * self.q * self.peak - self.pull, None

    def _tilt(self, kappa: float, lean: np.ndarray, y: float, log_ratio: np.ndarray, error: float) -> Tilt:
        lam = self.p * np.exp(log_ratio)
        lam /= lam.sum()
        stiff = 1 + kappa * self.q * lam
        # The derivatives by log κ: the equation's gives dl·stiff = height − dy, and Σ λ·dl = 0 then dy, the mean of
        # height. With these D' = Σ λ·l·dl is the variance of height, all under the weights λ/stiff, and so ≥ 0.
        weights, height = lam / stiff, lean - kappa * self.q * lam
        rise = float(weights @ height) / float(weights.sum())
        height -= rise
        slope = float(weights @ np.square(height))
        return Tilt(kappa, y, log_ratio, lam, divergence(self.p, log_ratio, lam), slope, rise, height / stiff, error)

    def with_divergence(self, target: float, start: float) -> np.ndarray:
        """The tilt (N,) whose divergence from p is ``target``: Newton's method inside a bracket.

        The divergence goes like κ² for small κ and tends to ``pull`` for large ones; the logarithm of its odds
        D/(pull − D) is therefore nearly straight in log κ, and that is what Newton's method is used on.

        Args:
            target: The divergence looked for, 0 < target < pull.
            start: A κ to begin with.
        """
        low, high = LEAST_KAPPA, min(1e300, STIFFEST / max(self.q, TINY))
        tilt, step = self.at(min(max(start, low), high), None, ROUGH), 0.0
        for k in range(1000):
            kappa, D = tilt.kappa, tilt.divergence
            # The step is by how much log κ grows, at most 5. The steepness is the derivative of the log odds by log κ.
            blur = 2e-16 * self.pull  # differences below this are rounding
            reached, rest = max(D, TINY), max(self.pull - D, blur)
            odds = math.log(target) - math.log(max(self.pull - target, blur)) - math.log(reached) + math.log(rest)
            steepness = tilt.slope / reached + tilt.slope / rest
            step = max(-5.0, min(5.0, odds / steepness if steepness > 0 else math.copysign(5.0, odds)))
            # D grows with κ, so its side of the target narrows the bracket; a rough tilt must be off by more than its
            # error can explain.
            if tilt.error < EXACT or 1e3 * tilt.error * (1 + self.pull) < abs(D - target):
                low, high = (kappa, high) if target > D else (low, kappa)
            # The step is still taken, to first order, below: what it leaves is of the order of its square.
            if abs(step) < 1e-8 and tilt.error < EXACT:
                break
            if high - low < 1e-15 * low:
                step = 0.0
                break
            kappa *= math.exp(step)
            # Where D is flat Newton's steps may lead nowhere: every third one halves the bracket in log κ instead. The
            # roots are taken one by one, as low·high may leave the floating-point numbers.
            if not low < kappa < high or (k >= 12 and k % 3 == 0):
                kappa = math.sqrt(low) * math.sqrt(high)
            # Far from the target a rough tilt serves as well and takes fewer steps.
            tilt = self.at(kappa, tilt, ROUGH if k < 12 else EXACT)
        lam = self.p * np.exp(tilt.log_ratio + step * tilt.drift)
        return lam / lam.sum()


def _correction(total: float, lam: np.ndarray, stiff: np.ndarray) -> float:
    """By how much y must grow for Σλ = ``total`` to become 1.

    λ falls with y at the rate λ/stiff: in a straight line where it is stiff, else like an exponential. A short step
    is Halley's; for a long one the sum of both kinds, each going on as it does now, is set to 1.
    """
    # −dλ/dy.
    falling = lam / stiff
    rate = max(float(falling.sum()), TINY)
    if abs(total - 1) < 0.3 * rate:  # no log λ moves by more than y does
        bend = float((falling / np.square(stiff)).sum())  # the second derivative
        return (total - 1) / (rate - (total - 1) * bend / (2 * rate))
    newton = math.log(max(total, TINY)) * total / rate  # on log Σλ
    soft = stiff < 2
    mass, loss = float(lam @ soft), float(falling @ soft)
    if not (mass > 0 and 1e-9 * rate < loss < (1 - 1e-9) * rate):
        return newton
    # e^m + (the others) = 1 for the logarithm m of what the soft ones weigh: with m = log(mass) − (loss/mass)·dy this
    # is m + c·e^m = a
    c = loss / mass / (rate - loss)
    a = math.log(mass) + c * (1 - (total - mass))
    m = float(solve_log_ratio(np.array([a]), np.array([c]))[0])
    return (math.log(mass) - m) * mass / loss
