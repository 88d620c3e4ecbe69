"""One model that a thread trains for one client after another."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor

from drfl.engine.base import Models, Problem
from drfl.engine.convolutions import channels_last, images
from drfl.engine.descent import Descent
from drfl.local import LocalSGD


class Replica:
    """A copy of the task's model whose parameters are written in place.

    Args:
        problem: task and samples.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._images, layout = problem, images(problem), problem.task.layout
        self._model = copy.deepcopy(problem.task.model)
        for p in self._model.parameters():
            if self._images and p.dim() == 4:
                p.data = channels_last(p.data)
        named = dict(self._model.named_parameters())
        self._parameters = [named[name] for name in layout.names]

    def load(self, w: Tensor) -> Replica:
        """Take over the parameters w (d,)."""
        with torch.no_grad():
            for p, value in zip(self._parameters, self._views(w), strict=True):
                p.copy_(value)
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs for inputs (B, …); threads may share a replica that none of them trains."""
        return self._model(x)

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
        fixed: Tensor | None,
        local: LocalSGD,
        prox: float,
        snapshot: int | None,
        into: Models,
    ) -> None:
        """A client's steps from w (d,), one for each batch of rows; what was asked for goes ``into`` vectors (d,).

        ``fixed`` (d,) is the part of the direction that no step changes; None = 0.
        """
        self.load(w)
        velocity = [torch.zeros_like(p) if local.momentum else None for p in self._parameters]
        constants = [None] * len(velocity) if fixed is None else self._views(fixed)
        descent = Descent.of(local, prox, w)
        for step, rows in enumerate(batches, start=1):
            gradients, _ = self._gradients(rows)
            with torch.no_grad():
                for p, g, constant, v in zip(self._parameters, gradients, constants, velocity, strict=True):
                    descent.step(p, g, constant, v)
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
        problem, x = self._problem, self._problem.x[rows]
        outputs = problem.forward(self._model, channels_last(x) if self._images else x)
        loss = problem.task.sample_losses(outputs, problem.y[rows]).mean()
        return torch.autograd.grad(loss, self._parameters, materialize_grads=True), loss.detach()

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
