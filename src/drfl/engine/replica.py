"""One model that a thread trains for one client after another."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor

from drfl.engine.base import Models, Problem, rounded
from drfl.local import LocalSGD


class Replica:
    """A copy of the task's model whose parameters are written in place.

    Convolutions work on channels-last tensors, which pooling on a CPU is several times faster on.

    Args:
        problem: task and samples.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, layout = problem, problem.task.layout
        self._model = copy.deepcopy(problem.task.model)
        for p in self._model.parameters():
            if p.dim() == 4:
                p.data = p.data.contiguous(memory_format=torch.channels_last)
        named = dict(self._model.named_parameters())
        self._parameters = [named[name] for name in layout.names]

    def load(self, w: Tensor) -> None:
        """Take over the parameters w (d,)."""
        with torch.no_grad():
            for p, value in zip(self._parameters, self._views(w), strict=True):
                p.copy_(value)

    def gradient(self, rows: Tensor, into: Tensor) -> Tensor:
        """Write the mean gradient on these rows of the pool into a vector (d,); returns the mean loss ()."""
        gradients, loss = self._gradients(rows)
        for g, value in zip(gradients, self._views(into), strict=True):
            value.copy_(g)
        return loss

    def local_steps(
        self,
        batches: Iterable[Tensor],
        w: Tensor,
        constant: Tensor,
        local: LocalSGD,
        prox: float,
        snapshot: int | None,
        into: Models,
    ) -> None:
        """A client's steps from w (d,), one for each batch of rows; what was asked for goes ``into`` vectors (d,).

        The direction is g + (prox + weight_decay)·u + constant, with constant = shift − prox·w folded once per client.
        """
        self.load(w)
        velocity = [torch.zeros_like(p) for p in self._parameters] if local.momentum else None
        fixed, (lr, pull) = self._views(constant), rounded([local.lr, prox + local.weight_decay], w)
        (keep,) = rounded([1 - lr * pull], w)
        for step, rows in enumerate(batches, start=1):
            gradients, _ = self._gradients(rows)
            with torch.no_grad():
                for i, (p, g) in enumerate(zip(self._parameters, gradients, strict=True)):
                    if velocity is None:  # gradients may share memory: they are only read
                        p.mul_(keep).sub_(fixed[i], alpha=lr).sub_(g, alpha=lr)
                    else:
                        velocity[i].mul_(local.momentum).add_(g).add_(fixed[i]).add_(p, alpha=pull)
                        p.sub_(velocity[i], alpha=lr)
                self._project(local.radius)
                self._report(step, local, snapshot, into)

    def _report(self, step: int, local: LocalSGD, snapshot: int | None, into: Models) -> None:
        """Write what was asked for after this step."""
        if into.average is not None:
            for p, value in zip(self._parameters, self._views(into.average), strict=True):
                value.add_(p, alpha=1 / local.steps)
        if into.snapshot is not None and step == snapshot:
            self._store(into.snapshot)
        if step == local.steps:
            self._store(into.w)

    def _gradients(self, rows: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        task, x = self._problem.task, self._problem.x[rows]
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        loss = task.sample_losses(self._model(x), self._problem.y[rows]).mean()
        return torch.autograd.grad(loss, self._parameters), loss.detach()

    def _store(self, into: Tensor) -> None:
        for p, value in zip(self._parameters, self._views(into), strict=True):
            value.copy_(p)

    def _project(self, radius: float | None) -> None:
        if radius is None:
            return
        norm = torch.stack([p.norm() for p in self._parameters]).norm()
        if norm > radius:
            for p in self._parameters:
                p.mul_(radius / norm)

    def _views(self, w: Tensor) -> list[Tensor]:
        return list(self._problem.task.layout.views(w).values())
