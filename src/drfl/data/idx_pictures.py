"""Grey pictures and labels from the four IDX files of MNIST and its relatives."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drfl.data.idx import read_idx
from drfl.data.sources import IDX_SOURCES, Source, digest_like
from drfl.errors import InputError


def read_pictures(source: Source, paths: Sequence[Path], classes: int) -> list[tuple[Tensor, Tensor]]:
    """Pictures and labels from pairs of IDX files.

    Args:
        source: the data set that they should be of.
        paths: images, labels and so on in turn; the last labels are those for testing.
        classes: the number of classes.

    Returns:
        For each pair (n, 1, height, width) uint8 pictures and (n,) int64 labels.

    Raises:
        InputError: when a file is broken, a pair does not fit together, or the files are of another data set.
    """
    arrays = [read_idx(path) for path in paths]
    for k in range(0, len(arrays), 2):
        _check_pair(paths[k], arrays[k], paths[k + 1], arrays[k + 1], classes)
    _check_identity(source, paths[-1], arrays[-1])
    return [
        (torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))
        for images, labels in zip(arrays[::2], arrays[1::2], strict=True)
    ]


def _check_pair(images_at: Path, images: np.ndarray, labels_at: Path, labels: np.ndarray, classes: int) -> None:
    if images.ndim != 3 or images.dtype != np.uint8:
        raise InputError(f"'{images_at}' must hold grey images, (n, height, width) bytes, not {images.shape}")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"'{labels_at}' must hold labels, (n,) bytes, not {labels.shape}")
    if len(images) != len(labels):
        raise InputError(f"'{images_at}' has {len(images)} images but '{labels_at}' has {len(labels)} labels")
    if labels.max() >= classes or labels.min() < 0:
        raise InputError(f"'{labels_at}' has labels outside 0..{classes - 1}: it is of another data set")


def _check_identity(source: Source, path: Path, test_labels: np.ndarray) -> None:
    """Refuses files that are those of another known data set, since all of them have the same names."""
    content = struct.pack(">BBBBI", 0, 0, 0x08, 1, len(test_labels)) + test_labels.tobytes()
    for other in IDX_SOURCES:
        known = other.files[3].content or ""
        digest = digest_like(known)
        digest.update(content)
        if other is not source and digest.hexdigest() == known:
            raise InputError(f"'{path}' is of {other.folder}, not of {source.folder}: give another folder")
