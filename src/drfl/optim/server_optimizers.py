"""Server optimisers: the step of the global model along Δ, the mean update of the clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.registry import from_text, text_of


class ServerMoments(NamedTuple):
    """The state of a server optimiser.

    Args:
        m: First moment of Δ, (d,).
        v: Second moment of Δ, (d,); 0 for :class:`FedAvgM`.
    """

    m: Tensor
    v: Tensor


class ServerOptimizer(ABC):
    """The server's step w ← server(w, Δ), with Δ = Σ_i p_i (w_i − w) in place of a negative gradient."""

    @abstractmethod
    def init(self, w: Tensor) -> ServerMoments:
        """Create the state before the first round for models like w (d,)."""

    @abstractmethod
    def step(self, w: Tensor, delta: Tensor, moments: ServerMoments) -> tuple[Tensor, ServerMoments]:
        """Return the next model (d,) and the next state without changing the arguments."""

    def __str__(self) -> str:
        """Return the text from which :func:`parse` creates this object."""
        return text_of(SERVER_OPTIMIZERS, self)


def check_server(server: object) -> None:
    """Raise InputError unless ``server`` is a server optimiser or None."""
    if server is not None and not isinstance(server, ServerOptimizer):
        raise InputError(
            f"server must be a server optimiser such as drfl.server_optimizers.FedAdam(), or None, got {server!r:.60}",
            code="wrong-type",
            field="server",
        )


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer):
    """Server momentum: m ← beta·m + Δ, w ← w + lr·m (Hsu et al. 2019). With lr = 1 and beta = 0, it is FedAvg's mean.

    Args:
        lr: Server step size > 0.
        beta: Momentum in [0, 1).

    Raises:
        InputError: If a value is out of range.
    """

    lr: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        checks.positive("server lr", self.lr)
        checks.decay("beta", self.beta)

    def init(self, w: Tensor) -> ServerMoments:
        """Start with m = 0."""
        return ServerMoments(torch.zeros_like(w), torch.zeros_like(w))

    def step(self, w: Tensor, delta: Tensor, moments: ServerMoments) -> tuple[Tensor, ServerMoments]:
        """Take a step; see :class:`ServerOptimizer`."""
        # Δ takes the place of the negative gradient, so it is added.
        m = self.beta * moments.m + delta
        return w + self.lr * m, moments._replace(m=m)


@dataclass(frozen=True)
class AdaptiveOptimizer(ServerOptimizer):
    """Adaptive server steps: m ← β1·m + (1 − β1)·Δ, w ← w + lr·m/(√v + tau) (Reddi et al. 2021, Algorithm 2).

    The subclass defines v. As in the paper, there is no bias correction, and v starts at tau².

    Args:
        lr: Server step size η > 0.
        beta1: Decay β1 of m, in [0, 1).
        beta2: Decay β2 of v, in [0, 1).
        tau: Degree of adaptivity τ > 0; smaller values are more adaptive.

    Raises:
        InputError: If a value is out of range.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        checks.positive("server lr", self.lr)
        checks.decay("beta1", self.beta1)
        checks.decay("beta2", self.beta2)
        checks.positive("tau", self.tau)

    def init(self, w: Tensor) -> ServerMoments:
        """Start with m = 0 and v = tau²."""
        # Reddi et al. (2021) require v ≥ τ² at the start.
        return ServerMoments(torch.zeros_like(w), torch.full_like(w, self.tau**2))

    @abstractmethod
    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next v (d,) for the previous v and ``square`` = Δ²."""

    def step(self, w: Tensor, delta: Tensor, moments: ServerMoments) -> tuple[Tensor, ServerMoments]:
        """Take a step; see :class:`ServerOptimizer`."""
        # There is no bias correction, as in Reddi et al. (2021).
        m = self.beta1 * moments.m + (1 - self.beta1) * delta
        v = self.squares(moments.v, delta.square())
        return w + self.lr * m / (v.sqrt() + self.tau), ServerMoments(m, v)


@dataclass(frozen=True)
class FedAdam(AdaptiveOptimizer):
    """Adam at the server, with v ← β2·v + (1 − β2)·Δ²; see :class:`AdaptiveOptimizer`."""

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next v; see :class:`AdaptiveOptimizer`."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(AdaptiveOptimizer):
    """Yogi at the server, with v ← v − (1 − β2)·Δ²·sign(v − Δ²); see :class:`AdaptiveOptimizer`."""

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next v; see :class:`AdaptiveOptimizer`."""
        # v changes by at most (1 − β₂)·Δ², so a large v decreases more slowly than with Adam.
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class FedAdagrad(AdaptiveOptimizer):
    """Adagrad at the server, with v ← v + Δ² and, by default, without momentum; see :class:`AdaptiveOptimizer`.

    The decay ``beta2`` has no effect.
    """

    beta1: float = 0.0

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next v; see :class:`AdaptiveOptimizer`."""
        return v + square


SERVER_OPTIMIZERS: dict[str, Callable[..., ServerOptimizer]] = {
    "fedavgm": FedAvgM,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
}
"""Server optimisers by name."""


def parse(text: str) -> ServerOptimizer:
    """Create a server optimiser from a text of the form ``name:option=number,…``.

    Example:
        >>> parse("fedavgm:beta=0.8")
        FedAvgM(lr=1.0, beta=0.8)

    Raises:
        InputError: If the name or an option is unknown, or an option is repeated, not a number or out of range.
    """
    return from_text("server optimizer", SERVER_OPTIMIZERS, text)
