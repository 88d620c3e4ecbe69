"""The default bound on replies: models and gradients far larger than those of the other clients are rejected."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.intraop import column_slices, in_parallel
from drfl.federation.requests import Gradients, R, Replies, Request

MAX_ENTRIES = 2**20
"""Lengths of more values are computed by columns, so that the differences stay in the caches."""


@dataclass(frozen=True)
class StepBound:
    """Rejects replies longer than ``factor`` times the usual length.

    The length of a model is ‖w_i − w‖, and likewise for its snapshot and its mean; that of a gradient is ‖g_i‖. The
    usual length is the median over a request, or the largest such median so far if that is larger. Late in training,
    when nearly all updates are tiny, an honest client that is still learning may send updates as long as those of early
    rounds.

    The bound is against replies that would ruin any model at once, such as a model of 1e30, gradients in a different
    unit, or a broken client. It is wide, so that it spares honest clients with different data. A malicious client that
    stays within it can still mislead the model.

    Medians are reliable while fewer than half of the replies are false. Requests with fewer than ``least`` replies do
    not change the usual length, so none of these replies sets the bound for the others; they are compared with the
    median of earlier requests.

    Args:
        factor: Maximum length as a multiple of the usual length, above 1.
        least: Smallest number of replies for which a request's median counts, at least 3.

    Raises:
        InputError: If a value is out of range.
    """

    factor: float = 100.0
    least: int = 3

    def __post_init__(self) -> None:
        checks.above("factor", self.factor, 1)
        checks.integer("least", self.least, low=3)

    def start(self) -> Tensor:
        """Return the usual lengths of updates and gradients, (2,) float64, which are initially 0."""
        return torch.zeros(2, dtype=torch.float64)

    def judge(self, request: Request[R], reply: R, usual: Tensor) -> tuple[Tensor, Tensor]:
        """Find the replies beyond the bound and update the usual lengths.

        Args:
            request: The request.
            reply: Its valid replies, from k' clients.
            usual: (2,) float64, usual lengths so far.

        Returns:
            Length of each reply beyond the bound as a multiple of the usual length, 0 for the others, (k',) float64;
            and the new usual lengths.
        """
        if isinstance(reply, Replies):
            kind, lengths = 0, torch.stack([_lengths(U, request.w) for U in reply.models if U is not None]).amax(0)
        elif isinstance(reply, Gradients):
            kind, lengths = 1, _lengths(reply.values)
        else:
            return torch.zeros(len(reply.clients), dtype=torch.float64), usual
        if len(lengths) >= self.least:
            # For an even number, take the lower middle value, which false replies can raise less.
            usual = usual.clone()
            usual[kind] = torch.maximum(usual[kind], lengths.median())
        within = lengths <= self.factor * usual[kind]
        # If nothing has moved yet, the usual length is unknown, and every reply passes.
        return torch.where(within | (usual[kind] == 0), 0.0, lengths / usual[kind]), usual


def _lengths(part: Tensor, origin: Tensor | None = None) -> Tensor:
    """Compute the distances (k,) float64 of rows (k, d) from a vector (d,), or from 0 for None, on the CPU."""
    columns = max(1, part.shape[1] if part.numel() <= MAX_ENTRIES else MAX_ENTRIES // len(part))
    pieces = column_slices(columns, part.new_empty(1).expand(part.shape[1])) or [slice(0)]

    def partial_lengths(at: slice) -> Tensor:
        # In the models' dtype, the square of a length above 1e19 becomes infinite. That is still beyond the bound.
        away = part[:, at] if origin is None else part[:, at] - origin[at]
        return torch.linalg.vector_norm(away, dim=1).double()

    lengths = in_parallel(partial_lengths, pieces)
    return (lengths[0] if len(lengths) == 1 else torch.stack(lengths).norm(dim=0)).cpu()
