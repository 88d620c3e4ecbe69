"""An algorithm whose clients' replies are checked."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl import checks
from drfl.algorithm import Info
from drfl.federation import Federation
from drfl.key import Key
from drfl.protection import guard
from drfl.protection.clip import RobustClip
from drfl.protection.dominance import Dominance
from drfl.protection.guard import Guard
from drfl.protection.quarantine import Quarantine, Record
from drfl.protection.shield import Guarded, Validated
from drfl.protection.validation import REASONS
from drfl.wrapped import Carried, S, Wrapper

LOG = logging.getLogger("drfl.protection")


class Memory(NamedTuple):
    """What :class:`Protected` remembers from one round to the next.

    Args:
        flagged: (N,) bool, clients whose latest answer was rejected or changed, or who are in quarantine.
        rejected: () int64, replies rejected so far.
        clipped: () int64, loss reports changed or dropped so far.
        strikes: (N,) int64, see :class:`drfl.protection.quarantine.Record`.
        until: (N,) int64, likewise.
        dominant: (N,) int64, rounds in a row in which the client held most of λ.
        warned: (N + 1, reasons) bool, what there was a warning about; row N is for who is no client at all.
        guards: (Σs,) float64, the guards' memories.
    """

    flagged: Tensor
    rejected: Tensor
    clipped: Tensor
    strikes: Tensor
    until: Tensor
    dominant: Tensor
    warned: Tensor
    guards: Tensor

    def wrong(self) -> str | None:
        """See :class:`drfl.algorithm.Consistent`."""
        counts = (self.rejected, self.clipped, self.strikes, self.until, self.dominant)
        return "a negative count" if any(bool((count < 0).any()) for count in counts) else None


@dataclass(frozen=True)
class Protected(Wrapper[S]):
    """An algorithm that never sees an invalid reply, and sees loss reports as the guards leave them.

    A rejected reply counts as missing. The algorithm inside sees the same as alone, bit for bit, as long as nothing is
    rejected and no guard acts. Every client and reason gets one line of warning a run, in the log
    ``drfl.protection``; so does a client that holds most of λ for long.

    Guards are for algorithms that listen to loss reports; against false *models* there is only ``norm``.

    Args:
        algorithm: the algorithm inside.
        norm: the greatest distance of a client's model from the one sent, and norm of a gradient; None = no bound.
        quarantine: for whose replies keep being rejected; None = everybody is always asked.
        guards: for loss reports, in this order.
        dominance: when to warn that one client holds most of λ; algorithms without an ambiguity set never do.
        names: (N,) what the log calls the clients; empty = "client 0" and so on.

    Raises:
        InputError: the norm is not a finite number above 0.
        NonFiniteError: (in a round) more than half of a request's replies are NaN or infinite.
    """

    norm: float | None = None
    quarantine: Quarantine | None = field(default_factory=Quarantine)
    guards: tuple[Guard, ...] = (RobustClip(),)
    dominance: Dominance = field(default_factory=Dominance)
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.norm is not None:
            checks.positive("norm", self.norm)

    def init(self, fed: Federation) -> Carried[S, Memory]:
        """The state of the algorithm inside, and nothing held against anybody."""

        def counts(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64)

        def nobody(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.bool)

        n = fed.n
        memory = Memory(
            flagged=nobody(n),
            rejected=counts(),
            clipped=counts(),
            strikes=counts(n),
            until=counts(n),
            dominant=counts(n),
            warned=nobody(n + 1, len(REASONS)),
            guards=guard.start(self.guards, n),
        )
        return Carried(self.algorithm.init(fed), memory)

    def round(self, state: Carried[S, Memory], fed: Federation, key: Key) -> tuple[Carried[S, Memory], Info]:
        """One round of the algorithm inside, on what passes."""
        inner, memory = state
        valid = Validated(fed, memory.until > 0, self.norm)
        guarded = Guarded(valid, self.guards, memory.guards)
        inner, info = self.algorithm.round(inner, guarded, key)
        return Carried(inner, self._after(memory, valid, guarded, inner.lam)), info

    def _after(self, memory: Memory, valid: Validated, guarded: Guarded, lam: Tensor) -> Memory:
        """The memory after a round that ended in λ (N,)."""
        bad = valid.faulty | guarded.changed
        record = Record(memory.strikes, memory.until)
        if self.quarantine is not None:
            record = self.quarantine.after(record, valid.answered, valid.faulty)
        dominant = memory.dominant
        if self.ambiguity is not None and len(lam) > 1:
            dominant = self.dominance.after(dominant, lam)
        for i, reason in (valid.reasons & ~memory.warned).nonzero().tolist():
            who = self._name(i) if i < len(lam) else "who is no client"
            LOG.warning("%s: reply rejected, as %s", who, REASONS[reason])
        for i in self.dominance.found(dominant):
            LOG.warning(
                "%s holds more than %g of λ for %d rounds: it is served far worse than the others, or its loss "
                "reports are false",
                self._name(i), self.dominance.share, self.dominance.long,
            )  # fmt: skip
        return Memory(
            flagged=torch.where(valid.answered | bad, bad, memory.flagged) | (record.until > 0),
            rejected=memory.rejected + valid.rejected,
            clipped=memory.clipped + guarded.clipped,
            strikes=record.strikes,
            until=record.until,
            dominant=dominant,
            warned=memory.warned | valid.reasons,
            guards=guarded.memory,
        )

    def _name(self, client: int) -> str:
        return self.names[client] if self.names else f"client {client}"
