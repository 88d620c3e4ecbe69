"""FedAvg and FedProx, and the shared steps of methods whose round ends with the weighted mean of local models."""

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
from drfl.optim.server_optimizers import ServerMoments, ServerOptimizer, check_server


class FedAvgState(NamedTuple):
    """State of FedAvg and related methods.

    Args:
        w: (d,) Global model.
        server: State of the server optimiser; None if there is none.
    """

    w: Tensor
    server: ServerMoments | None = None


class EqualWeights:
    """A method whose objective is the plain mean over clients."""

    def weights(self, fed: Federation) -> Tensor:
        """Return equal weights, (N,) float64."""
        return torch.full((fed.n,), 1 / fed.n, dtype=torch.float64)


@dataclass(frozen=True)
class FixedWeights:
    """A method that trains a cohort for an objective with fixed client weights; the fields are as in `Averaging`."""

    m: int | None = None
    local: LocalSGD = field(default_factory=LocalSGD)
    by_samples: bool = True

    def init(self, fed: Federation) -> FedAvgState:
        """Return the state with the initial model."""
        sampling.size(self.m, fed.n)
        self.local.steps_of(fed.sizes, torch.arange(fed.n))  # raises if local epochs are set but n_i is unknown
        return FedAvgState(fed.w0)

    def weights(self, fed: Federation) -> Tensor:
        """Return the fixed weights of the objective, (N,) float64."""
        return fed.shares.double() if self.by_samples else torch.full((fed.n,), 1 / fed.n, dtype=torch.float64)


@dataclass(frozen=True)
class Averaging(FixedWeights):
    """A method whose round ends with the weighted mean of local models.

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        local: Local solver.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean of the local models, see :mod:`drfl.optim.server_optimizers`.
            With None, the mean is the next model. With a server optimiser there is no averaged solution, because the
            next model is not a mean of local models.

    Raises:
        InputError: If m > N (on first use).
    """

    server: ServerOptimizer | None = field(default=None, kw_only=True)

    def init(self, fed: Federation) -> FedAvgState:
        """Return the state with the initial model."""
        check_server(self.server)
        state = super().init(fed)
        return state if self.server is None else state._replace(server=self.server.init(fed.w0))

    def train_and_average(
        self, state: FedAvgState, fed: Federation, D: Cohort, key: Key, prox: float = 0.0
    ) -> tuple[FedAvgState, Info]:
        """Train a cohort and return the state with the mean Σ_i λ_i w_i / Σ_i λ_i over the clients that answered.

        If there is a server optimiser, it is applied to this mean. If no client answers, the state does not change.

        Args:
            state: State before the round.
            fed: The federation.
            D: Cohort to train.
            key: Key of the minibatches.
            prox: Weight of the proximal term, which pulls local models towards w.
        """
        weighted = Cohort(D.clients, self.weights(fed)[D.clients])
        answered, model = fed.mean(weighted, state.w, self.local, key, prox=prox)
        if model is None:
            return state, Info.without_replies(D)
        return self.apply_server(state, model), Info(D, answered, average=model.average)

    def apply_server(self, state: FedAvgState, model: Merged) -> FedAvgState:
        """Return the state after a round that merged the local models into ``model``."""
        if self.server is None or state.server is None:
            return FedAvgState(model.w)
        # The server optimiser takes the mean update in place of a gradient.
        return FedAvgState(*self.server.step(state.w, model.w - state.w, state.server))


@dataclass(frozen=True)
class FedAvg(Averaging):
    """FedAvg (McMahan et al. 2017, Algorithm 1).

    Minimises Σ_i λ_i f_i(w) with fixed λ: the clients' shares of the samples, or uniform weights.

    ====== =============== =====================================================
    paper  code            meaning
    ====== =============== =====================================================
    w_t    ``state.w``     (d,) global model
    S_t    ``D``           cohort, uniform without replacement
    m      ``m``           cohort size; None = :func:`drfl.federation.sampling.size`
    E, B   ``local``       steps τ or epochs E, minibatch, step size η
    ====== =============== =====================================================

    Args:
        m: Cohort size.
        local: Local solver.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean of the local models; None uses the mean as the next model.

    Deviations: local work is counted in steps, as in DRFA and DRDM, unless ``local`` sets epochs.

    Raises:
        InputError: If m > N (on first use).
    """

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """Train a uniform cohort and average the replies."""
        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        return self.train_and_average(state, fed, D, key.fold("sgd"))


@dataclass(frozen=True)
class FedProx(Averaging):
    """FedProx (Li et al. 2020, Algorithm 2): FedAvg with a proximal term that pulls clients towards the global model.

    A client takes τ steps on h_i(u; w) = f_i(u) + (μ/2)·‖u − w‖². With μ = 0 this is bit-identical to FedAvg.

    ========== =============== =====================================================
    paper      code            meaning
    ========== =============== =====================================================
    w^t        ``state.w``     (d,) global model
    S_t, K     ``D``, ``m``    cohort, uniform without replacement
    μ          ``mu``          weight of the proximal term
    γ_k^t      ``local``       accuracy to which h_i is minimised: τ steps at every client
    ========== =============== =====================================================

    Args:
        m: Cohort size.
        local: Local solver.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean of the local models; None uses the mean as the next model.
        mu: μ ≥ 0. The default is small: with τ = 10 steps of η = 0.1, it shortens the updates of a round by at most
            τημ = 10 %.

    Deviations: the paper draws clients by their shares and weights them equally. Here, as in FedAvg, clients are drawn
    uniformly and weighted by their shares. All clients take the same number of steps. A client that is too slow counts
    as missing, while the paper uses its unfinished model.

    Raises:
        InputError: If mu is negative, or if m > N (on first use).
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        checks.non_negative("mu", self.mu)

    @property
    def proximal_weight(self) -> float:
        """Weight of the proximal term, see :func:`drfl.federation.algorithm.proximal_weight`."""
        return self.mu

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """Train a uniform cohort with the proximal term and average the replies."""
        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        return self.train_and_average(state, fed, D, key.fold("sgd"), self.mu)
