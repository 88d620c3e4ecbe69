"""Ambiguity sets with one mistake each."""

from __future__ import annotations

import torch

from drfl.ambiguity import KL, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex, WorstCase
from drfl.ambiguity.ambiguity_set import finite_vector, quarter_gaps
from drfl.ambiguity.simplex import onto_simplex


class FloorOfTheFirstZero(Simplex):
    """Only the first λ_i = 0 is lifted to the floor."""

    def project(self, v):
        lam = onto_simplex(finite_vector(v))
        zeros = (lam == 0).nonzero()
        if len(zeros):
            lam[zeros[0]] = self.floor
        return lam


class FloorByRenormalising(Simplex):
    """λ is lifted to the floor and divided by its sum, not projected."""

    def project(self, v):
        lam = onto_simplex(finite_vector(v)).clamp(min=self.floor)
        return lam / lam.sum()


class NaNPasses(Simplex):
    """Entries are not checked."""

    def project(self, v):
        return onto_simplex(v.detach().to("cpu", torch.float64))


class Softmax(Simplex):
    """A softmax replaces the projection."""

    def project(self, v):
        return torch.softmax(finite_vector(v), 0)


class InSinglePrecision(Simplex):
    """The projection is computed and returned in float32."""

    def project(self, v):
        return onto_simplex(finite_vector(v).float())


class StillSorted(Simplex):
    """The weights stay in the order of the sorted entries."""

    def project(self, v):
        return super().project(v).sort(descending=True).values


class ContainsEverything(Simplex):
    """Any vector counts as a member."""

    def contains(self, lam, tolerance=1e-9):
        return True


class WorstOfTheBest(Simplex):
    """The worst case puts its weight on the smallest loss."""

    def worst_case(self, losses):
        lam = super().worst_case(-losses).lam
        return WorstCase(float(lam @ losses.double()), lam)


class ClippedAndRenormalised(CVaR):
    """Weights above the cap are clipped and all divided by their sum, which lifts them above the cap again."""

    def project(self, v):
        v = finite_vector(v)
        lam = onto_simplex(v).clamp(max=1 / self.alpha / len(v))
        return lam / lam.sum()


class WholeClients(CVaR):
    """The worst case is the plain mean of the ⌈αN⌉ largest losses, so the last one has too much weight."""

    def worst_case(self, losses):
        losses = finite_vector(losses)
        k = int(-(-self.alpha * len(losses) // 1))
        lam = torch.zeros_like(losses)
        lam[losses.argsort(descending=True, stable=True)[:k]] = 1 / k
        return WorstCase(float(lam @ losses), lam)


class CapAboveOne(CVaR):
    """The cap 1/(αN) is not limited to 1 for few clients."""

    def worst_case(self, losses):
        value, lam = super().worst_case(losses)
        excess = max(1 / self.alpha / len(lam), 1.0)
        return WorstCase(excess * value, excess * lam)


class StepForgotten(ChiSquare):
    """The prox of ψ ignores the step."""

    def prox(self, v, step):
        v = finite_vector(v)
        return onto_simplex(quarter_gaps(v) / ((1 + self.rho * len(v)) / 4))


class GradientOfTheShare(ChiSquare):
    """∇ψ lacks a factor N: ρ(λ − 1/N)."""

    def penalty_gradient(self, lam):
        return super().penalty_gradient(lam) / len(lam)


class MoreConvexThanItIs(ChiSquare):
    """The modulus is ρN² instead of ρN."""

    def strong_convexity(self, n):
        return self.rho * n**2


class PriorForgotten(KL):
    """The prox leans away from the uniform mixture, not from the prior."""

    def prox(self, v, step):
        return KL(self.rho).prox(v, step)


class MirrorStep(KL):
    """A step of mirror ascent, λ_i ∝ p_i·e^{v_i/(step·ρ)}, is returned as the prox."""

    def prox(self, v, step):
        return KL(step * self.rho, self.prior).worst_case(v).lam


class PenaltyNotPaid(KL):
    """The worst case's value omits ψ."""

    def worst_case(self, losses):
        lam = super().worst_case(losses).lam
        return WorstCase(float(lam @ losses.double()), lam)


class RadiusSquared(ChiSquareBall):
    """The answers use the square of the radius."""

    def project(self, v):
        return ChiSquareBall(self.radius**2).project(v)

    def worst_case(self, losses):
        return ChiSquareBall(self.radius**2).worst_case(losses)


class KLRadiusSquared(KLBall):
    """The answers use the square of the radius."""

    def project(self, v):
        return KLBall(self.radius**2, self.prior).project(v)

    def worst_case(self, losses):
        return KLBall(self.radius**2, self.prior).worst_case(losses)


class ShrunkIntoTheBall(KLBall):
    """The projection onto the simplex is moved towards the prior until it is in the ball, so it is not the nearest
    point.
    """

    def project(self, v):
        lam, p = onto_simplex(finite_vector(v)), self.prior_of(len(v))
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.contains(p + middle * (lam - p), 1e-15) else (low, middle)
        return lam if self.contains(lam, 1e-15) else p + low * (lam - p)


class CapOfTheFirst(Box):
    """The first client takes the weight that others lose above the cap."""

    def project(self, v):
        lam = onto_simplex(finite_vector(v)).clamp(max=self.cap)
        rest = 1 - float(lam.sum())
        for i in range(len(lam)):
            more = min(rest, self.cap - float(lam[i]))
            lam[i] += more
            rest -= more
        return lam
