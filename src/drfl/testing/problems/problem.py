"""A federated problem whose optima are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from drfl.ambiguity import AmbiguitySet
from drfl.data import ClientData
from drfl.engine import Engine, Simulation
from drfl.errors import InputError
from drfl.task import SampleFn, Task
from drfl.testing.problems.functions import Functions
from drfl.testing.problems.mixtures import Ball, Entropic, Mixtures, mixtures_of
from drfl.testing.problems.saddle import Saddle, solve, weighted_optimum


@dataclass(frozen=True, eq=False)
class Problem:
    """N clients with objectives f_i that are L-smooth and μ-strongly convex, as a federation and as mathematics.

    The federation's losses and gradients with ``batch=None`` are those of ``functions``. Optima are found once and
    kept. They are float64, whatever type the federation computes in.

    Args:
        name: what it is called.
        functions: the f_i.
        data: the clients' samples, float64; f_i is the mean loss over i's training samples.
        module: makes the model, at its initial parameters 0.
        loss: per sample, regularisation included.
        score: per sample, in [0, 1].
        smoothness: L, of every f_i.
        strong_convexity: μ, of every f_i.
    """

    name: str
    functions: Functions
    data: ClientData
    module: Callable[[], nn.Module]
    loss: SampleFn
    score: SampleFn
    smoothness: float
    strong_convexity: float
    _saddles: dict[Mixtures | Entropic | Ball, Saddle] = field(default_factory=dict, init=False, repr=False)

    @property
    def N(self) -> int:  # noqa: N802 - the papers' name
        """The number of clients."""
        return self.functions.n

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.functions.d

    def task(self, dtype: torch.dtype = torch.float64) -> Task:
        """Model, loss and score."""
        return Task(self.module().to(dtype), self.loss, self.score)

    def federation(self, engine: Engine | None = None, dtype: torch.dtype = torch.float64) -> Simulation:
        """The clients; a new federation with a ledger of its own.

        Args:
            engine: None = the federation's default.
            dtype: of model and data.
        """
        return Simulation(self.data, self.task(dtype), engine=engine)

    def losses(self, w: Tensor) -> Tensor:
        """(N,) f_i(w).

        Raises:
            InputError: w is not (d,).
        """
        return self.functions.losses(self._model(w))

    def gradients(self, w: Tensor) -> Tensor:
        """(N, d) ∇f_i(w).

        Raises:
            InputError: w is not (d,).
        """
        return self.functions.gradients(self._model(w))

    @cached_property
    def average_optimum(self) -> Tensor:
        """(d,) the minimiser of mean_i f_i: what FedAvg, SCAFFOLD and FedDyn aim at when clients weigh the same."""
        return self.weighted_optimum(torch.full((self.N,), 1 / self.N, dtype=torch.float64))

    def weighted_optimum(self, lam: Tensor) -> Tensor:
        """(d,) the minimiser of Σ_i λ_i f_i for a mixture λ (N,).

        Raises:
            InputError: λ is not a non-negative vector (N,) with a positive sum.
        """
        return self._minimiser(self._mixture("lam", lam))

    def saddle(self, ambiguity: AmbiguitySet) -> Saddle:
        """The saddle point of min_w max_{λ∈Λ} Σ_i λ_i f_i(w) − ψ(λ).

        w and the value are unique. λ is so too where ψ is strongly convex, and otherwise in general: it is a convex
        combination of the worst-off clients that makes the gradients cancel.

        Raises:
            InputError: Λ is not one of those for which it is known.
        """
        mixtures = mixtures_of(ambiguity, self.N)
        if mixtures not in self._saddles:
            self._saddles[mixtures] = solve(self.functions, mixtures)
        return self._saddles[mixtures]

    def _mixture(self, name: str, lam: Tensor) -> Tensor:
        lam = lam.detach().to("cpu", torch.float64)
        if lam.shape != (self.N,) or not (lam.isfinite().all() and lam.min() >= 0 and lam.sum() > 0):
            raise InputError(f"{name} must be a mixture of {self.N} clients, non-negative and not all 0")
        return lam

    def _model(self, w: Tensor) -> Tensor:
        if w.shape != (self.d,):
            raise InputError(f"w must be a vector of {self.d} parameters, not of shape {tuple(w.shape)}")
        return w

    def _minimiser(self, lam: Tensor) -> Tensor:
        return weighted_optimum(self.functions, lam)
