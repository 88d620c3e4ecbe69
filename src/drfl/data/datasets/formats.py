"""The file formats of image data sets: IDX, CIFAR and Tiny ImageNet."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError
from drfl.core.files import open_file, read_bytes, read_gzip, reading
from drfl.data.dataset import Pixels
from drfl.data.datasets.archives import REMEDY, Tree, damaged, open_tree, read_tar_gz, unusable
from drfl.data.datasets.sources import IDX_SOURCES, DownloadSource

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_DIMENSIONS = 32  # supported by all versions of NumPy
_GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: str | Path) -> np.ndarray:
    """Read the array in an IDX file, gzipped or not; the first bytes of the file decide, not its name.

    Args:
        path: The file.

    Returns:
        A writable array with the file's shape and type, in native byte order.

    Raises:
        InputError: If the file does not exist, cannot be read, is not IDX, is too short or too long, or its gzip data
            are damaged.
    """
    path = Path(path)
    # Decide by content: a file may be unpacked and keep its name, or the reverse.
    with open_file(path, remedy=REMEDY) as file, reading(path, remedy=REMEDY):
        zipped = file.read(2) == _GZIP_MAGIC
    data = read_gzip(path, remedy=REMEDY).getbuffer() if zipped else read_bytes(path, limit=None, remedy=REMEDY)
    if len(data) < 4 or data[:2] != b"\0\0":
        problem = "is not an IDX file: it does not begin with two zero bytes and a type code"
        raise unusable(path, problem, "unsupported-file")
    if data[2] not in _TYPES:
        known = ", ".join(f"0x{code:02x}" for code in _TYPES)
        problem = f"is not a known kind of IDX file: its type code is 0x{data[2]:02x}, not one of {known}"
        raise unusable(path, problem, "unsupported-file")
    dimensions = data[3]
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        problem = f"is not a usable IDX file: its header says that it has {dimensions} dimensions"
        raise unusable(path, problem, "unsupported-file")
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise damaged(path, "is incomplete: it ends inside its header")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    dtype = np.dtype(_TYPES[data[2]])
    expected, there = math.prod(shape) * dtype.itemsize, len(data) - start
    if not expected:
        raise unusable(path, f"contains no values: its shape is {shape}", "damaged-file")
    if there != expected:
        fault = f"is incomplete: it has {there} of" if there < expected else "has more than"
        raise damaged(path, f"{fault} the {expected} bytes that its shape {shape} requires")
    array = np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    return np.require(array, requirements="W")


def write_idx(path: str | Path, array: np.ndarray) -> None:
    """Write bytes as an IDX file, gzipped if the name ends in ``.gz``; equal arrays give equal files.

    Args:
        path: The file; its folder is created if necessary.
        array: Non-empty uint8 array with 1 to 32 dimensions.

    Raises:
        InputError: If the array does not match this description.
    """
    path = Path(path)
    if array.dtype != np.uint8 or not 1 <= array.ndim <= _MAX_DIMENSIONS or not array.size:
        raise InputError(
            f"write_idx expects a non-empty uint8 array with 1 to {_MAX_DIMENSIONS} dimensions, got "
            f"{array.dtype} of shape {array.shape}",
            code="wrong-shape",
            field="array",
        )
    # The format is big-endian.
    content = struct.pack(f">BBBB{array.ndim}I", 0, 0, 0x08, array.ndim, *array.shape) + array.tobytes()
    with atomic_write(path) as file:
        # Omit the time of writing, so that equal arrays give equal files.
        file.write(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_pictures(source: DownloadSource, paths: Sequence[Path], classes: int) -> list[tuple[Tensor, Tensor]]:
    """Read images and labels from IDX files of images and of labels in turn, those for testing last.

    Returns:
        For each pair, (n, 1, height, width) uint8 images and (n,) int64 labels.
    """
    arrays = [read_idx(path) for path in paths]
    for k in range(0, len(arrays), 2):
        images_at, images, labels_at, labels = paths[k], arrays[k], paths[k + 1], arrays[k + 1]
        if images.ndim != 3 or images.dtype != np.uint8:
            problem = f"must contain grey images, (n, height, width) bytes, got shape {images.shape}"
            raise unusable(images_at, problem, "wrong-shape")
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise unusable(labels_at, f"must contain labels, (n,) bytes, got shape {labels.shape}", "wrong-shape")
        if len(images) != len(labels):
            problem = f"has {len(images)} images but '{labels_at}' has {len(labels)} labels"
            raise unusable(images_at, problem, "count-mismatch")
        if labels.max() >= classes or labels.min() < 0:
            problem = f"has labels outside 0..{classes - 1}, so it is from another data set"
            raise unusable(labels_at, problem, "wrong-dataset")
    # MNIST, Fashion-MNIST and KMNIST use the same file names; their test labels distinguish them.
    path, test_labels = paths[-1], arrays[-1]
    content = struct.pack(">BBBBI", 0, 0, 0x08, 1, len(test_labels)) + test_labels.tobytes()
    digest = hashlib.sha256(content).hexdigest()
    for other in IDX_SOURCES:
        if digest == other.test_labels != source.test_labels:
            problem = f"is from {other.folder}, not from {source.folder}. Pass another folder"
            raise unusable(path, problem, "wrong-dataset")
    return [
        (torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))
        for images, labels in zip(arrays[::2], arrays[1::2], strict=True)
    ]


_SHAPE = (3, 32, 32)
_BYTES = 3 * 32 * 32


def read_cifar(name: str, source: DownloadSource, labels: tuple[int, ...], paths: Sequence[Path]) -> Pixels:
    """Read the images in an archive alone or in its unpacked members, the last of which has the test images.

    ``labels`` are the numbers of values of each label byte in a record; the last byte is the class.

    Returns:
        Images (n, 3, 32, 32) and (k, 3, 32, 32).
    """
    if len(paths) == 1:
        content = read_tar_gz(paths[0], source.inner, source.members)
        whole = {f"{paths[0]}: {member}": content[member] for member in source.members}
    else:
        whole = {str(path): read_bytes(path, limit=None, remedy=REMEDY) for path in paths}
    width = len(labels) + _BYTES
    parts = []
    for where, data in whole.items():
        if not data or len(data) % width:
            problem = "it is incomplete or from another data set"
            raise damaged(where, f"has {len(data)} bytes, not a multiple of the record size {width}: {problem}")
        table = np.frombuffer(data, np.uint8).reshape(-1, width)
        for k, values in enumerate(labels):
            if table[:, k].max() >= values:
                problem = "it is damaged or from another data set"
                raise damaged(where, f"has labels outside 0..{values - 1}: {problem}")
        # Views of the file's bytes: pixels (n, 3072) and classes (n,).
        parts.append((table[:, len(labels) :], table[:, len(labels) - 1]))
    train, test = _joined(parts[:-1]), _joined(parts[-1:])
    return Pixels(name, *train, *test, labels[-1])


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Tensor, Tensor]:
    pictures = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, *_SHAPE)
    classes = np.concatenate([classes for _, classes in parts]).astype(np.int64)
    return torch.from_numpy(pictures), torch.from_numpy(classes)


_SIDE = 64
_CLASS = re.compile(r"n\d{8}")
_PICTURE = re.compile(r"\w[\w.-]*\.JPEG", re.ASCII)
_TRAINING_PICTURE = re.compile(rf"train/({_CLASS.pattern})/images/{_PICTURE.pattern}", re.ASCII)
_ANNOTATIONS = "val/val_annotations.txt"


def read_tiny_imagenet(name: str, source: DownloadSource, paths: Sequence[Path]) -> Pixels:
    """Read the images in the zip file or in its unpacked folder; grey images become three equal channels.

    Training images are ordered by class and then by file name, test images as in their list.

    Returns:
        Images (n, 3, 64, 64) and (k, 3, 64, 64).
    """
    with open_tree(paths[0] if len(paths) == 1 else paths[0].parent, source.inner) as tree:
        classes = _lines(tree, "wnids.txt")
        if not classes or len(set(classes)) < len(classes) or not all(_CLASS.fullmatch(wnid) for wnid in classes):
            raise damaged(tree.path, "wnids.txt is not a list of distinct names such as n01443537", ":")
        pictures: dict[str, list[str]] = {}
        for path in tree.names("train/*/images/*"):
            found = _TRAINING_PICTURE.fullmatch(path)
            if found:
                pictures.setdefault(found[1], []).append(path)
        # An archive is incomplete if a class has no images or images have no class.
        odd = sorted(pictures.keys() ^ classes)
        if odd:
            problem = f"must have a line in wnids.txt and images in train/{odd[0]}/images/"
            raise damaged(tree.path, problem, f": class {odd[0]}")
        train = [(path, k) for k, wnid in enumerate(classes) for path in pictures[wnid]]
        if len(train) % len(classes) or any(k != i * len(classes) // len(train) for i, (_, k) in enumerate(train)):
            raise damaged(tree.path, "has more training images of some classes than of others, so it is incomplete")
        number = {wnid: k for k, wnid in enumerate(classes)}
        test = []
        for row, line in enumerate(_lines(tree, _ANNOTATIONS), start=1):
            fields = line.split("\t")
            # Accept only plain names: other paths could lead out of the folder.
            if len(fields) < 2 or not _PICTURE.fullmatch(fields[0]) or fields[1] not in number:
                place = f", {_ANNOTATIONS}, line {row}:"
                raise damaged(tree.path, "expected a .JPEG file and a class of wnids.txt", place)
            test.append((f"val/images/{fields[0]}", number[fields[1]]))
        if not test:
            raise damaged(tree.path, "is empty", f": {_ANNOTATIONS}")
        return Pixels(name, *_decoded(tree, train), *_decoded(tree, test), len(classes))


def _lines(tree: Tree, name: str) -> list[str]:
    """Return the non-empty lines of a text file; a byte that is not ASCII makes only its line invalid."""
    return [line for line in tree.read(name).decode("ascii", "replace").splitlines() if line.strip()]


def _decoded(tree: Tree, listed: Sequence[tuple[str, int]]) -> tuple[Tensor, Tensor]:
    from PIL import Image  # imported here, because only this data set needs it

    pictures = np.empty((len(listed), 3, _SIDE, _SIDE), np.uint8)
    for k, (name, _) in enumerate(listed):
        data = io.BytesIO(tree.read(name))
        where = f"'{tree.path}': {name}"
        try:
            with Image.open(data, formats=("JPEG", "PNG")) as image:  # do not pass untrusted bytes to other decoders
                size = image.size
                if size == (_SIDE, _SIDE):  # checked before anything is decoded
                    pictures[k] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise a dozen kinds of errors for crafted bytes
            raise InputError(
                f"{where} is not a complete JPEG file. Download it again", code="damaged-file", field=str(where)
            ) from error
        if size != (_SIDE, _SIDE):
            raise InputError(
                f"{where} has {size[0]}x{size[1]} pixels, not {_SIDE}x{_SIDE}, so it is from another data set",
                code="wrong-dataset",
                field=str(where),
            )
    return torch.from_numpy(pictures), torch.tensor([label for _, label in listed])
