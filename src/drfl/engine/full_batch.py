"""Losses and gradients on many rows of a cohort at one model, in passes of one shape that are summed by client."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core.vmap import vmap
from drfl.engine.base import PooledData
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.sgd import gradient_of, has_images, is_slicing_faster, pass_size, slices, take_rows
from drfl.engine.tracing import replay, trace

LARGE = 2**26
"""Rows × parameters above which passes of one shape pay off: they take a few milliseconds, a trace a tenth of a second.
"""

MINIBATCH = 128
"""Largest number of rows per client for which stacking a model per client is as fast for gradients."""

GRADIENT_ROWS = 32
"""Number of rows that take as long as writing one gradient and adding it to that of its client."""


def many_rows(problem: PooledData, batches: Batches) -> bool:
    """Return whether :func:`losses` is faster for a request: many rows, on a CPU, without convolutions."""
    plain = not problem.x.is_cuda and problem.autocast is None and not has_images(problem)
    return plain and int(batches.counts.sum()) * problem.task.layout.d >= LARGE


def large_batches(problem: PooledData, batches: Batches) -> bool:
    """Return whether :func:`gradients` is faster for a request: some client has many rows."""
    many = int(batches.counts.max()) > MINIBATCH and int(batches.counts.sum()) * problem.task.layout.d >= LARGE
    return many and not has_images(problem)


def losses(problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
    """Return (k,) float64: mean losses at w (d,) on the first step's samples.

    The computation is traced, and the trace transposes narrow products and the softmax over few classes.
    """
    task, parameters = problem.task, list(problem.task.layout.views(w[None]).values())
    rows = ClientRows(batches.step_rows(0)[batches.real], batches.counts.cumsum(0) - batches.counts, batches.counts)

    def of(x: Tensor, y: Tensor, *parameters: Tensor) -> tuple[Tensor]:
        def model_losses(*model: Tensor) -> Tensor:
            return task.sample_losses(task.outputs(dict(zip(task.layout.names, model, strict=True)), x), y)

        # vmap over a stack of one model, because a trace transposes the products of stacks.
        return (vmap(model_losses)(*parameters),)

    size, whole, is_equal, parts = (
        pass_size(problem),
        is_slicing_faster(problem, rows.index),
        _has_equal_sizes(batches.counts),
        [],
    )
    with torch.no_grad():
        for part in slices(problem) if whole else rows.index.split(size):
            arguments = (take_rows(problem.x, part), take_rows(problem.y, part), *parameters)
            full = whole or is_equal or len(arguments[0]) == size
            # The last pass has a different shape in every cohort, so its trace would rarely be used again.
            step = replay(task, ("losses",), of, arguments, trace) if full else of
            parts.append(step(*arguments)[0][0].double())
    values = torch.cat(parts)
    return problem.means(values[rows.index] if whole else values, rows)


class Segments(NamedTuple):
    """The rows of a cohort's clients in S segments of equal length L, client after client.

    Args:
        clients: (S,) int64, the client of each segment, as a position in the cohort.
        rows: (S, L) int64, rows of the pool. Beyond the client's last row, its first row is repeated.
        weights: (S, L) weight of each row in its client's loss; 0 for repeated rows.
    """

    clients: Tensor
    rows: Tensor
    weights: Tensor

    @classmethod
    def of(cls, batches: Batches, length: int, weights: Tensor) -> Segments:
        """Cut the first step's samples into segments; ``weights`` (k, B) are theirs."""
        # The last segment of each client is padded.
        each = -(-batches.counts // length)
        clients = torch.arange(len(each)).repeat_interleave(each)
        # Segments are numbered from 0 within each client.
        number = torch.arange(len(clients)) - (each.cumsum(0) - each)[clients]
        places = number[:, None] * length + torch.arange(length)
        real = places < batches.counts[clients][:, None]
        places = clients[:, None], torch.where(real, places, 0)
        return cls(clients, batches.step_rows(0)[places], weights[places] * real.to(weights))


def gradients(problem: PooledData, batches: Batches, w: Tensor, room: float) -> tuple[Tensor, Tensor]:
    """Return (k, d) mean gradients and (k,) float64 mean losses at w (d,) on the first step's samples.

    All clients are at the same model, so only gradients are stacked: one per segment of a client's rows. The gradients
    of a client are added in the order of its segments.

    Args:
        problem: Task and pool.
        batches: The samples.
        w: (d,) the model.
        room: Bytes for the inputs and gradients of a pass.
    """
    task, counts = problem.task, batches.counts
    G, F = w.new_zeros(len(counts), w.numel()), torch.zeros(len(counts), dtype=torch.float64)
    into, parameters = task.layout.views(G).values(), list(task.layout.views(w).values())
    gradient, is_equal = gradient_of(problem, shared=True), _has_equal_sizes(counts)
    length, stack = shape_of_pass(problem, counts, room)
    segments = Segments.of(batches, length, problem.weights(batches, w))
    for clients, rows, weights in zip(*(part.split(stack) for part in segments), strict=True):
        x, y = (take_rows(pool, rows.flatten()).view(*rows.shape, *pool.shape[1:]) for pool in (problem.x, problem.y))
        # Gradients at a given model are taken without dropout and augmentation, as reported losses are.
        no_seeds = torch.empty(len(clients), 0, dtype=torch.int64, device=w.device)
        arguments, step = (x, y, weights, no_seeds, *parameters), gradient
        if not w.is_cuda and (is_equal or len(clients) == stack):
            step = replay(task, ("gradients", problem.autocast), gradient, arguments, trace)
        *values, means = step(*arguments)
        places = clients.to(w.device)
        for view, value in zip(into, values, strict=True):
            # Both add a client's segments in order; on CUDA index_add_ would not.
            view.index_put_((places,), value, accumulate=True) if w.is_cuda else view.index_add_(0, places, value)
        F.index_add_(0, clients, means.double().cpu())
    return G, F


def shape_of_pass(problem: PooledData, counts: Tensor, room: float) -> tuple[int, int]:
    """Return the length of segments that takes the least time for clients of these sizes, and the segments per pass."""
    sample_bytes, model_bytes = (t.numel() * t.element_size() for t in (problem.x[:1], problem.task.w0))
    most = max(1, min(pass_size(problem), int(room / max(1, sample_bytes))))
    if _has_equal_sizes(counts):
        # Clients of equal size are cut into equal segments, which need no padding.
        length = -(-int(counts[0]) // -(-int(counts[0]) // most))
    else:
        # Lengths are powers of two, so that few shapes occur. Ties go to the longest.
        lengths = (1 << b for b in reversed(range(most.bit_length())))
        length = min(lengths, key=lambda L: int((-(-counts // L)).sum()) * (L + GRADIENT_ROWS))
    return length, max(1, min(most // length, int(room / (length * sample_bytes + 3 * model_bytes))))


def _has_equal_sizes(counts: Tensor) -> bool:
    """Return whether all clients have the same size; if not, the last pass has a new shape and is not worth a trace."""
    return bool((counts == counts[0]).all())
