"""Tensors in files that are mapped into memory, whose pages the system drops when it needs the space."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from drfl.core.errors import InputError

MAPS = Path("/proc/self/maps")
"""Where Linux lists the mappings of a process."""


def scratch_folder() -> str:
    """Return the folder of large temporary files. /tmp is often in memory."""
    return "/var/tmp" if "TMPDIR" not in os.environ and Path("/var/tmp").is_dir() else tempfile.gettempdir()


def is_mapped(tensor: Tensor) -> bool:
    """Return whether a file holds the memory of a tensor; False on systems other than Linux, which do not report it."""
    if tensor.device.type != "cpu" or not tensor.numel() or not MAPS.is_file():
        return False
    place = tensor.data_ptr()
    for line in MAPS.read_text().splitlines():
        addresses, _, _, _, inode, *_ = line.split(maxsplit=5)
        start, end = (int(number, 16) for number in addresses.split("-"))
        if start <= place < end:
            return inode != "0"
    return False


def empty_in_file(like: Tensor) -> Tensor:
    """Return an uninitialised tensor of the same shape and type in a temporary file without a name.

    Raises:
        InputError: If the disk is full.
    """
    folder = scratch_folder()
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            # Writing to a mapping without space on the disk would end the process.
            os.posix_fallocate(file.fileno(), 0, like.nbytes)
        except OSError as error:
            raise InputError(
                f"cannot write {like.nbytes:,} bytes to a temporary file in {folder}: {error.strerror}. Name another "
                "folder in the environment variable TMPDIR",
                code="cannot-write",
                field="TMPDIR",
            ) from None
        path = f"/proc/self/fd/{file.fileno()}"
        return torch.from_file(path, shared=True, size=like.numel(), dtype=like.dtype).view(like.shape)
