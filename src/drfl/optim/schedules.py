"""Schedules of step sizes: by which factor a step size is multiplied in each round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from drfl.core import checks
from drfl.core.registry import named, text_of


class Schedule(ABC):
    """A function of the round's number alone, so that a run that is resumed goes on with the same step sizes.

    It belongs to a parameter: a field ``NAME_schedule`` of :class:`drfl.optim.local.LocalSGD`, or of an algorithm,
    multiplies that object's ``NAME`` in every round that :func:`drfl.training.loop.run` plays; see
    :func:`drfl.training.step_size.in_round`. A local step size that the run finds from the curvature is multiplied too.
    """

    @abstractmethod
    def at(self, r: int) -> float:
        """The factor in round r = 1, 2, …; 1 in the first round, unless the schedule says otherwise."""

    def __str__(self) -> str:
        """The text that :func:`parse` makes it from."""
        return text_of(SCHEDULES, self)


@dataclass(frozen=True)
class Constant(Schedule):
    """The same in every round: with a local step size that the run finds, η = factor/L̂.

    Args:
        factor: > 0.

    Raises:
        InputError: If it is not.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)

    def at(self, r: int) -> float:
        """The factor."""
        return self.factor


@dataclass(frozen=True)
class StepDecay(Schedule):
    """factor^⌊(r − 1)/every⌋: multiplied every so many rounds.

    Args:
        every: K ≥ 1 rounds.
        factor: > 0.

    Raises:
        InputError: If a value is out of range.
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        checks.whole("every", self.every)
        checks.positive("factor", self.factor)

    def at(self, r: int) -> float:
        """factor^⌊(r − 1)/every⌋."""
        # Rounds count from 1, and the first has the full step size.
        return self.factor ** ((r - 1) // self.every)


@dataclass(frozen=True)
class Exponential(Schedule):
    """factor^(r − 1): multiplied after every round, as DRFA's authors do with γ.

    Args:
        factor: > 0.

    Raises:
        InputError: If it is not.
    """

    factor: float = 0.9

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)

    def at(self, r: int) -> float:
        """factor^(r − 1)."""
        return self.factor ** (r - 1)


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    """1/√r, the classical rate of stochastic gradient descent."""

    def at(self, r: int) -> float:
        """1/√r."""
        return 1 / math.sqrt(r)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine wave from 1 in the first round to ``final`` after the last (Loshchilov and Hutter 2017).

    Args:
        rounds: The horizon, usually that of the run; later rounds have the factor ``final``.
        final: In [0, 1].

    Raises:
        InputError: If a value is out of range.
    """

    rounds: int
    final: float = 0.0

    def __post_init__(self) -> None:
        checks.whole("rounds", self.rounds)
        checks.fraction("final", self.final)

    def at(self, r: int) -> float:
        """final + (1 − final)·(1 + cos(π(r − 1)/rounds))/2."""
        # In a run longer than the schedule the cosine would rise again.
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
"""Schedules by name; their options are their numbers."""


def parse(text: str) -> Schedule:
    """The schedule that a text of the form ``name:option=number,…`` stands for; case does not matter, nor - for _.

    Example:
        >>> parse("cosine:rounds=100"), parse("exponential:factor=0.9")
        (Cosine(rounds=100, final=0.0), Exponential(factor=0.9))

    Raises:
        InputError: If there is no such schedule, an option is unknown, missing, given twice or no number, or out of range.
    """
    return named("schedule", SCHEDULES, text)
