"""Readers of files with the tensors of a model, which never execute code."""

from __future__ import annotations

import os
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from drfl.core.files import check_expansion, open_file, reading

if TYPE_CHECKING:
    from torch import Tensor

HEADER_LIMIT = 2**24
"""Maximum size in bytes of the header of a safetensors file. Large language models need about 200 KB."""


def read_tensors(
    path: Path, *, follow: bool = True, problem: str = "", remedy: str = ""
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: its tensors by name, mapped from the file if the system supports it, and its metadata.

    Raises:
        InputError: If the file cannot be opened (see :func:`drfl.core.files.open_file`), or is not a safetensors file.
    """
    from safetensors import safe_open

    with open_file(path, follow=follow, remedy=remedy) as file, reading(path, problem, remedy):
        # The first eight bytes are the length of the header. safetensors would read a header of any length.
        if int.from_bytes(file.read(8), "little") > HEADER_LIMIT:
            raise ValueError("its header is too large")
        # Open by descriptor, because another file may have taken the name by now.
        name = f"/proc/self/fd/{file.fileno()}"
        with safe_open(name if os.path.exists(name) else path, framework="pt") as tensors:
            return {key: tensors.get_tensor(key) for key in tensors.keys()}, tensors.metadata() or {}  # noqa: SIM118


def read_pickled_tensors(path: Path) -> object:
    """Read tensors and plain values from a ``.pth`` file without executing code from it.

    Raises:
        InputError: If the file cannot be opened (see :func:`drfl.core.files.open_file`), is not such a file, or unpacks
            to far more than its size.
    """
    import torch

    with open_file(path) as file, reading(path, "is not a file of weights that drfl can read"):
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                # torch does not compress weights, so a file that expands far beyond its size is crafted.
                unpacked = sum(info.file_size for info in archive.infolist())
            check_expansion(path, os.fstat(file.fileno()).st_size, unpacked, ratio=2)
        file.seek(0)
        with warnings.catch_warnings(action="ignore"):  # torch warns about other pickle versions before it fails.
            return torch.load(file, map_location="cpu", weights_only=True)
