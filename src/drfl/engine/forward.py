"""One model over many samples, in a few batched passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from drfl.engine.base import Problem
from drfl.engine.batches import Batches
from drfl.engine.convolutions import channels_last, images
from drfl.engine.rows import Rows
from drfl.task import SampleFn

Apply = Callable[[Callable[[slice | Tensor], list[Tensor]], Iterable[slice | Tensor]], Iterable[list[Tensor]]]
"""``map``, or what does the same side by side."""

BYTES = 16 * 2**20
"""Inputs of a pass on a CPU: few enough to stay in its caches."""

BYTES_CUDA = 256 * 2**20

IMAGES = 128
"""Samples of a pass through convolutions on a CPU, whose activations are larger than their inputs."""


Model = Callable[[Tensor], Tensor]
"""Inputs (B, …) → outputs."""


def mean_losses(problem: Problem, batches: Batches, model: Model, apply: Apply = map) -> Tensor:
    """(k,) float64 mean losses of a model on the first step's samples."""
    rows = Rows(batches.at(0)[batches.real], batches.counts.cumsum(0) - batches.counts, batches.counts)
    (losses,) = _per_sample(problem, rows.index, model, [problem.task.sample_losses], apply)
    return rows.means(losses)


def mean_scores_and_losses(problem: Problem, rows: Rows, model: Model, apply: Apply = map) -> tuple[Tensor, Tensor]:
    """(N,) float64 mean scores and losses of a model on each client's rows; a row that several have is passed once."""
    (pool, at), task = rows.distinct, problem.task
    scores, losses = _per_sample(problem, pool, model, [task.sample_scores, task.sample_losses], apply)
    return rows.means(scores[at]), rows.means(losses[at])


def functional(problem: Problem, w: Tensor) -> Model:
    """The task's model at w (d,), for one thread at a time: meanwhile the module holds other parameters."""
    parameters = problem.task.layout.views(w)
    if images(problem):
        parameters = {name: channels_last(p) if p.dim() == 4 else p for name, p in parameters.items()}
    return lambda x: problem.task.outputs(parameters, x)


def _per_sample(problem: Problem, index: Tensor, model: Model, of: Sequence[SampleFn], apply: Apply) -> list[Tensor]:
    """Functions of the outputs for these rows of the pool, each (n,) float64 on the CPU."""
    whole, size = len(problem.x), _pass(problem)
    most = 2 * len(index) >= whole  # then the pool as it lies is faster than gathering its rows
    parts = [slice(at, at + size) for at in range(0, whole, size)] if most else index.to(problem.x.device).split(size)
    relaid = images(problem)

    def one(part: slice | Tensor) -> list[Tensor]:
        with torch.no_grad():
            x, y = problem.x[part], problem.y[part]
            outputs = problem.forward(model, channels_last(x) if relaid else x)
            return [function(outputs, y).double().cpu() for function in of]

    columns = [torch.cat(values) for values in zip(*apply(one, parts), strict=True)]
    return [column[index] for column in columns] if most else columns


def _pass(problem: Problem) -> int:
    """Samples of one pass."""
    if images(problem):
        return IMAGES
    bound = BYTES_CUDA if problem.x.is_cuda else BYTES
    return max(1, bound // max(1, problem.x[:1].numel() * problem.x.element_size()))
