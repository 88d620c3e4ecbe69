"""Failure models: dropouts, unavailable clients, stragglers and duplicate replies, drawn anew every round."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import GradientRequest, LossRequest, R, Request, TrainRequest, answers
from drfl.resilience.wrappers import S, Wrapper, WrapperState

KINDS = (TrainRequest.kind, LossRequest.kind, GradientRequest.kind)
"""What a client can be asked for."""


class LostReplies(NamedTuple):
    """Clients that receive every request and do the work, but whose reply is lost.

    Args:
        clients: (N,) bool, who they are.
        kinds: the kinds of request to which their replies are lost; other replies arrive.
    """

    clients: Tensor
    kinds: Collection[str] = KINDS


class DuplicateReplies(NamedTuple):
    """Replies that arrive twice: a second row of the client, right after the first.

    Args:
        probability: of a second reply.
        key: of this round's draws, which are made by client and kind of request.
    """

    probability: float
    key: Key

    def rows(self, request: Request[R], n: int, clients: Tensor) -> Tensor:
        """(k'',) the rows of the reply of these clients (k',) as they arrive."""
        # Drawn for all N clients, so that a client's draw does not depend on who else was asked. The same holds below.
        chance = torch.from_numpy(self.key.fold(request.kind).generator().random(n))
        again = (chance < self.probability)[clients]
        return torch.arange(len(again)).repeat_interleave(1 + again.long())


class Stragglers(NamedTuple):
    """Replies in the order of their arrival, and none after a deadline.

    The unit of time is one local step of an ordinary client. A request takes a client as many steps as it trains (1 for
    losses and gradients), times its pace, times a jitter: lognormal with mean 1, drawn by client and kind of request.
    A reply belongs to its request: one that comes late is not delivered, though its bytes count.

    Args:
        pace: (N,) how many times as long as an ordinary client each takes.
        jitter: standard deviation σ ≥ 0 of the jitter's logarithm, exp(σz − σ²/2) with z standard normal.
        deadline: time after which no reply is delivered; None = the server waits for all.
        key: of this round's draws.
    """

    pace: Tensor
    jitter: float
    deadline: float | None
    key: Key

    def times(self, request: Request[R], sizes: Tensor | None = None) -> Tensor:
        """(N,) float64, how long this request takes each client; ``sizes`` (N,) their samples, for local epochs."""
        everybody = torch.arange(len(self.pace))
        steps = request.local.steps_of(sizes, everybody).double() if isinstance(request, TrainRequest) else 1
        z = torch.from_numpy(self.key.fold(request.kind).generator().standard_normal(len(self.pace)))
        # E[exp(σz − σ²/2)] = 1: the jitter changes the spread of the times, not their mean.
        return steps * self.pace * torch.exp(self.jitter * z - self.jitter**2 / 2)

    def rows(self, request: Request[R], clients: Tensor, sizes: Tensor | None = None) -> Tensor:
        """(k'',) the rows of the reply of these clients (k',) as they arrive; equal times in the reply's order."""
        at = self.times(request, sizes)[clients]
        order = at.argsort(stable=True)
        return order if self.deadline is None else order[at[order] <= self.deadline]


class UnreliableFederation(WrappedFederation):
    """A federation of which clients drop out, lose replies, answer twice, or are late, in one round.

    The ledger counts what was sent to unavailable clients, at the cost of a request to one of the others or, if nobody
    is available, of its vectors. It counts the work of clients whose replies are lost, but not those replies; the bytes
    of duplicates; and those of late replies.

    Args:
        fed: the federation inside; it never sees an empty cohort.
        unavailable: (N,) bool, clients that receive no request and do no work; None = none.
        lost: whose replies are lost.
        duplicates: which replies come twice.
        stragglers: in which order replies come, and which too late.
    """

    def __init__(
        self,
        fed: Federation,
        *,
        unavailable: Tensor | None = None,
        lost: LostReplies | None = None,
        duplicates: DuplicateReplies | None = None,
        stragglers: Stragglers | None = None,
    ) -> None:
        super().__init__(fed)
        self.unavailable, self.lost, self.duplicates, self.stragglers = unavailable, lost, duplicates, stragglers

    def ask(self, request: Request[R]) -> R:
        """Send a request to the available clients; returns the replies that arrive, in the order of arrival."""
        up, asked = self.ledger.bytes_up, len(request.cohort)
        available = None if self.unavailable is None else ~self.unavailable[request.cohort]
        reached = asked if available is None else int(available.sum())
        if reached:
            reply = self.fed.ask(request if available is None or reached == asked else request.only(available))
        else:
            reply = request.nobody()
        # Count the download of unavailable clients too: the server does not know who is away.
        self.ledger.down(asked - reached, request.vectors * request.w.numel() * request.w.element_size())
        size = (self.ledger.bytes_up - up) // max(1, len(reply.clients))  # bytes of one reply
        if self.lost is not None and request.kind in self.lost.kinds:
            kept = ~self.lost.clients[reply.clients]
            # A negative number of replies: takes back what the federation inside has booked for those that are lost.
            self.ledger.up(int(kept.sum()) - len(kept), size)
            reply = answers(reply, kept)
        if self.duplicates is not None:
            rows = self.duplicates.rows(request, self.n, reply.clients)
            self.ledger.up(len(rows) - len(reply.clients), size)
            reply = answers(reply, rows)
        return (
            reply
            if self.stragglers is None
            else answers(reply, self.stragglers.rows(request, reply.clients, self.sizes))
        )


JITTER = 0.5
"""Standard deviation of the logarithm of a client's time, where times matter and none is given."""

MOST = {
    "outage_rounds": (1_000_000, "more is an outage for good"),
    "slowdown": (1_000_000, "a slower client is as good as dropped"),
    "deadline": (1_000_000_000, "remove it to wait for everybody"),
    "jitter": (10, "e^10 is a factor of 22026 either way"),
}
"""The largest values, far beyond any use, at which no time overflows; and what to say of larger ones."""


@dataclass(frozen=True)
class FailureModel:
    """How clients fail; without arguments nothing does.

    Every draw belongs to a seed, a round and a client, and those by request to its kind as well, never to the
    algorithm. One uniform number decides each: a client lost at some probability is lost at every larger one too.

    Args:
        drop: probability that a client does not take part in a round: no request reaches it, it answers none and does
            no work. One number, or a tuple of N, one a client.
        crash: probability that a client trains in a round and its local model is lost; its other answers arrive.
        outage: probability that a group of clients that is up goes down in a round; its clients are then dropped.
        groups: how many groups; client i is in group i mod ``groups``.
        outage_rounds: how many rounds an outage lasts, the one it begins in included; at most 1,000,000.
        slow: share of the clients that are slow, the same ones throughout a run: of N, ``slow``·N to the nearest.
        slowdown: how many times as long as the others they take, in [1, 10⁶].
        deadline: when the server stops waiting for replies to a request, in local steps of an ordinary client, at
            most 10⁹; None = never. See :class:`drfl.resilience.failures.Stragglers`.
        jitter: standard deviation of the logarithm of the time that a client takes, around a mean of its own, in
            [0, 10]; None = 0.5 where there are slow clients or a deadline, and else no times are drawn.
        duplicate: probability that a reply arrives twice. No algorithm accepts that: a wrapper must remove
            the second.

    Where times are drawn replies are delivered in the order of their arrival, and else in that of the request.

    Raises:
        InputError: a value is out of range, or does not fit the number of clients (when first used).
    """

    drop: float | tuple[float, ...] = 0.0
    crash: float = 0.0
    outage: float = 0.0
    groups: int = 1
    outage_rounds: int = 1
    slow: float = 0.0
    slowdown: float = 10.0
    deadline: float | None = None
    jitter: float | None = None
    duplicate: float = 0.0

    def __post_init__(self) -> None:
        for i, probability in enumerate(self.drop if isinstance(self.drop, tuple) else ()):
            checks.fraction(f"drop of client {i}", probability)
        shares = {"crash": self.crash, "outage": self.outage, "slow": self.slow, "duplicate": self.duplicate}
        if not isinstance(self.drop, tuple):
            shares["drop"] = self.drop
        for name, share in shares.items():
            checks.fraction(name, share)
        checks.whole("groups", self.groups)
        checks.whole("outage_rounds", self.outage_rounds)
        checks.positive("slowdown", self.slowdown)
        if self.slowdown < 1:
            raise InputError(
                f"slowdown must be at least 1, not {self.slowdown}: 1 is an ordinary client's pace",
                code="out-of-range",
                field="slowdown",
            )
        if self.deadline is not None:
            checks.positive("deadline", self.deadline)
        if self.jitter is not None:
            checks.non_negative("jitter", self.jitter)
        for name, (high, why) in MOST.items():
            value = getattr(self, name)
            if value is not None:
                checks.at_most(name, value, high, why)

    def check(self, n: int) -> None:
        """Raise an :class:`InputError` unless this fits n clients."""
        if isinstance(self.drop, tuple) and len(self.drop) != n:
            raise InputError(
                f"drop has {len(self.drop)} probabilities, but there are {n} clients: give one for each",
                code="count-mismatch",
                field="drop",
            )
        if self.groups > n:
            raise InputError(
                f"groups={self.groups} must be at most the number of clients, {n}", code="out-of-range", field="groups"
            )

    def dropped(self, n: int, key: Key) -> Tensor:
        """(n,) bool, who does not take part in the round with this key."""
        return _uniform(n, key.fold("drop")) < torch.tensor(self.drop, dtype=torch.float64)

    def crashed(self, n: int, key: Key) -> Tensor:
        """(n,) bool, whose local model is lost in the round with this key."""
        return _uniform(n, key.fold("crash")) < self.crash

    def struck(self, down: Tensor, key: Key) -> Tensor:
        """(groups,) int64, how many rounds each group's outage still lasts, that of this key included; 0 = it is up.

        Args:
            down: (groups,) int64, the same without any outage that begins in this round.
            key: the round's.
        """
        # Drawn for groups that are down as well: the draws of a round do not depend on the past.
        begins = (down == 0) & (_uniform(len(down), key.fold("outage")) < self.outage)
        return torch.where(begins, self.outage_rounds, down)

    def pace(self, n: int, key: Key) -> Tensor:
        """(n,) float64, how many times as long as an ordinary client each takes; all keys of a seed give the same."""
        # The rank of each draw, so that exactly round(slow·N) clients are slow; by the seed alone, the same all through
        # a run.
        rank = _uniform(n, Key(key.seed).fold("slow")).argsort().argsort()
        return torch.where(rank < int(self.slow * n + 0.5), self.slowdown, 1.0).double()

    @property
    def spread(self) -> float | None:
        """Standard deviation of the logarithm of a client's time; None where no times are drawn."""
        if self.jitter is None:
            return JITTER if self.slow > 0 or self.deadline is not None else None
        return self.jitter


def _uniform(n: int, key: Key) -> Tensor:
    return torch.from_numpy(key.generator().random(n))


class FaultMemory(NamedTuple):
    """What lasts longer than a round.

    Args:
        down: (groups,) int64, how many more rounds each group's outage lasts.
    """

    down: Tensor

    def wrong(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        return "an outage of fewer than no rounds" if bool((self.down < 0).any()) else None


@dataclass(frozen=True)
class Faulty(Wrapper[S]):
    """An algorithm whose clients drop out, crash, are late, or answer twice.

    Only the algorithm sees the key of the round, so the draws are made here and each round gets a federation of its
    own: two algorithms lose the same clients in the same rounds. In a round without failures that is the federation
    itself.

    Args:
        algorithm: the algorithm inside.
        faults: what can happen.

    The ledger counts what was sent to clients that drop out, but no work of theirs; the work of those that crash, but
    no local model; the bytes of replies that are late, or come twice.

    The dual step stays unbiased where failures do not depend on the data: v_i = (N/k')·ℓ_i has the mean ℓ_i as long as
    somebody answers. So does the mean of the local models under a uniform λ. Under another λ that mean is one over
    those who answered: Σ_i λ_i w_i / Σ_i λ_i over a random set of clients, which on average gives the clients with
    large λ_i somewhat less than λ_i. Where clients with large losses fail more often both are biased towards the
    others.
    """

    faults: FailureModel = field(default_factory=FailureModel)

    def init(self, fed: Federation) -> WrapperState[S, FaultMemory]:
        """The state of the algorithm inside, and all groups up."""
        self.faults.check(fed.n)
        return WrapperState(self.algorithm.init(fed), FaultMemory(torch.zeros(self.faults.groups, dtype=torch.int64)))

    def round(
        self, state: WrapperState[S, FaultMemory], fed: Federation, key: Key
    ) -> tuple[WrapperState[S, FaultMemory], Info]:
        """One round of the algorithm inside, with what its clients deliver."""
        draws = key.fold("faults")
        # An outage that begins now counts this round; the one below is then taken off for every group.
        faults, n = self.faults, fed.n
        down = faults.struck(state.memory.down, draws)
        silent = (down > 0)[torch.arange(n) % faults.groups] | faults.dropped(n, draws)
        lost = LostReplies(faults.crashed(n, draws), kinds=(TrainRequest.kind,)) if faults.crash > 0 else None
        twice = DuplicateReplies(faults.duplicate, draws.fold("duplicate")) if faults.duplicate > 0 else None
        late = None
        if faults.spread is not None:
            late = Stragglers(faults.pace(n, draws), faults.spread, faults.deadline, draws.fold("time"))
        # If nothing can fail in this round, use the federation itself: the round is then bit-identical to one without
        # failures.
        if bool(silent.any()) or not (lost is None and twice is None and late is None):
            fed = UnreliableFederation(fed, unavailable=silent, lost=lost, duplicates=twice, stragglers=late)
        inner, info = self.algorithm.round(state.inner, fed, key)
        return WrapperState(inner, FaultMemory((down - 1).clamp(min=0))), info
