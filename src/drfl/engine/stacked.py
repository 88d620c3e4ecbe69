"""The stacked engine: the models of a whole cohort side by side, one vectorised gradient for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from drfl.engine.base import Models, Problem, rounded
from drfl.engine.batches import Batches
from drfl.local import LocalSGD
from drfl.task import Task

Parameters = Mapping[str, Tensor]
GradientFn = Callable[[Parameters, Tensor, Tensor, Tensor], tuple[dict[str, Tensor], Tensor]]


@dataclass(frozen=True)
class Stacked:
    """``vmap`` over the clients; models of (k, d) in one buffer, updated in place.

    Clients with fewer samples than the others are padded with samples of weight 0, so that all fit in one batch.

    Args:
        megabytes: rough bound on the inputs gathered for one step; larger cohorts run in several stacks, clients of
            similar batch size together. It does not change results beyond float rounding.
    """

    megabytes: float = 256.0

    def train(
        self,
        problem: Problem,
        batches: Batches,
        w: Tensor,
        local: LocalSGD,
        *,
        prox: float,
        shift: Tensor | None,
        snapshot: int | None,
        average: bool,
    ) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        U = w.repeat(len(batches.counts), 1)
        models = Models(
            U, torch.empty_like(U) if snapshot is not None else None, torch.zeros_like(U) if average else None
        )
        for part in self._parts(problem, batches):
            stack = Models(U[part], _rows(models.snapshot, part), _rows(models.average, part))
            constant = -prox * w + (0 if shift is None else shift[part])
            _local_steps(problem, batches.rows(part), stack, constant.expand_as(stack.w), local, prox, snapshot)
            for whole, new in zip(models, stack, strict=True):
                if whole is not None and new is not None:
                    whole[part] = new
        return models

    def losses(self, problem: Problem, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        owners = torch.arange(len(batches.counts)).repeat_interleave(batches.counts)
        (values,) = self._forward(problem, batches.at(0)[batches.real], w, [problem.task.sample_losses])
        return _means(values, owners, len(batches.counts))

    def gradients(self, problem: Problem, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        task, k = problem.task, len(batches.counts)
        G, F = w.new_empty(k, w.numel()), w.new_empty(k)
        gradient = vmap(_gradient_of(task), in_dims=(None, 0, 0, 0))
        views = task.layout.views(G)
        for part in self._parts(problem, batches):
            rows = batches.rows(part)
            index = rows.at(0)
            g, F[part] = gradient(task.layout.views(w), problem.x[index], problem.y[index], rows.weights(w))
            for name, view in views.items():
                view[part] = g[name]
        return G, F.double().cpu()

    def evaluate(self, problem: Problem, rows: Sequence[Tensor], w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        task, index = problem.task, torch.cat(list(rows))
        pool, at = index.unique(return_inverse=True)
        scores, losses = self._forward(problem, pool, w, [task.sample_scores, task.sample_losses])
        owners = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(r) for r in rows]))
        return _means(scores[at], owners, len(rows)), _means(losses[at], owners, len(rows))

    def _forward(self, problem: Problem, index: Tensor, w: Tensor, of: Sequence[Callable]) -> list[Tensor]:
        """Per-sample functions of the outputs for these rows of the pool, each (n,) float64 on the CPU."""
        task, parameters, whole = problem.task, problem.task.layout.views(w), len(problem.x)
        size = max(1, int(self.megabytes * 2**20 / max(1, _nbytes(problem))))
        most = 2 * len(index) >= whole  # then the pool as it lies is faster than gathering its rows
        parts = [slice(at, at + size) for at in range(0, whole, size)] if most else index.split(size)
        with torch.no_grad():
            chunks = []
            for part in parts:
                outputs, y = task.outputs(parameters, problem.x[part]), problem.y[part]
                chunks.append([function(outputs, y).double().cpu() for function in of])
        columns = [torch.cat(values) for values in zip(*chunks, strict=True)]
        return [column[index.cpu()] for column in columns] if most else columns

    def _parts(self, problem: Problem, batches: Batches) -> Iterator[Tensor]:
        """The clients in stacks that fit the bound, the largest batches first; padding at most doubles a batch."""
        order = batches.counts.argsort(descending=True, stable=True)
        start = 0
        while start < len(order):
            widest = int(batches.counts[order[start]])
            size = max(1, int(self.megabytes * 2**20 / max(1, widest * _nbytes(problem))))
            alike = int((2 * batches.counts[order[start:]] >= widest).sum())
            yield order[start : start + min(size, alike)].sort().values
            start += min(size, alike)


def _local_steps(
    problem: Problem,
    batches: Batches,
    stack: Models,
    constant: Tensor,
    local: LocalSGD,
    prox: float,
    snapshot: int | None,
) -> None:
    """Run all local steps of a stack in place.

    The direction is g + (prox + weight_decay)·u + constant, with constant = shift − prox·w folded once per round.
    """
    task, U = problem.task, stack.w
    gradient = vmap(_gradient_of(task), in_dims=(0, 0, 0, 0))
    u, fixed = task.layout.views(U), task.layout.views(constant)
    velocity = task.layout.views(torch.zeros_like(U)) if local.momentum else None
    weights = batches.weights(U)
    lr, pull = rounded([local.lr, prox + local.weight_decay], U)
    for step in range(local.steps):
        index = batches.at(step)
        g, _ = gradient(u, problem.x[index], problem.y[index], weights)
        for name, value in u.items():
            direction = (g[name] + fixed[name]).add_(value, alpha=pull)
            if velocity is not None:
                direction = velocity[name].mul_(local.momentum).add_(direction)
            value.sub_(direction, alpha=lr)
        if local.radius is not None:
            U.mul_((local.radius / U.norm(dim=1, keepdim=True)).clamp(max=1))
        if stack.average is not None:
            stack.average.add_(U, alpha=1 / local.steps)
        if stack.snapshot is not None and step + 1 == snapshot:
            stack.snapshot.copy_(U)


def _gradient_of(task: Task) -> GradientFn:
    """(parameters, x, y, weights) → (gradients by name, loss) of one client's weighted loss."""

    def loss(parameters: Parameters, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return (task.sample_losses(task.outputs(parameters, x), y) * weights).sum()

    return grad_and_value(loss)


def _rows(table: Tensor | None, part: Tensor) -> Tensor | None:
    return None if table is None else table[part]


def _means(values: Tensor, owners: Tensor, n: int) -> Tensor:
    """(n,) mean of the values that belong to each owner."""
    counts = torch.bincount(owners, minlength=n)
    return torch.zeros(n, dtype=torch.float64).index_add_(0, owners, values) / counts


def _nbytes(problem: Problem) -> int:
    """Bytes of one input."""
    return problem.x[:1].numel() * problem.x.element_size()
