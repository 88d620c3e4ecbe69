"""Image data sets for a backbone, and the cache of their features."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError
from drfl.core.tensor_files import read_tensors
from drfl.data.dataset import Dataset, Pixels
from drfl.data.datasets.catalogue import load_pixels
from drfl.data.datasets.sources import cache_folder

FORMAT = "drfl-features-1"
"""Change this if the same recipe gives other numbers, so that old files are no longer read."""

ROWS = 2**24
"""Number of bytes that are hashed at a time."""


def folder() -> Path:
    """Return the folder in which features are stored."""
    return cache_folder() / "features"


def digest(tensors: Iterable[Tensor], *labels: object) -> str:
    """Return a digest of everything that features depend on."""
    found = hashlib.blake2b(repr((FORMAT, *labels)).encode(), digest_size=16)
    for tensor in tensors:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        for part in flat.split(ROWS):
            found.update(part.numpy().tobytes())
    return found.hexdigest()


def load_or_make(
    path: Path, rows: dict[str, int], make: Callable[[], dict[str, Tensor]], log: Callable[[str], None]
) -> dict[str, Tensor]:
    """Return the tensors in a file, or make them and store them in it.

    If the file is damaged or does not contain these tensors, it is made again. If it cannot be written, this is logged
    and the tensors are returned nevertheless.
    """
    try:
        found, metadata = read_tensors(path)
    except InputError:  # missing or damaged
        found, metadata = {}, {}
    fitting = {name: len(value) for name, value in found.items() if value.dim() == 2} == rows
    # The digest detects files that a full disk or a power cut left incomplete.
    if fitting and metadata.get("digest") == digest(found[name] for name in rows):
        return found
    del found  # frees memory before the features are computed
    made = make()
    try:
        # Another process that needs the same features sees the complete file or none.
        with atomic_write(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            save_file(made, file.name, metadata={"digest": digest(made[name] for name in rows)})
            os.chmod(file.name, mode)  # safetensors makes the file private
    except (OSError, SafetensorError) as error:
        log(f"cannot store the features in '{path.parent}' ({error}); they will be computed again next time")
    return made


Images = Dataset | Pixels
"""Inputs (n, c, height, width): floating-point values in [0, 1], or bytes up to 255."""


def load_images(name: str, data_dir: Path | None = None) -> Images:
    """Load an image data set by name."""
    pixels = load_pixels(name, data_dir=data_dir)
    return pixels if pixels.white == 255 else pixels.dataset()


def check_images(images: Images) -> None:
    """Raise InputError unless a data set consists of grey or colour images."""
    shape = images.inputs.shape
    if len(shape) != 4 or shape[1] not in (1, 3):
        raise InputError(
            f"dataset '{images.name}' has inputs of shape {tuple(shape[1:])}, but features require images "
            "(1 or 3 channels, height, width). Remove `features`",
            code="unsupported-data",
            field="dataset",
        )
