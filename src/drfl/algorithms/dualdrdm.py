"""DRDM with the drift terms weighed by λ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from drfl import cohort
from drfl.algorithm import Average, Info
from drfl.algorithms.dual import CORRECTED_RATE, SnapshotMethod, first_mixture, no_scale
from drfl.algorithms.penalty import check_penalty, penalty
from drfl.algorithms.sums import moves
from drfl.federation import Federation
from drfl.key import Key
from drfl.table import Table


class DualDRDMState(NamedTuple):
    """w (d,) global model; lam (N,) mixture; h (N, d) drift terms; scale () largest mean loss report so far."""

    w: Tensor
    lam: Tensor
    h: Table
    scale: Tensor
    average: Average | None


@dataclass(frozen=True)
class DualDRDM(SnapshotMethod):
    """Our correction of DRDM: c = Σ_i λ_i h_i, so that the fixed point is the λ-weighted optimum.

    Solves min_w max_{λ∈Λ} Σ_i λ_i f_i(w) − ψ(λ). Everything else is DRDM (Krouka et al. 2025, Algorithms 1–3), whose
    c = mean_i h_i leads to the optimum of the *average* loss; ``docs/fixed-point.md`` derives both.

    ============ ================= =====================================================
    notation     code              meaning
    ============ ================= =====================================================
    w̄, λ         ``state``         (d,) global model and (N,) mixture
    h_i          ``state.h``       (N, d) drift terms, row i of client i: at a fixed point ∇f_i(w̄)
    c            ``c``             (d,) c = Σ_i λ_i h_i with the present λ
    D, t', w_t   as in DRDM        cohort drawn from λ, snapshot step, snapshot of the global model
    μ, γ, η, τ   as in DRDM        penalty, dual step size, local step size and number of steps
    ============ ================= =====================================================

    Args:
        mu: penalty μ > 0; None = 1/(5ητ), see :func:`drfl.algorithms.penalty.penalty`.
        table_dir: folder for the file that holds the table h; None = it is in memory. On the CPU only.

    Its other parameters are those of :class:`drfl.algorithms.dual.SnapshotMethod`.

    Deviations from DRDM: c is weighed by λ, and therefore computed anew when λ has moved; the server must see every
    h_i, so that sums over the cohort (secure aggregation) do not suffice. A round therefore costs O(d) for every h_i
    that was ever moved and has λ_i > 0, where DRDM's depends on the cohort alone.

    Raises:
        InputError: mu or gamma is out of range, m > N or table_dir cannot be used (the latter two when first used).
    """

    mu: float | None = None
    table_dir: str | None = None

    rate: ClassVar[float] = CORRECTED_RATE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_penalty(self.mu)

    def init(self, fed: Federation) -> DualDRDMState:
        """The initial model, the uniform mixture, and no drift."""
        cohort.check_size(self.m, fed.n)
        w, lam = fed.w0, first_mixture(self.ambiguity, fed.n)
        h = Table.zeros(fed.n, w, self.table_dir)
        return DualDRDMState(w, lam, h, no_scale(), Average.start(w, lam) if self.averaged else None)

    def round(self, state: DualDRDMState, fed: Federation, key: Key) -> tuple[DualDRDMState, Info]:
        """One round."""
        (w, lam, h, scale, average), m, tau = state, self.m, self.local.steps
        mu = penalty(self.mu, self.local)

        D = self.sampling(lam, m, key.fold("D"))  # D ~ λ
        t = key.fold("t").integer(1, tau)  # t' ~ U{1..τ}
        up = fed.train(
            D.clients, w, self.local, key.fold("sgd"),
            prox=mu, shift=-h[D.clients], snapshot=t, average=self.averaged,
        )  # fmt: skip
        if not up.clients.numel():
            return state, Info.nobody(D)
        a = D.weights_of(up.clients).to(w)  # multiplicities among those who answered, sum 1
        c = h.mix(lam)  # Σ_i λ_i h_i
        lam_up = lam[up.clients].to(w)

        def corrected(w_i: Tensor) -> Tensor:  # the global model that local models w_i (k, d) make
            c_next = c - mu * moves(w_i, w, lam_up)
            return a @ w_i - c_next / mu

        h_next = h.add(up.clients, (w_i - w for w_i in up.w), alpha=-mu)  # h_i ← h_i − μ(w_i − w̄)
        w_t, w_next = corrected(up.snapshot), corrected(up.w)

        dual = self.snapshot_ascent(fed, w_t, lam, scale, key)
        if average is not None:  # the mean of w^(t) over the steps: `corrected` is affine
            average = average.add(corrected(up.average), lam)
        return DualDRDMState(w_next, dual.lam, h_next, dual.scale, average), Info(D, up.clients, dual.losses)
