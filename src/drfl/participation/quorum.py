"""Rounds that count only when enough clients took part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drfl import checks
from drfl.algorithm import Info
from drfl.errors import InputError
from drfl.federation import Federation
from drfl.key import Key
from drfl.wrapped import S, WrappedAlgorithm


@dataclass(frozen=True)
class Quorum(WrappedAlgorithm[S]):
    """An algorithm whose round is called off where too few clients answered.

    A round that was called off leaves no trace in the state, that of the wrappers inside included: with
    :class:`drfl.faults.Faulty` it does not count towards the length of an outage, and an outage that began in it is
    forgotten. The ledger keeps what it cost.

    Args:
        algorithm: the algorithm inside.
        at_least: how many clients must have answered, ≥ 1: ``Info.answered``, those who trained.
        then: what to do where fewer did: "skip" leaves the state as it was, and goes on with the next round; "repeat"
            asks again, with other draws, and skips the round once that has failed too often.
        most: how often to repeat a round at most, ≥ 1; attempt k + 1 draws from ``key.fold("again", k)``.

    The first attempt is the round as it would be without a quorum.

    Raises:
        InputError: a value is out of range, or at_least > N (when first used).
    """

    at_least: int
    then: Literal["skip", "repeat"] = "skip"
    most: int = 3

    def __post_init__(self) -> None:
        checks.whole("at_least", self.at_least)
        checks.whole("most", self.most)
        if self.then not in ("skip", "repeat"):
            raise InputError(f"then must be 'skip' or 'repeat', not {self.then!r}")

    def init(self, fed: Federation) -> S:
        """The state before the first round."""
        if self.at_least > fed.n:
            raise InputError(f"at_least={self.at_least} must be at most the number of clients, {fed.n}")
        return self.algorithm.init(fed)

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """One round of the algorithm inside, or more, or none."""
        done, info = self.algorithm.round(state, fed, key)
        for k in range(1, 1 + (self.most if self.then == "repeat" else 0)):
            if self._enough(info):
                break
            done, info = self.algorithm.round(state, fed, key.fold("again", k))
        return (done, info) if self._enough(info) else (state, Info.nobody(info.cohort))

    def _enough(self, info: Info) -> bool:
        return info.answered.numel() >= self.at_least
