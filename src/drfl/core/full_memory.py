"""A one-line error if the memory of a GPU is full."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from drfl.core.errors import DrflError


@contextmanager
def explain_full_memory() -> Iterator[None]:
    """Turn torch's error about full memory of a device, a paragraph of statistics, into one line with the remedy.

    Raises:
        DrflError: If torch raises the error in the block.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        size = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", str(error))
        raise DrflError(
            f"the memory of the GPU is full{f' ({size[1]} more are needed)' if size else ''}. Use a "
            "smaller cohort or batch, `engine = 'loop'` (in Python drfl.Loop()), `precision = 'bf16'` or "
            "`device = 'cpu'`.",
            code="out-of-memory",
            field="device",
        ) from None
