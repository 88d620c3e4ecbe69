"""Calls of several runs computed as one stack: each run has its own models, samples and step sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from drfl.core.intraop import threads_for
from drfl.engine.base import PooledData
from drfl.engine.batches import Batches
from drfl.engine.same_model import structure_of
from drfl.engine.sgd import gradient_of, taken
from drfl.engine.stacked import Stacked, seeds_of
from drfl.engine.tracing import replayed, traced
from drfl.federation.requests import TrainRequest

A = TypeVar("A")

LARGEST = 2**30
"""Bytes of several runs' samples up to which they are copied into one pool."""

MULTIPLE = 8
"""A traced stack has so many rows, or a multiple of it, so that few shapes occur."""


@dataclass(frozen=True, eq=False)
class EngineCall(Generic[A]):
    """A call of an engine by one of several runs.

    Args:
        engine: the engine that would compute it alone.
        problem: the run's task and pool.
        batches: the samples of its k clients.
        w: (d,) the run's model.
        alone: computes it alone.
        together: computes calls of one form, given what their problems and their samples are joined.
        request: of local steps; None = of something else.
        settings: what else calls of one form have in common.
    """

    engine: Stacked
    problem: PooledData
    batches: Batches
    w: Tensor
    alone: Callable[[], A]
    together: Callable[[Sequence[EngineCall[A]], PooledData, Batches], list[A]]
    request: TrainRequest | None = None
    settings: Hashable = None

    @property
    def pool(self) -> Hashable:
        """Samples that can be joined have this in common."""
        alike = ((t.shape[1:], t.dtype, t.device) for t in (self.problem.x, self.problem.y))
        return *alike, self.problem.masses is None

    @cached_property
    def form(self) -> Hashable:
        """Calls of one form can be computed together."""
        samples, _, by_step, seeds = self.batches
        # Batches of similar width: fillers at most double the smaller ones.
        width = (samples.shape[2] - 1).bit_length()
        steps = (samples.shape[1], width, by_step is None, None if seeds is None else seeds.shape[1])
        model = (structure_of(self.problem.task).known_by, self.problem.autocast)
        return self.together, self.settings, self.engine, self.pool, model, steps


class Pools:
    """The samples of a group of runs, one run after the other; what several runs share is there once."""

    def __init__(self) -> None:
        self._joined: dict[Hashable, tuple[list[PooledData], PooledData]] = {}

    def joined(self, calls: Sequence[EngineCall[A]]) -> tuple[PooledData, list[int]] | None:
        """The problem of calls of one form, and where the rows of each begin in it; None where it would be too large.

        The task is that of the first.
        """
        first, problems = calls[0], [call.problem for call in calls]
        known, whole = self._joined.get(first.pool, ([], first.problem))
        distinct = {tuple(map(id, _pool(p))): p for p in (*known, *problems)}
        if len(distinct) > len(known):
            known = list(distinct.values())
            if len(known) > 1:
                if sum(t.nbytes for p in known for t in _pool(p)) > LARGEST:
                    return None
                x, y, *masses = map(torch.cat, zip(*map(_pool, known), strict=True))
                whole = whole._replace(x=x, y=y, masses=masses[0] if masses else None)
            self._joined[first.pool] = known, whole
        sizes = torch.tensor([len(p.x) for p in known])
        starts = dict(zip(distinct, (sizes.cumsum(0) - sizes).tolist(), strict=True))
        joined = first.problem._replace(x=whole.x, y=whole.y, masses=whole.masses)
        return joined, [starts[tuple(map(id, _pool(p)))] for p in problems]


def _pool(problem: PooledData) -> list[Tensor]:
    """Everything that a problem has of its rows: inputs, targets and, if they differ, masses."""
    return [problem.x, problem.y, *(() if problem.masses is None else (problem.masses,))]


def results_of(calls: Sequence[EngineCall[A]], pools: Pools) -> list[A]:
    """The results of calls of one form, computed together where there are several and their samples fit into memory."""
    joined = pools.joined(calls) if len(calls) > 1 else None
    if joined is None:
        return [call.alone() for call in calls]
    problem, starts = joined
    width = max(call.batches.samples.shape[2] for call in calls)
    own = [call.batches.widened(width) for call in calls]
    samples = torch.cat([b.samples + at for b, at in zip(own, starts, strict=True)])
    by_step, seeds = ([t for t in part if t is not None] for part in ([b.by_step for b in own], [b.seeds for b in own]))
    counts = torch.cat([b.counts for b in own])
    batches = Batches(samples, counts, torch.cat(by_step) if by_step else None, torch.cat(seeds) if seeds else None)
    return calls[0].together(calls, problem, batches)


def rows_of(values: Sequence[Tensor], calls: Sequence[EngineCall[A]]) -> Tensor:
    """(k, …) the values (…) of each call for each of its clients."""
    return torch.cat([v.expand(len(c.batches.counts), *v.shape) for v, c in zip(values, calls, strict=True)])


def split_by_run(values: Tensor, calls: Sequence[EngineCall[A]]) -> list[Tensor]:
    """(k_1, …), (k_2, …), … of values (k, …) for the clients of all calls."""
    return list(values.split([len(call.batches.counts) for call in calls]))


def filled(part: Tensor) -> Tensor:
    """Positions (k',), the last repeated up to a multiple of :data:`MULTIPLE`."""
    return torch.cat([part, part[-1:].expand(-len(part) % MULTIPLE)])


def losses(calls: Sequence[EngineCall[Tensor]], problem: PooledData, batches: Batches) -> list[Tensor]:
    """See :meth:`drfl.engine.base.Engine.losses`."""
    W, task = rows_of([call.w for call in calls], calls), problem.task
    F = torch.empty(len(W), dtype=torch.float64)

    def of(x: Tensor, y: Tensor, *parameters: Tensor) -> tuple[Tensor]:
        def one(x: Tensor, y: Tensor, *own: Tensor) -> Tensor:
            return task.sample_losses(task.outputs(dict(zip(task.layout.names, own, strict=True)), x), y)

        return (vmap(one)(x, y, *parameters),)

    for part in calls[0].engine.parts(problem, batches, calls[0].w):
        whole = filled(part)
        rows, own = batches.rows(whole), W[whole.to(W.device)]
        with threads_for(rows.at(0).numel() * W.shape[1]), torch.no_grad():
            arguments = (*_samples(problem, rows), *task.layout.views(own).values())
            step = of if W.is_cuda else replayed(task, ("losses of several",), of, arguments, traced)
            (values,) = step(*arguments)
        F[part] = (values.double().cpu() * problem.weights(rows, F)).sum(1)[: len(part)]
    return split_by_run(F, calls)


def gradients(
    calls: Sequence[EngineCall[tuple[Tensor, Tensor]]], problem: PooledData, batches: Batches
) -> list[tuple[Tensor, Tensor]]:
    """See :meth:`drfl.engine.base.Engine.gradients`."""
    W, gradient, layout = rows_of([call.w for call in calls], calls), gradient_of(problem), problem.task.layout
    G, F = torch.empty_like(W), W.new_empty(len(W))
    into = layout.views(G).values()
    for part in calls[0].engine.parts(problem, batches, calls[0].w):
        rows, own = batches.rows(part), W[part.to(W.device)]
        with threads_for(rows.at(0).numel() * W.shape[1]):
            x, y = _samples(problem, rows)
            *g, F[part] = gradient(x, y, problem.weights(rows, W), seeds_of(rows, W), *layout.views(own).values())
        for view, values in zip(into, g, strict=True):
            view[part] = values
    return list(zip(split_by_run(G, calls), split_by_run(F.double().cpu(), calls), strict=True))


def _samples(problem: PooledData, rows: Batches) -> Iterator[Tensor]:
    """Inputs (k, B, …) and targets of the first step."""
    index = rows.at(0)
    return (taken(pool, index.flatten()).view(*index.shape, *pool.shape[1:]) for pool in (problem.x, problem.y))
