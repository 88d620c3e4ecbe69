"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from their binary edition.

A file is a sequence of records: one or two label bytes, then 1024 bytes of red, of green and of blue, each a picture of
32x32 row by row. The other edition is pickled, and unpickling a file can run any code, so it is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drfl.data.archives import TAR_LIMIT, read_tar_gz, reading
from drfl.data.pixels import Pixels
from drfl.data.sources import Source
from drfl.errors import InputError

_SHAPE = (3, 32, 32)
_BYTES = 3 * 32 * 32


def read_cifar(name: str, source: Source, labels: tuple[int, ...], paths: Sequence[Path]) -> Pixels:
    """The pictures of an archive or of the files that were in it.

    Args:
        name: what the data set is called.
        source: the data set; the last of its members has the test pictures.
        labels: for each label byte of a record, how many values it has; the last byte is the class.
        paths: the archive alone, or the members in order.

    Returns:
        Pictures (n, 3, 32, 32) and (k, 3, 32, 32).

    Raises:
        InputError: when a file cannot be read, is missing from the archive, has no whole records, or has labels out of
            range.
    """
    if len(paths) == 1:
        content = read_tar_gz(paths[0], source.inner, source.members)
        whole = {f"{paths[0]}: {member}": content.pop(member) for member in source.members}
    else:
        whole = {str(path): _read(path) for path in paths}
    parts = [_records(where, whole.pop(where), labels) for where in list(whole)]
    train, test = _joined(parts[:-1]), _joined(parts[-1:])
    return Pixels(name, *train, *test, labels[-1])


def _read(path: Path) -> bytes:
    with reading(path), path.open("rb") as file:
        data = file.read(TAR_LIMIT + 1)
        if len(data) > TAR_LIMIT:
            raise InputError(f"'{path}' has more than {TAR_LIMIT} bytes: it is not of CIFAR; get the file anew")
        return data


def _records(where: str, data: bytes, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (n, 3072) and classes (n,) of one file, as views of its bytes."""
    width = len(labels) + _BYTES
    if not data or len(data) % width:
        raise InputError(
            f"'{where}' has {len(data)} bytes, which is no whole number of records of {width}: it is cut short or of "
            "another data set; get the file anew"
        )
    table = np.frombuffer(data, np.uint8).reshape(-1, width)
    for k, values in enumerate(labels):
        if table[:, k].max() >= values:
            raise InputError(
                f"'{where}' has labels outside 0..{values - 1}: it is damaged or of another data set; get the file anew"
            )
    return table[:, len(labels) :], table[:, len(labels) - 1]


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Tensor, Tensor]:
    pictures = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, *_SHAPE)
    classes = np.concatenate([classes for _, classes in parts]).astype(np.int64)
    return torch.from_numpy(pictures), torch.from_numpy(classes)
