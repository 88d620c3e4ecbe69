"""What the files of each data set are called, and where they are looked for on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True)
class DownloadSource:
    """A data set as files: four IDX files, or others, such as one archive that is read packed or unpacked.

    Args:
        folder: its folder's name in caches, mirrors and distributions.
        inner: the folder that it unpacks to, or that torchvision keeps it in.
        files: the names of the files as they are published: training images, training labels, test images and test
            labels; or the archive; or all that there are.
        members: the files that are read, or of an archive those by which the unpacked folder is known, relative to it;
            empty for IDX files.
        refused: names of another edition of the data set that drfl does not read, because it is pickled.
        test_labels: of IDX files, the SHA-256 of the test labels' unpacked file. By it files are known that lie in
            another data set's folder, as they all have the same names.
    """

    folder: str
    inner: str
    files: tuple[str, ...]
    members: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    test_labels: str = ""


_IDX = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))

MNIST = DownloadSource(
    "mnist",
    "MNIST/raw",
    _IDX,
    test_labels="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)

FASHION = DownloadSource(
    "fashion-mnist",
    "FashionMNIST/raw",
    _IDX,
    test_labels="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)

KMNIST = DownloadSource(
    "kmnist",
    "KMNIST/raw",
    _IDX,
    test_labels="a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
)

KMNIST_T10K = replace(KMNIST, files=_IDX[2:])

CIFAR10 = DownloadSource(
    "cifar-10",
    "cifar-10-batches-bin",
    ("cifar-10-binary.tar.gz",),
    (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"),
    ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
)

CIFAR100 = DownloadSource(
    "cifar-100",
    "cifar-100-binary",
    ("cifar-100-binary.tar.gz",),
    ("train.bin", "test.bin"),
    ("cifar-100-python", "cifar-100-python.tar.gz"),
)

TINY_IMAGENET = DownloadSource(
    "tiny-imagenet",
    "tiny-imagenet-200",
    ("tiny-imagenet-200.zip",),
    ("wnids.txt", "val/val_annotations.txt"),
)

ADULT = DownloadSource("adult", "adult", ("adult.data", "adult.test"), ("adult.data", "adult.test"))

SHAKESPEARE = DownloadSource("shakespeare", "shakespeare", ("pg100.txt",), ("pg100.txt",))

IDX_SOURCES = (MNIST, FASHION, KMNIST)
"""Those in IDX files, which all have the same names."""


SYSTEM_DATA = Path("/usr/share/datasets")
"""Where Debian puts data sets."""


class Location(NamedTuple):
    """A folder that holds a data set if it has all of certain files.

    Args:
        folder: the folder.
        names: the files. Of an IDX file it is the stem, such as ``train-images-idx3-ubyte``: the file may also be
            gzipped, with ``.gz``, and may have a dot for the second dash (``train-images.idx3-ubyte``), as some
            archives have.
    """

    folder: Path
    names: tuple[str, ...]


def cache_folder() -> Path:
    """The cache of drfl: ``$XDG_CACHE_HOME/drfl``, or ``~/.cache/drfl``."""
    return _from_environment("XDG_CACHE_HOME", "~/.cache") / "drfl"


def usual_places(source: DownloadSource) -> list[Location]:
    """Where a data set may lie when the user names no folder, in the order in which they are tried.

    ``$DRFL_DATA``; Debian's folder; torchvision's layout below ``./data``, ``~/data`` and torch's cache;
    drfl's own cache. Only in ``$DRFL_DATA`` may the files lie loose: elsewhere the folder's name has to tell
    which data set it is, because many name their files alike.
    """
    places: list[Location] = []
    if os.environ.get("DRFL_DATA"):
        # The folder that the user names comes first, and drfl's cache last.
        places += places_below(_from_environment("DRFL_DATA", "."), source)
    places += own_places(SYSTEM_DATA / source.folder, source)
    torch_home = _from_environment("TORCH_HOME", "~/.cache/torch")
    for root in (Path("data"), Path(os.path.expanduser("~/data")), torch_home / "datasets", torch_home):
        places += _named_places(root, source)
    return places + own_places(cache_folder() / source.folder, source)


def places_below(root: Path, source: DownloadSource) -> list[Location]:
    """Where the files may lie below a folder that the user named, the most telling name first, loose ones last."""
    return [*_named_places(root, source), Location(root, _loose(source))]


def own_places(folder: Path, source: DownloadSource) -> list[Location]:
    """Where the files may lie in a folder that has the data set's name."""
    loose = Location(folder, _loose(source))
    if not source.members:
        return [loose]
    return [Location(folder / source.inner, source.members), loose, Location(folder, source.files)]


def find_files(places: Iterable[Location]) -> tuple[Path, ...] | None:
    """The files of the first place that has them all, in the order of its names, or None."""
    for place in places:
        found = [_find_one(place.folder, name) for name in place.names]
        paths = tuple(path for path in found if path is not None)
        # One folder must have all files: those of two folders may be of different editions.
        if len(paths) == len(place.names):
            return paths
    return None


def missing(place: Location) -> list[str]:
    """The names of which a place has no file."""
    return [name for name in place.names if _find_one(place.folder, name) is None]


def find_refused(places: Iterable[Location], source: DownloadSource) -> Path | None:
    """An edition of the data set in one of these places that drfl does not read, or None."""
    # The error names such an edition. drfl does not read it, as unpickling would run code from the file.
    for folder in dict.fromkeys(place.folder for place in places):
        if folder.name in source.refused and os.path.isdir(folder):
            return folder
        for name in source.refused:
            if os.path.exists(folder / name):
                return folder / name
    return None


def _named_places(root: Path, source: DownloadSource) -> list[Location]:
    """Where the files may lie below any folder: in one that has their name, or in an archive that has."""
    inner = Location(root / source.inner, _loose(source))
    packed = [Location(root, source.files)] if source.members else []
    return [*own_places(root / source.folder, source), inner, *packed]


def _loose(source: DownloadSource) -> tuple[str, ...]:
    return source.members or tuple(name.removesuffix(".gz") for name in source.files)


def _find_one(folder: Path, name: str) -> Path | None:
    # Only IDX files go by several names.
    names = [n + ending for n in (name, name.replace("-idx", ".idx")) for ending in ("", ".gz")]
    for variant in names if "-idx" in name else [name]:
        path = folder / variant
        if os.path.isfile(path):  # False, not an error, for a folder that may not be entered
            return path
    return None


def _from_environment(variable: str, default: str) -> Path:
    return Path(os.path.expanduser(os.environ.get(variable) or default))
