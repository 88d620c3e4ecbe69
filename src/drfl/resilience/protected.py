"""An algorithm behind guards: replies are validated, loss reports filtered, faulty clients quarantined and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, Notice
from drfl.core.key import Key
from drfl.federation.algorithm import Info, Sized, core_of, mixture_of
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import GradientRequest, LossRequest, R, Request, answers, reports_of, with_reports
from drfl.resilience.aggregation import Aggregating, first_centres
from drfl.resilience.aggregators import Aggregator
from drfl.resilience.guards import Guard, RobustClip, apply_guards, first_memories
from drfl.resilience.step_bound import StepBound
from drfl.resilience.validation import FAULTS, REASONS, Reason, Rejection, validated
from drfl.resilience.wrappers import S, Wrapper, WrapperState

TIMES_MEAN = 3
"""Of two or three clients the worst holds half of λ as a matter of course: that alone is no reason to doubt it."""


@dataclass(frozen=True)
class LambdaConcentration:
    """Warns of one client that holds a large share of λ for long: its data may be hard, or its reports false.

    Args:
        share: of λ, in [0, 1]; more than it counts, and more than :data:`TIMES_MEAN` times the mean share.
        long: rounds in a row, at least 1.

    Raises:
        InputError: a value is out of range.
    """

    share: float = 0.5
    long: int = 10

    def __post_init__(self) -> None:
        checks.fraction("share", self.share)
        checks.whole("long", self.long)

    def limit(self, n: int) -> float:
        """The share of λ, of n clients, above which a round counts."""
        return max(self.share, TIMES_MEAN / n)

    def after(self, rounds: Tensor, lam: Tensor) -> Tensor:
        """(N,) int64 rounds in a row with more than the share, after one more that ended in λ (N,)."""
        return torch.where(lam.cpu() > self.limit(len(lam)), rounds + 1, 0)

    def found(self, rounds: Tensor) -> list[int]:
        """Clients that have just reached the number of rounds."""
        return (rounds == self.long).nonzero().flatten().tolist()


class Record(NamedTuple):
    """Strikes and quarantine of each client; both (N,) int64.

    Args:
        strikes: rounds in a row, of those in which it answered, in which a reply of it was faulty.
        until: rounds that it will still not be asked for.
    """

    strikes: Tensor
    until: Tensor


@dataclass(frozen=True)
class Quarantine:
    """A client that sent faulty replies in several rounds in a row is not asked for a while.

    A round counts once, however many replies it saw: one faulty reply makes it a strike, and only a round whose replies
    were all valid clears the strikes; a client that was not asked, or was silent, keeps them. A reply is faulty for its
    shape, type or numbers; a duplicate, or a reply without a request, may be the network's fault and is no strike.
    Strikes start from 0 after a quarantine.

    Args:
        strikes: rounds in a row, at least 1.
        rounds: how long the client is not asked, at least 1.

    Raises:
        InputError: a value is out of range.
    """

    strikes: int = 3
    rounds: int = 20

    def __post_init__(self) -> None:
        checks.whole("strikes", self.strikes)
        checks.whole("rounds", self.rounds)

    def after(self, record: Record, answered: Tensor, faulty: Tensor) -> Record:
        """The record after a round in which these clients (N,) bool answered, and these (N,) bool were at fault."""
        strikes = torch.where(faulty, record.strikes + 1, torch.where(answered, 0, record.strikes))
        caught = strikes >= self.strikes
        until = torch.where(caught, self.rounds, (record.until - 1).clamp(min=0))
        return Record(torch.where(caught, 0, strikes), until)


class Validated(WrappedFederation):
    """Skips clients in quarantine and passes on valid replies only; records both for one round.

    Args:
        fed: the federation inside.
        quarantined: (N,) bool, who is not asked.
        norm: see :func:`drfl.resilience.validation.validated`.
        bound: of replies beside each other; None = none.
        usual: (2,) the lengths that it goes by, see :class:`drfl.resilience.StepBound`.
        on_rejection: called with every rejection; None = nobody is.
    """

    def __init__(
        self,
        fed: Federation,
        quarantined: Tensor,
        norm: float | None,
        bound: StepBound | None,
        usual: Tensor,
        on_rejection: Callable[[Rejection], None] | None = None,
    ) -> None:
        super().__init__(fed)
        self.quarantined, self.norm, self.bound, self.usual = quarantined, norm, bound, usual
        self.on_rejection = on_rejection
        self.answered = torch.zeros(fed.n, dtype=torch.bool)
        self.faulty = torch.zeros(fed.n, dtype=torch.bool)
        self.reasons = torch.zeros(fed.n + 1, len(REASONS), dtype=torch.bool)
        self.rejected = 0
        self.excess: Tensor | None = None

    def ask(self, request: Request[R]) -> R:
        """Send a request to the clients that are not in quarantine; no request is sent to an empty cohort."""
        # Sampling knows nothing of a quarantine: a client that is in it may be drawn, and then counts as silent.
        away = self.quarantined[request.cohort]
        if bool(away.any()):
            request = request.only(~away)
        if not len(request.cohort):
            return request.nobody()
        checked = validated(request, self.fed.ask(request), self.norm)
        if self.bound is not None and len(checked.reply.clients):
            excess, self.usual = self.bound.judge(request, checked.reply, self.usual)
            if bool(excess.any()):
                self._exceeded(checked.reply.clients, excess)
                checked = checked.without(excess > 0, Reason.OUT_OF_PROPORTION)
            # Validation has removed non-finite replies: count their excess as infinite.
            endless = checked.clients[checked.rows_with(Reason.NOT_FINITE)]
            if len(endless):
                self._exceeded(endless, torch.full((len(endless),), torch.inf, dtype=torch.float64))
        clients, codes = checked.clients, checked.codes
        bad = codes > 0
        self.answered[checked.reply.clients] = True
        if bool(bad.any()):
            # A sender that is not a client counts as client N.
            row = torch.where((clients >= 0) & (clients < self.n), clients, self.n)
            self.rejected += int(bad.sum())
            # A valid index: these reasons are only given to clients that were asked.
            self.faulty[clients[checked.rows_with(*FAULTS)]] = True
            self.reasons[row[bad], codes[bad] - 1] = True
            if self.on_rejection is not None:
                for client, code in zip(clients[bad].tolist(), codes[bad].tolist(), strict=True):
                    self.on_rejection(Rejection(request.key.round or 0, request.kind, client, REASONS[code - 1]))
        return checked.reply

    def _exceeded(self, clients: Tensor, excess: Tensor) -> None:
        before = torch.zeros(self.n, dtype=torch.float64) if self.excess is None else self.excess
        self.excess = before.index_copy(0, clients, torch.maximum(before[clients], excess))


class Guarded(WrappedFederation):
    """Loss reports pass the guards on their way back; records whose were changed in one round.

    Args:
        fed: the federation inside.
        guards: in their order.
        memory: (Σs,) float64, see :func:`drfl.resilience.guards.first_memories`.
    """

    def __init__(self, fed: Federation, guards: tuple[Guard, ...], memory: Tensor) -> None:
        super().__init__(fed)
        self.guards, self.memory = guards, memory
        self.changed = torch.zeros(fed.n, dtype=torch.bool)
        self.clipped = 0

    def ask(self, request: Request[R]) -> R:
        """Send a request, and judge the reports that come; the very reply where the guards change nothing."""
        reply = self.fed.ask(request)
        reports = reports_of(reply)
        if reports is None or not isinstance(request, LossRequest | GradientRequest) or not len(reports.clients):
            return reply
        # self.fed, not self: what a guard asks for itself is validated, and passes no guard.
        values, kept, self.memory = apply_guards(self.guards, reports, request, self.fed, self.memory)
        changed = ~kept | (values != reports.values)
        if not bool(changed.any()):
            return reply
        self.changed[reports.clients[changed]] = True
        self.clipped += int(changed.sum())
        reply = with_reports(reply, values)
        return reply if bool(kept.all()) else answers(reply, kept)


LOG = logging.getLogger("drfl.resilience")


class Memory(NamedTuple):
    """What :class:`Protected` remembers from one round to the next.

    Args:
        flagged: (N,) bool, clients whose latest answer was rejected or changed, or who are in quarantine.
        rejected: () int64, replies rejected so far.
        clipped: () int64, loss reports changed or dropped so far.
        strikes: (N,) int64, see :class:`drfl.resilience.protected.Record`.
        until: (N,) int64, likewise.
        dominant: (N,) int64, rounds in a row in which the client held most of λ.
        warned: (N + 1, reasons) bool, what has been warned of; row N is for senders that are no clients.
        guards: (Σs,) float64, the guards' memories.
        usual: (2,) float64, see :class:`drfl.resilience.StepBound`.
        centres: (2, d) or (2, 0), see :func:`drfl.resilience.aggregation.first_centres`.
        left_out: (N,) int64, rounds in which the aggregator left a client out.
        too_few: () int64, requests that too few answered for the aggregator.
    """

    flagged: Tensor
    rejected: Tensor
    clipped: Tensor
    strikes: Tensor
    until: Tensor
    dominant: Tensor
    warned: Tensor
    guards: Tensor
    usual: Tensor
    centres: Tensor
    left_out: Tensor
    too_few: Tensor

    def wrong(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        counts = (self.rejected, self.clipped, self.strikes, self.until, self.dominant, self.left_out, self.too_few)
        if any(bool((count < 0).any()) for count in counts):
            return "a negative count"
        return "a negative length" if bool((self.usual < 0).any()) else None


@dataclass(frozen=True)
class Protected(Wrapper[S]):
    """An algorithm that never sees an invalid reply, and sees loss reports as the guards leave them.

    A rejected reply counts as missing. The algorithm inside sees the same as alone, bit for bit, as long as nothing is
    rejected and no guard acts. Every client and reason gets one line of warning a run, in the log
    ``drfl.resilience``; so does a client that holds most of λ for long.

    Guards are for algorithms that use loss reports. Against false *models* there are ``norm``, ``bound`` and
    ``aggregator``.

    Args:
        algorithm: the algorithm inside.
        norm: the greatest distance of a client's model from the one sent, and norm of a gradient; None = no bound.
        quarantine: of clients whose replies keep being rejected; None = all clients are always asked.
        guards: for loss reports, in this order.
        concentration: when to warn that one client holds most of λ; algorithms without an ambiguity set never do.
        names: (N,) what the log calls the clients; empty = "client 0" and so on.
        bound: on models and gradients beside each other; None = none.
        aggregator: a Byzantine-robust rule for models and gradients; None = they are used as they come.
        on_rejection: called with every rejected reply, as for an audit log; None = nobody is.

    Raises:
        InputError: the norm is not a finite number above 0; or (when first used) cohorts are too small for the rule.
        NonFiniteError: (in a round) more than half of a request's replies are NaN or infinite.
    """

    norm: float | None = None
    quarantine: Quarantine | None = field(default_factory=Quarantine)
    guards: tuple[Guard, ...] = (RobustClip(),)
    concentration: LambdaConcentration = field(default_factory=LambdaConcentration)
    names: tuple[str, ...] = ()
    bound: StepBound | None = field(default_factory=StepBound)
    aggregator: Aggregator | None = None
    on_rejection: Callable[[Rejection], None] | None = None

    def __post_init__(self) -> None:
        if self.norm is not None:
            checks.positive("norm", self.norm)

    def init(self, fed: Federation) -> WrapperState[S, Memory]:
        """The state of the algorithm inside, without strikes or flags."""

        def counts(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64)

        def nobody(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.bool)

        n = fed.n
        if self.aggregator is not None:
            core = core_of(self.algorithm)
            most = min(n, (core.m or n) if isinstance(core, Sized) else n)
            if most < self.aggregator.least:  # no request could ever get enough replies
                raise InputError(
                    f"{self.aggregator} needs {self.aggregator.least} replies or more, and at most {most} clients are "
                    "asked: take median-clip (MedianClip), which needs three, or leave the aggregator out",
                    code="few-clients",
                    field="aggregator",
                )
        memory = Memory(
            flagged=nobody(n),
            rejected=counts(),
            clipped=counts(),
            strikes=counts(n),
            until=counts(n),
            dominant=counts(n),
            warned=nobody(n + 1, len(REASONS)),
            guards=first_memories(self.guards, n),
            usual=torch.zeros(2, dtype=torch.float64) if self.bound is None else self.bound.start(),
            centres=first_centres(self.aggregator, fed.w0),
            left_out=counts(n),
            too_few=counts(),
        )
        return WrapperState(self.algorithm.init(fed), memory)

    def round(self, state: WrapperState[S, Memory], fed: Federation, key: Key) -> tuple[WrapperState[S, Memory], Info]:
        """One round of the algorithm inside, on what passes."""
        inner, memory = state
        # Validation inside, guards outside: guards see finite reports of clients that were asked, each once.
        valid = Validated(fed, memory.until > 0, self.norm, self.bound, memory.usual, self.on_rejection)
        robust = None if self.aggregator is None else Aggregating(valid, self.aggregator, memory.centres)
        guarded = Guarded(valid if robust is None else robust, self.guards, memory.guards)
        inner, info = self.algorithm.round(inner, guarded, key)
        memory = self._after(memory, valid, guarded, mixture_of(self.algorithm, inner, fed))
        if robust is not None:
            if robust.too_few and not memory.too_few:
                text = (
                    f"fewer than {robust.rule.least} replies to a request, too few for {robust.rule}: none of them is "
                    "used"
                )
                LOG.warning(Notice(text, "few-replies", "aggregator"))
            memory = memory._replace(
                centres=robust.centres,
                left_out=memory.left_out + robust.left_out,
                too_few=memory.too_few + robust.too_few,
            )
        info = info if valid.excess is None else info._replace(excess=valid.excess)
        return WrapperState(inner, memory), info

    def _after(self, memory: Memory, valid: Validated, guarded: Guarded, lam: Tensor) -> Memory:
        """The memory after a round that ended in λ (N,), but for what the aggregator remembers."""
        bad = valid.faulty | guarded.changed
        record = Record(memory.strikes, memory.until)
        if self.quarantine is not None:
            record = self.quarantine.after(record, valid.answered, valid.faulty)
        dominant = memory.dominant
        if self.ambiguity is not None and len(lam) > 1:
            dominant = self.concentration.after(dominant, lam)
        # One line per client and reason in a run, also across a resumption: `warned` is in the state.
        for i, reason in (valid.reasons & ~memory.warned).nonzero().tolist():
            who = self._name(i) if i < len(lam) else "a sender that is no client"
            LOG.warning(Notice(f"{who}: reply rejected, as {REASONS[reason]}", "reply-rejected", who))
        for i in self.concentration.found(dominant):
            text = (
                f"{self._name(i)} holds more than {self.concentration.limit(len(lam)):g} of λ for "
                f"{self.concentration.long} rounds: it is served far worse than the others, or its loss reports are "
                "false"
            )
            LOG.warning(Notice(text, "dominant-client", self._name(i)))
        return memory._replace(
            # A client of which nothing came in this round keeps its mark.
            flagged=torch.where(valid.answered | bad, bad, memory.flagged) | (record.until > 0),
            rejected=memory.rejected + valid.rejected,
            clipped=memory.clipped + guarded.clipped,
            strikes=record.strikes,
            until=record.until,
            dominant=dominant,
            warned=memory.warned | valid.reasons,
            guards=guarded.memory,
            usual=valid.usual,
        )

    def _name(self, client: int) -> str:
        return self.names[client] if self.names else f"client {client}"
