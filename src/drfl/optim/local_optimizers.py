"""What a client makes of its gradients: plain steps, Adam's, or those at a perturbed point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.registry import named, text_of


class LocalOptimizer:
    """The rule of a local step; its state starts at zero in every round.

    Attributes:
        gradients: How many a step takes, each on the same minibatch.
    """

    gradients: ClassVar[int] = 1

    def __str__(self) -> str:
        """The text that :func:`parse` makes it from."""
        return text_of(LOCAL_OPTIMIZERS, self)


@dataclass(frozen=True)
class SGD(LocalOptimizer):
    """u ← u − η·v, v ← momentum·v + d for the direction d; see :class:`drfl.optim.local.LocalSGD`."""


@dataclass(frozen=True)
class Adam(LocalOptimizer):
    """u ← u − η·m̂/(√v̂ + epsilon), m and v running means of d and d² (Kingma and Ba 2015, Algorithm 1).

    The direction d holds weight decay, shift and pull, as in plain steps.

    Args:
        beta1: Of the mean of d, in [0, 1).
        beta2: Of the mean of d², in [0, 1).
        epsilon: > 0.

    Raises:
        InputError: If a value is out of range.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        checks.decay("beta1", self.beta1)
        checks.decay("beta2", self.beta2)
        checks.positive("epsilon", self.epsilon)


@dataclass(frozen=True)
class SAM(LocalOptimizer):
    """A plain step along the gradient at u + rho·g/‖g‖, g the gradient at u (Foret et al. 2021, Algorithm 1).

    Both gradients are of the same minibatch; weight decay, shift and pull are those at u.

    Args:
        rho: ρ > 0, how far away the second gradient is taken.

    Raises:
        InputError: If it is not positive.
    """

    gradients: ClassVar[int] = 2
    rho: float = 0.05

    def __post_init__(self) -> None:
        checks.positive("rho", self.rho)


LOCAL_OPTIMIZERS: dict[str, Callable[..., LocalOptimizer]] = {"sgd": SGD, "adam": Adam, "sam": SAM}
"""Local optimisers by name; their options are their numbers."""


def parse(text: str) -> LocalOptimizer:
    """The optimiser that a text of the form ``name:option=number,…`` stands for.

    Example:
        >>> parse("sam:rho=0.1")
        SAM(rho=0.1)

    Raises:
        InputError: If there is no such optimiser, an option is unknown, given twice or no number, or out of range.
    """
    return named("local optimizer", LOCAL_OPTIMIZERS, text)


def refuse(algorithm: str, optimizer: LocalOptimizer, why: str) -> None:
    """Raise an InputError unless the local steps are plain ones, whose sum is what the algorithm's formulas need."""
    if not isinstance(optimizer, SGD):
        raise InputError(
            f"{algorithm} cannot take optimizer '{optimizer}': {why}; leave optimizer out, or take FedAvg",
            code="unsupported-combination",
            field="optimizer",
        )
