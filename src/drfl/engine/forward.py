"""One model over many samples, in a few batched passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from drfl.engine.base import Problem
from drfl.engine.batches import Batches
from drfl.engine.convolutions import channels_last, convolutional
from drfl.engine.rows import Rows
from drfl.task import SampleFn

Apply = Callable[[Callable[[slice | Tensor], list[Tensor]], Iterable[slice | Tensor]], Iterable[list[Tensor]]]
"""``map``, or what does the same side by side."""

BYTES = 16 * 2**20
"""Inputs of a pass on a CPU: few enough to stay in its caches."""

BYTES_CUDA = 256 * 2**20

IMAGES = 128
"""Samples of a pass through convolutions on a CPU, whose activations are larger than their inputs."""


def mean_losses(problem: Problem, batches: Batches, w: Tensor, apply: Apply = map) -> Tensor:
    """(k,) float64 mean losses at w (d,) on the first step's samples."""
    rows = Rows(batches.at(0)[batches.real], batches.counts.cumsum(0) - batches.counts, batches.counts)
    (losses,) = _per_sample(problem, rows.index, w, [problem.task.sample_losses], apply)
    return rows.means(losses)


def mean_scores_and_losses(problem: Problem, rows: Rows, w: Tensor, apply: Apply = map) -> tuple[Tensor, Tensor]:
    """(N,) float64 mean scores and losses of w (d,) on each client's rows; a row that several have is passed once."""
    (pool, at), task = rows.distinct, problem.task
    scores, losses = _per_sample(problem, pool, w, [task.sample_scores, task.sample_losses], apply)
    return rows.means(scores[at]), rows.means(losses[at])


def _per_sample(problem: Problem, index: Tensor, w: Tensor, of: Sequence[SampleFn], apply: Apply) -> list[Tensor]:
    """Functions of the outputs for these rows of the pool, each (n,) float64 on the CPU."""
    whole, size = len(problem.x), _pass(problem)
    most = 2 * len(index) >= whole  # then the pool as it lies is faster than gathering its rows
    parts = [slice(at, at + size) for at in range(0, whole, size)] if most else index.to(w.device).split(size)
    call, images = _model(problem, w), problem.x.dim() == 4 and not problem.x.is_cuda

    def one(part: slice | Tensor) -> list[Tensor]:
        with torch.no_grad():
            x, y = problem.x[part], problem.y[part]
            outputs = problem.forward(call, channels_last(x) if images else x)
            return [function(outputs, y).double().cpu() for function in of]

    columns = [torch.cat(values) for values in zip(*apply(one, parts), strict=True)]
    return [column[index] for column in columns] if most else columns


def _model(problem: Problem, w: Tensor) -> Callable[[Tensor], Tensor]:
    """The model as a function of its inputs; on a CPU convolutions work on channels-last tensors."""
    task, parameters = problem.task, problem.task.layout.views(w)
    if not w.is_cuda:
        parameters = {name: channels_last(p) if p.dim() == 4 else p for name, p in parameters.items()}
    return lambda x: task.outputs(parameters, x)


def _pass(problem: Problem) -> int:
    """Samples of one pass."""
    if convolutional(problem.task.model) and not problem.x.is_cuda:
        return IMAGES
    bound = BYTES_CUDA if problem.x.is_cuda else BYTES
    return max(1, bound // max(1, problem.x[:1].numel() * problem.x.element_size()))
