"""What the server makes of the mean of the local models: a step of its own along Δ, how far that mean has moved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.registry import named, text_of


class ServerMoments(NamedTuple):
    """What a server optimiser remembers: m (d,) of the Δ, v (d,) of their squares (with momentum alone it stays 0)."""

    m: Tensor
    v: Tensor


class ServerOptimizer(ABC):
    """w ← server(w, Δ): Δ = Σ_i p_i (w_i − w) stands for minus a gradient."""

    @abstractmethod
    def init(self, w: Tensor) -> ServerMoments:
        """What it remembers before the first round, for models like w (d,)."""

    @abstractmethod
    def step(self, w: Tensor, delta: Tensor, moments: ServerMoments) -> tuple[Tensor, ServerMoments]:
        """The next model (d,), and what is remembered; nothing is written to."""

    def __str__(self) -> str:
        """The text that :func:`parse` makes it from."""
        return text_of(SERVER_OPTIMIZERS, self)


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer):
    """m ← beta·m + Δ, w ← w + lr·m (Hsu et al. 2019). With lr = 1 and beta = 0 it is the mean itself.

    Args:
        lr: > 0.
        beta: In [0, 1).

    Raises:
        InputError: If a value is out of range.
    """

    lr: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        checks.positive("server lr", self.lr)
        checks.decay("beta", self.beta)

    def init(self, w: Tensor) -> ServerMoments:
        """m = 0."""
        return ServerMoments(torch.zeros_like(w), torch.zeros_like(w))

    def step(self, w: Tensor, delta: Tensor, moments: ServerMoments) -> tuple[Tensor, ServerMoments]:
        """See :class:`ServerOptimizer`."""
        # The update takes the place of the negative gradient, so it is added.
        m = self.beta * moments.m + delta
        return w + self.lr * m, moments._replace(m=m)


@dataclass(frozen=True)
class AdaptiveOptimizer(ServerOptimizer):
    """Reddi et al. 2021, Algorithm 2: m ← β1·m + (1 − β1)·Δ, v by the subclass, w ← w + lr·m/(√v + tau).

    m and v are not corrected for their start, v starts at tau², as in the paper.

    Args:
        lr: η > 0.
        beta1: β1 in [0, 1).
        beta2: β2 in [0, 1).
        tau: τ > 0, the degree of adaptivity; the smaller, the more.

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
        """m = 0, v = tau²."""
        # Reddi et al. (2021) require v ≥ τ² at the start.
        return ServerMoments(torch.zeros_like(w), torch.full_like(w, self.tau**2))

    @abstractmethod
    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v (d,), where ``square`` is Δ²."""

    def step(self, w: Tensor, delta: Tensor, moments: ServerMoments) -> tuple[Tensor, ServerMoments]:
        """See :class:`ServerOptimizer`."""
        # No bias correction, as in Reddi et al. (2021).
        m = self.beta1 * moments.m + (1 - self.beta1) * delta
        v = self.squares(moments.v, delta.square())
        return w + self.lr * m / (v.sqrt() + self.tau), ServerMoments(m, v)


@dataclass(frozen=True)
class FedAdam(AdaptiveOptimizer):
    """v ← β2·v + (1 − β2)·Δ², see :class:`AdaptiveOptimizer`."""

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """See :class:`AdaptiveOptimizer`."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(AdaptiveOptimizer):
    """v ← v − (1 − β2)·Δ²·sign(v − Δ²), see :class:`AdaptiveOptimizer`."""

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """See :class:`AdaptiveOptimizer`."""
        # v changes by (1 − β₂)·Δ² at most, so a large v falls more slowly than with Adam.
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class FedAdagrad(AdaptiveOptimizer):
    """v ← v + Δ² without β2, and no momentum unless beta1 is given; see :class:`AdaptiveOptimizer`."""

    beta1: float = 0.0

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """See :class:`AdaptiveOptimizer`."""
        return v + square


SERVER_OPTIMIZERS: dict[str, Callable[..., ServerOptimizer]] = {
    "fedavgm": FedAvgM,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
}
"""Server optimisers by name; their options are their numbers."""


def parse(text: str) -> ServerOptimizer:
    """The optimiser that a text of the form ``name:option=number,…`` stands for.

    Example:
        >>> parse("fedavgm:beta=0.8")
        FedAvgM(lr=1.0, beta=0.8)

    Raises:
        InputError: If there is no such optimiser, an option is unknown, given twice or no number, or out of range.
    """
    return named("server optimizer", SERVER_OPTIMIZERS, text)
