"""Federated averaging over the clients with the largest losses."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from drfl.algorithms import dual
from drfl.algorithms.fedavg import Averaging, FedAvgState
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.federation.sampling import Cohort

ROUNDING = 1e-12
"""Relative tolerance when a sum of shares is compared with the weight of the tail."""


@dataclass(frozen=True)
class DeltaFL(Averaging):
    """Δ-FL, also Simplicial-FL (Pillutla et al. 2023): FedAvg over the clients whose losses are in the upper tail.

    Minimises the superquantile of the clients' losses at level θ, which is their mean over the worst 1 − θ of the
    weight. With θ = 0 this is FedAvg with additional loss reports. As θ → 1, only the worst client of the cohort
    trains.

    ============ =============== =====================================================
    paper        code            meaning
    ============ =============== =====================================================
    w^(t)        ``state.w``     (d,) global model
    S            ``D``           cohort, uniform without replacement
    α_k          ``lam``         (N,) fixed weights of the base objective
    1 − θ        ``theta``       level of the superquantile (the paper's θ is the conformity)
    F_k(w^(t))   ``f``           loss before training
    Q^(t)        in ``tail``     quantile of the cohort's losses at that level
    π_k          ``T``           clients in the tail, which train
    ============ =============== =====================================================

    Args:
        m: Cohort size for the loss reports.
        local: Local solver.
        by_samples: Whether to weight clients by their samples (the default) or equally, in the quantile and the mean.
        server: Server optimiser, applied to the mean of the local models; None uses the mean as the next model.
        theta: Level θ in [0, 1). The default trains the half with the larger losses.
        loss_batch: Samples per reported loss; None uses all local training data.

    Deviations: ``theta`` is the level of the superquantile, one minus the paper's conformity. The tail is the smallest
    set of clients with the largest losses that holds 1 − θ of the weight. If it ends exactly between two clients, the
    published code includes the lower one as well. Losses are sent as plain numbers, without the paper's private
    estimate of the quantile.

    Raises:
        InputError: If theta is out of range, or if m > N (on first use).
    """

    theta: float = 0.5
    loss_batch: int | None = None

    def __post_init__(self) -> None:
        checks.non_negative("theta", self.theta)
        if self.theta >= 1:
            raise InputError(
                f"theta must be in [0, 1), got {self.theta!r}; 0 trains the whole cohort",
                code="out-of-range",
                field="theta",
            )
        if self.loss_batch is not None:
            checks.integer("loss_batch", self.loss_batch)

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """Collect losses from a uniform cohort, train its tail and average the replies."""
        w, lam = state.w, self.weights(fed)

        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        f = dual.check_finite(fed.losses(D.clients, w, key.fold("xi"), batch=self.loss_batch), fed)
        if not f.clients.numel():
            return state, Info.without_replies(D)
        # The quantile is over the cohort's reports, with the same weights as the mean of the local models.
        worst = f.clients[tail(f.values, lam[f.clients], self.theta)].sort().values
        # Cohorts list their clients in ascending order, see Cohort.weights_of.
        T = Cohort(worst, lam[worst])
        next_state, info = self.train_and_average(state, fed, T, key.fold("sgd"))
        return next_state, info._replace(losses=f)


def tail(losses: Tensor, weights: Tensor, theta: float) -> Tensor:
    """Select the upper tail: the fewest largest losses that hold at least 1 − θ of the weight, ties included.

    Args:
        losses: (k,) Finite losses, k ≥ 1.
        weights: (k,) Positive weights; they need not sum to 1.
        theta: Level in [0, 1).

    Returns:
        (k,) bool, True for losses of at least the quantile inf{x : the losses ≤ x hold a weight above θ}.
    """
    order = losses.argsort(descending=True)
    cumulative = weights[order].cumsum(0) / weights.sum()
    short = int((cumulative < (1 - theta) * (1 - ROUNDING)).sum())  # the first `short` losses hold too little weight
    # Compare values, not positions: all losses tied at the quantile belong to the tail.
    return losses >= losses[order[min(short, len(losses) - 1)]]
