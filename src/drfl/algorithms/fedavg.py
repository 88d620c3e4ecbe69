"""FedAvg and FedProx, and what every method does that ends a round with the weighted mean of local models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.federation.requests import Merged
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD
from drfl.optim.server_optimizers import ServerMoments, ServerOptimizer


class FedAvgState(NamedTuple):
    """w (d,) global model; server: what a server optimiser remembers, None where there is none."""

    w: Tensor
    server: ServerMoments | None = None


def uniform_weights(n: int) -> Tensor:
    """(n,) float64, all 1/n."""
    return torch.full((n,), 1 / n, dtype=torch.float64)


@dataclass(frozen=True)
class Averaging:
    """A method whose round ends with the weighted mean of local models.

    Args:
        m: cohort size; None = :func:`drfl.federation.sampling.size`.
        local: what a client runs.
        by_samples: weight clients by their samples (the default) or all alike.
        server: what the server makes of the mean of the local models, see :mod:`drfl.optim.server_optimizers`; None =
            it is the next model. With one there is no averaged solution: the next model is no mean of local ones.

    Raises:
        InputError: m > N (when first used).
    """

    m: int | None = None
    local: LocalSGD = field(default_factory=LocalSGD)
    by_samples: bool = True
    server: ServerOptimizer | None = field(default=None, kw_only=True)

    def init(self, fed: Federation) -> FedAvgState:
        """The initial model."""
        sampling.size(self.m, fed.n)
        self.local.steps_of(fed.sizes, torch.arange(fed.n))  # epochs are refused where nobody knows n_i
        return FedAvgState(fed.w0, None if self.server is None else self.server.init(fed.w0))

    def weights(self, fed: Federation) -> Tensor:
        """(N,) float64, the fixed weights of the objective."""
        return fed.shares.double() if self.by_samples else uniform_weights(fed.n)

    def averaged(
        self, state: FedAvgState, fed: Federation, D: Cohort, key: Key, prox: float = 0.0
    ) -> tuple[FedAvgState, Info]:
        """w ← Σ_i λ_i w_i / Σ_i λ_i over those who answered, or what ``server`` makes of it; else the state as it was.

        Args:
            state: before the round.
            fed: the clients.
            D: who is asked to train.
            key: of their minibatches.
            prox: weight of the pull towards w.
        """
        weighted = Cohort(D.clients, self.weights(fed)[D.clients])
        answered, model = fed.mean(weighted, state.w, self.local, key, prox=prox)
        if model is None:
            return state, Info.nobody(D)
        return self.served(state, model), Info(D, answered, average=model.average)

    def served(self, state: FedAvgState, model: Merged) -> FedAvgState:
        """The state after a round that has merged the local models to this one."""
        if self.server is None or state.server is None:
            return FedAvgState(model.w)
        # The server optimizer takes the mean update in place of a gradient.
        return FedAvgState(*self.server.step(state.w, model.w - state.w, state.server))


@dataclass(frozen=True)
class FedAvg(Averaging):
    """FedAvg (McMahan et al. 2017, Algorithm 1).

    Minimises Σ_i λ_i f_i(w) with fixed λ: the clients' shares of the samples, or uniform.

    ====== =============== =====================================================
    paper  code            meaning
    ====== =============== =====================================================
    w_t    ``state.w``     (d,) global model
    S_t    ``D``           cohort, uniform without replacement
    m      ``m``           cohort size; None = :func:`drfl.federation.sampling.size`
    E, B   ``local``       steps τ or epochs E, minibatch, step size η
    ====== =============== =====================================================

    Args:
        m: cohort size.
        local: what a client runs.
        by_samples: weight clients by their samples (the default) or all alike.
        server: what the server makes of the mean; None = it is the next model.

    Deviations: local work is counted in steps, as in DRFA and DRDM, unless ``local`` says epochs.

    Raises:
        InputError: m > N (when first used).
    """

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """One round: local steps at a uniform cohort, then the weighted mean of those who answered."""
        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        return self.averaged(state, fed, D, key.fold("sgd"))


@dataclass(frozen=True)
class FedProx(Averaging):
    """FedProx (Li et al. 2020, Algorithm 2): FedAvg whose clients are pulled towards the global model.

    A client takes τ steps on h_i(u; w) = f_i(u) + (μ/2)·‖u − w‖². With μ = 0 this is FedAvg, bit for bit.

    ========== =============== =====================================================
    paper      code            meaning
    ========== =============== =====================================================
    w^t        ``state.w``     (d,) global model
    S_t, K     ``D``, ``m``    cohort, uniform without replacement
    μ          ``mu``          weight of the proximal term
    γ_k^t      ``local``       how exactly h_i is minimised: τ steps for everybody
    ========== =============== =====================================================

    Args:
        m: cohort size.
        local: what a client runs.
        by_samples: weight clients by their samples (the default) or all alike.
        server: what the server makes of the mean; None = it is the next model.
        mu: μ ≥ 0. The default pulls gently: it shortens a round of τ = 10 steps of η = 0.1 by at most
            τημ = 10 %.

    Deviations: the paper draws clients by their shares and weights them alike; here, as in FedAvg, they are drawn
    uniformly and weighted by their shares. Everybody takes the same number of steps; a client too slow for them
    counts as one that does not answer, while the paper takes its unfinished model.

    Raises:
        InputError: mu is negative, or m > N (when first used).
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        checks.non_negative("mu", self.mu)

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """One round: pulled local steps at a uniform cohort, then the weighted mean of those who answered."""
        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        return self.averaged(state, fed, D, key.fold("sgd"), self.mu)
