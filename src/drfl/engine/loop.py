"""The plain engine: one client after another, one step after another. Slow, obvious, and the oracle for the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl.engine.base import Models, PooledData
from drfl.engine.batches import Batches, ClientRows
from drfl.federation import TrainRequest


@dataclass(frozen=True)
class Loop:
    """Runs the clients one by one, as the formulas are written."""

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        w, local, prox, shift = request.w, request.local, request.prox, request.shift
        last, at_snapshot, means = [], [], []
        for j, count in enumerate(batches.counts.tolist()):
            u, velocity, total = w.clone(), torch.zeros_like(w), torch.zeros_like(w)
            constant = torch.zeros_like(w) if shift is None else shift[j]
            for step in range(local.steps):
                # Beyond count stand fillers, which the stacked engine gives weight 0; here they are cut off.
                gradient, _ = _gradient(problem, u, batches.at(step)[j, :count])
                # As LocalSGD states it: weight decay, shift and prox enter the velocity along with the gradient.
                direction = gradient + local.weight_decay * u + constant + prox * (u - w)
                velocity = local.momentum * velocity + direction
                u = _project(u - local.eta * velocity, local.radius)
                total = total + u
                # A snapshot is counted from 1, as t' ∈ {1, …, τ}: the model after t' steps, projection included.
                if step + 1 == request.snapshot:
                    at_snapshot.append(u)
            last.append(u)
            means.append(total / local.steps)
        return Models(
            torch.stack(last),
            torch.stack(at_snapshot) if request.snapshot is not None else None,
            torch.stack(means) if request.average else None,
        )

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        with torch.no_grad():
            rows = zip(batches.at(0), batches.counts.tolist(), strict=True)
            # Reports are float64 on the CPU in all engines, as λ is.
            return torch.stack([_loss(problem, w, index[:count]) for index, count in rows]).double().cpu()

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        rows = zip(batches.at(0), batches.counts.tolist(), strict=True)
        pairs = [_gradient(problem, w, index[:count]) for index, count in rows]
        return torch.stack([g for g, _ in pairs]), torch.stack([f for _, f in pairs]).double().cpu()

    def evaluate(self, problem: PooledData, rows: ClientRows, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        task, scores, losses = problem.task, [], []
        with torch.no_grad():
            for i in range(rows.n):
                index = rows.of_client(i)
                y, outputs = problem.y[index], _outputs(problem, w, index)
                scores.append(task.sample_scores(outputs, y).double().mean())
                losses.append(task.sample_losses(outputs, y).double().mean())
        return torch.stack(scores).cpu(), torch.stack(losses).cpu()


def _loss(problem: PooledData, w: Tensor, index: Tensor) -> Tensor:
    return problem.task.sample_losses(_outputs(problem, w, index), problem.y[index]).mean()


def _outputs(problem: PooledData, w: Tensor, index: Tensor) -> Tensor:
    parameters = problem.task.layout.views(w)
    return problem.forward(lambda x: problem.task.outputs(parameters, x), problem.x[index])


def _gradient(problem: PooledData, w: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    # An inference tensor cannot require a gradient, but its clone can, outside inference mode.
    w = w.clone().detach().requires_grad_()
    loss = _loss(problem, w, index)
    return torch.autograd.grad(loss, w)[0], loss.detach()


def _project(u: Tensor, radius: float | None) -> Tensor:
    norm = u.norm()
    return u if radius is None or norm <= radius else u * (radius / norm)
