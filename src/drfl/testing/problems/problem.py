"""A problem with its saddle point."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from drfl.ambiguity import AmbiguitySet
from drfl.core.errors import InputError
from drfl.data import ClientData
from drfl.engine import Engine, Simulation
from drfl.task.losses import SampleFn
from drfl.task.task import Task
from drfl.testing.problems.objectives import Functions
from drfl.testing.problems.solvers import Ball, Entropic, Mixtures, Point, interior, minimise, mixtures_of, polish


class Saddle(NamedTuple):
    """A saddle point.

    Args:
        w: (d,) the model.
        lam: (N,) the mixture weights.
        value: Σ_i λ_i f_i(w) − ψ(λ) at the saddle point.
    """

    w: Tensor
    lam: Tensor
    value: float


def weighted_optimum(functions: Functions, lam: Tensor) -> Tensor:
    """Return argmin_w Σ_i λ_i f_i(w), (d,), by Newton's method."""

    def point(w: Tensor) -> Point:
        return Point(lam @ functions.losses(w), lam @ functions.gradients(w), functions.hessian(w, lam))

    return minimise(point, torch.zeros(functions.d, dtype=torch.float64))


def solve(functions: Functions, mixtures: Mixtures | Entropic | Ball) -> Saddle:
    """Compute the saddle point.

    Raises:
        ArithmeticError: If it was not found to high precision.
    """
    match mixtures:
        case Mixtures():
            # An interior-point method from the optimum of the average loss, then polishing.
            n, curvature = mixtures.n, mixtures.curvature
            lam = torch.full((n,), 1 / n, dtype=torch.float64)
            w = weighted_optimum(functions, lam)
            if not mixtures.single:
                w, lam = polish(functions, mixtures, interior(functions, mixtures, w, lam))
            value = lam @ functions.losses(w) - curvature / 2 * (lam - 1 / n).square().sum()
            return Saddle(w, lam, float(value))
        case Entropic():
            return _entropic(functions, mixtures)
        case Ball():
            return _ball(functions, mixtures)


def _entropic(functions: Functions, mixtures: Entropic) -> Saddle:
    """Minimise ρ log Σ_i p_i exp(f_i(w)/ρ), which remains after substituting λ_i ∝ p_i exp(f_i(w)/ρ)."""
    log_prior = torch.tensor(mixtures.prior, dtype=torch.float64).log()

    def mixture(w: Tensor) -> tuple[Tensor, Tensor]:
        scores = functions.losses(w) / mixtures.rho + log_prior
        return scores.softmax(0), mixtures.rho * scores.logsumexp(0)

    def point(w: Tensor) -> Point:
        lam, value = mixture(w)
        J = functions.gradients(w)
        spread = J.T @ (lam[:, None] * J) - torch.outer(lam @ J, lam @ J)
        return Point(value, lam @ J, functions.hessian(w, lam) + spread / mixtures.rho)

    w = minimise(point, torch.zeros(functions.d, dtype=torch.float64))
    lam, value = mixture(w)
    return Saddle(w, lam, float(value))


def _ball(functions: Functions, ball: Ball) -> Saddle:
    """Find the penalty ρ·divergence whose saddle point is on the sphere; its divergence falls as ρ grows."""
    from scipy.optimize import brentq  # imported here because it is slow to load

    lam = torch.tensor(ball.centre, dtype=torch.float64)
    if ball.radius == 0:
        w = weighted_optimum(functions, lam)
        return Saddle(w, lam, float(lam @ functions.losses(w)))
    # If the saddle point of the whole simplex is in the ball, the radius does not matter.
    whole = solve(functions, ball.simplex)
    if ball.divergence(whole.lam) <= ball.radius:
        return whole

    def excess(log_rho: float) -> float:
        return ball.divergence(solve(functions, ball.penalty(math.exp(log_rho))).lam) - ball.radius

    # Bracket the root in steps of a factor e²: the divergence falls as ρ grows.
    high = low = math.log(1 + abs(whole.value))
    while excess(high) > 0:
        low, high = high, high + 2
    while excess(low) < 0:
        low, high = low - 2, low
    log_rho = cast(float, brentq(excess, low, high, xtol=1e-15, rtol=4 * np.finfo(np.float64).eps))
    w, lam, _ = solve(functions, ball.penalty(math.exp(log_rho)))
    return Saddle(w, lam, float(lam @ functions.losses(w)))


@dataclass(frozen=True, eq=False)
class Problem:
    """N clients with objectives f_i that are L-smooth and μ-strongly convex, as a federation and as mathematics.

    The federation's losses and gradients with ``batch=None`` are those of ``functions``. Optima are computed once and
    cached. They are float64 for any type of the federation.

    Args:
        name: Name of the problem.
        functions: The f_i.
        data: The clients' samples, float64; f_i is the mean loss over client i's training samples.
        module: Makes the model, with initial parameters 0.
        loss: Loss per sample, including regularisation.
        score: Score per sample, in [0, 1].
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
        """Make the task: model, loss and score."""
        return Task(self.module().to(dtype), self.loss, self.score)

    def federation(self, engine: Engine | None = None, dtype: torch.dtype = torch.float64) -> Simulation:
        """Make a new federation of the clients, with a new ledger.

        Args:
            engine: The engine; None for the federation's default.
            dtype: Type of model and data.
        """
        return Simulation(self.data, self.task(dtype), engine=engine)

    def losses(self, w: Tensor) -> Tensor:
        """Return (N,) f_i(w).

        Raises:
            InputError: If w is not (d,).
        """
        return self.functions.losses(self._model(w))

    def gradients(self, w: Tensor) -> Tensor:
        """Return (N, d) ∇f_i(w).

        Raises:
            InputError: If w is not (d,).
        """
        return self.functions.gradients(self._model(w))

    @cached_property
    def average_optimum(self) -> Tensor:
        """(d,) the minimiser of mean_i f_i, the aim of FedAvg, SCAFFOLD and FedDyn if clients have equal weights."""
        return self.weighted_optimum(torch.full((self.N,), 1 / self.N, dtype=torch.float64))

    def weighted_optimum(self, lam: Tensor) -> Tensor:
        """Return the (d,) minimiser of Σ_i λ_i f_i for a mixture λ (N,).

        Raises:
            InputError: If λ is not a non-negative vector (N,) with a positive sum.
        """
        return weighted_optimum(self.functions, self.check_mixture("lam", lam))

    def saddle(self, ambiguity: AmbiguitySet) -> Saddle:
        """Return the saddle point of min_w max_{λ∈Λ} Σ_i λ_i f_i(w) − ψ(λ).

        w and the value are unique. λ is unique too if ψ is strongly convex, and generally otherwise: it is the convex
        combination of the worst clients whose gradients cancel.

        Raises:
            InputError: If the saddle point for Λ is not known.
        """
        mixtures = mixtures_of(ambiguity, self.N)
        if mixtures not in self._saddles:
            self._saddles[mixtures] = solve(self.functions, mixtures)
        return self._saddles[mixtures]

    def check_mixture(self, name: str, lam: Tensor) -> Tensor:
        """Return λ (N,) in float64 on the CPU.

        Raises:
            InputError: If it is not a non-negative vector (N,) with a positive sum.
        """
        lam = lam.detach().to("cpu", torch.float64)
        if lam.shape != (self.N,) or not (lam.isfinite().all() and lam.min() >= 0 and lam.sum() > 0):
            raise InputError(
                f"{name} must be a mixture of {self.N} clients, non-negative and with a positive sum",
                code="invalid-value",
                field=name,
            )
        return lam

    def _model(self, w: Tensor) -> Tensor:
        if w.shape != (self.d,):
            raise InputError(
                f"w must be a vector of {self.d} parameters, got shape {tuple(w.shape)}",
                code="wrong-shape",
                field="w",
            )
        return w
