"""Short names for tensors, equal only where the tensors are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from torch import Tensor

_PIECE = 2**24
"""Entries at a time: what is mapped from a file is not loaded whole."""


def digest_of(tensors: Iterable[Tensor], text: str = "") -> str:
    """32 hexadecimal digits that name tensors, with their types and shapes, and a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for tensor in tensors:
        # The digest covers type and shape: equal bytes can represent different numbers.
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        for part in tensor.detach().cpu().contiguous().reshape(-1).split(_PIECE):
            digest.update(part.numpy().data)
    return digest.hexdigest()
