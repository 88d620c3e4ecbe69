"""Local optimisers: the rule of a client's step (SGD, Adam or SAM)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from drfl.core import checks
from drfl.core.registry import from_text, text_of


class LocalOptimizer:
    """The rule of a local step. Its state starts at zero in every round.

    Attributes:
        gradients: Number of gradients per step, all on the same minibatch.
    """

    gradients: ClassVar[int] = 1

    def __str__(self) -> str:
        """Return the text from which :func:`parse` creates this object."""
        return text_of(LOCAL_OPTIMIZERS, self)


@dataclass(frozen=True)
class SGD(LocalOptimizer):
    """Plain steps u ← u − η·v, v ← momentum·v + d with direction d; see :class:`drfl.optim.local.LocalSGD`."""


@dataclass(frozen=True)
class Adam(LocalOptimizer):
    """Adam: u ← u − η·m̂/(√v̂ + epsilon), m and v running means of d and d² (Kingma and Ba 2015, Algorithm 1).

    The direction d includes weight decay, shift and the proximal term, as in plain steps.

    Args:
        beta1: Decay of the mean of d, in [0, 1).
        beta2: Decay of the mean of d², in [0, 1).
        epsilon: Positive constant in the denominator.

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
    """SAM: a plain step along the gradient at u + rho·g/‖g‖, where g is the gradient at u (Foret et al. 2021).

    This is Algorithm 1 of the paper. Both gradients use the same minibatch. Weight decay, shift and the proximal term
    are taken at u.

    Args:
        rho: Distance ρ > 0 from u at which the second gradient is computed.

    Raises:
        InputError: If rho is not positive.
    """

    gradients: ClassVar[int] = 2
    rho: float = 0.05

    def __post_init__(self) -> None:
        checks.positive("rho", self.rho)


LOCAL_OPTIMIZERS: dict[str, Callable[..., LocalOptimizer]] = {"sgd": SGD, "adam": Adam, "sam": SAM}
"""Local optimisers by name."""


def parse(text: str) -> LocalOptimizer:
    """Create a local optimiser from a text of the form ``name:option=number,…``.

    Example:
        >>> parse("sam:rho=0.1")
        SAM(rho=0.1)

    Raises:
        InputError: If the name or an option is unknown, or an option is repeated, not a number or out of range.
    """
    return from_text("local optimizer", LOCAL_OPTIMIZERS, text)
