"""SCAFF-PD: accelerated primal–dual federated learning with bias-corrected local steps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from drfl.algorithms.drift import sum_updates
from drfl.algorithms.dual import Start, check_dual_step, first_mixture, no_squares, prox, step_size
from drfl.algorithms.excess_loss import Reference, excess, first_references
from drfl.algorithms.sparse_vector import SparseVector
from drfl.algorithms.weighted_sum import WeightedRows, WeightedSum
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info, References
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Federation
from drfl.federation.requests import Gradients, Losses, select_rows, with_reports
from drfl.optim.local import LocalSGD, refuse_epochs, refuse_optimizer
from drfl.optim.schedules import Constant, Schedule


class Reports(NamedTuple):
    """The latest report of every client; rows of clients that have never reported are 0.

    Args:
        c: (N, d) Gradients, one row per client.
        losses: (N,) float64.
        seen: (N,) bool, True for clients that have reported.
    """

    c: ClientTable
    losses: Tensor
    seen: Tensor

    def updated(self, g: Gradients) -> Reports:
        """Return a copy in which new reports replace older ones."""
        return Reports(
            self.c.put(g.clients, g.values),
            self.losses.index_copy(0, g.clients, g.losses),
            self.seen.index_fill(0, g.clients, True),
        )

    def describe_fault(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        same = torch.equal(self.seen.nonzero().flatten().cpu(), self.c.clients)
        return None if same else "the clients with a reported loss differ from those with a reported gradient"

    def all_losses(self, rows: Tensor) -> SparseVector:
        """Return all losses (N,); clients that have never reported get the mean loss of those that have.

        Args:
            rows: (k,) Clients whose losses are stored individually: at least all that have reported.
        """
        values, seen = self.losses[rows], self.seen[rows]
        mean = values[seen].mean()
        return SparseVector(len(self.losses), rows, torch.where(seen, values, mean), float(mean))

    def gradient(self, lam: Tensor, running: WeightedSum | None) -> Tensor:
        """Return Σ_i λ_i c_i (d,); clients that have never reported count as the mean of those that have.

        Args:
            lam: (N,) Client weights λ.
            running: Running sum of λ_i c_i over the clients that have reported; None reads their c_i.
        """
        clients = self.c.clients
        known = SparseVector(len(lam), clients, lam[clients])
        total = known.sum()
        # Sum over the clients that have reported, with their λ normalised to sum to 1.
        if running is not None and total > 0:
            return (running.sums[0] / float(total)).to(self.c.dtype)
        return self.c.mix(known.dense() / total if total > 0 else self.seen / self.seen.sum())


class ScaffPDState(NamedTuple):
    """State of SCAFF-PD: x^r, λ^r, and the values that the schedule and the extrapolation need.

    Args:
        w: (d,) x^r.
        lam: (N,) λ^r.
        reports: Latest gradients and losses.
        tau: () float64, τ_r/τ_0.
        theta: () float64, θ_r.
        squares: () Sum of squares of the dual step rule, see :func:`drfl.algorithms.dual.step_size`.
        c: Running sum Σ_i λ_i c_i; None for few clients, because each round then computes it from all rows.
        reference: The losses of the clients' own models; None without ``reference="own"``.
    """

    w: Tensor
    lam: Tensor
    reports: Reports
    tau: Tensor
    theta: Tensor
    squares: Tensor
    c: WeightedSum | None
    reference: References | None = None

    def describe_fault(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        fits = 0 < self.tau <= 1 and 0 <= self.theta <= 1 and self.squares >= 0
        return None if fits else "a step size, the extrapolation or the sum of squares is out of range"


@dataclass(frozen=True)
class ScaffPD:
    """SCAFF-PD (Yu et al. 2023, Algorithms 1 and 2).

    Solves min_x max_{λ∈Λ} Σ_i λ_i f_i(x) − ψ(λ).

    ============== =================== =====================================================
    paper          code                meaning
    ============== =================== =====================================================
    x^r, λ^r       ``state``           (d,) global model and (N,) client weights
    L_i^r, c_i^r   ``reports``         loss and gradient of client i at x^r
    s^r            ``s``               (N,) extrapolated losses (1+θ_r)·L^r − θ_r·L^{r−1}
    σ_r            ``sigma``           dual step size
    c^r            ``c``               (d,) Σ_i λ_i^{r+1} c_i^r, with the *new* λ
    η_ℓ, J         ``local``           local step size and number of steps
    Δu_i^r         ``du``              (d,) mean direction of the local steps, (x − u_{i,J}) / (η_ℓ J)
    τ_r            ``tau``             primal step size; τ_0 = ``server_lr``·η_ℓ·J
    μ_x            ``mu``              strong convexity constant of the accelerated schedule
    ============== =================== =====================================================

    Schedules: with mu = 0, τ, σ and θ are constant (strongly convex ψ, Condition 3.2). With mu > 0 the schedule is
    accelerated (ψ = 0 or any other ψ, Condition 3.1): θ_{r+1} = 1/√(1 + μτ_r), τ_{r+1} = θ_{r+1}·τ_r,
    σ_{r+1} = σ_r/θ_{r+1}, θ_0 = 1. η_ℓ decreases along with τ_r.

    Args:
        m: Cohort size; None selects all clients, as published. A smaller cohort is drawn uniformly. The clients outside
            the cohort keep their last c_i and L_i, and their Δu_i is set to c^r, its value without drift.
        sigma: Dual step size σ ≥ 0 (σ_0 of the accelerated schedule). With None,
            :func:`drfl.algorithms.dual.step_size` sets the step.
        theta: Extrapolation θ in [0, 1] of the constant schedule.
        mu: μ_x ≥ 0.
        server_lr: η_g > 0; 1 averages the local models.
        local: Local solver.
        dual_batch: Samples behind L_i and c_i; None uses all local training data.
        ambiguity: Ambiguity set Λ and regulariser ψ.
        sigma_schedule: Multiplies σ in each round, see :mod:`drfl.optim.schedules`.
        lam0: Initial λ, see :func:`drfl.algorithms.dual.first_mixture`.
        reference: "own" subtracts the loss of each client's own model from its reported losses, see
            :mod:`drfl.algorithms.excess_loss`.

    c^r sums over all clients that have ever reported and have λ_i > 0. With up to 512 clients, a round reads all these
    c_i. With more, it maintains a running sum, see :class:`drfl.algorithms.weighted_sum.WeightedSum`, and reads the c_i
    of this cohort, of the previous one, and of clients whose λ_i reached or left a bound. Under KL and KLBall it reads
    all of them.

    The averaged solution is the one in the proof of Theorem 3.1 (E.39, E.40): the means of x^{r+1} and λ^{r+1} weighted
    by t_r = σ_r/σ_0, which is constant for the constant schedule. (E.40 prints x^r and λ^r, see ``docs/theory.md``.)

    Deviations: none if all clients are selected and answer, and σ is set. D(·,·) is half the squared distance. λ^0 is
    uniform (projected onto Λ), and L^{−1} = L^0. A client that does not answer is treated as if it were outside the
    cohort.

    Raises:
        InputError: If a value is out of range, or if the local solver projects (x − u_i is then not a sum of
            directions).
    """

    m: int | None = None
    sigma: float | None = None
    theta: float = 1.0
    mu: float = 0.0
    server_lr: float = 1.0
    local: LocalSGD = field(default_factory=LocalSGD)
    dual_batch: int | None = None
    ambiguity: AmbiguitySet = field(default_factory=Simplex)
    sigma_schedule: Schedule = field(default_factory=Constant)
    lam0: Start = "uniform"
    reference: Reference = "none"

    full_participation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.fraction("theta", self.theta)
        checks.non_negative("mu", self.mu)
        checks.positive("server_lr", self.server_lr)
        if self.dual_batch is not None:
            checks.integer("dual_batch", self.dual_batch)
        if self.mu > 0 and self.theta != 1:
            raise InputError(
                "theta sets the constant schedule and mu the accelerated one. Set only one of them",
                code="conflicting-options",
                field="theta",
            )
        check_dual_step("sigma", self.sigma, self.sigma_schedule)
        if self.mu > 0 and not (self.sigma_schedule == Constant() == self.local.lr_schedule):
            raise InputError(
                "mu already sets the schedules of τ and σ. Remove lr_schedule and sigma_schedule, or remove mu",
                code="conflicting-options",
                field="mu",
            )
        refuse_optimizer("ScaffPD", self.local, "it needs x − u_i to be a sum of gradients")
        refuse_epochs("ScaffPD", self.local, "clients outside the cohort count as if they took the same J steps")
        if self.local.radius is not None:
            raise InputError(
                "ScaffPD cannot use a local solver with radius. Remove radius; use weight_decay instead",
                code="unsupported-combination",
                field="radius",
            )

    def init(self, fed: Federation) -> ScaffPDState:
        """Return the state with the initial model, λ^0 and no reports."""
        sampling.size(fed.n if self.m is None else self.m, fed.n)
        w, lam, one = fed.w0, first_mixture(self.ambiguity, fed, self.lam0), torch.ones((), dtype=torch.float64)
        reports = Reports(
            fed.client_table(),
            torch.zeros(fed.n, dtype=torch.float64),
            torch.zeros(fed.n, dtype=torch.bool),
        )
        theta = one if self.mu else self.theta * one
        running, reference = WeightedSum.first(reports.c, along=True), first_references(self.reference, fed)
        return ScaffPDState(w, lam, reports, one, theta, no_squares(), running, reference)

    def round(self, state: ScaffPDState, fed: Federation, key: Key) -> tuple[ScaffPDState, Info]:
        """Run one round of Algorithm 1: collect losses and gradients, move λ, move x."""
        (w, lam, reports, tau, theta, squares, running, reference), N = state, fed.n

        D = sampling.uniform(N, N if self.m is None else self.m, key.fold("D"))
        g = fed.gradients(D.clients, w, key.fold("xi"), batch=self.dual_batch)  # (1) L_i and c_i
        losses, reference = excess(Losses(g.clients, g.losses), reference, fed, self.local, key)
        g = with_reports(select_rows(g, torch.isin(g.clients, losses.clients)), losses.values)
        if not g.clients.numel():
            return state, Info.without_replies(D)
        reports, f = reports.updated(g), Losses(g.clients, g.losses)
        del g  # its (k', d) gradients have been copied; free them while clients train
        known = reports.c.clients  # clients that have reported
        L = reports.all_losses(known)
        # L^{−1} = L^0: the first round has no earlier losses to extrapolate from.
        before = state.reports.all_losses(known) if state.reports.seen[known].any() else L

        s = L.combined(before, lambda new, old: (1 + theta) * new - theta * old)
        sigma, squares = step_size(self.sigma, L, squares)  # from L, not s: extrapolation doubles the noise
        step = sigma / float(tau)  # (2) τ_r σ_r is constant
        target = s.plus(lam, step)
        lam_next = prox(self.ambiguity, target, step)

        if running is not None:  # s_i = L_i for clients that did not report again
            previous = WeightedRows(state.reports.c, lam, state.reports.losses)
            current = WeightedRows(reports.c, lam_next, reports.losses)
            running = running.after(previous, current, f.clients, target, step)
        c = reports.gradient(lam_next, running)  # (3) Σ_i λ_i c_i, with the new λ
        local = dataclasses.replace(self.local, lr=self.local.eta * float(tau))  # η_ℓ decreases along with τ_r
        # Only clients that reported train, because the correction needs their gradient at this model.
        up = fed.train(f.clients, w, local, key.fold("sgd"), shift=c - reports.c[f.clients])
        share = lam_next[up.clients].to(w)
        # Part of the clients that did not train, whose Δu_i is c.
        rest = (1 - share.sum()) * local.eta * local.effective_steps * (c + local.weight_decay * w)
        w_next = w - self.server_lr * (rest - sum_updates(up.w, w, share))

        weight = 1 / float(tau)  # t_r = σ_r/σ_0 = τ_0/τ_r
        if self.mu:  # τ_{r+1}/τ_0 and θ_{r+1} by Condition 3.1
            tau_r = tau * self.server_lr * self.local.eta * self.local.effective_steps
            theta = 1 / torch.sqrt(1 + self.mu * tau_r)
            tau = theta * tau
        else:
            theta = torch.full_like(tau, self.theta)
        next_state = ScaffPDState(w_next, lam_next, reports, tau, theta, squares, running, reference)
        return next_state, Info(D, f.clients, f, w_next if fed.averaged else None, lam_next, weight)
