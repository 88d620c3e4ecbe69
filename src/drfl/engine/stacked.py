"""The stacked engine: the models of a whole cohort side by side, with one vectorised gradient for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.intraop import threads_for
from drfl.core.key import Key
from drfl.core.vmap import fault_of
from drfl.engine import full_batch
from drfl.engine.base import Models, PooledData, Tests
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.evaluation import evaluate_models, evaluate_together, is_worth_tracing
from drfl.engine.local_step import ascent, local_step
from drfl.engine.padding import padded, padded_clients
from drfl.engine.pixels import gatherer
from drfl.engine.sgd import (
    fixed_part,
    functional,
    gradient_of,
    gradient_of_one,
    mean_losses,
    multiplications,
    step_numbers,
    take_rows,
)
from drfl.engine.step_cost import Counter, multiplications_per_row, step_cost
from drfl.engine.tracing import Function, capture, model_of, replay, trace
from drfl.federation.requests import TrainRequest
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import SAM
from drfl.optim.schedules import Constant
from drfl.task.model_checks import model_error
from drfl.task.task import Task

GRAPHS = 12
"""CUDA graphs cached; each holds the memory of its stack."""

MEGABYTES = 32
"""Default bound on the inputs, models and gradients of a stack on a CPU, about the size of its caches."""


@dataclass(frozen=True)
class Stacked:
    """``vmap`` over the clients, with all models (k, d) in one buffer that is updated in place.

    Clients with fewer samples than the others are padded with samples of weight 0, so that all fit into one batch. On a
    CPU a gradient step is traced if its shapes recur; on a CUDA device all local steps become one CUDA graph.

    Args:
        megabytes: Approximate bound on the inputs, models and gradients of one stack, on a CUDA device also on the
            activations that gradients need. Larger cohorts run in several stacks, which group clients of similar batch
            size. Results change only by float rounding. None = 32 on a CPU, about the size of its caches, and 4096 on
            a CUDA device.
        clients: Largest number of clients in a stack; None = no limit. With 1, the engine accepts models that ``vmap``
            rejects, on a CUDA device only.

    Raises:
        InputError: If a number is out of range.
    """

    megabytes: float | None = None
    clients: int | None = None

    def __post_init__(self) -> None:
        if self.megabytes is not None:
            checks.positive("megabytes", self.megabytes)
        if self.clients is not None:
            checks.integer("clients", self.clients)

    def check(self, problem: PooledData) -> None:
        """See :class:`drfl.engine.base.Selective`."""
        if self.clients == 1 and problem.x.is_cuda:
            return
        fault = trial_of(problem).fault
        if fault is not None:
            raise model_error(f"{model_of(problem.task)} cannot be stacked ({fault}). Use engine 'threads' or 'loop'.")

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        parts = list(self._parts(problem, batches, request.w))
        # A single part is the whole cohort in its order (see _parts), so nothing has to be assembled.
        if len(parts) == 1:
            return _train_stack(problem, batches, request)
        models = Models.empty(request)
        for part in parts:
            stack = _train_stack(problem, batches.rows(part), request.only(part))
            for whole, new in zip(models, stack, strict=True):
                if whole is not None and new is not None:
                    whole[part] = new
        return models

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        # All clients have the same w, so one forward pass over all their samples is sufficient.
        with threads_for(multiplications(problem, int(batches.counts.sum()))):
            if full_batch.many_rows(problem, batches):
                return full_batch.losses(problem, batches, w)
            return mean_losses(problem, batches, functional(problem, w))

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        if full_batch.large_batches(problem, batches):
            with threads_for(multiplications(problem, int(batches.counts.sum()))):
                return full_batch.gradients(problem, batches, w, self._room(w))
        G, F = w.new_empty(len(batches.counts), w.numel()), w.new_empty(len(batches.counts))
        # The views share memory with G, so writing a parameter's gradients fills its columns of G.
        layout, into = problem.task.layout, problem.task.layout.views(G)
        for part in self._parts(problem, batches, w):
            rows = batches.rows(part)
            index = rows.step_rows(0).to(w.device)
            # expand copies nothing: the parameters of all clients are one w, read k times.
            parameters = layout.views(w.expand(len(part), -1)).values()
            with threads_for(index.numel() * multiplications_per_row(problem)):
                x, y = (take_rows(t, index.flatten()).view(*index.shape, *t.shape[1:]) for t in (problem.x, problem.y))
                gradient = _gradient(problem, len(part))
                *g, F[part] = gradient(x, y, problem.weights(rows, w), seeds_of(rows, w), *parameters)
            for view, values in zip(into.values(), g, strict=True):
                view[part] = values
        return G, F.double().cpu()

    def evaluate(self, problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
        """See :class:`drfl.engine.base.Engine`."""
        with threads_for(multiplications(problem, len(rows.index))):
            if is_worth_tracing(problem, rows, models):
                return evaluate_together(problem, rows, models)
            return evaluate_models(problem, rows, [functional(problem, w) for w in models])

    def _parts(self, problem: PooledData, batches: Batches, w: Tensor) -> Iterator[Tensor]:
        """Split the clients into stacks within the bound, largest batches first; padding at most doubles a batch."""
        # Use a stable sort, so that a cohort is always split in the same way. The split affects the rounding of sums.
        work = batches.total(1)
        order, start = work.argsort(descending=True, stable=True), 0
        bound, model = self._room(w), 3 * w.numel() * w.element_size()
        # On a CPU the bound is about its caches, through which the activations of a step pass only once.
        sample = problem.x[:1].nbytes + (step_cost(problem).stored if uses_graphs(w) else 0)
        while start < len(order):
            widest = int(batches.counts[order[start]])
            size = min(self.clients or len(order), max(1, int(bound / (widest * sample + model))))
            # Work and counts descend along the order, so clients with at least half the largest work come first.
            similar = int((2 * work[order[start:]] >= work[order[start]]).sum())
            # Sort the positions, so that a part with all clients is the cohort in its order.
            yield order[start : start + min(size, similar)].sort().values
            start += min(size, similar)

    def _room(self, w: Tensor) -> float:
        """Return the bound on one stack in bytes."""
        return (self.megabytes or (4096 if w.is_cuda else MEGABYTES)) * 2**20


_trials: WeakKeyDictionary[Task, StepTrial] = WeakKeyDictionary()


class StepTrial(NamedTuple):
    """The result of stacking the models of two clients.

    Args:
        fault: Why they cannot be stacked; None if they can.
        operations: Number of torch's operations in a step.
        unstacked: Operations of a client that the stack does not share, see :class:`drfl.engine.step_cost.Counter`.
    """

    fault: str | None
    operations: int
    unstacked: float


def trial_of(problem: PooledData) -> StepTrial:
    """Try a step with two clients of two samples each, once per task."""
    if problem.task in _trials:
        return _trials[problem.task]
    # The remainder is needed because a pool may have fewer than four samples. Engines draw nothing: the key is unused.
    w, rows = problem.task.w0, torch.arange(4).remainder(len(problem.x)).view(2, 1, 2)
    batches, solver = Batches(rows, torch.tensor([2, 2])), LocalSGD(steps=1, lr=0.1)
    request = TrainRequest(torch.arange(2), w, Key(0), solver)
    tensors, fault = [rows.to(w.device), batches.weights(w), seeds_of(batches, w), w], None
    counter = Counter()
    try:
        with counter:
            _local_steps(problem, tensors, request)
    except torch.OutOfMemoryError:
        raise
    # vmap may raise anything for unsupported operations. Faults of the model itself have been rejected before.
    except Exception as error:
        fault = fault_of(error)
    _trials[problem.task] = StepTrial(fault, counter.operations, counter.unstacked / len(rows))
    return _trials[problem.task]


def _train_stack(problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
    w, k = request.w, len(request.cohort)
    fixed = fixed_part(request)
    with threads_for(batches.samples[:, 0].numel() * multiplications_per_row(problem)):
        if uses_graphs(w):
            last, *rest = (table[:k] for table in _graph_steps(problem, padded(batches), request, fixed))
        else:
            tensors = [batches.samples.to(w.device), problem.weights(batches, w), seeds_of(batches, w), w]
            last, *rest = _local_steps(problem, tensors if fixed is None else [*tensors, fixed], request)
    snapshot = rest.pop(0) if request.snapshot is not None else None
    return Models(last, snapshot, rest.pop(0) if request.average else None)


def uses_graphs(w: Tensor) -> bool:
    """Return whether the local steps from w become a CUDA graph."""
    return w.is_cuda


def _graph_steps(
    problem: PooledData, batches: Batches, request: TrainRequest, fixed: Tensor | None
) -> Sequence[Tensor]:
    """Return the results of :func:`_local_steps` for padded batches, as a CUDA graph.

    Everything that changes between rounds is an argument, including the step size, the proximal weight and the step of
    the snapshot. All else is fixed in the graph and part of its name. So a run needs one graph per size of its padded
    cohorts.
    """
    w, numbers = request.w, step_numbers(request)
    eta, pull = (torch.full((), number, dtype=w.dtype, device=w.device) for number in numbers)
    at = torch.full((), request.snapshot or 0, device=w.device)
    like = torch.empty(0, dtype=w.dtype)
    rows = [batches.samples, problem.weights(batches, like), seeds_of(batches, like)]
    tensors = [eta, pull, at, *(send(t, w.device) for t in rows), w]
    if fixed is not None:
        tensors.append(fixed if fixed.dim() == 1 else padded_clients(fixed))

    def steps(eta: Tensor, pull: Tensor, at: Tensor, *tensors: Tensor) -> Sequence[Tensor]:
        return _local_steps(problem, tensors, request, (eta, pull), None if request.snapshot is None else at)

    # The graph gathers minibatches from the pool at these addresses, so another pool needs another graph.
    pool = (problem.x.data_ptr(), problem.y.data_ptr())
    solver = replace(request.local, lr=1.0, lr_schedule=Constant(), weight_decay=0.0)
    name = ("steps", pool, problem.autocast, solver, numbers[1] == 0, request.snapshot is None, request.average)
    return replay(problem.task, name, steps, tensors, capture, GRAPHS)(*tensors)


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device; to a CUDA device through pinned memory, without waiting."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def _local_steps(
    problem: PooledData,
    tensors: Sequence[Tensor],
    request: TrainRequest,
    numbers: Sequence[Tensor] = (),
    at: Tensor | None = None,
) -> Sequence[Tensor]:
    """Return the last models, the snapshots and the averages, if requested, each (k, d).

    Args:
        problem: Task and pool.
        tensors: Samples (k, T, B); their weights (k, B), or (k, T, B) if steps differ; their seeds (k, T, B), or (k, 0)
            if the task needs none; w (d,); and the fixed part of the direction, (d,) or (k, d), unless it is 0.
        request: Everything else. A CUDA graph is replayed with tensors other than those of the request that created it.
        numbers: The step size and the weight of u in the direction in a CUDA graph, see
            :func:`drfl.engine.local_step.local_step`; empty = the request's.
        at: (), the step of the snapshot in a CUDA graph that returns one; None = the request's.
    """
    samples, weights, seeds, w, *fixed = tensors
    local = request.local
    steps = samples.shape[1] if weights.dim() == 3 else local.fewest_steps
    # clone copies w for each client. The tensors u below are views into the rows of U, which the steps overwrite.
    U, layout, descent = w.expand(len(samples), -1).clone(), problem.task.layout, local_step(request, numbers)
    u, step = list(layout.views(U).values()), _gradient_step(problem, len(samples), minibatches=samples.shape[1] > 1)
    # fixed has one entry or none: the loop below unpacks it as one iterable, of None if nothing is fixed.
    constants = [layout.views(f.expand_as(U)).values() for f in fixed] or [[None] * len(u)]
    states = [descent.start(value) for value in u]
    total, at_snapshot = torch.zeros_like(U) if request.average else None, None
    for t, (x, y) in enumerate(_gathered(problem, samples, steps), start=1):
        step_weights = weights if weights.dim() == 2 else weights[:, t - 1]
        noise = seeds if seeds.dim() == 2 else seeds[:, t - 1].contiguous()
        gradients, before = step(x, y, step_weights, noise, *u), U.clone() if weights.dim() == 3 else None
        if isinstance(local.optimizer, SAM):
            # Both gradients of a SAM step are taken on the same samples with the same noise.
            moves = ascent(local.optimizer, gradients, len(samples))
            gradients = step(x, y, step_weights, noise, *(value + move for value, move in zip(u, moves, strict=True)))
        for value, g, constant, state in zip(u, gradients, *constants, states, strict=True):
            descent.step(value, g, constant, state, t)
        if local.radius is not None:
            # For a model of norm 0, radius/0 = ∞, which the clamp changes to 1.
            U.mul_((local.radius / U.norm(dim=1, keepdim=True)).clamp(max=1))
        if before is None:
            if total is not None:
                total.add_(U, alpha=1 / steps)
        else:
            # A client takes this step only if one of its samples has a weight. The other clients keep their models,
            # and their averages are complete.
            takes_step = (weights != 0).any(2)
            active = takes_step[:, t - 1, None]
            U.copy_(torch.where(active, U, before))
            if total is not None:
                total.add_(torch.where(active, U, 0) / takes_step.sum(1, keepdim=True))
        if at is not None:
            # A graph has the same operations in all rounds: the step of the snapshot decides what they write.
            at_snapshot = torch.where(at == t, U, U if at_snapshot is None else at_snapshot)
        elif t == request.snapshot:
            at_snapshot = U.clone()
    return [U, *(table for table in (at_snapshot, total) if table is not None)]


def _gathered(problem: PooledData, samples: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over the steps' inputs (k, B, …) and targets, always in the same memory."""
    k, T, B = samples.shape
    pools = (problem.x, problem.y)
    room, gather = [pool.new_empty(k * B, *pool.shape[1:]) for pool in pools], [gatherer(pool) for pool in pools]
    x, y = (buffer.view(k, B, *buffer.shape[1:]) for buffer in room)
    by_step = samples.transpose(0, 1).reshape(T, k * B)
    for t in range(steps):
        # Full batches have T = 1: they are gathered once and remain in the buffers for all steps.
        if t < T:
            for rows_into, buffer in zip(gather, room, strict=True):
                rows_into(by_step[t], buffer)
        yield x, y


def _gradient(problem: PooledData, clients: int) -> Function:
    """Return (x, y, weights, seeds, *parameters) → gradients and losses of this number of clients."""
    # On a CPU, a stack of one client gives the bits that it gives in a larger stack.
    return gradient_of_one(problem) if clients == 1 and problem.x.is_cuda else gradient_of(problem)


def _gradient_step(problem: PooledData, clients: int, *, minibatches: bool) -> Function:
    """Return (x, y, weights, seeds, *parameters) → gradients of all clients, traced for minibatches on a CPU.

    Full batches are not traced, because their sizes change from cohort to cohort and Python's overhead is small.
    """
    gradient, traced_step = _gradient(problem, clients), None

    def without_losses(*tensors: Tensor) -> Sequence[Tensor]:
        return gradient(*tensors)[:-1]

    def step(*tensors: Tensor) -> Sequence[Tensor]:
        nonlocal traced_step  # shapes do not change between the steps of a round
        traced_step = traced_step or replay(problem.task, ("step", problem.autocast), without_losses, tensors, trace)
        return traced_step(*tensors)

    return step if minibatches and not problem.x.is_cuda else without_losses


def seeds_of(batches: Batches, like: Tensor) -> Tensor:
    """Return (k, T, B): the samples' seeds on the device of ``like``; (k, 0) if there are none."""
    if batches.seeds is None:
        return torch.empty(len(batches.counts), 0, dtype=torch.int64, device=like.device)
    return batches.seeds.to(like.device)
