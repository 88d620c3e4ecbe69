"""Choose the number of torch's intra-op threads for an operation, by a fixed rule based on its size.

OpenMP threads spin and wait for each other at the end of every operation. For small products, a second thread gains
about a tenth on an idle machine. If another process uses one of the cores, however, it slows the run down several
times, because each of a round's hundreds of operations waits until the system has scheduled both threads. A measurement
instead of a rule would change the floating-point results on a busy machine. The rule gives the same operations the same
number of threads everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor

SMALL = 2**26
"""Operations with at most this many multiplications use one thread. One core needs about a millisecond for them."""

VECTORS = 64
"""Cost per parameter, in multiplications, of the server's sums over a cohort, which are limited by memory bandwidth."""

_allowed: ContextVar[int | None] = ContextVar("allowed", default=None)


def allowed() -> int:
    """Return the number of threads that the user allows torch to use, also inside :func:`threads_for`."""
    return _allowed.get() or torch.get_num_threads()


@contextmanager
def threads_for(multiplications: float) -> Iterator[None]:
    """Let torch use one thread in the block if its operations are small, and otherwise all allowed threads.

    Args:
        multiplications: Multiplications of the largest operation that is frequent in the block.
    """
    most, before = allowed(), torch.get_num_threads()
    # Nested calls must see the number that the user allows, not the 1 that this call may set.
    token = _allowed.set(most)
    torch.set_num_threads(1 if multiplications <= SMALL else most)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _allowed.reset(token)


A = TypeVar("A")
B = TypeVar("B")


def column_slices(columns: int, like: Tensor) -> list[slice]:
    """Split the entries of a vector ``like`` (d,) for :func:`in_parallel`.

    On a CPU, slices of this number of columns stay in the caches. On a GPU there is one slice: its operations occupy
    the whole device, and each further slice would only launch them again, from a thread without a CUDA context.
    """
    d = len(like)
    size = columns if like.device.type == "cpu" else max(d, 1)
    return [slice(start, start + size) for start in range(0, d, size)]


def in_parallel(function: Callable[[A], B], parts: Sequence[A]) -> list[B]:
    """Apply a function to the parts of long vectors, each on one thread, and all allowed threads together.

    The parts are short enough to stay in the caches of a core. If all threads shared the operations of each part
    instead, they would wait for each other after each of thousands of operations.
    """
    count, before = min(allowed(), len(parts)), torch.get_num_threads()
    if count <= 1:
        return [function(part) for part in parts]
    # A process-wide setting, which threads copy when they start: it is set before the pool and restored after it.
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(function, parts))
    finally:
        torch.set_num_threads(before)
