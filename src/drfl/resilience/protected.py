"""Protection of an algorithm: reply validation, guards for reported losses, and quarantine and logging of clients."""

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
from drfl.federation.algorithm import Info, core_of, default_cohort, mixture_of
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import GradientRequest, LossRequest, R, Request, reports_of, select_rows, with_reports
from drfl.federation.user_algorithm import begin, play
from drfl.resilience.aggregation import AggregatingFederation, first_centres
from drfl.resilience.aggregators import Aggregator
from drfl.resilience.guards import Guard, RobustClip, Trim, apply_guards, first_memories
from drfl.resilience.step_bound import StepBound
from drfl.resilience.validation import FAULTS, REASONS, Reason, Rejection, validate_reply
from drfl.resilience.wrappers import S, Wrapper, WrapperState

TIMES_MEAN = 3
"""Limit in multiples of the mean share: with two or three clients, one with half of λ is normal and not suspicious."""


@dataclass(frozen=True)
class LambdaConcentration:
    """Warns if one client holds a large share of λ for many rounds: its data may be hard, or its reports false.

    Args:
        share: Share of λ in [0, 1]. A round counts if the client's share is above this and above :data:`TIMES_MEAN`
            times the mean share.
        long: Number of consecutive rounds before the warning, at least 1.

    Raises:
        InputError: If a value is out of range.
    """

    share: float = 0.5
    long: int = 10

    def __post_init__(self) -> None:
        checks.fraction("share", self.share)
        checks.integer("long", self.long)

    def limit(self, n: int) -> float:
        """Return the share of λ above which a round counts, for n clients."""
        return max(self.share, TIMES_MEAN / n)

    def after(self, rounds: Tensor, lam: Tensor) -> Tensor:
        """Update the numbers of consecutive rounds above the limit, (N,) int64, after a round that ended in λ (N,)."""
        return torch.where(lam.cpu() > self.limit(len(lam)), rounds + 1, 0)

    def newly_dominant(self, rounds: Tensor) -> list[int]:
        """Return the clients that have just reached the number of rounds."""
        return (rounds == self.long).nonzero().flatten().tolist()


class Record(NamedTuple):
    """Strikes and quarantine of each client; both (N,) int64.

    Args:
        strikes: Consecutive rounds with a faulty reply, not counting rounds in which the client did not answer.
        until: Number of remaining rounds in which the client is not asked.
    """

    strikes: Tensor
    until: Tensor


@dataclass(frozen=True)
class Quarantine:
    """Stops asking a client for some rounds after faulty replies in several consecutive rounds.

    A round counts once, regardless of its number of replies. One faulty reply makes it a strike, and only a round with
    valid replies alone clears the strikes. A client that was not asked or did not answer keeps its strikes. A reply is
    faulty because of its shape, dtype or numbers. Duplicates and replies without a request are not strikes, because the
    network may cause them. After a quarantine, strikes start from 0.

    Args:
        strikes: Number of consecutive rounds, at least 1.
        rounds: Number of rounds in which the client is not asked, at least 1.

    Raises:
        InputError: If a value is out of range.
    """

    strikes: int = 3
    rounds: int = 20

    def __post_init__(self) -> None:
        checks.integer("strikes", self.strikes)
        checks.integer("rounds", self.rounds)

    def after(self, record: Record, answered: Tensor, faulty: Tensor) -> Record:
        """Update the record after a round, given the clients that answered and those at fault, both (N,) bool."""
        strikes = torch.where(faulty, record.strikes + 1, torch.where(answered, 0, record.strikes))
        is_caught = strikes >= self.strikes
        until = torch.where(is_caught, self.rounds, (record.until - 1).clamp(min=0))
        return Record(torch.where(is_caught, 0, strikes), until)


class ValidatingFederation(WrappedFederation):
    """Skips clients in quarantine and passes on valid replies only; records both for one round.

    Args:
        fed: The wrapped federation.
        quarantined: (N,) bool, True for clients that are not asked.
        norm: See :func:`drfl.resilience.validation.validate_reply`.
        bound: Bound on replies relative to each other; None = no bound.
        usual: (2,) Reference lengths of the bound, see :class:`drfl.resilience.StepBound`.
        on_rejection: Called with every rejection; None = no call.
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
        """Send a request to the clients that are not in quarantine; never send one to an empty cohort."""
        # Sampling ignores quarantine: a quarantined client may be drawn and then counts as not answering.
        away = self.quarantined[request.cohort]
        if bool(away.any()):
            request = request.only(~away)
        if not len(request.cohort):
            return request.empty_reply()
        checked = validate_reply(request, self.fed.ask(request), self.norm, self.names)
        if self.bound is not None and len(checked.reply.clients):
            excess, self.usual = self.bound.judge(request, checked.reply, self.usual)
            if bool(excess.any()):
                self._exceeded(checked.reply.clients, excess)
                checked = checked.without(excess > 0, Reason.OUT_OF_PROPORTION)
            # Validation has already removed non-finite replies; count their excess as infinite.
            non_finite = checked.clients[checked.rows_with(Reason.NOT_FINITE)]
            if len(non_finite):
                self._exceeded(non_finite, torch.full((len(non_finite),), torch.inf, dtype=torch.float64))
        clients, codes = checked.clients, checked.codes
        bad = codes > 0
        self.answered[checked.reply.clients] = True
        if bool(bad.any()):
            # A sender that is not a client counts as client N.
            row = torch.where((clients >= 0) & (clients < self.n), clients, self.n)
            self.rejected += int(bad.sum())
            # These indices are valid: the reasons in FAULTS are only given to clients that were asked.
            self.faulty[clients[checked.rows_with(*FAULTS)]] = True
            self.reasons[row[bad], codes[bad] - 1] = True
            if self.on_rejection is not None:
                for client, code in zip(clients[bad].tolist(), codes[bad].tolist(), strict=True):
                    self.on_rejection(Rejection(request.key.round or 0, request.kind, client, REASONS[code - 1]))
        return checked.reply

    def _exceeded(self, clients: Tensor, excess: Tensor) -> None:
        before = torch.zeros(self.n, dtype=torch.float64) if self.excess is None else self.excess
        self.excess = before.index_copy(0, clients, torch.maximum(before[clients], excess))


class GuardingFederation(WrappedFederation):
    """Passes reported losses through the guards; records for one round which clients' losses were changed.

    Args:
        fed: The wrapped federation.
        guards: Guards, applied in this order.
        memory: (Σs,) float64, see :func:`drfl.resilience.guards.first_memories`.
    """

    def __init__(self, fed: Federation, guards: tuple[Guard, ...], memory: Tensor) -> None:
        super().__init__(fed)
        self.guards, self.memory = guards, memory
        self.changed = torch.zeros(fed.n, dtype=torch.bool)
        self.clipped = 0

    def ask(self, request: Request[R]) -> R:
        """Send a request and apply the guards; return the same reply object if they change nothing."""
        reply = self.fed.ask(request)
        reports = reports_of(reply)
        if reports is None or not isinstance(request, LossRequest | GradientRequest) or not len(reports.clients):
            return reply
        # Pass self.fed, not self: replies to a guard's requests are validated, but pass no guard.
        values, kept, self.memory = apply_guards(self.guards, reports, request, self.fed, self.memory)
        changed = ~kept | (values != reports.values)
        if not bool(changed.any()):
            return reply
        self.changed[reports.clients[changed]] = True
        self.clipped += int(changed.sum())
        reply = with_reports(reply, values)
        return reply if bool(kept.all()) else select_rows(reply, kept)


LOG = logging.getLogger("drfl.resilience")


class Memory(NamedTuple):
    """The memory of :class:`Protected` between rounds.

    Args:
        flagged: (N,) bool, True for clients whose latest reply was rejected or changed, or that are in quarantine.
        rejected: () int64, number of replies rejected so far.
        clipped: () int64, number of reported losses changed or dropped so far.
        strikes: (N,) int64, see :class:`drfl.resilience.protected.Record`.
        until: (N,) int64, see :class:`drfl.resilience.protected.Record`.
        dominant: (N,) int64, consecutive rounds in which the client held most of λ.
        warned: (N + 1, reasons) bool, warnings already issued; row N is for senders that are not clients.
        guards: (Σs,) float64, the guards' memories.
        usual: (2,) float64, see :class:`drfl.resilience.StepBound`.
        centres: (2, d) or (2, 0), see :func:`drfl.resilience.aggregation.first_centres`.
        left_out: (N,) int64, number of rounds in which the aggregation rule excluded a client.
        too_few: () int64, number of requests with too few replies for the aggregation rule.
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

    def describe_fault(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        counts = (self.rejected, self.clipped, self.strikes, self.until, self.dominant, self.left_out, self.too_few)
        if any(bool((count < 0).any()) for count in counts):
            return "a count is negative"
        return "a length is negative" if bool((self.usual < 0).any()) else None


@dataclass(frozen=True)
class Protected(Wrapper[S]):
    """Shields an algorithm from invalid replies and passes reported losses through guards.

    A rejected reply counts as missing. As long as nothing is rejected and no guard acts, the wrapped algorithm gets
    bit-identical replies. There is one warning per client and reason in a run, in the log ``drfl.resilience``, and one
    for a client that holds most of λ for many rounds.

    Guards apply to algorithms that use reported losses. Against false *models*, use ``norm``, ``bound`` and
    ``aggregator``.

    Args:
        algorithm: The wrapped algorithm.
        norm: Maximum distance of a client's model from the one sent, and maximum norm of a gradient; None = no bound.
        quarantine: Quarantine of clients whose replies are repeatedly rejected; None = clients are always asked.
        guards: Guards for reported losses, in this order.
        concentration: When to warn that one client holds most of λ; never for algorithms without an ambiguity set.
        names: (N,) Names of the clients in the log; empty = those that the federation knows, or "client 0" and so on.
        bound: Bound on models and gradients relative to each other; None = no bound.
        aggregator: Robust aggregation rule for models and gradients; None = they are used unchanged.
        on_rejection: Called with every rejected reply, for example for an audit log; None = no call.

    Raises:
        InputError: If the norm is not a finite number above 0, or (on first use) if cohorts are too small for the
            rule or for :class:`drfl.resilience.Trim`.
        NonFiniteError: In a round, if more than half of a request's replies are NaN or infinite.
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
        """Return the state of the wrapped algorithm with no strikes and no flags."""

        def counts(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64)

        def flags(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.bool)

        n, core = fed.n, core_of(self.algorithm)
        rule = self.aggregator or next((guard for guard in self.guards if isinstance(guard, Trim)), None)
        if rule is not None and getattr(core, "reference", "none") != "none":
            raise InputError(
                f"{rule} drops or changes replies to requests for clients' own models. Use reference 'none', or remove "
                f"{type(rule).__name__}",
                code="unsupported-combination",
                field="reference",
            )
        m = getattr(core, "m", n)
        most = default_cohort(core, n) if m is None else min(n, m) if isinstance(m, int) and m > 0 else n
        if self.aggregator is not None and most < self.aggregator.min_vectors:  # no request could get enough replies
            raise InputError(
                f"{self.aggregator} needs at least {self.aggregator.min_vectors} replies, but at most "
                f"{most} clients are asked. Use median-clip (MedianClip), which needs three, or "
                "remove `aggregator`",
                code="few-clients",
                field="aggregator",
            )
        # Algorithms without these fields get no reported losses from a cohort: AFL and DRFA-GA ask all clients.
        reports = most if hasattr(core, "dual_batch") or hasattr(core, "loss_batch") else n
        dropped = sum(guard.f for guard in self.guards if isinstance(guard, Trim))
        if dropped and dropped >= reports:  # λ would never change
            raise InputError(
                f"Trim would drop the {dropped} largest reported losses, but at most {reports} clients report one. "
                "Lower f, or remove `guards`",
                code="few-clients",
                field="guards",
            )
        memory = Memory(
            flagged=flags(n),
            rejected=counts(),
            clipped=counts(),
            strikes=counts(n),
            until=counts(n),
            dominant=counts(n),
            warned=flags(n + 1, len(REASONS)),
            guards=first_memories(self.guards, n),
            usual=torch.zeros(2, dtype=torch.float64) if self.bound is None else self.bound.start(),
            centres=first_centres(self.aggregator, fed.w0),
            left_out=counts(n),
            too_few=counts(),
        )
        return WrapperState(begin(self.algorithm, fed), memory)

    def round(self, state: WrapperState[S, Memory], fed: Federation, key: Key) -> tuple[WrapperState[S, Memory], Info]:
        """Run one round of the wrapped algorithm on the replies that pass."""
        inner, memory = state
        # Validation is innermost, so that guards see finite reports of clients that were asked, each once.
        valid = ValidatingFederation(fed, memory.until > 0, self.norm, self.bound, memory.usual, self.on_rejection)
        robust = None if self.aggregator is None else AggregatingFederation(valid, self.aggregator, memory.centres)
        # Guards are outermost: they judge losses of clients that the aggregation rule has not excluded.
        guarded = GuardingFederation(valid if robust is None else robust, self.guards, memory.guards)
        inner, info = play(self.algorithm, inner, guarded, key)
        lam = mixture_of(self.algorithm, inner, fed)
        bad = valid.faulty | guarded.changed
        record = Record(memory.strikes, memory.until)
        if self.quarantine is not None:
            record = self.quarantine.after(record, valid.answered, valid.faulty)
        dominant = memory.dominant
        if self.ambiguity is not None and len(lam) > 1:
            dominant = self.concentration.after(dominant, lam)
        # Log one line per client and reason in a run, also after a resume, because `warned` is in the state.
        for i, reason in (valid.reasons & ~memory.warned).nonzero().tolist():
            sender = self._name(i, fed) if i < len(lam) else "an unknown sender"
            LOG.warning(Notice(f"{sender}: reply rejected, as {REASONS[reason]}", "reply-rejected", sender))
        for i in self.concentration.newly_dominant(dominant):
            text = (
                f"{self._name(i, fed)} has held more than {self.concentration.limit(len(lam)):g} of λ for "
                f"{self.concentration.long} rounds; the model serves it much worse than the others, or its reported "
                "losses are false"
            )
            LOG.warning(Notice(text, "dominant-client", self._name(i, fed)))
        memory = memory._replace(
            # A client that sent nothing in this round keeps its flag.
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
        if robust is not None:
            if robust.too_few and not memory.too_few:
                text = (
                    f"fewer than {robust.rule.min_vectors} replies to a request, too few for {robust.rule}; none of "
                    "them is used"
                )
                LOG.warning(Notice(text, "few-replies", "aggregator"))
            memory = memory._replace(
                centres=robust.centres,
                left_out=memory.left_out + robust.left_out,
                too_few=memory.too_few + robust.too_few,
            )
        info = info if valid.excess is None else info._replace(excess=valid.excess)
        return WrapperState(inner, memory), info

    def _name(self, client: int, fed: Federation) -> str:
        names = self.names or fed.names
        return names[client] if names else f"client {client}"
