"""The largest loss reports are dropped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl import checks
from drfl.federation import Federation, Losses
from drfl.protection.guard import Forgetful, Judged
from drfl.request import GradientRequest, LossRequest


@dataclass(frozen=True)
class Trim(Forgetful):
    """The f largest reports of a request count as missing; those of gradients go with their gradients.

    Liars who claim the largest losses are never heard if there are no more than f. Neither are the f clients that are
    served worst, for whose sake λ exists, as long as they are: a strong measure. Of equal reports the earlier clients'
    go. Where no more than f answer, nobody is left.

    Not for ScaffPD, which goes by the last report of who is not heard: a client that was heard once, when its loss was
    large, and is dropped ever since, keeps drawing weight with it.

    Args:
        f: how many, at least 1.

    Raises:
        InputError: f is out of range.
    """

    f: int = 1

    def __post_init__(self) -> None:
        checks.whole("f", self.f)

    def judge(self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor) -> Judged:
        """See :class:`drfl.protection.guard.Guard`."""
        by_client = reports.clients.argsort()  # replies may come in any order
        largest = by_client[reports.values[by_client].argsort(descending=True, stable=True)[: self.f]]
        kept = torch.ones(len(reports.values), dtype=torch.bool).index_fill(0, largest, False)
        return Judged(reports.values, kept, memory)
