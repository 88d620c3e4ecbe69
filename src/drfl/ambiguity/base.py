"""What an ambiguity set with its regulariser can do, and the checks of its arguments."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, NonFiniteError


def finite(v: Tensor) -> Tensor:
    """v (N,) in float64 on the CPU, without its history of gradients.

    Raises:
        InputError: If v is not a vector of at least one entry.
        NonFiniteError: If v holds NaN or infinity.
    """
    v = v.detach().to("cpu", torch.float64)
    if v.dim() != 1 or v.numel() == 0:
        raise InputError(f"expected a vector (N,) with N ≥ 1, got shape {tuple(v.shape)}", code="wrong-shape")
    # A sum that is finite has finite terms, in a fourth of the time; finite ones may add up to infinity.
    if not math.isfinite(float(v.sum())) and not bool(torch.isfinite(v).all()):
        bad = int((~torch.isfinite(v)).nonzero()[0])
        raise NonFiniteError(f"entry {bad} of the vector is {float(v[bad])}: λ would never recover from it")
    return v


def on_simplex(lam: Tensor, tolerance: float) -> bool:
    """Whether λ (N,), checked already, is nonnegative and sums to 1, up to the tolerance."""
    return bool((lam >= -tolerance).all()) and abs(float(lam.sum()) - 1) <= tolerance


def quarter_gaps(v: Tensor) -> Tensor:
    """(v − max_i v_i)/4 (N,), at most 0: all that a mixture of sum 1 depends on, and it cannot overflow."""
    return v / 4 - v.max() / 4


class WorstCase(NamedTuple):
    """max_{λ∈Λ} Σ_i λ_i f_i − ψ(λ) and a λ (N,), float64, that attains it."""

    value: float
    lam: Tensor


class AmbiguitySet(Protocol):
    """A closed convex set Λ of mixtures with a convex regulariser ψ (0 unless the set says otherwise).

    Vectors (N,) may have any dtype and device; answers are float64 on the CPU. NaN or infinity raises NonFiniteError.
    A set is a frozen dataclass and serves every N; numbers that cannot go with an N raise InputError when first used.
    :func:`drfl.testing.ambiguity.check_ambiguity` tests all this, for a set of your own too.
    """

    @property
    def penalised(self) -> bool:
        """Whether ψ ≠ 0."""
        ...

    def penalty(self, lam: Tensor) -> float:
        """ψ(λ) for λ (N,) in Λ; 0.0 when not penalised."""
        ...

    def penalty_gradient(self, lam: Tensor) -> Tensor:
        """∇ψ(λ) (N,) for λ in Λ; zeros when not penalised.

        Raises:
            InputError: If ψ has no gradient there (on the boundary, for KL).
        """
        ...

    def project(self, v: Tensor) -> Tensor:
        """The point of Λ nearest to v (N,); ψ plays no part."""
        ...

    def prox(self, v: Tensor, step: float) -> Tensor:
        """argmin_{u∈Λ} ψ(u) + ‖u − v‖²/(2·step), step ≥ 0; the projection when step or ψ is 0."""
        ...

    def worst_case(self, losses: Tensor) -> WorstCase:
        """A mixture in Λ with the largest objective at these losses (N,), and that objective."""
        ...

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) is in Λ, each constraint met up to the tolerance."""
        ...

    def strong_convexity(self, n: int) -> float:
        """The modulus of strong convexity of ψ over n clients, in ‖·‖₂; 0 when there is none."""
        ...


class Constraint(ABC):
    """A set Λ without a regulariser, ψ = 0: what remains to be said is ``project``, ``worst_case`` and ``contains``."""

    @property
    def penalised(self) -> bool:
        """False: ψ is 0."""
        return False

    def penalty(self, lam: Tensor) -> float:
        """0.0, once λ has been checked for NaN and infinity."""
        finite(lam)
        return 0.0

    def penalty_gradient(self, lam: Tensor) -> Tensor:
        """Zeros (N,)."""
        return torch.zeros_like(finite(lam))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """The projection: ψ is 0."""
        checks.non_negative("step", step)
        return self.project(v)

    def strong_convexity(self, n: int) -> float:
        """0.0: ψ is 0."""
        return 0.0

    @abstractmethod
    def project(self, v: Tensor) -> Tensor:
        """The point of Λ nearest to v (N,)."""

    @abstractmethod
    def worst_case(self, losses: Tensor) -> WorstCase:
        """The mixture that these losses (N,) suffer most from."""

    @abstractmethod
    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Whether λ (N,) is in Λ, each constraint met up to the tolerance."""
