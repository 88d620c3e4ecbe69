"""DRFA with full-batch gradient ascent on λ."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from drfl import checks, cohort
from drfl.algorithm import Average, Info
from drfl.algorithms.drfa import DRFAState
from drfl.algorithms.dual import RATE, first_mixture, no_scale, step_size
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.cohort import Sampling
from drfl.errors import InputError
from drfl.federation import Federation
from drfl.key import Key
from drfl.local import LocalSGD


@dataclass(frozen=True)
class DRFAGA:
    """DRFA-GA (Deng et al. 2020, §5.2): local SGD at clients drawn by λ, full-batch gradient ascent on λ every round.

    Solves min_w max_{λ∈Λ} Σ_i λ_i f_i(w) − ψ(λ), with the rates of Theorems 5 and 6 where F is strongly concave in λ.

    ========== ================= =====================================================
    paper      code              meaning
    ========== ================= =====================================================
    w̄^(s)      ``state.w``       (d,) global model
    λ^(s)      ``state.lam``     (N,) mixture
    D^(s)      ``D``             m draws from λ, with replacement
    η, τ       ``local``         local step size and number of steps
    γ          ``gamma``         dual step size; a round moves λ by γ·∇_λ F, without τ
    g          −``penalty``      regulariser, g = −ψ
    ========== ================= =====================================================

    Args:
        m: cohort size for training; every client reports its loss.
        gamma: dual step size γ ≥ 0; None = the rule of :func:`drfl.algorithms.dual.step_size`.
        local: what a client runs.
        ambiguity: Λ and a ψ that is differentiable on all of it (KL is not where some λ_i = 0).
        sampling: how D is drawn from λ.
        averaged: keep the averaged solution as well; clients then send one more vector.

    Deviations: none where γ is given. λ^(0) is uniform (projected on Λ).

    Raises:
        InputError: gamma is negative, m > N, or ψ has no gradient (the latter two when first used).
    """

    m: int
    gamma: float | None = None
    local: LocalSGD = field(default_factory=LocalSGD)
    ambiguity: AmbiguitySet = field(default_factory=Simplex)
    sampling: Sampling = cohort.with_replacement
    averaged: bool = False

    rate: ClassVar[float] = RATE

    def __post_init__(self) -> None:
        if self.gamma is not None:
            checks.non_negative("gamma", self.gamma)

    def init(self, fed: Federation) -> DRFAState:
        """The initial model and the uniform mixture."""
        cohort.check_size(self.m, fed.n)
        lam = first_mixture(self.ambiguity, fed.n)
        return DRFAState(fed.w0, lam, no_scale(), Average.start(fed.w0, lam) if self.averaged else None)

    def round(self, state: DRFAState, fed: Federation, key: Key) -> tuple[DRFAState, Info]:
        """One round; w and λ move from the same (w̄, λ)."""
        (w, lam, scale, average), N = state, fed.n

        D = self.sampling(lam, self.m, key.fold("D"))  # D ~ λ
        up = fed.train(D.clients, w, self.local, key.fold("sgd"), average=self.averaged)
        if not up.clients.numel():
            return state, Info.nobody(D)
        a = D.weights_of(up.clients).to(w)  # multiplicities among those who answered, sum 1

        f = fed.losses(torch.arange(N), w, key.fold("xi"))  # full batch, everybody
        lam_next = lam
        if f.clients.numel():
            step, scale = step_size(self.gamma, self.rate, f.values, scale, N)
            gradient = f.unbiased(N) - self._penalty_gradient(lam)  # ∇_λ F(w̄, λ)
            lam_next = self.ambiguity.project(lam + step * gradient)
        if average is not None:
            average = average.add(a @ up.average, lam)
        return DRFAState(a @ up.w, lam_next, scale, average), Info(D, up.clients, f)

    def _penalty_gradient(self, lam: Tensor) -> Tensor:
        try:
            return self.ambiguity.penalty_gradient(lam)
        except InputError as error:
            raise InputError(
                f"{error}: lower gamma, or take DRFAProx, AFL, ScaffPD, DRDM or DualDRDM, which need none"
            ) from error
