"""Over-selection and quorum: who is asked, whose replies are used, and when they are too few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import R, Request, answers
from drfl.resilience.wrappers import S, WrappedAlgorithm


class FirstK(WrappedFederation):
    """A federation of which only the first few replies to each request are taken, in the order of the reply's rows.

    Everybody works and sends, so the ledger counts all of them.

    Args:
        fed: the federation inside.
        keep: how many clients' replies to take.
    """

    def __init__(self, fed: Federation, keep: int) -> None:
        super().__init__(fed)
        self.keep = keep

    def ask(self, request: Request[R]) -> R:
        """Send a request, and drop the replies of all but the first clients to answer."""
        reply = self.fed.ask(request)
        # Distinct clients in the order of their first reply.
        came = list(dict.fromkeys(reply.clients.tolist()))
        if len(came) <= self.keep:
            return reply
        # A duplicate of a kept client stays in: whether it is one is for Protected to see.
        return answers(reply, torch.isin(reply.clients, torch.tensor(came[: self.keep])))


@dataclass(frozen=True)
class OverSelection(WrappedAlgorithm[S]):
    """An algorithm that asks more clients than it needs and goes on with the first ``keep`` to answer each request.

    Make the algorithm inside with the larger m. A cohort drawn by λ with replacement has fewer than m distinct clients;
    ``keep`` counts distinct ones. Replies that were rejected on their way, by a :class:`drfl.resilience.Protected`
    around this, do not count. Nothing is remembered from one round to the next.

    Fast clients are used more often: where speed depends on the data, estimates are biased towards the fast. And the
    order of arrival is only known where replies are delivered in it, as by :class:`drfl.resilience.Faulty` with slow
    clients, a deadline or a jitter; a simulation alone delivers in the order of the request, so that the replies of
    clients with large indices would never be used.

    Args:
        algorithm: the algorithm inside.
        keep: how many clients' replies to take, ≥ 1.

    Raises:
        InputError: keep is below 1.
    """

    keep: int

    def __post_init__(self) -> None:
        checks.whole("keep", self.keep)

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """One round of the algorithm inside, with the first replies."""
        return self.algorithm.round(state, FirstK(fed, self.keep), key)


@dataclass(frozen=True)
class Quorum(WrappedAlgorithm[S]):
    """An algorithm whose round is cancelled where too few clients answered.

    A cancelled round leaves no trace in the state, that of the wrappers inside included: with
    :class:`drfl.resilience.Faulty` it does not count towards the length of an outage, and an outage that began in it is
    forgotten. The ledger keeps what it cost.

    Args:
        algorithm: the algorithm inside.
        at_least: how many clients must have answered, ≥ 1: ``Info.answered``, those who trained.
        then: what to do where fewer did: "skip" leaves the state as it was, and goes on with the next round; "repeat"
            repeats the round with other draws, and skips it after ``most`` failed repeats.
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
            raise InputError(f"then must be 'skip' or 'repeat', not {self.then!r}", code="invalid-value", field="then")

    def init(self, fed: Federation) -> S:
        """The state before the first round."""
        if self.at_least > fed.n:
            raise InputError(
                f"at_least={self.at_least} must be at most the number of clients, {fed.n}",
                code="out-of-range",
                field="at_least",
            )
        return self.algorithm.init(fed)

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """One round of the algorithm inside, or more, or none."""
        done, info = self.algorithm.round(state, fed, key)
        for k in range(1, 1 + (self.most if self.then == "repeat" else 0)):
            if self._enough(info):
                break
            # From the state before the round each time: what a failed attempt did to it is dropped.
            done, info = self.algorithm.round(state, fed, key.fold("again", k))
        return (done, info) if self._enough(info) else (state, Info.nobody(info.cohort))

    def _enough(self, info: Info) -> bool:
        return info.answered.numel() >= self.at_least
