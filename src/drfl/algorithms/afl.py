"""Agnostic federated learning."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from drfl.algorithms.drfa import DRFAState
from drfl.algorithms.dual import Start, ascend, check_dual_step, first_mixture, no_squares, step_size
from drfl.algorithms.excess_loss import Reference, excess, first_references
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.core import checks
from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD, refuse_epochs
from drfl.optim.schedules import Constant, Schedule


@dataclass(frozen=True)
class AFL:
    """AFL (Mohri et al. 2019, Stochastic-AFL): one λ-weighted gradient step over all clients, then ascent in λ.

    Solves min_w max_{λ∈Λ} Σ_i λ_i f_i(w) − ψ(λ).

    ========== ================= =====================================================
    paper      code              meaning
    ========== ================= =====================================================
    w_t        ``state.w``       (d,) global model
    λ_t        ``state.lam``     (N,) client weights
    δ_w        ``w - model.w`` Σ_i λ_i ∇f_i(w), times the step size
    δ_λ        ``f``             all clients' losses
    γ_w        ``local.lr``      step size η
    γ_λ        ``gamma``         dual step size
    w^A, λ^A   ``Average``       averages of the w_t and λ_t, the output of AFL
    ========== ================= =====================================================

    Args:
        gamma: Dual step size γ ≥ 0; a round moves λ by τγ·f. With None, :func:`drfl.algorithms.dual.step_size` sets
            the step.
        local: Local solver. With more than one step, this is the variant that SCAFF-PD is compared with (Yu et al.
            2023, F.1).
        dual_batch: Samples per reported loss; None uses all local training data.
        ambiguity: Ambiguity set Λ and regulariser ψ.
        dual_after: Whether to take the losses at the new model instead of the old one. The published step takes both
            gradients at the old (w, λ). With ``dual_after``, a one-step round equals DRFA's with all clients.
        gamma_schedule: Multiplies γ in each round, see :mod:`drfl.optim.schedules`.
        lam0: Initial λ, see :func:`drfl.algorithms.dual.first_mixture`.
        reference: "own" subtracts the loss of each client's own model from its reported losses, see
            :mod:`drfl.algorithms.excess_loss`.

    Deviations: none with one step, a numeric γ and no ψ. A ψ is handled by a proximal step. λ_0 is uniform (projected
    onto Λ). λ^A is the mean of λ_0, …, λ_{T−1}, as in DRFA; the paper averages λ_1 to λ_T.

    Raises:
        InputError: If gamma is negative.
    """

    gamma: float | None = None
    local: LocalSGD = field(default_factory=lambda: LocalSGD(steps=1))
    dual_batch: int | None = 32
    ambiguity: AmbiguitySet = field(default_factory=Simplex)
    dual_after: bool = False
    gamma_schedule: Schedule = field(default_factory=Constant)
    lam0: Start = "uniform"
    reference: Reference = "none"

    def __post_init__(self) -> None:
        if self.dual_batch is not None:
            checks.integer("dual_batch", self.dual_batch)
        check_dual_step("gamma", self.gamma, self.gamma_schedule)
        refuse_epochs("AFL", self.local, "its dual step needs the same number of local steps at every client")

    def init(self, fed: Federation) -> DRFAState:
        """Return the state with the initial model and λ_0."""
        lam = first_mixture(self.ambiguity, fed, self.lam0)
        return DRFAState(fed.w0, lam, no_squares(), first_references(self.reference, fed))

    def round(self, state: DRFAState, fed: Federation, key: Key) -> tuple[DRFAState, Info]:
        """Take one descent step in w and one ascent step in λ."""
        (w, lam, squares, reference), all_clients = state, torch.arange(fed.n)

        # All clients train, so λ enters as the weight of their models and not as a sampling probability.
        D = Cohort(all_clients, lam)
        answered, model = fed.mean(D, w, self.local, key.fold("sgd"))  # for one step: w − η Σ_i λ_i ∇f_i(w)
        if model is None:
            return state, Info.without_replies(D)

        # Use another key than for training, so that reported losses come from fresh minibatches.
        f = fed.losses(all_clients, model.w if self.dual_after else w, key.fold("xi"), batch=self.dual_batch)
        f, reference = excess(f, reference, fed, self.local, key)
        lam_next = lam
        if f.clients.numel():
            # A round of τ local steps replaces τ published rounds, so λ moves τ times as far.
            gamma = None if self.gamma is None else self.local.tau * self.gamma
            v = f.unbiased(fed.n)
            step, squares = step_size(gamma, v, squares)
            lam_next = ascend(self.ambiguity, lam, step, v)
        return DRFAState(model.w, lam_next, squares, reference), Info(D, answered, f, model.average)
