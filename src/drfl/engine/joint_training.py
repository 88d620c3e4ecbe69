"""The local steps of several runs computed as one stack."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core.intraop import threads_for
from drfl.engine.base import Models, PooledData
from drfl.engine.batches import Batches
from drfl.engine.joint import EngineCall, filled, rows_of
from drfl.engine.sgd import fixed_part
from drfl.engine.stacked import GRAPHS, local_steps, seeds_of
from drfl.engine.tracing import captured, replayed
from drfl.engine.weight_products import Gradient, written_out
from drfl.federation.requests import TrainRequest
from drfl.optim.local_optimizers import Adam
from drfl.optim.schedules import Constant


class EachStep(NamedTuple):
    """:class:`drfl.engine.sgd.SGDStep` with a step size and a pull for each client.

    Args:
        lr: (k,) η.
        pull: (k,) prox + weight_decay; None = 0 for all.
        momentum: the same for all.
    """

    lr: Tensor
    pull: Tensor | None
    momentum: float

    def start(self, u: Tensor) -> Sequence[Tensor]:
        """The velocity of a parameter before the first step; nothing without momentum."""
        return (torch.zeros_like(u),) if self.momentum else ()

    def step(self, u: Tensor, g: Gradient, fixed: Tensor | None, state: Sequence[Tensor], t: int) -> None:
        """See :class:`drfl.engine.local_step.LocalStep`; the order is that of ``SGDStep``."""
        g, shape, rest = written_out(g), (-1, *[1] * (u.dim() - 1)), fixed
        lr = self.lr.view(shape)
        if self.pull is not None:
            pull = self.pull.view(shape)
            rest = pull * u if fixed is None else torch.addcmul(fixed, pull, u)
        if not state:
            if rest is not None:
                u.addcmul_(rest, lr, value=-1)
            u.addcmul_(g, lr, value=-1)
            return
        (velocity,) = state
        velocity.mul_(self.momentum).add_(g)
        if rest is not None:
            velocity.add_(rest)
        u.addcmul_(velocity, lr, value=-1)


class OwnSteps(NamedTuple):
    """What differs from client to client in a stack of several runs.

    Args:
        w: (k, d) where they start.
        lr: (k,) η.
        pull: (k,) prox + weight_decay; None = 0 for all.
        fixed: (k, d), see :func:`drfl.engine.sgd.fixed_part`; None = 0 for all.
        snapshot: (k,) int64 the step of the snapshot; None = none is wanted.
    """

    w: Tensor
    lr: Tensor
    pull: Tensor | None
    fixed: Tensor | None
    snapshot: Tensor | None

    @classmethod
    def of(cls, requests: Sequence[TrainRequest], calls: Sequence[EngineCall[Models]]) -> OwnSteps:
        """Those of calls of one form, whose requests these are."""
        like = calls[0].w

        def numbers(values: Sequence[float]) -> Tensor:
            return rows_of(torch.tensor(values, dtype=like.dtype, device=like.device).unbind(), calls)

        pulls = [r.prox + r.local.weight_decay for r in requests]
        fixed = [f.expand(len(r.cohort), -1) for r in requests if (f := fixed_part(r)) is not None]
        snapshot = torch.tensor([r.snapshot or 0 for r in requests], device=like.device)
        return cls(
            rows_of([call.w for call in calls], calls),
            numbers([r.local.eta for r in requests]),
            numbers(pulls) if any(pulls) else None,
            torch.cat(fixed) if fixed else None,
            None if requests[0].snapshot is None else rows_of(snapshot.unbind(), calls),
        )

    def of_clients(self, part: Tensor) -> OwnSteps:
        """Those of some clients."""
        pull, fixed, snapshot = (None if values is None else values[part] for values in self[2:])
        return OwnSteps(self.w[part], self.lr[part], pull, fixed, snapshot)

    def taken(self, problem: PooledData, tensors: Sequence[Tensor], request: TrainRequest) -> Sequence[Tensor]:
        """The local steps, see :func:`drfl.engine.stacked.local_steps`.

        Args:
            problem: task and pool.
            tensors: samples, weights and seeds.
            request: what all have in common.
        """
        tensors = [*tensors, self.w, *(() if self.fixed is None else (self.fixed,))]
        adam = isinstance(request.local.optimizer, Adam)
        descent = None if adam else EachStep(self.lr, self.pull, request.local.momentum)
        return local_steps(problem, tensors, request, descent, self.snapshot)


def solver_of(request: TrainRequest) -> Hashable:
    """What requests computed together have in common: all but η, prox and weight decay, and the snapshot's step."""
    local = request.local
    # The batch is in the samples' shape, and the schedule in η already.
    solver, pull = replace(local, batch=None, lr_schedule=Constant()), request.prox
    if not isinstance(local.optimizer, Adam):  # whose step has one η and one pull
        solver, pull = replace(solver, lr=None, weight_decay=0.0), bool(request.prox + local.weight_decay)
    return repr(solver), pull, request.snapshot is None, request.average, fixed_part(request) is None


def train(calls: Sequence[EngineCall[Models]], problem: PooledData, batches: Batches) -> list[Models]:
    """See :meth:`drfl.engine.base.Engine.train`."""
    requests = [call.request for call in calls if call.request is not None]
    request, own = requests[0], OwnSteps.of(requests, calls)
    snapshot, average = (
        torch.empty_like(own.w) if asked else None for asked in (own.snapshot is not None, request.average)
    )
    models = Models(torch.empty_like(own.w), snapshot, average)
    for part in calls[0].engine.parts(problem, batches, calls[0].w):
        # Full batches are not traced: there a repeated row would only be more work.
        rows = part if batches.samples.shape[1] == 1 else filled(part)
        found = _train_stack(problem, batches.rows(rows), request, own.of_clients(rows.to(own.w.device)))
        for whole, new in zip(models, found, strict=True):
            if whole is not None and new is not None:
                whole[part] = new[: len(part)]
    ends = torch.tensor([len(call.batches.counts) for call in calls]).cumsum(0).tolist()
    return [models.of(slice(end - len(call.batches.counts), end)) for end, call in zip(ends, calls, strict=True)]


def _train_stack(problem: PooledData, batches: Batches, request: TrainRequest, own: OwnSteps) -> Models:
    """All local steps of clients that fit in one stack; of the request counts what all have in common."""
    w, there = own.w, [values is not None for values in own[2:]]

    def steps(*tensors: Tensor) -> Sequence[Tensor]:
        samples, weights, seeds, w, lr, *rest = tensors
        pull, fixed, snapshot = (rest.pop(0) if asked else None for asked in there)
        return OwnSteps(w, lr, pull, fixed, snapshot).taken(problem, (samples, weights, seeds), request)

    tensors = [batches.samples.to(w.device), problem.weights(batches, w), seeds_of(batches, w)]
    tensors += [values for values in own if values is not None]
    if w.is_cuda:
        # As for one run; what differs between runs is an argument.
        pool = (problem.x.data_ptr(), problem.y.data_ptr())
        name = ("steps of several", pool, problem.autocast, solver_of(request), *there)
        steps = replayed(problem.task, name, steps, tensors, captured, GRAPHS)
    with threads_for(batches.samples[:, 0].numel() * w.shape[1]):
        last, *rest = steps(*tensors)
    return Models(last, rest.pop(0) if own.snapshot is not None else None, rest.pop(0) if request.average else None)
