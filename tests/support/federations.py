"""Federations that lose or record messages."""

from __future__ import annotations

import numpy as np
import torch

from drfl.federation import Evaluation, TrainRequest, WrappedFederation, answers
from drfl.testing import ConstantFederation


class Partial(WrappedFederation):
    """A federation of which some clients never answer, while the others answer in a shuffled order."""

    def __init__(self, fed, *, lost_train=(), lost_losses=(), seed=0) -> None:
        super().__init__(fed)
        self.rng = np.random.default_rng(seed)
        self.lost_train, self.lost_losses = frozenset(lost_train), frozenset(lost_losses)

    def ask(self, request):
        reply = self.fed.ask(request)
        lost = self.lost_train if isinstance(request, TrainRequest) else self.lost_losses
        kept = [j for j, i in enumerate(reply.clients.tolist()) if i not in lost]
        return answers(reply, torch.tensor(self.rng.permutation(kept), dtype=torch.int64))


class Still(ConstantFederation):
    """A federation without data: local models are w + i, losses are given; it records what it was asked."""

    def __init__(self, values, *, d=2, start=0.0) -> None:
        super().__init__(values, d=d, start=start)
        self.trained, self.asked, self.reports, self.evaluated = [], [], [], 0

    def ask(self, request):
        if isinstance(request, TrainRequest):
            self.trained.append(
                {name: getattr(request, name) for name in ("cohort", "snapshot", "prox", "shift", "key")}
            )
        else:
            self.asked.append(request.cohort)
            self.reports.append({"key": request.key, "batch": request.batch, "w": request.w})
        return super().ask(request)

    def evaluate(self, w) -> Evaluation:
        self.evaluated += 1
        return super().evaluate(w)
