"""The losses and gradients of a cohort's many rows at one model: passes of one shape, summed client by client."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from drfl.engine.base import PooledData
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.sgd import gradient_of, images, mostly, pass_size, slices, taken
from drfl.engine.tracing import replayed, traced

LARGE = 2**26
"""Rows × parameters from which passes of one shape are made: a few milliseconds, where a trace takes a tenth of a
second."""

MINIBATCH = 128
"""Rows of a client up to which a stack with a model for each client does as well for gradients."""

WRITTEN = 32
"""Rows that take as long as writing one gradient and adding it to its client's."""


def many_rows(problem: PooledData, batches: Batches) -> bool:
    """Whether a request for losses is so large that :func:`losses` is faster: on a CPU, without convolutions."""
    plain = not problem.x.is_cuda and problem.autocast is None and not images(problem)
    return plain and int(batches.counts.sum()) * problem.task.layout.d >= LARGE


def large_batches(problem: PooledData, batches: Batches) -> bool:
    """Whether a request for gradients is so large that :func:`gradients` is faster: some client has many rows."""
    many = int(batches.counts.max()) > MINIBATCH and int(batches.counts.sum()) * problem.task.layout.d >= LARGE
    return many and not images(problem)


def losses(problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
    """(k,) float64 mean losses at w (d,) on the first step's samples.

    The arithmetic is that of a trace, in which narrow products and softmax over few classes are transposed.
    """
    task, parameters = problem.task, list(problem.task.layout.views(w[None]).values())
    rows = ClientRows(batches.at(0)[batches.real], batches.counts.cumsum(0) - batches.counts, batches.counts)

    def of(x: Tensor, y: Tensor, *parameters: Tensor) -> tuple[Tensor]:
        def one(*own: Tensor) -> Tensor:
            return task.sample_losses(task.outputs(dict(zip(task.layout.names, own, strict=True)), x), y)

        # A stack of one model: a trace transposes the products of stacks.
        return (vmap(one)(*parameters),)

    size, whole, alike, found = pass_size(problem), mostly(problem, rows.index), _alike(batches.counts), []
    with torch.no_grad():
        for part in slices(problem) if whole else rows.index.split(size):
            arguments = (taken(problem.x, part), taken(problem.y, part), *parameters)
            full = whole or alike or len(arguments[0]) == size
            # The last pass has a different shape in every cohort, so a trace of it would rarely be used again.
            step = replayed(task, ("losses",), of, arguments, traced) if full else of
            found.append(step(*arguments)[0][0].double())
    values = torch.cat(found)
    return problem.means(values[rows.index] if whole else values, rows)


class Segments(NamedTuple):
    """The rows of a cohort's clients in S segments of one length L, client after client.

    Args:
        clients: (S,) int64 whose each is, as a place in the cohort.
        rows: (S, L) int64 rows of the pool; beyond the client's last they repeat its first.
        weights: (S, L) of each row in its client's loss, 0 for those repeated.
    """

    clients: Tensor
    rows: Tensor
    weights: Tensor

    @classmethod
    def of(cls, batches: Batches, length: int, weights: Tensor) -> Segments:
        """Those of the first step's samples, whose weights (k, B) these are."""
        # A client's last segment is padded.
        each = -(-batches.counts // length)
        clients = torch.arange(len(each)).repeat_interleave(each)
        # Segments are numbered from 0 within each client.
        number = torch.arange(len(clients)) - (each.cumsum(0) - each)[clients]
        places = number[:, None] * length + torch.arange(length)
        real = places < batches.counts[clients][:, None]
        places = clients[:, None], torch.where(real, places, 0)
        return cls(clients, batches.at(0)[places], weights[places] * real.to(weights))


def gradients(problem: PooledData, batches: Batches, w: Tensor, room: float) -> tuple[Tensor, Tensor]:
    """(k, d) mean gradients and (k,) float64 mean losses at w (d,) on the first step's samples.

    Every client is at the same model, so that only gradients are stacked, and one for each segment of a client's rows;
    a client's are added up in their order.

    Args:
        problem: task and pool.
        batches: the samples.
        w: the model.
        room: bytes for the inputs and gradients of a pass.
    """
    task, counts = problem.task, batches.counts
    G, F = w.new_zeros(len(counts), w.numel()), torch.zeros(len(counts), dtype=torch.float64)
    into, parameters = task.layout.views(G).values(), list(task.layout.views(w).values())
    gradient, alike = gradient_of(problem, shared=True), _alike(counts)
    length, stack = shape_of_pass(problem, counts, room)
    segments = Segments.of(batches, length, problem.weights(batches, w))
    for clients, rows, weights in zip(*(part.split(stack) for part in segments), strict=True):
        x, y = (taken(pool, rows.flatten()).view(*rows.shape, *pool.shape[1:]) for pool in (problem.x, problem.y))
        no_seeds = torch.empty(len(clients), 0, dtype=torch.int64, device=w.device)
        arguments, step = (x, y, weights, no_seeds, *parameters), gradient
        if not w.is_cuda and (alike or len(clients) == stack):
            step = replayed(task, ("gradients", problem.autocast), gradient, arguments, traced)
        *values, means = step(*arguments)
        at = clients.to(w.device)
        for view, value in zip(into, values, strict=True):
            # Both add a client's segments in their order; on CUDA index_add_ would not.
            view.index_put_((at,), value, accumulate=True) if w.is_cuda else view.index_add_(0, at, value)
        F.index_add_(0, clients, means.double().cpu())
    return G, F


def shape_of_pass(problem: PooledData, counts: Tensor, room: float) -> tuple[int, int]:
    """The length of segments for which clients with so many rows take the least time, and how many make a pass."""
    one, model = (t.numel() * t.element_size() for t in (problem.x[:1], problem.task.w0))
    most = max(1, min(pass_size(problem), int(room / max(1, one))))
    if _alike(counts):
        # Clients of one size are cut into equal segments, which need no padding.
        length = -(-int(counts[0]) // -(-int(counts[0]) // most))
    else:
        # Powers of two, so that few shapes occur; the longest of the best.
        lengths = (1 << b for b in reversed(range(most.bit_length())))
        length = min(lengths, key=lambda L: int((-(-counts // L)).sum()) * (L + WRITTEN))
    return length, max(1, min(most // length, int(room / (length * one + 3 * model))))


def _alike(counts: Tensor) -> bool:
    """Whether passes have the shapes of every such cohort; else the last one's change, and are not worth a trace."""
    return bool((counts == counts[0]).all())
