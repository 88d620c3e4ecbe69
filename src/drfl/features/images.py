"""Images that features are made of: bytes where they can be had, a quarter of the memory of numbers."""

from __future__ import annotations

from pathlib import Path

from drfl.data.dataset import Dataset
from drfl.data.datasets import load_pixels
from drfl.data.pixels import Pixels
from drfl.errors import InputError

Images = Dataset | Pixels
"""Inputs (n, c, height, width): floating in [0, 1], or bytes of which 255 is fully lit."""


def load_images(name: str, data_dir: Path | None = None) -> Images:
    """A data set of images by name.

    Args:
        name: one of `drfl.data.DATASETS`.
        data_dir: see :func:`drfl.data.load`.

    Raises:
        InputError: see :func:`drfl.data.load`; or it is a table.
    """
    pixels = load_pixels(name, data_dir=data_dir)
    return pixels if pixels.white == 255 else pixels.dataset()


def check_images(images: Images) -> None:
    """Refuse data that are no grey or colour images.

    Raises:
        InputError: naming the data set.
    """
    shape = images.inputs.shape
    if len(shape) != 4 or shape[1] not in (1, 3):
        raise InputError(
            f"dataset '{images.name}' has inputs of shape {tuple(shape[1:])}, which are no images (1 or 3 channels, "
            "height, width): leave the features out"
        )


def one_pool(images: Images) -> bool:
    """Whether there is no test part of its own; see `drfl.data.Dataset`."""
    return isinstance(images, Dataset) and images.one_pool
