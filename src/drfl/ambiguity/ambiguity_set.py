"""The interface of ambiguity sets, and checks of their arguments."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, NonFiniteError


def as_vector(v: object) -> Tensor:
    """Convert a tensor, an array or a sequence of numbers to float64 on the CPU, detached from the gradient graph.

    Raises:
        InputError: If v holds something other than numbers.
    """
    if not isinstance(v, Tensor):
        try:
            # Copy, because torch warns about read-only arrays.
            v = torch.from_numpy(np.array(v, dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(f"expected a vector (N,) of numbers, got {v!r:.60}", code="wrong-type") from None
    return v.detach().to("cpu", torch.float64)


def finite_vector(v: Tensor | Sequence[float] | np.ndarray) -> Tensor:
    """Convert v (N,) with :func:`as_vector` and check it.

    Raises:
        InputError: If v is not a vector with at least one entry.
        NonFiniteError: If v holds NaN or infinity.
    """
    v = as_vector(v)
    if v.dim() != 1 or v.numel() == 0:
        raise InputError(f"expected a vector (N,) with N ≥ 1, got shape {tuple(v.shape)}", code="wrong-shape")
    # If the sum is finite, all terms are, and checking the sum takes a quarter of the time. The second check is needed
    # because finite terms can add up to infinity.
    if not math.isfinite(float(v.sum())) and not bool(torch.isfinite(v).all()):
        bad = int((~torch.isfinite(v)).nonzero()[0])
        raise NonFiniteError(f"entry {bad} of the vector is {float(v[bad])}, from which λ would never recover")
    return v


def check_ambiguity(ambiguity: object) -> None:
    """Raise InputError unless ``ambiguity`` is an ambiguity set."""
    if isinstance(ambiguity, type):
        text = f"ambiguity is the class {ambiguity.__name__}. Pass an object such as drfl.CVaR(0.2)"
        raise InputError(text, code="wrong-type", field="ambiguity")
    if not callable(getattr(ambiguity, "project", None)):
        raise InputError(
            f"ambiguity must be an ambiguity set such as drfl.CVaR(0.2), got {ambiguity!r:.60}",
            code="wrong-type",
            field="ambiguity",
        )


ROUNDING = 1e-6
"""Accepted distance of the sum of given weights from 1."""


def on_simplex(lam: Tensor, tolerance: float = ROUNDING) -> bool:
    """Return whether λ (N,), which must be finite, is non-negative and sums to 1 within the tolerance."""
    return bool((lam >= -tolerance).all()) and abs(float(lam.sum()) - 1) <= tolerance


def quarter_gaps(v: Tensor) -> Tensor:
    """Return (v − max_i v_i)/4 (N,), which determines the weights on the simplex and cannot overflow."""
    # Both terms are divided first: the difference of two huge entries of opposite sign would be infinite.
    return v / 4 - v.max() / 4


class WorstCase(NamedTuple):
    """The maximum of Σ_i λ_i f_i − ψ(λ) over λ ∈ Λ, and a λ, float64 (N,), that attains it."""

    value: float
    lam: Tensor


class AmbiguitySet(Protocol):
    """A closed convex set Λ of client weights with a convex regulariser ψ, which is 0 for most sets.

    Vectors (N,) may have any dtype and device; results are float64 on the CPU. NaN or infinity raises NonFiniteError. A
    set is a frozen dataclass and works for every N. If its numbers are impossible for an N, the first use with that N
    raises InputError. :func:`drfl.testing.ambiguity_battery.check_ambiguity` tests all this, also for your own sets.
    """

    @property
    def penalised(self) -> bool:
        """Whether ψ ≠ 0."""
        ...

    def penalty(self, lam: Tensor) -> float:
        """Return ψ(λ) for λ (N,) in Λ; 0.0 if not penalised."""
        ...

    def penalty_gradient(self, lam: Tensor) -> Tensor:
        """Return ∇ψ(λ) (N,) for λ in Λ; zeros if not penalised.

        Raises:
            InputError: If ψ has no gradient at λ (for KL, on the boundary).
        """
        ...

    def project(self, v: Tensor) -> Tensor:
        """Project v (N,) onto Λ, without using ψ."""
        ...

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Return argmin_{u∈Λ} ψ(u) + ‖u − v‖²/(2·step) for step ≥ 0; the projection if step or ψ is 0."""
        ...

    def worst_case(self, losses: Tensor) -> WorstCase:
        """Find client weights in Λ with the largest objective for these losses (N,)."""
        ...

    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Return whether λ (N,) meets each constraint of Λ within the tolerance."""
        ...

    def strong_convexity(self, n: int) -> float:
        """Return the modulus of strong convexity of ψ over n clients, in ‖·‖₂; 0 if ψ is not strongly convex."""
        ...


class Constraint(ABC):
    """A set Λ without a regulariser. A subclass defines ``project``, ``worst_case`` and ``contains``."""

    @property
    def penalised(self) -> bool:
        """False, because ψ is 0."""
        return False

    def penalty(self, lam: Tensor) -> float:
        """Return 0.0 after checking λ for NaN and infinity."""
        finite_vector(lam)
        return 0.0

    def penalty_gradient(self, lam: Tensor) -> Tensor:
        """Return zeros (N,)."""
        return torch.zeros_like(finite_vector(lam))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Return the projection, because ψ is 0."""
        checks.non_negative("step", step)
        return self.project(v)

    def strong_convexity(self, n: int) -> float:
        """Return 0.0, because ψ is 0."""
        return 0.0

    @abstractmethod
    def project(self, v: Tensor) -> Tensor:
        """Project v (N,) onto Λ."""

    @abstractmethod
    def worst_case(self, losses: Tensor) -> WorstCase:
        """Find client weights in Λ with the largest weighted loss."""

    @abstractmethod
    def contains(self, lam: Tensor, tolerance: float = 1e-9) -> bool:
        """Return whether λ (N,) meets each constraint of Λ within the tolerance."""
