"""Loss reports compared with what the server, or other clients, find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from drfl import checks
from drfl.federation import Federation, Losses
from drfl.protection.clip import keep_all, near_median
from drfl.protection.guard import Forgetful, Judged
from drfl.request import GradientRequest, LossRequest


class Score(Protocol):
    """The server's own idea of clients' losses; see :class:`drfl.protection.Probe`."""

    def __call__(self, w: Tensor, clients: Tensor) -> Tensor:
        """(k,) losses of the model w (d,) on data that stand for each of the clients (k,)."""
        ...


@dataclass(frozen=True)
class Audit(Forgetful):
    """A claim above factor·score + slack is replaced by the server's score; a score of NaN lets every claim pass.

    Args:
        score: the server's scores.
        factor: ≥ 1.
        slack: ≥ 0, in the loss's units: what a minibatch may differ from the server's rows by.

    Raises:
        InputError: a value is out of range.
    """

    score: Score
    factor: float = 2.0
    slack: float = 1.0

    def __post_init__(self) -> None:
        checks.non_negative("factor - 1", self.factor - 1)
        checks.non_negative("slack", self.slack)

    def judge(self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor) -> Judged:
        """See :class:`drfl.protection.guard.Guard`."""
        scores = self.score(request.w, reports.clients).to(reports.values)
        values = torch.where(reports.values > self.factor * scores + self.slack, scores, reports.values)
        return keep_all(values, memory)


@dataclass(frozen=True)
class PeerAudit(Forgetful):
    """Clients that were not asked say what their loss is at the same model, and claims are cut by their answers.

    A reference of this very round, for federations of which few take part: claims are cut to med + k·max(1.4826·MAD,
    floor·|med|) over the peers' answers. The peers are drawn uniformly from those outside the cohort by the request's
    key, and take the samples that they would have taken in it. Where fewer than ``peers`` answer, the request's own
    reports join them. Each request costs ``peers`` loss reports more.

    Args:
        peers: how many others to ask, at least 1.
        k: widths above the median, > 0.
        floor: the least width as a share of the median, ≥ 0.

    Raises:
        InputError: a value is out of range.
    """

    peers: int = 5
    k: float = 10.0
    floor: float = 1.0

    def __post_init__(self) -> None:
        checks.whole("peers", self.peers)
        checks.positive("k", self.k)
        checks.non_negative("floor", self.floor)

    def judge(self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor) -> Judged:
        """See :class:`drfl.protection.guard.Guard`."""
        reference = self._answers(request, fed)
        if len(reference) < self.peers:
            reference = torch.cat([reference, reports.values])
        least = self.floor * reference.median().abs()
        return keep_all(near_median(reports.values, reference, self.k, least), memory)

    def _answers(self, request: LossRequest | GradientRequest, fed: Federation) -> Tensor:
        """(r,) the peers' losses, r ≤ peers."""
        outside = torch.ones(fed.n, dtype=torch.bool).index_fill(0, request.cohort, False).nonzero().flatten()
        size = min(self.peers, len(outside))
        if not size:
            return torch.empty(0, dtype=torch.float64)
        drawn = request.key.fold("peers").generator().choice(len(outside), size, replace=False)
        asked = outside[torch.from_numpy(drawn)].sort().values
        return fed.losses(asked, request.w, request.key, batch=request.batch).values
