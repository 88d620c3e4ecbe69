"""Federated averaging over the tail of the clients' losses."""

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
"""How much weight a sum of shares may miss and still count as the tail."""


@dataclass(frozen=True)
class DeltaFL(Averaging):
    """Δ-FL, also Simplicial-FL (Pillutla et al. 2023): FedAvg over the clients whose losses are in the upper tail.

    Minimises the superquantile of the clients' losses at level θ, their mean over the worst 1 − θ of the weight. With
    θ = 0 this is FedAvg, up to the losses sent; for θ → 1 only the worst client of the cohort trains.

    ============ =============== =====================================================
    paper        code            meaning
    ============ =============== =====================================================
    w^(t)        ``state.w``     (d,) global model
    S            ``D``           cohort, uniform without replacement
    α_k          ``lam``         (N,) fixed weights of the base objective
    1 − θ        ``theta``       level of the superquantile (θ of the paper: conformity)
    F_k(w^(t))   ``f``           loss before training
    Q^(t)        in ``tail``     quantile of the cohort's losses at that level
    π_k          ``T``           who is in the tail and trains
    ============ =============== =====================================================

    Args:
        m: cohort size, for the losses.
        local: what a client runs.
        by_samples: weight clients by their samples (the default) or all alike, in the quantile as in the mean.
        server: what the server makes of the mean; None = it is the next model.
        theta: level θ in [0, 1); the default trains the worse-off half.
        loss_batch: samples per loss report; None = all local training data.

    Deviations: ``theta`` is the level of the superquantile, one minus the paper's conformity. The tail is the fewest
    clients of largest losses that hold 1 − θ of the weight: where it ends exactly between two clients, the published
    code takes the one below along. Losses are plain numbers, without the paper's private estimate of the quantile.

    Raises:
        InputError: theta is out of range, or m > N (when first used).
    """

    theta: float = 0.5
    loss_batch: int | None = None

    def __post_init__(self) -> None:
        checks.non_negative("theta", self.theta)
        if self.theta >= 1:
            raise InputError(
                f"theta must be in [0, 1), not {self.theta}: 0 trains everybody", code="out-of-range", field="theta"
            )
        if self.loss_batch is not None:
            checks.whole("loss_batch", self.loss_batch)

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """One round: losses at a uniform cohort, local steps in its tail, the weighted mean of those who answered."""
        w, lam = state.w, self.weights(fed)

        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        f = dual.finite(fed.losses(D.clients, w, key.fold("xi"), batch=self.loss_batch))
        if not f.clients.numel():
            return state, Info.nobody(D)
        worst = f.clients[tail(f.values, lam[f.clients], self.theta)].sort().values
        T = Cohort(worst, lam[worst])
        next_state, info = self.averaged(state, fed, T, key.fold("sgd"))
        return next_state, info._replace(losses=f)


def tail(losses: Tensor, weights: Tensor, theta: float) -> Tensor:
    """Who is in the upper tail: the fewest of largest loss that hold at least 1 − θ of the weight, ties included.

    Args:
        losses: (k,) finite, k ≥ 1.
        weights: (k,) positive; need not sum to 1.
        theta: in [0, 1).

    Returns:
        (k,) bool: losses at least the quantile inf{x : weight of losses ≤ x is above θ}.
    """
    order = losses.argsort(descending=True)
    held = weights[order].cumsum(0) / weights.sum()
    short = int((held < (1 - theta) * (1 - ROUNDING)).sum())  # so many do not suffice
    # Compare values, not positions: all losses tied at the quantile belong to the tail.
    return losses >= losses[order[min(short, len(losses) - 1)]]
