"""More clients are asked than are needed, and the slowest are not waited for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from drfl import checks
from drfl.algorithm import Info
from drfl.federation import Federation
from drfl.key import Key
from drfl.request import R, Request, answers
from drfl.wrapped import S, WrappedAlgorithm, WrappedFederation


class First(WrappedFederation):
    """A federation of which only the first few replies to each request are taken, in the order of the reply's rows.

    Everybody works and sends, so the ledger counts all of them.

    Args:
        fed: the federation inside.
        keep: how many clients' replies to take.
    """

    def __init__(self, fed: Federation, keep: int) -> None:
        super().__init__(fed)
        self.keep = keep

    def exchange(self, request: Request[R]) -> R:
        """Put a request, and drop the replies of all but the first clients to answer."""
        reply = request.put(self.fed)
        came = list(dict.fromkeys(reply.clients.tolist()))
        if len(came) <= self.keep:
            return reply
        return answers(reply, torch.isin(reply.clients, torch.tensor(came[: self.keep])))


@dataclass(frozen=True)
class OverSampled(WrappedAlgorithm[S]):
    """An algorithm that asks more clients than it needs and goes on with the first ``keep`` to answer each request.

    Make the algorithm inside with the larger m. A cohort drawn by λ with replacement has fewer than m distinct clients;
    ``keep`` counts distinct ones. Replies that were rejected on their way, by a :class:`drfl.protection.Protected`
    around this, do not count. Nothing is remembered from one round to the next.

    Whoever is fast is heard more often: where speed goes with the data, the estimates are biased towards the fast. And
    who is first is only known where somebody delivers replies in the order of their arrival, as
    :class:`drfl.faults.Faulty` does with slow clients, a deadline or a jitter; a simulation alone delivers in the order
    of the request, so that clients with large indices would never be heard.

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
        return self.algorithm.round(state, First(fed, self.keep), key)
