"""Digests of tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from torch import Tensor

_PIECE = 2**24
"""Number of entries hashed at a time, so that a tensor mapped from a file is not loaded as a whole."""


def digest_of(tensors: Iterable[Tensor], text: str = "") -> str:
    """Hash tensors, including types and shapes, and a text to 32 hexadecimal digits."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for tensor in tensors:
        # The digest covers type and shape, because equal bytes can represent different numbers.
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        for part in tensor.detach().cpu().contiguous().reshape(-1).split(_PIECE):
            digest.update(part.numpy().data)
    return digest.hexdigest()
