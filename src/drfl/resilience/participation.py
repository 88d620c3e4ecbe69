"""Over-selection and quorum: which replies are used, and what happens if there are too few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import R, Request, select_rows
from drfl.federation.user_algorithm import begin, play
from drfl.resilience.wrappers import S, WrappedAlgorithm


class FirstK(WrappedFederation):
    """A federation that uses only the replies of the first few clients to each request, in the order of the rows.

    All clients in the cohort work and send, so the ledger counts all of them.

    Args:
        fed: The wrapped federation.
        keep: Number of clients whose replies are used.
    """

    def __init__(self, fed: Federation, keep: int) -> None:
        super().__init__(fed)
        self.keep = keep

    def ask(self, request: Request[R]) -> R:
        """Send a request and drop the replies of all but the first clients to answer."""
        reply = self.fed.ask(request)
        # Distinct clients in the order of their first reply.
        arrived = list(dict.fromkeys(reply.clients.tolist()))
        if len(arrived) <= self.keep:
            return reply
        # Keep duplicates of the selected clients, because Protected is responsible for rejecting them.
        return select_rows(reply, torch.isin(reply.clients, torch.tensor(arrived[: self.keep])))


@dataclass(frozen=True)
class OverSelection(WrappedAlgorithm[S]):
    """Over-selection: asks more clients than needed and uses the first ``keep`` to answer each request.

    Create the wrapped algorithm with the larger m. A cohort drawn from λ with replacement can have fewer than m
    distinct clients; ``keep`` counts distinct ones. Replies that a :class:`drfl.resilience.Protected` around this
    wrapper rejects do not count. Nothing is stored between rounds.

    Fast clients are used more often, so if speed depends on the data, estimates are biased towards the fast clients.
    The order of arrival is only known if replies are delivered in that order, as by :class:`drfl.resilience.Faulty`
    with slow clients, a deadline or a jitter. A plain simulation delivers replies in the order of the request, so
    clients with large indices would never be used.

    Args:
        algorithm: The wrapped algorithm.
        keep: Number of clients whose replies are used, ≥ 1.

    Raises:
        InputError: If keep is below 1.
    """

    keep: int

    def __post_init__(self) -> None:
        checks.integer("keep", self.keep)

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """Run one round of the wrapped algorithm on the first replies."""
        return play(self.algorithm, state, FirstK(fed, self.keep), key)


@dataclass(frozen=True)
class Quorum(WrappedAlgorithm[S]):
    """Cancels a round of an algorithm if too few clients answered.

    A cancelled round does not change the state, including that of wrapped wrappers. With
    :class:`drfl.resilience.Faulty`, it does not count towards the length of an outage, and an outage that began in it
    is forgotten. The ledger still includes its cost.

    Args:
        algorithm: The wrapped algorithm.
        min_replies: Number of clients that must have answered the training request (``Info.answered``), ≥ 1.
        action: What to do if fewer answered. "skip" leaves the state unchanged and continues with the next round.
            "repeat" repeats the round with other draws, and skips it after ``max_repeats`` failed repeats.
        max_repeats: Maximum number of repeats of a round, ≥ 1; repeat k draws from ``key.fold("again", k)``.

    The first attempt is the same round as without a quorum.

    Raises:
        InputError: If a value is out of range, or if min_replies > N (on first use).
    """

    min_replies: int
    action: Literal["skip", "repeat"] = "skip"
    max_repeats: int = 3

    def __post_init__(self) -> None:
        checks.integer("min_replies", self.min_replies)
        checks.integer("max_repeats", self.max_repeats)
        if self.action not in ("skip", "repeat"):
            raise InputError(
                f"action must be 'skip' or 'repeat', got {self.action!r}", code="invalid-value", field="action"
            )

    def init(self, fed: Federation) -> S:
        """Return the state before the first round."""
        if self.min_replies > fed.n:
            raise InputError(
                f"min_replies={self.min_replies} must be at most the number of clients, {fed.n}",
                code="out-of-range",
                field="min_replies",
            )
        return begin(self.algorithm, fed)

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """Run the wrapped algorithm's round until enough clients answer, or skip it."""
        next_state, info = play(self.algorithm, state, fed, key)
        for k in range(1, 1 + (self.max_repeats if self.action == "repeat" else 0)):
            if self._has_quorum(info):
                break
            # Start from the state before the round each time, so that failed attempts leave no trace.
            # The round's own key would draw the same cohort and the same failures again.
            next_state, info = play(self.algorithm, state, fed, key.fold("again", k))
        return (next_state, info) if self._has_quorum(info) else (state, Info.without_replies(info.cohort))

    def _has_quorum(self, info: Info) -> bool:
        return info.answered.numel() >= self.min_replies
