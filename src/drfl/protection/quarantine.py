"""Clients whose replies keep being rejected are left in peace for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from drfl import checks


class Record(NamedTuple):
    """What is held against each client; both (N,) int64.

    Args:
        strikes: rounds in a row, of those in which it answered, in which a reply of it was faulty.
        until: rounds that it will still not be asked for.
    """

    strikes: Tensor
    until: Tensor


@dataclass(frozen=True)
class Quarantine:
    """Who sent a faulty reply in so many rounds in a row is not asked for a while.

    A round counts once, however many replies it saw: one faulty reply makes it a strike, and only a round whose replies
    were all fine wipes the strikes out; a client that nobody asked, or that was silent, keeps them. A reply is faulty
    for its shape, type or numbers; a second answer, or one that nobody asked for, may be the network's doing and is no
    strike. Strikes start from 0 after a quarantine.

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
