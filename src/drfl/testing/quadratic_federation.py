"""A federation of quadratic losses in closed form, with exact gradients and very fast rounds."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from drfl.federation.federation import Evaluation, Federation, Ledger
from drfl.federation.requests import Gradients, Losses, LossRequest, R, Replies, Request, TrainRequest
from drfl.optim.local import refuse_optimizer


class QuadraticFederation(Federation):
    """N clients with f_i(w) = ½ wᵀA_i w − b_iᵀw + s_i; keys and batch sizes do not matter.

    All clients run in one batch. Otherwise the local steps are those of :class:`drfl.optim.local.LocalSGD`.

    Args:
        A: (N, d, d) symmetric, positive semidefinite.
        b: (N, d).
        s: (N,).
        shares: (N,) share of the samples; None for equal shares.
        w0: (d,) initial model; None for zeros.
        dtype: Type of the models.
    """

    def __init__(
        self,
        A: Tensor,
        b: Tensor,
        s: Tensor,
        *,
        shares: Tensor | None = None,
        w0: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.A, self.b, self.s = (part.to(dtype) for part in (A, b, s))
        self.n, d = self.b.shape
        self.shares = torch.full((self.n,), 1 / self.n, dtype=torch.float64) if shares is None else shares.double()
        self.w0 = torch.zeros(d, dtype=dtype) if w0 is None else w0.to(dtype)
        self.ledger = Ledger()

    def ask(self, request: Request[R]) -> R:
        """Answer a request, see :class:`drfl.federation.federation.Federation`; all answer, the ledger stays at 0."""
        cohort, w = request.cohort, request.w
        match request:
            case TrainRequest():
                reply = self.local_steps(request)
            case LossRequest():
                reply = Losses(cohort, self._values(w)[cohort])
            case _:
                reply = Gradients(cohort, self.A[cohort] @ w - self.b[cohort], self._values(w)[cohort])
        return cast("R", reply)

    def local_steps(self, request: TrainRequest) -> Replies:
        """Compute the models of a request's cohort, step by step."""
        cohort, w, local, prox, shift = request.cohort, request.w, request.local, request.prox, request.shift
        refuse_optimizer("QuadraticFederation", local, "its steps are plain ones")
        A, b = self.A[cohort], self.b[cohort]
        # The part of the direction A u − b + shift + prox·(u − w) + decay·u that does not depend on u.
        constant = (0 if shift is None else shift) - b - prox * w
        u, velocity = w.repeat(len(cohort), 1), torch.zeros_like(b)
        total, at_snapshot = torch.zeros_like(b), None
        for step in range(1, local.tau + 1):
            direction = torch.bmm(A, u[:, :, None])[:, :, 0] + constant + (local.weight_decay + prox) * u
            velocity = local.momentum * velocity + direction
            u = u - local.eta * velocity
            if local.radius is not None:
                u = u * (local.radius / u.norm(dim=1, keepdim=True)).clamp(max=1)
            total = total + u if request.average else total
            if step == request.snapshot:
                at_snapshot = u
        return Replies(cohort, u, at_snapshot, total / local.tau if request.average else None)

    def evaluate(self, w: Tensor) -> Evaluation:
        """Return training losses in place of test losses; the accuracy is exp(−loss)."""
        values = self._values(w)
        return Evaluation(torch.exp(-values), values, torch.ones(self.n, dtype=torch.int64))

    def _values(self, w: Tensor) -> Tensor:
        return (0.5 * torch.einsum("i,nij,j->n", w, self.A, w) - self.b @ w + self.s).double()
