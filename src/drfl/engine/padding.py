"""Stacks of few shapes: clients, steps and samples are padded, so that the same CUDA graph serves many cohorts."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.engine.batches import Batches


def padded_size(size: int) -> int:
    """Round a size up by less than a quarter, to one of four sizes between two powers of two.

    A cohort that is drawn with replacement has another number of distinct clients in almost every round.
    """
    unit = 1 << max(0, (size - 1).bit_length() - 3)
    return -(-size // unit) * unit


def padded(batches: Batches) -> Batches:
    """Pad the clients, their samples, and the steps if these differ, to :func:`padded_size`.

    Additional clients repeat the first one, additional samples are fillers, and additional steps have no samples. So
    the models of the first k clients remain the same, and all results are finite if those were.
    """
    k, T, B = batches.samples.shape
    by_step = batches.by_step
    clients, columns = _repeated(k), _repeated(B)
    # Without by_step all clients take T steps in every round.
    steps = torch.arange(T) if by_step is None else _repeated(T)
    samples = batches.samples[clients][:, steps][:, :, columns]
    if by_step is not None:
        by_step = by_step[clients][:, steps]
        by_step[:, T:] = 0
    seeds = batches.seeds
    if seeds is not None:
        seeds = seeds[clients][:, steps if seeds.shape[1] == T else slice(None)][:, :, columns]
    return Batches(samples, batches.counts[clients], by_step, seeds)


def padded_clients(values: Tensor) -> Tensor:
    """Pad the rows of a tensor (k, …) on any device as :func:`padded` pads clients."""
    extra = padded_size(len(values)) - len(values)
    return torch.cat([values, values[:1].expand(extra, *values.shape[1:])]) if extra else values


def _repeated(size: int) -> Tensor:
    """Return the positions 0, …, size − 1, and 0 for the padding."""
    return torch.cat([torch.arange(size), torch.zeros(padded_size(size) - size, dtype=torch.int64)])
