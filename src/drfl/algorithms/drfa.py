"""Distributionally robust federated averaging: DRFA, DRFA-Prox and DRFA-GA (Deng et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.algorithms.dual import SnapshotMethod, Start, check_dual_step, first_mixture, no_squares, step_size
from drfl.algorithms.excess_loss import Reference, excess, first_references
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info, References
from drfl.federation.federation import Federation
from drfl.federation.sampling import Sampling, with_replacement
from drfl.optim.local import LocalSGD
from drfl.optim.schedules import Constant, Schedule


class DRFAState(NamedTuple):
    """State of DRFA, DRFA-Prox, DRFA-GA and AFL.

    Args:
        w: (d,) Global model.
        lam: (N,) Client weights λ.
        squares: () Sum of squares of the dual step rule, see :func:`drfl.algorithms.dual.step_size`.
        reference: The losses of the clients' own models; None without ``reference="own"``.
    """

    w: Tensor
    lam: Tensor
    squares: Tensor
    reference: References | None = None


@dataclass(frozen=True)
class DRFA(SnapshotMethod):
    """DRFA (Deng et al. 2020, Algorithm 1): local SGD at clients drawn from λ, dual ascent at a random snapshot.

    Solves min_w max_{λ∈Λ} Σ_i λ_i f_i(w).

    ========== ================= =====================================================
    paper      code              meaning
    ========== ================= =====================================================
    w̄^(s)      ``state.w``       (d,) global model
    λ^(s)      ``state.lam``     (N,) client weights
    D^(s)      ``D``             m draws from λ, with replacement
    t'         ``t``             snapshot step, uniform on {1, …, τ}, the same for the whole cohort
    w^(t')     ``model.snapshot`` (d,) mean of the local models after step t'
    U, v       ``dual.py``       uniform sample of m clients and their scaled losses
    η, τ       ``local``         local step size and number of steps
    γ          ``gamma``         dual step size; a round moves λ by τγ·v
    ŵ, λ̂       ``Average``       the averaged solution, output form (1)
    ========== ================= =====================================================

    The parameters are those of :class:`drfl.algorithms.dual.SnapshotMethod`.

    Deviations: none if γ is set. λ^(0) is uniform (projected onto Λ). γ = None is drfl's rule, not the paper's.

    Raises:
        InputError: If gamma is negative, if m > N (on first use), or if the ambiguity set has a penalty ψ.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ambiguity.penalised:
            raise InputError(
                f"DRFA cannot use the penalty of {type(self.ambiguity).__name__}, because its dual step is a "
                "projection. Use DRFAProx, or a set without a penalty such as ChiSquareBall",
                code="unsupported-combination",
                field="ambiguity",
            )

    def init(self, fed: Federation) -> DRFAState:
        """Return the state with the initial model and λ^(0)."""
        sampling.size(self.m, fed.n)
        lam = first_mixture(self.ambiguity, fed, self.lam0)
        return DRFAState(fed.w0, lam, no_squares(), first_references(self.reference, fed))

    def round(self, state: DRFAState, fed: Federation, key: Key) -> tuple[DRFAState, Info]:
        """Run one round of Algorithm 1, lines 2–17."""
        (w, lam, squares, reference), m, tau = state, sampling.size(self.m, fed.n), self.local.tau

        D = sampling.draw(self.sampling, lam, m, key.fold("D"))  # D ~ λ
        t = key.fold("t").integer(1, tau)  # t' ~ U{1..τ}
        # The weights are the multiplicities among the clients that answered.
        answered, model = fed.mean(D, w, self.local, key.fold("sgd"), snapshot=t)
        if model is None:
            return state, Info.without_replies(D)

        dual = self.snapshot_ascent(fed, model, lam, squares, reference, key)
        return DRFAState(model.w, dual.lam, dual.squares, dual.reference), Info(D, answered, dual.losses, model.average)


@dataclass(frozen=True)
class DRFAProx(DRFA):
    """DRFA-Prox (Deng et al. 2020, Algorithm 2): DRFA with a proximal dual step, for any regulariser ψ = −g.

    Solves min_w max_{λ∈Λ} Σ_i λ_i f_i(w) − ψ(λ). Only the update of λ differs from Algorithm 1:

        λ ← argmax_{u∈Λ} τ·g(u) − ‖λ + γτ·v − u‖² / (2γ)  =  prox of τγ·ψ at λ + τγ·v

    which is :func:`drfl.algorithms.dual.ascend`. For ψ = 0 the proximal step is the projection, and a run is
    bit-identical to DRFA's.

    The parameters are those of :class:`drfl.algorithms.dual.SnapshotMethod`, the notation is DRFA's.

    Deviations: as for DRFA.

    Raises:
        InputError: If gamma is negative, or if m > N (on first use).
    """

    def __post_init__(self) -> None:
        # Skip DRFA's check, which rejects penalties. The proximal step handles all of them.
        SnapshotMethod.__post_init__(self)


@dataclass(frozen=True)
class DRFAGA:
    """DRFA-GA (Deng et al. 2020, §5.2): local SGD at clients drawn from λ, full-batch gradient ascent on λ every round.

    Solves min_w max_{λ∈Λ} Σ_i λ_i f_i(w) − ψ(λ). According to §5.2, the rate is Õ(τ/T) if F is strongly concave in λ
    and strongly convex, or PL, in w. (The exact statements are Theorems 5 and 6 in Appendix B, which the text used for
    this implementation did not include.)

    ========== ================= =====================================================
    paper      code              meaning
    ========== ================= =====================================================
    w̄^(s)      ``state.w``       (d,) global model
    λ^(s)      ``state.lam``     (N,) client weights
    D^(s)      ``D``             m draws from λ, with replacement
    η, τ       ``local``         local step size and number of steps
    γ          ``gamma``         dual step size; a round moves λ by γ·∇_λ F, without τ
    g          −``penalty``      regulariser, g = −ψ
    ========== ================= =====================================================

    Args:
        m: Cohort size for training, None = :func:`drfl.federation.sampling.size`. Every client reports its loss.
        gamma: Dual step size γ ≥ 0. With None, :func:`drfl.algorithms.dual.step_size` sets the step.
        local: Local solver.
        ambiguity: Λ, and a ψ that is differentiable on all of Λ (KL is not differentiable if some λ_i = 0).
        sampling: How the cohort D is drawn from λ.
        gamma_schedule: Multiplies γ in each round, see :mod:`drfl.optim.schedules`.
        lam0: Initial λ, see :func:`drfl.algorithms.dual.first_mixture`.
        reference: "own" subtracts the loss of each client's own model from its reported losses, see
            :mod:`drfl.algorithms.excess_loss`.

    Deviations: none if γ is set. λ^(0) is uniform (projected onto Λ).

    Raises:
        InputError: If gamma is negative, or (on first use) if m > N or ψ has no gradient.
    """

    m: int | None = None
    gamma: float | None = None
    local: LocalSGD = field(default_factory=LocalSGD)
    ambiguity: AmbiguitySet = field(default_factory=Simplex)
    sampling: Sampling = with_replacement
    gamma_schedule: Schedule = field(default_factory=Constant)
    lam0: Start = "uniform"
    reference: Reference = "none"

    def __post_init__(self) -> None:
        check_dual_step("gamma", self.gamma, self.gamma_schedule)
        sampling.check_sampling(self.sampling)

    def init(self, fed: Federation) -> DRFAState:
        """Return the state with the initial model and λ^(0)."""
        sampling.size(self.m, fed.n)
        lam = first_mixture(self.ambiguity, fed, self.lam0)
        return DRFAState(fed.w0, lam, no_squares(), first_references(self.reference, fed))

    def round(self, state: DRFAState, fed: Federation, key: Key) -> tuple[DRFAState, Info]:
        """Run one round; w and λ both move from the same (w̄, λ)."""
        (w, lam, squares, reference), N = state, fed.n

        D = sampling.draw(self.sampling, lam, sampling.size(self.m, N), key.fold("D"))  # D ~ λ
        answered, model = fed.mean(D, w, self.local, key.fold("sgd"))
        if model is None:
            return state, Info.without_replies(D)

        # Report losses at the old model w, because the steps in w and in λ start from the same point.
        f = fed.losses(torch.arange(N), w, key.fold("xi"))  # full batch, all clients
        f, reference = excess(f, reference, fed, self.local, key)
        lam_next = lam
        if f.clients.numel():
            try:
                penalty_gradient = self.ambiguity.penalty_gradient(lam)
            except InputError as error:  # KL has no gradient if a λ_i is 0
                raise InputError(
                    f"{error}. Lower gamma, or use DRFAProx, AFL, ScaffPD, DRDM or DualDRDM, which need no gradient",
                    code=error.code,
                    field=error.field,
                ) from error
            # Unlike DRFA-Prox, the regulariser enters by its gradient, so the step ends with a plain projection.
            gradient = f.unbiased(N) - penalty_gradient  # ∇_λ F(w̄, λ)
            step, squares = step_size(self.gamma, gradient, squares)
            lam_next = self.ambiguity.project(lam + step * gradient)
        return DRFAState(model.w, lam_next, squares, reference), Info(D, answered, f, model.average)
