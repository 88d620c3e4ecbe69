"""The plain engine: one client after another, one step after another. Slow and simple, it is the reference engine."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from drfl.engine.base import Models, PooledData, Tests
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.evaluation import position_means
from drfl.federation.requests import TrainRequest
from drfl.optim.local_optimizers import SAM, Adam
from drfl.task.measure import Rows


@dataclass(frozen=True)
class Loop:
    """Runs the clients one by one, following the formulas literally."""

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        w, local, prox, shift = request.w, request.local, request.prox, request.shift
        last, at_snapshot, means = [], [], []
        for j in range(len(batches.counts)):
            u, velocity, total = w.clone(), torch.zeros_like(w), torch.zeros_like(w)
            squares, steps = torch.zeros_like(w), 0
            constant = torch.zeros_like(w) if shift is None else shift[j]
            # Fillers, which have weight 0 in the stacked engine, are removed here.
            for rows, seeds in batches.of_client(j, local.fewest_steps):
                gradient, _ = _gradient(problem, u, rows, seeds)
                # A gradient of 0 has no direction in which SAM could displace the model.
                if isinstance(local.optimizer, SAM) and gradient.any():
                    gradient, _ = _gradient(problem, u + local.optimizer.rho * gradient / gradient.norm(), rows, seeds)
                # As defined by LocalSGD, weight decay, shift and prox enter the velocity along with the gradient.
                direction, steps = gradient + local.weight_decay * u + constant + prox * (u - w), steps + 1
                if isinstance(local.optimizer, Adam):
                    beta1, beta2, epsilon = astuple(local.optimizer)
                    velocity = beta1 * velocity + (1 - beta1) * direction
                    squares = beta2 * squares + (1 - beta2) * direction**2
                    move = velocity / (1 - beta1**steps) / ((squares / (1 - beta2**steps)).sqrt() + epsilon)
                else:
                    velocity = local.momentum * velocity + direction
                    move = velocity
                u = u - local.eta * move
                # The projection is part of the step, so snapshots and averages are of projected models. The comparison
                # is false for NaN, so a diverged model becomes NaN in all entries, as in the stacked engine.
                if local.radius is not None and not (norm := u.norm()) <= local.radius:
                    u = u * (local.radius / norm)
                total = total + u
                # Snapshots count from 1, as t' ∈ {1, …, τ}: the model after t' steps, projection included.
                if steps == request.snapshot:
                    at_snapshot.append(u)
            last.append(u)
            means.append(total / steps)
        return Models(
            torch.stack(last),
            torch.stack(at_snapshot) if request.snapshot is not None else None,
            torch.stack(means) if request.average else None,
        )

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        with torch.no_grad():
            rows = zip(batches.step_rows(0), batches.counts.tolist(), strict=True)
            # Reported losses are float64 on the CPU in all engines, as λ is.
            return torch.stack([_loss(problem, w, index[:count]) for index, count in rows]).double().cpu()

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        rows = zip(batches.step_rows(0), batches.counts.tolist(), strict=True)
        pairs = [_gradient(problem, w, index[:count]) for index, count in rows]
        return torch.stack([g for g, _ in pairs]), torch.stack([f for _, f in pairs]).double().cpu()

    def evaluate(self, problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
        """See :class:`drfl.engine.base.Engine`."""
        with torch.no_grad():
            return [Tests.joined([_test(problem, rows.of_client(i), w) for i in range(rows.n)]) for w in models]


def _test(problem: PooledData, index: Tensor, w: Tensor) -> Tests:
    task, y, outputs = problem.task, problem.y[index], _outputs(problem, w, index)
    values, rows = [], []
    for metric in task.measures:
        if metric.per_sample:
            each = metric.checked(task.sample_values(metric, outputs, y).double().cpu())[:, None]
        else:
            each = metric.of_rows(outputs.double().cpu(), y.cpu())
        if metric.ignored is not None and metric.rows is Rows.REAL and y.dim() > 1:
            # The mean over positions differs from the mean of the rows' means, because rows differ in the number of
            # positions that count.
            value, each = position_means(each, metric.counts(y.cpu()), ClientRows.of([index]))
            values.append(value)
        elif metric.per_sample or metric.rows.mean:
            values.append(each.mean(0))
        else:
            values.append(torch.tensor([metric.of(outputs.double().cpu(), y.cpu())], dtype=torch.float64))
        rows.append(each[:, :0] if metric.rows is Rows.WHOLE else each)
    loss = problem.mean(task.sample_losses(outputs, y).double(), index).cpu()[None]
    return Tests(loss, tuple(values), tuple(rows))


def _loss(problem: PooledData, w: Tensor, index: Tensor, seeds: Tensor | None = None) -> Tensor:
    return problem.mean(problem.task.sample_losses(_outputs(problem, w, index, seeds), problem.y[index]), index)


def _outputs(problem: PooledData, w: Tensor, index: Tensor, seeds: Tensor | None = None) -> Tensor:
    parameters, noise = problem.task.layout.views(w), None if seeds is None else seeds.to(w.device)
    return problem.forward(lambda x: problem.task.outputs(parameters, x, noise), problem.x[index])


def _gradient(problem: PooledData, w: Tensor, index: Tensor, seeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
    # An inference tensor cannot require a gradient, but its clone can, outside inference mode.
    w = w.clone().detach().requires_grad_()
    loss = _loss(problem, w, index, seeds)
    return torch.autograd.grad(loss, w)[0], loss.detach()
