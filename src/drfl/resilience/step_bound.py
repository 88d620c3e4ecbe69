"""The bound that is on by default: models and gradients out of all proportion to the others' are not used."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl.core import checks
from drfl.federation.requests import Gradients, R, Replies, Request

TOGETHER = 2**20
"""Numbers of a part whose lengths are found in one go; of more, row by row, as the differences take memory."""


@dataclass(frozen=True)
class StepBound:
    """Rejects replies that are longer than ``factor`` times what is usual.

    A model's length is ‖w_i − w‖, that of its snapshot and of its mean likewise; a gradient's is ‖g_i‖. Usual is the
    median of a request's lengths, or the largest such median so far if that is larger: late in training, when nearly
    all steps are tiny, an honest client that still learns takes steps like those of early rounds.

    The bound is against replies that ruin a model at once, whatever the algorithm: one of 1e30, gradients in another
    unit, a broken client. It is wide, so that it spares whoever is honest but different; a client that keeps within it
    can still lead the model astray.

    Medians hold while fewer than half of the replies are false. Of fewer than ``least`` nothing is remembered, so that
    none of them sets the bound for the others; they are held to the median of earlier ones.

    Args:
        factor: times the usual length, above 1.
        least: replies of a request from which on its median counts, at least 3.

    Raises:
        InputError: a value is out of range.
    """

    factor: float = 100.0
    least: int = 3

    def __post_init__(self) -> None:
        checks.above("factor", self.factor, 1)
        checks.whole("least", self.least, low=3)

    def start(self) -> Tensor:
        """(2,) float64: the usual length of a step and of a gradient, 0 before the first."""
        return torch.zeros(2, dtype=torch.float64)

    def judge(self, request: Request[R], reply: R, usual: Tensor) -> tuple[Tensor, Tensor]:
        """Which replies are beyond the bound, and how far.

        Args:
            request: what was asked.
            reply: its valid answers, of k' clients.
            usual: (2,) float64 the usual lengths so far.

        Returns:
            (k',) float64 how many times the usual length each is, of those beyond the bound, and 0 of the others; the
            usual lengths after them.
        """
        if isinstance(reply, Replies):
            kind, lengths = 0, torch.stack([_lengths(U, request.w) for U in reply[1:] if U is not None]).amax(0)
        elif isinstance(reply, Gradients):
            kind, lengths = 1, _lengths(reply.values)
        else:
            return torch.zeros(len(reply.clients), dtype=torch.float64), usual
        if len(lengths) >= self.least:
            # Of two middle ones the lower, which a false reply can raise less.
            usual = usual.clone()
            usual[kind] = torch.maximum(usual[kind], lengths.median())
        within = lengths <= self.factor * usual[kind]
        # Where nothing has moved yet there is nothing to judge by.
        return torch.where(within | (usual[kind] == 0), 0.0, lengths / usual[kind]), usual


def _lengths(part: Tensor, origin: Tensor | None = None) -> Tensor:
    """(k,) float64 the distances of a part's rows (k, d) from a vector (d,), on the CPU; None = from 0."""
    rows = [part] if part.numel() <= TOGETHER else part.split(1)
    away = (row if origin is None else row - origin for row in rows)
    # In the models' own type the square of a length beyond 1e19 is infinite, which is long enough.
    return torch.cat([torch.linalg.vector_norm(row, dim=1).double().cpu() for row in away])
