"""Local steps on quadratics in one go: what a hundred of them cost does not depend on their number."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.federation import NOT_ASKED, Replies
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.testing.exact import Exact
from drfl.testing.problems import LeastSquares

LEAST = 1e-9
"""Where a step moves along some axis by less than this share, the closed form loses digits: it steps instead."""


class ClosedForm(Exact):
    """N clients with f_i(w) = ½‖A_i w − b_i‖² + (ridge/2)‖w‖², in exact gradients; keys and batches do not matter.

    With H = Hessian + prox and g the direction at w, u_{t+1} − w = (I − ηH)(u_t − w) − ηg, so that in H's axes, of
    eigenvalues h, u_t − w = −(1 − (1 − ηh)^t)/h · g. Everything but plain local steps goes the long way of
    :class:`drfl.testing.exact.Exact`.

    Args:
        functions: the f_i.
    """

    def __init__(self, functions: LeastSquares) -> None:
        super().__init__(functions.hessians, functions.linear, functions.b.square().sum(1) / 2)
        self.eigenvalues, self.axes = torch.linalg.eigh(self.A)

    def train(
        self,
        cohort: Tensor,
        w: Tensor,
        local: LocalSGD,
        key: Key,
        *,
        prox: float = 0.0,
        shift: Tensor | None = None,
        snapshot: int | None = None,
        average: bool = False,
    ) -> Replies:
        """See :class:`drfl.federation.Federation`. Everybody answers; the ledger stays at 0."""
        h, Q = self.eigenvalues[cohort] + prox, self.axes[cohort]
        plain = local == LocalSGD(local.steps, local.lr, local.batch) and not average
        if not plain or bool((local.lr * h < LEAST).any()):
            return super().train(cohort, w, local, key, prox=prox, shift=shift, snapshot=snapshot, average=average)
        direction = self.A[cohort] @ w - self.b[cohort] + (0 if shift is None else shift)
        along = torch.einsum("nij,ni->nj", Q, direction) / h

        def after(steps: int) -> Tensor:
            return w - torch.einsum("nij,nj->ni", Q, (1 - (1 - local.lr * h) ** steps) * along)

        return Replies(cohort, after(local.steps), NOT_ASKED if snapshot is None else after(snapshot))
