"""Exponential tilts, which solve projections, proximal steps and worst cases with a Kullback–Leibler divergence."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

SMALL = 0.03
"""Bound on |l| below which l e^l − (e^l − 1) is computed as a series."""

LARGEST = 700.0
"""Upper bound on l, so that e^l remains finite. It is slightly above −log of the smallest prior allowed, 1e-300."""

CHUNK = 8192
"""Number of entries processed at a time. They fit into the processor's cache, which triples the speed."""


def log_mean_exp(p: np.ndarray, x: np.ndarray) -> float:
    """Compute log Σ_i p_i e^{x_i} for x ≤ 0 with largest entry 0 and Σp = 1, accurately also for small x."""
    # For small x, Σ p e^x is near 1, and its logarithm would lose the digits of x. log1p of Σ p (e^x − 1) preserves
    # them. Below 1/2, the logarithm is well conditioned.
    below = float(p @ np.expm1(x))
    return math.log1p(below) if below > -0.5 else math.log(float(p @ np.exp(x)))


def divergence(p: np.ndarray, log_ratio: np.ndarray, lam: np.ndarray) -> float:
    """Compute KL(λ‖p) of λ = p·e^l with sum 1 as Σ_i λ_i l_i, or, if that cancels, as Σ_i p_i·(l e^l − (e^l − 1))."""
    # The terms λ_i l_i are of order l, but their sum is of order l². Near λ = p, nearly everything cancels.
    plain = float(lam @ log_ratio)
    if plain > 1e-2:
        return plain
    parts = []
    for i in _chunks(len(p)):
        # The difference l e^l − (e^l − 1) cancels for small l. Below SMALL, use its series Σ_{k≥2} l^k·(k − 1)/k! up to
        # l⁸. The next term is less than 1e-15 of the sum.
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
    """Solve l + c·e^l = a for l elementwise by Halley's method, which converges cubically.

    In terms of Wright's ω, c·e^l = ω(a + log c).

    Args:
        a: Finite numbers (N,).
        c: Non-negative numbers (N,).
        start: Initial guess of l (N,); None = an approximation of ω.
    """
    # Each chunk iterates on its own, so that one slow entry does not repeat the steps of all others.
    return np.concatenate([_halley(a[i], c[i], None if start is None else start[i]) for i in _chunks(len(a))])


def _chunks(n: int) -> list[slice]:
    return [slice(k, k + CHUNK) for k in range(0, n, CHUNK)]


def _halley(a: np.ndarray, c: np.ndarray, log_ratio: np.ndarray | None) -> np.ndarray:
    # The maximum avoids log 0 for c = 0, in which case l = a.
    log_c = np.log(np.maximum(c, np.finfo(np.float64).tiny))
    # Two upper bounds of the root: l ≤ a, because c·e^l ≥ 0; and if l > 0, c·e^l ≤ a, that is, l ≤ log a − log c.
    bound = np.minimum(a, np.clip(np.log(np.maximum(a, 1.0)) - log_c, 0.0, LARGEST))
    if log_ratio is None:
        # The root is l = a − ω(ζ) = log(ω(ζ)) − log c with Wright's function ω and ζ = a + log c. The initial guess is
        # accurate to a few tenths: ω(ζ) is near e^ζ/(1 + e^ζ) for ζ ≤ 1, and near ζ − log ζ above. The second form
        # avoids the cancellation of a with a large ω.
        zeta = a + log_c
        low, high = np.exp(np.minimum(zeta, 1.0)), np.maximum(zeta, 1.0)
        log_ratio = np.where(zeta <= 1, a - low / (1 + low), np.log(high - np.log(high)) - log_c)
    log_ratio = np.minimum(log_ratio, bound)
    for _ in range(100):
        weight = c * np.exp(log_ratio)
        residual, slope = log_ratio + weight - a, 1 + weight
        # f = l + c·e^l − a has f' = slope and f'' = weight, and Halley's step is f·f'/(f'² − f·f''/2).
        step = residual * slope / (np.square(slope) - 0.5 * residual * weight)
        # Clip to the bound, so that too long a step cannot overflow e^l.
        log_ratio = np.minimum(log_ratio - step, bound)
        # The error after a step is at most about step³/12, because f''²/(4f'²) − f'''/(6f') is between −1/36 and 1/12.
        # With the bound below, it is less than 1e-16.
        if float(np.abs(step).max()) < 1e-5:
            break
    return log_ratio


TINY = float(np.finfo(np.float64).tiny)
LOG_TINY = math.log(TINY)
EXACT, ROUGH = 1e-16, 1e-4
LEAST_KAPPA, STIFFEST = 1e-305, 1e15
"""Lower bound on κ, and upper bound on κq. At these, λ is within 1e-13 of its limit."""
LEAST = -1e150
"""Lower bound on κg_i. λ_i is 0 far above it, and its square is finite."""


# A tilt λ = p·e^l solves l_i + κq·λ_i = κg_i − y with y such that Σλ = 1. With q = 0, λ ∝ p·e^{κg}. With q > 0, it is
# the prox of a KL penalty, whose quadratic term adds κq·λ.
class Tilt(NamedTuple):
    """A tilt of p.

    Args:
        kappa: κ.
        y: Normalising constant y.
        log_ratio: l = log(λ/p), (N,).
        lam: λ = p·e^l with sum 1, (N,).
        divergence: D = KL(λ‖p).
        slope: dD/dlog κ.
        rise: dy/dlog κ.
        drift: dl/dlog κ, (N,).
        error: Bound on the error of the sum of p·e^l.
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
    """The family of tilts of p along g, parametrised by κ.

    Args:
        p: Prior (N,), positive with sum 1.
        g: Direction (N,), at most 0, with largest entry 0.
        q: Curvature q ≥ 0.
        pull: KL(λ‖p) of the limit of λ for κ → ∞.
        peak: Largest entry of that limit; only used if q > 0.
    """

    p: np.ndarray
    g: np.ndarray
    q: float
    pull: float
    peak: float = 1.0

    def tilt(self, kappa: float, near: Tilt | None = None, tolerance: float = EXACT) -> Tilt:
        """Compute the tilt for κ > 0 with an ``error`` of at most the tolerance; a tilt ``near`` it saves time."""
        with np.errstate(over="ignore"):
            exponents, curvature = np.maximum(kappa * self.g, LEAST), kappa * self.q
        if self.q == 0:
            y = log_mean_exp(self.p, exponents)
            return self._make_tilt(kappa, exponents, y, exponents - y, 0.0)
        # Bounds of y: At the largest g, which is 0, y = −l − κq·λ with λ ≤ 1 and l ≤ −log p ≤ −LOG_TINY. Because λ and
        # p both sum to 1, some l_i is ≥ 0, and for this i, y = κg_i − l_i − κq·λ_i ≤ 0.
        low, high = LOG_TINY - curvature, 0.0
        y, log_ratio = self._guess(kappa, exponents, near)
        for _ in range(200):
            log_ratio = solve_log_ratio(exponents - y, curvature * self.p, log_ratio)
            lam = self.p * np.exp(log_ratio)
            stiff = 1 + curvature * lam
            total = float(lam.sum())
            # dλ/dy = −λ/stiff, by differentiating the equation with respect to y.
            dy = _correction(total, lam, stiff)
            # Apply the last correction to y and l to first order, which leaves an error of (total − 1)².
            if (total - 1) ** 2 < tolerance:
                return self._make_tilt(kappa, exponents, y + dy, log_ratio - dy / stiff, (total - 1) ** 2)
            # Σλ decreases with y.
            low, high = (max(low, y), high) if total > 1 else (low, min(high, y))
            if not low < y + dy < high:
                dy = (low + high) / 2 - y
            y, log_ratio = y + dy, log_ratio - dy / stiff
        raise ArithmeticError(f"no tilt found for κ = {kappa}. This is a bug in drfl; please report it.")

    def _guess(self, kappa: float, exponents: np.ndarray, near: Tilt | None) -> tuple[float, np.ndarray | None]:
        """Guess y, and l if possible: from the tangent at a nearby tilt, or from the limit of small or large κ."""
        step = kappa / near.kappa - 1 if near else math.inf
        # Use the tangent in κ, not in log κ, because y is linear in κ for large κ.
        if near and abs(step) < 0.5:
            return near.y + step * near.rise, near.log_ratio + step * near.drift
        y = log_mean_exp(self.p, exponents)
        lam = self.p * np.exp(exponents - y)
        # For small curvature, expand y to first order in κq around the exponential tilt, which gives −κq·Σλ².
        if kappa * self.q * float(lam.max()) < 1:
            return y - kappa * self.q * float(lam @ lam), None
        # For large curvature, λ is near its limit, on whose support g_i − q·λ_i is constant, −q·peak. The mean of the
        # equation over λ is then y = −κq·peak − KL(λ‖p).
        return -kappa * self.q * self.peak - self.pull, None

    def _make_tilt(self, kappa: float, exponents: np.ndarray, y: float, log_ratio: np.ndarray, error: float) -> Tilt:
        lam = self.p * np.exp(log_ratio)
        lam /= lam.sum()
        stiff = 1 + kappa * self.q * lam
        # Derivatives with respect to log κ: The equation gives dl·stiff = height − dy. From Σ λ·dl = 0, dy is the mean
        # of height. Then D' = Σ λ·l·dl is the variance of height and therefore ≥ 0. Mean and variance have the weights
        # λ/stiff.
        weights, height = lam / stiff, exponents - kappa * self.q * lam
        rise = float(weights @ height) / float(weights.sum())
        height -= rise
        slope = float(weights @ np.square(height))
        return Tilt(kappa, y, log_ratio, lam, divergence(self.p, log_ratio, lam), slope, rise, height / stiff, error)

    def with_divergence(self, target: float, start: float) -> np.ndarray:
        """Find the tilt (N,) whose divergence from p is ``target``, by Newton's method inside a bracket.

        The divergence is proportional to κ² for small κ and approaches ``pull`` for large κ. The logarithm of its odds
        D/(pull − D) is therefore nearly linear in log κ. Newton's method is applied to this logarithm.

        Args:
            target: Divergence to reach, 0 < target < pull.
            start: Initial κ.
        """
        low, high = LEAST_KAPPA, min(1e300, STIFFEST / max(self.q, TINY))
        tilt, step = self.tilt(min(max(start, low), high), None, ROUGH), 0.0
        for k in range(1000):
            kappa, D = tilt.kappa, tilt.divergence
            # The step is the change of log κ, at most 5. The steepness is the derivative of the log-odds with respect
            # to log κ.
            rounding = 2e-16 * self.pull  # Smaller differences are rounding errors.
            reached, rest = max(D, TINY), max(self.pull - D, rounding)
            odds = math.log(target) - math.log(max(self.pull - target, rounding)) - math.log(reached) + math.log(rest)
            steepness = tilt.slope / reached + tilt.slope / rest
            step = max(-5.0, min(5.0, odds / steepness if steepness > 0 else math.copysign(5.0, odds)))
            # D grows with κ, so comparing it with the target narrows the bracket. A rough tilt only narrows it if the
            # difference exceeds its error.
            if tilt.error < EXACT or 1e3 * tilt.error * (1 + self.pull) < abs(D - target):
                low, high = (kappa, high) if target > D else (low, kappa)
            # The last step is applied to first order below, which leaves an error of the order of its square.
            if abs(step) < 1e-8 and tilt.error < EXACT:
                break
            if high - low < 1e-15 * low:
                step = 0.0
                break
            kappa *= math.exp(step)
            # If D is flat, Newton's steps may make no progress, so every third step halves the bracket in log κ
            # instead. The square roots are separate, because low·high may overflow or underflow.
            if not low < kappa < high or (k >= 12 and k % 3 == 0):
                kappa = math.sqrt(low) * math.sqrt(high)
            # Far from the target, a rough tilt is good enough and takes fewer iterations.
            tilt = self.tilt(kappa, tilt, ROUGH if k < 12 else EXACT)
        lam = self.p * np.exp(tilt.log_ratio + step * tilt.drift)
        return lam / lam.sum()


def _correction(total: float, lam: np.ndarray, stiff: np.ndarray) -> float:
    """Compute the change of y that makes Σλ, currently ``total``, equal to 1.

    λ decreases with y at the rate λ/stiff: linearly if stiff is large, and exponentially otherwise. If the change is
    small, one step of Halley's method is enough. Otherwise, extrapolate the two kinds of entries, linearly and
    exponentially, and set their sum to 1.
    """
    decrease = lam / stiff  # −dλ/dy
    rate = max(float(decrease.sum()), TINY)
    if abs(total - 1) < 0.3 * rate:  # No log λ_i changes by more than y.
        bend = float((decrease / np.square(stiff)).sum())  # the second derivative
        return (total - 1) / (rate - (total - 1) * bend / (2 * rate))
    newton = math.log(max(total, TINY)) * total / rate  # Newton's step for log Σλ
    soft = stiff < 2
    mass, loss = float(lam @ soft), float(decrease @ soft)
    if not (mass > 0 and 1e-9 * rate < loss < (1 - 1e-9) * rate):
        return newton
    # Let m be the logarithm of the sum of the soft entries after the change, m = log(mass) − (loss/mass)·dy. Then
    # e^m + (sum of the others) = 1 becomes m + c·e^m = a.
    c = loss / mass / (rate - loss)
    a = math.log(mass) + c * (1 - (total - mass))
    m = float(solve_log_ratio(np.array([a]), np.array([c]))[0])
    return (math.log(mass) - m) * mass / loss
