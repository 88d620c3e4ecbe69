"""Gather the rows of a minibatch; images are read from a copy in bytes, with a quarter of the memory traffic."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

WHITE = 255
"""Value of a fully lit 8-bit pixel: images are integers from 0 to WHITE, divided by WHITE."""

CACHED = 32 * 2**20
"""A pool of at most this many bytes fits into a processor's caches, and its rows are gathered fast without a copy."""

LARGEST = 2**30
"""Larger pools, in bytes, are not copied, because they may be memory-mapped files that do not fit into memory."""

CHUNK = 2**18
"""Numbers compared at a time, which fit into the cache of a core."""

_pixels: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""(version of the pool, its bytes or None) for each examined pool."""


def gatherer(pool: Tensor) -> Callable[[Tensor, Tensor], object]:
    """Return a function (index (n,), out (n, …)) that writes these rows of the pool (N, …) to ``out`` bit for bit."""
    pixels = pixels_of(pool)
    if pixels is None:
        return lambda index, out: torch.index_select(pool, 0, index, out=out)
    room = pixels.new_empty(0)

    def gather(index: Tensor, out: Tensor) -> None:
        torch.index_select(pixels, 0, index, out=room.resize_(out.shape))
        # Convert first and then divide in place, because dividing bytes by a number takes longer than both.
        out.copy_(room).div_(WHITE)

    return gather


def pixels_of(pool: Tensor) -> Tensor | None:
    """Return the (N, …) uint8 tensor that gives the pool bitwise if divided by 255; None if impossible or useless.

    Each pool is examined once. A large pool is read only up to the first value that is not a pixel.
    """
    cached = _pixels.get(pool)
    # torch counts the writes to a tensor. A modified pool is examined again.
    if cached is not None and cached[0] == pool._version:
        return cached[1]
    size, pixels = pool.numel() * pool.element_size(), None
    if pool.dtype == torch.float32 and not pool.is_cuda and CACHED < size < LARGEST:
        pixels = torch.empty(pool.shape, dtype=torch.uint8)
        rows = max(1, CHUNK // pool[0].numel())
        for values, into in zip(pool.split(rows), pixels.split(rows), strict=True):
            # For NaN or values outside a byte's range, the conversion gives some byte, and the comparison fails.
            into.copy_(values.mul(WHITE).round_())
            if not torch.equal(into.float().div_(WHITE), values):
                pixels = None
                break
    _pixels[pool] = pool._version, pixels
    return pixels
