"""DRDM (Krouka et al. 2025) as published, and dual DRDM, which weights the drift terms by λ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.algorithms.drift import by_columns, check_penalty, penalty, sum_updates
from drfl.algorithms.dual import SnapshotMethod, first_mixture, no_squares
from drfl.algorithms.excess_loss import first_references
from drfl.algorithms.weighted_sum import WeightedRows, WeightedSum
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info, References
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Federation
from drfl.optim.local import refuse_optimizer


class DRDMState(NamedTuple):
    """State of DRDM.

    Args:
        w: (d,) Global model.
        lam: (N,) Client weights λ.
        c: (d,) Mean of all rows of h.
        h: (N, d) Drift terms.
        squares: () Sum of squares of the dual step rule, see :func:`drfl.algorithms.dual.step_size`.
        reference: The losses of the clients' own models; None without ``reference="own"``.
    """

    w: Tensor
    lam: Tensor
    c: Tensor
    h: ClientTable
    squares: Tensor
    reference: References | None = None


@dataclass(frozen=True)
class Regularised(SnapshotMethod):
    """The parameters of DRDM and dual DRDM: those of a snapshot method, and the penalty of dynamic regularisation.

    Args:
        mu: Penalty μ > 0; None = 1/(5ητ), see :func:`drfl.algorithms.drift.penalty`.

    Raises:
        InputError: If a value is out of range.
    """

    mu: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_penalty(self.mu)
        refuse_optimizer(type(self).__name__, self.local, "its h_i need w − w_i to be a sum of gradients")

    @property
    def proximal_weight(self) -> float:
        """μ, see :func:`drfl.federation.algorithm.proximal_weight`. The default is small compared with 1/η."""
        return self.mu or 0.0


@dataclass(frozen=True)
class DRDM(Regularised):
    """DRDM (Krouka et al. 2025, Algorithms 1–3), as published: DRFA with FedDyn's dynamic regularisation.

    ============ ================= =====================================================
    paper        code              meaning
    ============ ================= =====================================================
    w̄^(s)        ``state.w``       (d,) global model
    λ^(s)        ``state.lam``     (N,) client weights
    ∇f_i(w_i)    ``state.h``       (N, d) drift terms, one row per client, estimated recursively
    c^(s)        ``state.c``       (d,) c = mean_i h_i, at all times
    D^(s)        ``D``             m draws from λ, with replacement
    t'           ``t``             snapshot step, uniform on {1, …, τ}, the same for the whole cohort
    w^(t')       ``model.snapshot`` (d,) the global model that the local models after step t' would give
    U, v         ``dual.py``       uniform sample of m clients and their scaled losses
    η, τ         ``local``         local step size and number of steps
    μ            ``mu``            weight of the penalty (μ/2)·‖w − w̄‖²
    γ            ``gamma``         dual step size; a round moves λ by τγ·v
    ŵ, λ̂         ``Average``       the averaged solution of Theorem 1
    ============ ================= =====================================================

    Args:
        mu: Penalty μ > 0; None = 1/(5ητ), see :func:`drfl.algorithms.drift.penalty`.

    The other parameters are those of :class:`drfl.algorithms.dual.SnapshotMethod`.

    Deviations: none if μ and γ are set. λ^(0) is uniform (projected onto Λ) and c^(0) = h_i^(0) = 0. In lines 17 and
    18, the sum runs over the *distinct* clients of the cohort and over both terms, Σ_{i∈D}(w_i − w̄). A client drawn
    twice trains once and updates its h_i once; otherwise c would not equal mean_i h_i. In lines 19 and 20, a client
    drawn twice counts twice. The paper has no ψ; a ψ is handled by the dual step of DRFA-Prox.

    c is the *uniform* mean of the h_i; ``docs/fixed-point.md`` explains the consequence. :class:`DualDRDM` weights the
    h_i by λ. A client with λ_i = 0 is not drawn, and its outdated h_i stays in c, so a run converges neither to the
    average optimum nor to the saddle point. ``Simplex(floor)`` with a floor above 0, or
    ``sampling=sampling.all_clients``, keeps all h_i current.

    Raises:
        InputError: If mu or gamma is out of range, or if m > N (on first use).
    """

    def init(self, fed: Federation) -> DRDMState:
        """Return the state with the initial model, λ^(0) and zero drift terms."""
        sampling.size(self.m, fed.n)
        w, lam = fed.w0, first_mixture(self.ambiguity, fed, self.lam0)
        reference = first_references(self.reference, fed)
        return DRDMState(w, lam, torch.zeros_like(w), fed.client_table(), no_squares(), reference)

    def round(self, state: DRDMState, fed: Federation, key: Key) -> tuple[DRDMState, Info]:
        """Run one round of Algorithm 1, lines 5–21."""
        (w, lam, c, h, squares, reference), N, tau = state, fed.n, self.local.tau
        m = sampling.size(self.m, N)
        mu = penalty(self.mu, self.local)

        D = sampling.draw(self.sampling, lam, m, key.fold("D"))  # D ~ λ
        t = key.fold("t").integer(1, tau)  # t' ~ U{1..τ}
        up = fed.train(D.clients, w, self.local, key.fold("sgd"), prox=mu, shift=h[D.clients].neg_(), snapshot=t)
        if not up.clients.numel():
            return state, Info.without_replies(D)
        a = D.weights_of(up.clients).to(w)  # multiplicities among the clients that answered, normalised to sum 1
        h_next = h.add(up.clients, up.w, alpha=-mu, origin=w)  # line 10

        def corrected(w_i: Tensor) -> Tensor:  # the global model that local models w_i (k, d) give
            # Lines 19 and 20 use the c that lines 17 and 18 have updated.
            def part(at: slice) -> Tensor:
                c_next = c[at] + -mu / N * (w_i[:, at] - w[at]).sum(0)
                return a @ w_i[:, at] - c_next / mu

            return by_columns(part, w)

        model = up.merged(corrected)  # lines 17–20

        dual = self.snapshot_ascent(fed, model, lam, squares, reference, key)  # line 21
        c_next = c + -mu / N * sum_updates(up.w, w)
        next_state = DRDMState(model.w, dual.lam, c_next, h_next, dual.squares, dual.reference)
        return next_state, Info(D, up.clients, dual.losses, model.average)


class DualDRDMState(NamedTuple):
    """State of dual DRDM.

    Args:
        w: (d,) Global model.
        lam: (N,) Client weights λ.
        h: (N, d) Drift terms.
        squares: () Sum of squares of the dual step rule, see :func:`drfl.algorithms.dual.step_size`.
        c: Running sum Σ_i λ_i h_i; None for few clients, because each round then computes it from all rows.
        reference: The losses of the clients' own models; None without ``reference="own"``.
    """

    w: Tensor
    lam: Tensor
    h: ClientTable
    squares: Tensor
    c: WeightedSum | None
    reference: References | None = None


@dataclass(frozen=True)
class DualDRDM(Regularised):
    """A correction of DRDM with c = Σ_i λ_i h_i, so that the fixed point is the λ-weighted optimum.

    Solves min_w max_{λ∈Λ} Σ_i λ_i f_i(w) − ψ(λ). Apart from the correction, this is DRDM (Krouka et al. 2025,
    Algorithms 1–3). DRDM's c = mean_i h_i leads to the optimum of the *average* loss; ``docs/fixed-point.md`` derives
    both fixed points.

    ============ ================= =====================================================
    notation     code              meaning
    ============ ================= =====================================================
    w̄, λ         ``state``         (d,) global model and (N,) client weights
    h_i          ``state.h``       (N, d) drift terms, one row per client; ∇f_i(w̄) at a fixed point
    c            ``c``             (d,) c = Σ_i λ_i h_i with the current λ
    D, t', w_t   as in DRDM        cohort drawn from λ, snapshot step, snapshot of the global model
    μ, γ, η, τ   as in DRDM        penalty, dual step size, local step size and number of steps
    ============ ================= =====================================================

    Args:
        mu: Penalty μ > 0; None = 1/(5ητ), see :func:`drfl.algorithms.drift.penalty`.

    The other parameters are those of :class:`drfl.algorithms.dual.SnapshotMethod`.

    Deviations from DRDM: reported losses are centred unless ``centred=False``. c is weighted by λ and therefore
    recomputed when λ changes. The server must see every h_i, so sums over the cohort (secure aggregation) are not
    enough. With up to 512 clients, a round reads every updated h_i with λ_i > 0. With more, it maintains a running sum,
    see :class:`drfl.algorithms.weighted_sum.WeightedSum`: it reads the h_i of the cohort and of the clients whose λ_i
    changed differently from the rest. Under KL and KLBall every λ_i changes differently, so it reads all of them.

    Raises:
        InputError: If mu or gamma is out of range, or if m > N (on first use).
    """

    centred: bool = True

    def init(self, fed: Federation) -> DualDRDMState:
        """Return the state with the initial model, λ^(0) and zero drift terms."""
        sampling.size(self.m, fed.n)
        w, lam = fed.w0, first_mixture(self.ambiguity, fed, self.lam0)
        h = fed.client_table()
        return DualDRDMState(w, lam, h, no_squares(), WeightedSum.first(h), first_references(self.reference, fed))

    def round(self, state: DualDRDMState, fed: Federation, key: Key) -> tuple[DualDRDMState, Info]:
        """Run one round of DRDM with c weighted by λ."""
        (w, lam, h, squares, running, reference), m, tau = state, sampling.size(self.m, fed.n), self.local.tau
        mu = penalty(self.mu, self.local)

        D = sampling.draw(self.sampling, lam, m, key.fold("D"))  # D ~ λ
        t = key.fold("t").integer(1, tau)  # t' ~ U{1..τ}
        up = fed.train(D.clients, w, self.local, key.fold("sgd"), prox=mu, shift=h[D.clients].neg_(), snapshot=t)
        if not up.clients.numel():
            return state, Info.without_replies(D)
        a = D.weights_of(up.clients).to(w)  # multiplicities among the clients that answered, normalised to sum 1
        # With few clients, a sum over all rows is cheap and has no rounding errors of earlier rounds.
        c = h.mix(lam) if running is None else running.sums[0].to(w)  # Σ_i λ_i h_i
        lam_up = lam[up.clients].to(w)

        def corrected(w_i: Tensor) -> Tensor:  # the global model that local models w_i (k, d) give
            # Use λ from before the dual update, as c does.
            def part(at: slice) -> Tensor:
                c_next = c[at] - mu * (lam_up @ (w_i[:, at] - w[at]))
                return a @ w_i[:, at] - c_next / mu

            return by_columns(part, w)

        h_next = h.add(up.clients, up.w, alpha=-mu, origin=w)  # h_i ← h_i − μ(w_i − w̄)
        model = up.merged(corrected)

        dual = self.snapshot_ascent(fed, model, lam, squares, reference, key)
        if running is not None:
            # Update the running sum after the dual update, because it must match the λ at the start of the next round.
            running = running.after(WeightedRows(h, lam), WeightedRows(h_next, dual.lam), up.clients, dual.target)
        next_state = DualDRDMState(model.w, dual.lam, h_next, dual.squares, running, dual.reference)
        return next_state, Info(D, up.clients, dual.losses, model.average)
