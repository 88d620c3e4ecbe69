"""Rows of a pool for a minibatch; those of pictures are read from a copy in bytes, a quarter of the memory traffic."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

WHITE = 255
"""The value of a fully lit pixel of one byte: pictures are whole numbers from 0 to it, divided by it."""

CACHED = 32 * 2**20
"""Bytes of a pool up to which it stays in a processor's caches, where rows are gathered fast as they are."""

LARGEST = 2**30
"""Bytes of a pool from which no copy is made: it may be a file mapped into memory that the memory has no room for."""

CHUNK = 2**18
"""Numbers that are looked at together: they stay in a core's own cache."""

_found: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""(version of the pool, its bytes or None) for each pool that was looked at."""


def gatherer(pool: Tensor) -> Callable[[Tensor, Tensor], object]:
    """(index (n,), out (n, …)) → writes these rows of the pool (N, …) to ``out``, the same bits in any case."""
    pixels = pixels_of(pool)
    if pixels is None:
        return lambda index, out: torch.index_select(pool, 0, index, out=out)
    room = pixels.new_empty(0)

    def gather(index: Tensor, out: Tensor) -> None:
        torch.index_select(pixels, 0, index, out=room.resize_(out.shape))
        # Converted first, then divided in place: one division of bytes by a number takes longer than both.
        out.copy_(room).div_(WHITE)

    return gather


def pixels_of(pool: Tensor) -> Tensor | None:
    """(N, …) uint8, of which the pool is the 255th part to the bit; None where there is none or it is of no use.

    Looked for once for each pool. A large pool is read through for it only as long as it is pictures.
    """
    found = _found.get(pool)
    # torch counts the writes to a tensor. A pool that was written to is examined again.
    if found is not None and found[0] == pool._version:
        return found[1]
    size, pixels = pool.numel() * pool.element_size(), None
    if pool.dtype == torch.float32 and not pool.is_cuda and CACHED < size < LARGEST:
        pixels = torch.empty(pool.shape, dtype=torch.uint8)
        rows = max(1, CHUNK // pool[0].numel())
        for values, into in zip(pool.split(rows), pixels.split(rows), strict=True):
            # Out of a byte's range or NaN, the conversion gives some byte, and the comparison fails.
            into.copy_(values.mul(WHITE).round_())
            if not torch.equal(into.float().div_(WHITE), values):
                pixels = None
                break
    _found[pool] = pool._version, pixels
    return pixels
