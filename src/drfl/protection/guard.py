"""What a guard for loss reports is, and several of them in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drfl.federation import Federation, Losses
from drfl.request import GradientRequest, LossRequest


class Judged(NamedTuple):
    """What a guard makes of k reports.

    Args:
        values: (k,) float64 losses to go by; what stands in a row that is not kept does not matter.
        kept: (k,) bool; the others count as missing.
        memory: (s,) float64, the guard's memory after them.
    """

    values: Tensor
    kept: Tensor
    memory: Tensor


class Guard(Protocol):
    """Looks at clients' loss reports before the algorithm does: a frozen dataclass.

    It sees finite reports of clients that were asked, at least one.
    """

    def start(self, n: int) -> Tensor:
        """(s,) float64: what it remembers of n clients before the first report; a vector of one size for ever."""
        ...

    def judge(self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor) -> Judged:
        """Judge the reports of k clients.

        Args:
            reports: (k,) clients and losses.
            request: what they answer; its key is this request's alone.
            fed: to ask other clients; nobody guards what they answer.
            memory: (s,) its memory.
        """
        ...


class Forgetful:
    """The part of a guard that remembers nothing."""

    def start(self, n: int) -> Tensor:
        """An empty vector."""
        return torch.empty(0, dtype=torch.float64)


def start(guards: Sequence[Guard], n: int) -> Tensor:
    """(Σs,) the memories of guards one after the other."""
    return torch.cat([torch.empty(0, dtype=torch.float64), *(guard.start(n) for guard in guards)])


def judge(
    guards: Sequence[Guard], reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
) -> Judged:
    """Guards one after the other, each on what the ones before it left; the arguments are those of :class:`Guard`."""
    values, kept = reports.values.clone(), torch.ones(len(reports.clients), dtype=torch.bool)
    memories = list(memory.split([guard.start(fed.n).numel() for guard in guards]))
    for g, guard in enumerate(guards):
        rows = kept.nonzero().flatten()
        if rows.numel():
            found = guard.judge(Losses(reports.clients[rows], values[rows]), request, fed, memories[g])
            values[rows], kept[rows], memories[g] = found.values, found.kept, found.memory
    return Judged(values, kept, torch.cat([memory[:0], *memories]))
