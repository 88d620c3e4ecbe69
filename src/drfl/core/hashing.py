"""Digests of tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_PIECE = 2**24
"""Number of entries hashed at a time, so that a tensor mapped from a file is not loaded as a whole."""

_LARGE = 2**20
"""Digests of tensors with more bytes are cached, because the runs of a comparison share the pools of their clients."""

_digests: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""(version, digest) of each large tensor. torch counts the writes to a tensor."""


def digest_of(tensors: Iterable[Tensor], text: str = "") -> str:
    """Hash tensors, including types and shapes, and a text to 32 hexadecimal digits."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for tensor in tensors:
        # The digest covers type and shape, because equal bytes can represent different numbers.
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        # Inference tensors have no version, so a write to one would not be noticed.
        version = None if tensor.is_inference() else tensor._version
        cached = None if version is None else _digests.get(tensor)
        if cached is None or cached[0] != version:
            entries = hashlib.blake2b(digest_size=16)
            for part in tensor.detach().cpu().contiguous().reshape(-1).split(_PIECE):
                # NumPy has no bfloat16, but the bytes are enough.
                entries.update(part.view(torch.uint8).numpy().data)
            cached = version, entries.digest()
            if version is not None and tensor.nbytes > _LARGE:
                _digests[tensor] = cached
        digest.update(cached[1])
    return digest.hexdigest()
