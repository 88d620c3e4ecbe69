"""Tiny ImageNet: 200 classes of ImageNet in pictures of 64x64, JPEG files in a zip file or unpacked.

``wnids.txt`` gives the order of the classes. The labels of the official test pictures are not public, so the validation
pictures, whose labels are, make the test part.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drfl.data.archives import Tree, lacks, open_tree
from drfl.data.pixels import Pixels
from drfl.data.sources import Source
from drfl.errors import InputError

_SIDE = 64
_CLASS = re.compile(r"n\d{8}")
_PICTURE = re.compile(r"\w[\w.-]*\.JPEG", re.ASCII)
_ANNOTATIONS = "val/val_annotations.txt"


def read_tiny_imagenet(name: str, source: Source, paths: Sequence[Path]) -> Pixels:
    """The pictures of the zip file or of the folder that was in it; grey ones become three equal channels.

    Training pictures are in the order of the classes and then of their names, test pictures in the order of their list.

    Args:
        name: what the data set is called.
        source: the data set.
        paths: the zip file alone, or files of which the first lies at the top of the unpacked folder.

    Returns:
        Pictures (n, 3, 64, 64) and (k, 3, 64, 64).

    Raises:
        InputError: when the archive or a picture is damaged, a file is missing, or the lists do not fit the files.
    """
    with open_tree(paths[0] if len(paths) == 1 else paths[0].parent, source.inner) as tree:
        classes = _classes(tree)
        train = [(path, k) for k, wnid in enumerate(classes) for path in _of_class(tree, wnid)]
        if len(train) % len(classes) or any(k != i * len(classes) // len(train) for i, (_, k) in enumerate(train)):
            raise InputError(
                f"'{tree.path}' has more training pictures of some classes than of others: it is not whole; get it anew"
            )
        test = _test(tree, classes)
        return Pixels(name, *_decoded(tree, train), *_decoded(tree, test), len(classes))


def _classes(tree: Tree) -> list[str]:
    """The classes' identifiers in order; those that have training pictures are the same."""
    wnids = _lines(tree, "wnids.txt")
    if not wnids or len(set(wnids)) < len(wnids) or not all(_CLASS.fullmatch(wnid) for wnid in wnids):
        raise InputError(f"'{tree.path}': wnids.txt is no list of distinct names such as n01443537; get it anew")
    odd = sorted(set(wnids) ^ {folder for folder in tree.folders("train") if _CLASS.fullmatch(folder)})
    if odd:
        raise InputError(f"'{tree.path}': only one of wnids.txt and train/ has the class {odd[0]}; get it anew")
    return wnids


def _of_class(tree: Tree, wnid: str) -> list[str]:
    folder = f"train/{wnid}/images"
    names = [f"{folder}/{name}" for name in tree.files(folder) if _PICTURE.fullmatch(name)]
    if not names:
        raise lacks(tree, f"{folder}/*.JPEG")
    return names


def _test(tree: Tree, classes: Sequence[str]) -> list[tuple[str, int]]:
    number = {wnid: k for k, wnid in enumerate(classes)}
    listed = []
    for row, line in enumerate(_lines(tree, _ANNOTATIONS), start=1):
        fields = line.split("\t")
        # What is no plain name could lead out of the folder.
        if len(fields) < 2 or not _PICTURE.fullmatch(fields[0]) or fields[1] not in number:
            raise InputError(
                f"'{tree.path}': line {row} of {_ANNOTATIONS} does not give a .JPEG file and a class of wnids.txt; "
                "get it anew"
            )
        listed.append((f"val/images/{fields[0]}", number[fields[1]]))
    if not listed:
        raise InputError(f"'{tree.path}': {_ANNOTATIONS} is empty; get it anew")
    return listed


def _lines(tree: Tree, name: str) -> list[str]:
    """Lines of a text file without the empty ones; a byte that is no ASCII makes the line wrong, not unreadable."""
    return [line for line in tree.read(name).decode("ascii", "replace").splitlines() if line.strip()]


def _decoded(tree: Tree, listed: Sequence[tuple[str, int]]) -> tuple[Tensor, Tensor]:
    pictures = np.empty((len(listed), 3, _SIDE, _SIDE), np.uint8)
    for k, (name, _) in enumerate(listed):
        pictures[k] = _picture(tree, name)
    return torch.from_numpy(pictures), torch.tensor([label for _, label in listed])


def _picture(tree: Tree, name: str) -> np.ndarray:
    """One picture, (3, 64, 64) uint8."""
    from PIL import Image  # here, because only this data set needs it

    data = io.BytesIO(tree.read(name))
    where = f"'{tree.path}': {name}"
    try:
        with Image.open(data, formats=("JPEG", "PNG")) as image:  # no other decoder sees what is not trusted
            size = image.size
            if size == (_SIDE, _SIDE):  # known before anything is decoded
                return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except MemoryError:
        raise
    except Exception as error:  # for crafted bytes the decoders raise a dozen kinds
        raise InputError(f"{where} is no whole JPEG file; get it anew") from error
    raise InputError(f"{where} is of {size[0]}x{size[1]} pixels, not {_SIDE}x{_SIDE}: it is of another data set")
