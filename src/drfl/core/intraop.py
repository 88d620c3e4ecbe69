"""How many of torch's intra-op threads an operation is worth: a rule by its size, never a measurement.

OpenMP's threads spin and wait for each other at the end of every operation. On small products a second one gains a
tenth on a quiet machine, and loses a multiple where a core is taken: then each of a round's hundreds of operations
waits until the system has given both threads their turn. A measurement would give other bits on a busy machine; a rule
gives the same operations the same number of threads everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

SMALL = 2**26
"""Multiplications of an operation up to which it has one thread: about a millisecond of one core."""

VECTORS = 64
"""Multiplications that a parameter counts for in the server's sums over a cohort, which pass through memory."""

_allowed: ContextVar[int | None] = ContextVar("allowed", default=None)


def allowed() -> int:
    """Threads that the user lets torch have, also within :func:`threads_for`."""
    return _allowed.get() or torch.get_num_threads()


@contextmanager
def threads_for(multiplications: float) -> Iterator[None]:
    """Within it torch has one thread where the operations are small, else as many as the user lets it have.

    Args:
        multiplications: of one operation, the largest that comes often.
    """
    most, before = allowed(), torch.get_num_threads()
    # Nested calls must see the number allowed outside, not the 1 that this call may set.
    token = _allowed.set(most)
    torch.set_num_threads(1 if multiplications <= SMALL else most)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _allowed.reset(token)
