"""Failure models: client dropout, outages, stragglers and duplicate replies, drawn independently in every round."""

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
from drfl.federation.requests import GradientRequest, LossRequest, R, Request, TrainRequest, select_rows
from drfl.federation.user_algorithm import begin, play
from drfl.resilience.wrappers import S, Wrapper, WrapperState

KINDS = (TrainRequest.kind, LossRequest.kind, GradientRequest.kind)
"""The kinds of request that a client can receive."""


class LostReplies(NamedTuple):
    """Clients that receive every request and do the work, but whose replies are lost.

    Args:
        clients: (N,) bool, True for these clients.
        kinds: Kinds of request whose replies are lost; replies of other kinds arrive.
    """

    clients: Tensor
    kinds: Collection[str] = KINDS


class DuplicateReplies(NamedTuple):
    """Replies that arrive twice: a second row of the same client, directly after the first.

    Args:
        probability: Probability of a second reply.
        key: Key of this round's draws, which are made per client and kind of request.
    """

    probability: float
    key: Key

    def rows(self, request: Request[R], n: int, clients: Tensor) -> Tensor:
        """Return the rows of the reply by clients (k',) as they arrive, (k'',)."""
        # Draw for all N clients, so that a client's draw does not depend on the cohort. The same holds below.
        chance = torch.from_numpy(self.key.fold(request.kind).generator().random(n))
        is_duplicated = (chance < self.probability)[clients]
        return torch.arange(len(is_duplicated)).repeat_interleave(1 + is_duplicated.long())


class Stragglers(NamedTuple):
    """Delivers replies in the order of their arrival, and none after a deadline.

    The unit of time is one local step of an ordinary client. A request takes a client its number of training steps (1
    for losses and gradients), times its pace, times a jitter. The jitter is lognormal with mean 1, drawn per client and
    kind of request. A late reply is never delivered, not even to a later request, but its bytes are counted.

    Args:
        pace: (N,) Time each client takes, as a multiple of an ordinary client's.
        jitter: Standard deviation σ ≥ 0 of the jitter's logarithm, exp(σz − σ²/2) with z standard normal.
        deadline: Time after which no reply is delivered; with None the server waits for all.
        key: Key of this round's draws.
    """

    pace: Tensor
    jitter: float
    deadline: float | None
    key: Key

    def times(self, request: Request[R], sizes: Tensor | None = None) -> Tensor:
        """Return each client's time for a request, (N,) float64; local epochs need sample counts ``sizes`` (N,)."""
        all_clients = torch.arange(len(self.pace))
        steps = request.local.steps_of(sizes, all_clients).double() if isinstance(request, TrainRequest) else 1
        z = torch.from_numpy(self.key.fold(request.kind).generator().standard_normal(len(self.pace)))
        # E[exp(σz − σ²/2)] = 1: the jitter changes the spread of the times, not their mean.
        return steps * self.pace * torch.exp(self.jitter * z - self.jitter**2 / 2)

    def rows(self, request: Request[R], clients: Tensor, sizes: Tensor | None = None) -> Tensor:
        """Return the rows of the reply by clients (k',) in order of arrival, (k'',); ties keep the reply's order."""
        arrival = self.times(request, sizes)[clients]
        order = arrival.argsort(stable=True)
        return order if self.deadline is None else order[arrival[order] <= self.deadline]


class UnreliableFederation(WrappedFederation):
    """A federation whose clients drop out, lose replies, answer twice, or are late, in one round.

    The ledger includes messages to unavailable clients, at the cost of a request to one of the others or, if none
    is available, of the request's vectors. It includes the work of clients whose replies are lost, but not those
    replies. It includes the bytes of duplicates and of late replies.

    Args:
        fed: The wrapped federation; it never receives an empty cohort.
        unavailable: (N,) bool, True for clients that receive no request and do no work; None if there are none.
        lost: Which replies are lost.
        duplicates: Which replies arrive twice.
        stragglers: In which order replies arrive, and which arrive too late.
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
        """Send a request to the available clients and return the replies that arrive, in the order of arrival."""
        up, cohort_size = self.ledger.bytes_up, len(request.cohort)
        available = None if self.unavailable is None else ~self.unavailable[request.cohort]
        reached = cohort_size if available is None else int(available.sum())
        if reached:
            reply = self.fed.ask(request if available is None or reached == cohort_size else request.only(available))
        else:
            reply = request.empty_reply()
        # Count the download of unavailable clients too: the server does not know who is unavailable.
        self.ledger.down(cohort_size - reached, request.sent_numbers * request.w.element_size())
        size = (self.ledger.bytes_up - up) // max(1, len(reply.clients))  # bytes of one reply
        if self.lost is not None and request.kind in self.lost.kinds:
            arrives = ~self.lost.clients[reply.clients]
            # A negative number of replies cancels the bytes that the wrapped federation counted for the lost ones.
            self.ledger.up(int(arrives.sum()) - len(arrives), size)
            reply = select_rows(reply, arrives)
        if self.duplicates is not None:
            rows = self.duplicates.rows(request, self.n, reply.clients)
            self.ledger.up(len(rows) - len(reply.clients), size)
            reply = select_rows(reply, rows)
        return (
            reply
            if self.stragglers is None
            else select_rows(reply, self.stragglers.rows(request, reply.clients, self.sizes))
        )


DEFAULT_JITTER = 0.5
"""Default standard deviation of the logarithm of a client's time, used if times matter and no jitter is set."""

LIMITS = {
    "outage_rounds": (1_000_000, "a longer outage is permanent"),
    "slowdown": (1_000_000, "a slower client amounts to a dropped one"),
    "deadline": (1_000_000_000, "remove it to wait for all clients"),
    "jitter": (10, "e^10 is a factor of 22026 either way"),
}
"""Largest values, far beyond any practical use, at which no time overflows; and the explanation for larger ones."""


@dataclass(frozen=True)
class FailureModel:
    """How clients fail; without arguments, nothing fails.

    Every draw depends on the seed, the round and the client (for requests, also on the kind), never on the algorithm.
    One uniform number decides each draw: a client that is lost at some probability is lost at every larger one too.

    Args:
        drop: Probability that a client does not take part in a round: it receives no request, sends no reply and does
            no work. One number, or a tuple of N numbers, one per client.
        crash: Probability that a client trains in a round but its local model is lost; its other replies arrive.
        outage: Probability that a group of clients that is up goes down in a round; its clients are then dropped.
        groups: Number of groups; client i is in group i mod ``groups``.
        outage_rounds: Rounds that an outage lasts, including the one in which it begins; at most 1,000,000.
        slow: Share of the clients that are slow, the same ones throughout a run; ``slow``·N is rounded.
        slowdown: Time a slow client takes as a multiple of the others', in [1, 10⁶].
        deadline: Time at which the server stops waiting for replies to a request, in local steps of an ordinary client,
            at most 10⁹; None = never. See :class:`drfl.resilience.failures.Stragglers`.
        jitter: Standard deviation of the logarithm of a client's time around its mean, in [0, 10]. None = 0.5 if there
            are slow clients or a deadline; otherwise no times are drawn.
        duplicate: Probability that a reply arrives twice. No algorithm accepts that, so a wrapper must remove the
            second one.

    If times are drawn, replies are delivered in the order of their arrival, otherwise in the order of the request.

    Raises:
        InputError: If a value is out of range, or (on first use) does not fit the number of clients.
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
        checks.integer("groups", self.groups)
        checks.integer("outage_rounds", self.outage_rounds)
        checks.positive("slowdown", self.slowdown)
        if self.slowdown < 1:
            raise InputError(
                f"slowdown must be at least 1 (the pace of an ordinary client), got {self.slowdown}",
                code="out-of-range",
                field="slowdown",
            )
        if self.deadline is not None:
            checks.positive("deadline", self.deadline)
        if self.jitter is not None:
            checks.non_negative("jitter", self.jitter)
        for name, (high, why) in LIMITS.items():
            value = getattr(self, name)
            if value is not None:
                checks.at_most(name, value, high, why)

    def check(self, n: int) -> None:
        """Check that the model fits n clients.

        Raises:
            InputError: If it does not.
        """
        if isinstance(self.drop, tuple) and len(self.drop) != n:
            raise InputError(
                f"drop has {len(self.drop)} probabilities for {n} clients. Set one for each client",
                code="count-mismatch",
                field="drop",
            )
        if self.groups > n:
            raise InputError(
                f"groups={self.groups} must be at most the number of clients, {n}", code="out-of-range", field="groups"
            )

    def draw_dropout(self, n: int, key: Key) -> Tensor:
        """Draw the clients that do not take part in the round with this key, (n,) bool."""
        return _uniform(n, key.fold("drop")) < torch.tensor(self.drop, dtype=torch.float64)

    def draw_crashes(self, n: int, key: Key) -> Tensor:
        """Draw the clients whose local model is lost in the round with this key, (n,) bool."""
        return _uniform(n, key.fold("crash")) < self.crash

    def draw_outages(self, down: Tensor, key: Key) -> Tensor:
        """Return the remaining rounds of each group's outage, this round included, (groups,) int64; 0 if it is up.

        Args:
            down: (groups,) int64, the same before any outage that begins in this round.
            key: The round's key.
        """
        # Draw for groups that are down as well, so that the draws of a round do not depend on the past.
        begins = (down == 0) & (_uniform(len(down), key.fold("outage")) < self.outage)
        return torch.where(begins, self.outage_rounds, down)

    def pace(self, n: int, key: Key) -> Tensor:
        """Return each client's time relative to an ordinary client's, (n,) float64, the same for all keys of a seed."""
        # Use the rank of each draw, so that exactly round(slow·N) clients are slow. The key is the seed's alone, so the
        # same clients are slow throughout a run.
        rank = _uniform(n, Key(key.seed).fold("slow")).argsort().argsort()
        return torch.where(rank < int(self.slow * n + 0.5), self.slowdown, 1.0).double()

    @property
    def spread(self) -> float | None:
        """Standard deviation of the logarithm of a client's time; None if no times are drawn."""
        if self.jitter is None:
            return DEFAULT_JITTER if self.slow > 0 or self.deadline is not None else None
        return self.jitter


def _uniform(n: int, key: Key) -> Tensor:
    return torch.from_numpy(key.generator().random(n))


class FaultMemory(NamedTuple):
    """The state of a failure model that lasts longer than one round.

    Args:
        down: (groups,) int64, remaining rounds of each group's outage.
    """

    down: Tensor

    def describe_fault(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        return "the remaining rounds of an outage are negative" if bool((self.down < 0).any()) else None


@dataclass(frozen=True)
class Faulty(Wrapper[S]):
    """Runs an algorithm with clients that drop out, crash, are late, or answer twice.

    Failures are drawn here and not in a federation, because only the algorithm sees the round's key. Each round gets
    its own wrapped federation, so two algorithms lose the same clients in the same rounds. In a round without failures
    the federation is not wrapped.

    Args:
        algorithm: The wrapped algorithm.
        faults: The failure model.

    The ledger includes messages to clients that drop out, but none of their work; the work of clients that crash,
    but not their local models; and the bytes of late and duplicate replies.

    If failures do not depend on the data, the dual update remains unbiased: v_i = (N/k')·ℓ_i has mean ℓ_i as long as at
    least one client answers. So does the mean of the local models under a uniform λ. Under another λ, the mean over the
    clients that answered, Σ_i λ_i w_i / Σ_i λ_i, gives clients with a large λ_i slightly less weight than λ_i on
    average. If clients with large losses fail more often, both are biased towards the other clients.
    """

    faults: FailureModel = field(default_factory=FailureModel)

    def init(self, fed: Federation) -> WrapperState[S, FaultMemory]:
        """Return the state of the wrapped algorithm with all groups up."""
        self.faults.check(fed.n)
        return WrapperState(begin(self.algorithm, fed), FaultMemory(torch.zeros(self.faults.groups, dtype=torch.int64)))

    def round(
        self, state: WrapperState[S, FaultMemory], fed: Federation, key: Key
    ) -> tuple[WrapperState[S, FaultMemory], Info]:
        """Run one round of the wrapped algorithm on the replies that its clients deliver."""
        draws = key.fold("faults")
        # An outage that begins now includes this round; the last line then subtracts one for every group.
        faults, n = self.faults, fed.n
        down = faults.draw_outages(state.memory.down, draws)
        unavailable = (down > 0)[torch.arange(n) % faults.groups] | faults.draw_dropout(n, draws)
        lost = LostReplies(faults.draw_crashes(n, draws), kinds=(TrainRequest.kind,)) if faults.crash > 0 else None
        duplicates = DuplicateReplies(faults.duplicate, draws.fold("duplicate")) if faults.duplicate > 0 else None
        stragglers = None
        if faults.spread is not None:
            stragglers = Stragglers(faults.pace(n, draws), faults.spread, faults.deadline, draws.fold("time"))
        # If nothing can fail in this round, use the federation itself: the round is then bit-identical to one without
        # failures.
        if bool(unavailable.any()) or not (lost is None and duplicates is None and stragglers is None):
            fed = UnreliableFederation(
                fed, unavailable=unavailable, lost=lost, duplicates=duplicates, stragglers=stragglers
            )
        inner, info = play(self.algorithm, state.inner, fed, key)
        # Outages end by rounds and not by draws, so their length does not depend on the algorithm.
        return WrapperState(inner, FaultMemory((down - 1).clamp(min=0))), info
