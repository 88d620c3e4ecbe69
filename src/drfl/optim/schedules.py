"""Step size schedules: the factor of a step size in each round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.registry import from_text, text_of


class Schedule(ABC):
    """A factor that depends only on the number of the round, so that a resumed run uses the same step sizes.

    The field ``NAME_schedule`` of :class:`drfl.optim.local.LocalSGD` or of an algorithm multiplies that object's
    ``NAME`` in every round of :func:`drfl.training.loop.run`; see :func:`drfl.training.step_size.in_round`. This also
    applies to a local step size that the run chooses from the curvature.
    """

    @abstractmethod
    def multiplier(self, r: int) -> float:
        """Return the factor in round r = 1, 2, …; in most schedules, it is 1 in the first round."""

    def __str__(self) -> str:
        """Return the text from which :func:`parse` creates this object."""
        return text_of(SCHEDULES, self)


def check_schedule(name: str, schedule: object) -> None:
    """Raise InputError unless ``schedule`` is a schedule."""
    if not isinstance(schedule, Schedule):
        raise InputError(
            f"{name} must be an object such as drfl.schedules.Cosine(100), got {schedule!r:.60}",
            code="wrong-type",
            field=name,
        )


@dataclass(frozen=True)
class Constant(Schedule):
    """The same factor in every round. For a local step size that the run chooses, η = factor/L̂.

    Args:
        factor: Positive factor.

    Raises:
        InputError: If the factor is not positive.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)

    def multiplier(self, r: int) -> float:
        """Return the factor."""
        return self.factor


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Step decay, factor^⌊(r − 1)/every⌋: multiply the step size by ``factor`` every ``every`` rounds.

    Args:
        every: Rounds between two changes, at least 1.
        factor: Positive factor of each change.

    Raises:
        InputError: If a value is out of range.
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        checks.integer("every", self.every)
        checks.positive("factor", self.factor)

    def multiplier(self, r: int) -> float:
        """Return factor^⌊(r − 1)/every⌋."""
        # Rounds are numbered from 1, and the first has the full step size.
        return self.factor ** ((r - 1) // self.every)


@dataclass(frozen=True)
class Exponential(Schedule):
    """Exponential decay, factor^(r − 1), which DRFA's authors use for γ.

    Args:
        factor: Positive factor of each round.

    Raises:
        InputError: If the factor is not positive.
    """

    factor: float = 0.9

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)

    def multiplier(self, r: int) -> float:
        """Return factor^(r − 1)."""
        return self.factor ** (r - 1)


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    """The factor 1/√r, the classical rate of stochastic gradient descent."""

    def multiplier(self, r: int) -> float:
        """Return 1/√r."""
        return 1 / math.sqrt(r)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Cosine decay from 1 in the first round to ``final`` after the last (Loshchilov and Hutter 2017).

    Args:
        rounds: Length of the schedule, usually that of the run. Later rounds have the factor ``final``.
        final: Final factor in [0, 1].

    Raises:
        InputError: If a value is out of range.
    """

    rounds: int
    final: float = 0.0

    def __post_init__(self) -> None:
        checks.integer("rounds", self.rounds)
        checks.fraction("final", self.final)

    def multiplier(self, r: int) -> float:
        """Return final + (1 − final)·(1 + cos(π(r − 1)/rounds))/2."""
        # In a run longer than the schedule, the cosine would rise again.
        if r > self.rounds:
            return self.final
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * (r - 1) / self.rounds)) / 2


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": Constant,
    "step": StepDecay,
    "cosine": Cosine,
    "inverse-sqrt": InverseSqrt,
    "exponential": Exponential,
}
"""Schedules by name."""


def parse(text: str) -> Schedule:
    """Create a schedule from a text of the form ``name:option=number,…``.

    Case does not matter, and _ may be written for -.

    Example:
        >>> parse("cosine:rounds=100"), parse("exponential:factor=0.9")
        (Cosine(rounds=100, final=0.0), Exponential(factor=0.9))

    Raises:
        InputError: If the name or an option is unknown, or an option is missing, repeated, not a number or out of
            range.
    """
    return from_text("schedule", SCHEDULES, text)
