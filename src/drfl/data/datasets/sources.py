"""The file names of each data set, and the places on this machine where they are searched for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True)
class DownloadSource:
    """The files of a data set: four IDX files, or others, such as one archive that is read packed or unpacked.

    Args:
        folder: Name of its folder in caches, mirrors and distributions.
        inner: Folder that the archive unpacks to, or that torchvision stores the files in.
        mirrors: Addresses of folders with the published files, tried in order.
        checksums: Name of each published file → its SHA-256, None if the publisher revises it: training images,
            training labels, test images and test labels; or the archive; or all files.
        members: Files to read, relative to the unpacked folder; for an archive that is read packed, the files that
            identify its unpacked folder. Empty for IDX files.
        refused: Names of a pickled edition of the data set, which drfl does not read.
        test_labels: For IDX files, the SHA-256 of the unpacked file of test labels. It detects files in another data
            set's folder, because all IDX data sets use the same file names.
    """

    folder: str
    inner: str
    mirrors: tuple[str, ...]
    checksums: Mapping[str, str | None]
    members: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    test_labels: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the published files."""
        return tuple(self.checksums)


MNIST = DownloadSource(
    "mnist",
    "MNIST/raw",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
    {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    test_labels="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)

FASHION = DownloadSource(
    "fashion-mnist",
    "FashionMNIST/raw",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    test_labels="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)

KMNIST = DownloadSource(
    "kmnist",
    "KMNIST/raw",
    ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    {
        "train-images-idx3-ubyte.gz": "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        "train-labels-idx1-ubyte.gz": "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
        "t10k-images-idx3-ubyte.gz": "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
        "t10k-labels-idx1-ubyte.gz": "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
    },
    test_labels="a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
)

KMNIST_T10K = replace(KMNIST, checksums=dict([*KMNIST.checksums.items()][2:]))

_CIFAR_MIRRORS = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")

CIFAR10 = DownloadSource(
    "cifar-10",
    "cifar-10-batches-bin",
    _CIFAR_MIRRORS,
    {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"),
    ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
)

CIFAR100 = DownloadSource(
    "cifar-100",
    "cifar-100-binary",
    _CIFAR_MIRRORS,
    {"cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"},
    ("train.bin", "test.bin"),
    ("cifar-100-python", "cifar-100-python.tar.gz"),
)

TINY_IMAGENET = DownloadSource(
    "tiny-imagenet",
    "tiny-imagenet-200",
    ("http://cs231n.stanford.edu/",),
    {"tiny-imagenet-200.zip": "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"},
    ("wnids.txt", "val/val_annotations.txt"),
)

ADULT = DownloadSource(
    "adult",
    "adult",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",),
    {
        "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    },
    ("adult.data", "adult.test"),
)

SHAKESPEARE = DownloadSource(
    "shakespeare",
    "shakespeare",
    ("https://www.gutenberg.org/cache/epub/100/",),
    {"pg100.txt": None},  # Project Gutenberg corrects its texts, so a checksum would become invalid
    ("pg100.txt",),
)

IDX_SOURCES = (MNIST, FASHION, KMNIST)
"""The data sets in IDX files, which all use the same file names."""

SOURCES = (*IDX_SOURCES, CIFAR10, CIFAR100, TINY_IMAGENET, ADULT, SHAKESPEARE)


SYSTEM_DATA = Path("/usr/share/datasets")
"""Folder for data sets on Debian."""


class Location(NamedTuple):
    """A folder that contains a data set if it has all of certain files.

    Args:
        folder: The folder.
        names: Names of the files. The name of an IDX file is a stem such as ``train-images-idx3-ubyte``: the file may
            also be gzipped, with ``.gz``, and may have a dot instead of the second dash (``train-images.idx3-ubyte``),
            as in some archives.
    """

    folder: Path
    names: tuple[str, ...]


def cache_folder() -> Path:
    """Return drfl's cache: ``$XDG_CACHE_HOME/drfl``, or ``~/.cache/drfl``."""
    return _from_environment("XDG_CACHE_HOME", "~/.cache") / "drfl"


def usual_places(source: DownloadSource) -> list[Location]:
    """List the places to search if the user names no folder, in this order.

    These are ``$DRFL_DATA``; Debian's folder; torchvision's layout in ``./data``, ``~/data`` and torch's cache; and
    drfl's cache. Only in ``$DRFL_DATA`` may the files be directly in the folder. Elsewhere the name of the folder must
    identify the data set, because many data sets use the same file names.
    """
    places: list[Location] = []
    if os.environ.get("DRFL_DATA"):
        # Try the user's folder first and drfl's cache last.
        places += places_below(_from_environment("DRFL_DATA", "."), source)
    places += own_places(SYSTEM_DATA / source.folder, source)
    torch_home = _from_environment("TORCH_HOME", "~/.cache/torch")
    for root in (Path("data"), Path(os.path.expanduser("~/data")), torch_home / "datasets", torch_home):
        places += _named_places(root, source)
    return places + own_places(cache_folder() / source.folder, source)


def places_below(root: Path, source: DownloadSource) -> list[Location]:
    """List places for the files below the user's folder, from the most specific name to the folder itself."""
    return [*_named_places(root, source), Location(root, _loose(source))]


def own_places(folder: Path, source: DownloadSource) -> list[Location]:
    """List places for the files in a folder with the data set's name."""
    loose = Location(folder, _loose(source))
    if not source.members:
        return [loose]
    return [Location(folder / source.inner, source.members), loose, Location(folder, source.files)]


def find_files(places: Iterable[Location]) -> tuple[Path, ...] | None:
    """Return the files of the first place that has all of them, in the order of its names; None if there is none."""
    for place in places:
        found = [_find_one(place.folder, name) for name in place.names]
        paths = tuple(path for path in found if path is not None)
        # One folder must have all files, because files of two folders may be of different editions.
        if len(paths) == len(place.names):
            return paths
    return None


def missing_files(place: Location) -> list[str]:
    """Return the names of files that a place does not have."""
    return [name for name in place.names if _find_one(place.folder, name) is None]


def find_refused(places: Iterable[Location], source: DownloadSource) -> Path | None:
    """Return the path of an edition that drfl does not read, if one of these places has it."""
    # drfl does not read such an edition, because unpickling would run code from the file; the error names it.
    for folder in dict.fromkeys(place.folder for place in places):
        if folder.name in source.refused and os.path.isdir(folder):
            return folder
        for name in source.refused:
            if os.path.exists(folder / name):
                return folder / name
    return None


def _named_places(root: Path, source: DownloadSource) -> list[Location]:
    """List places below any folder: in a folder with the data set's name, or in an archive with that name."""
    inner = Location(root / source.inner, _loose(source))
    packed = [Location(root, source.files)] if source.members else []
    return [*own_places(root / source.folder, source), inner, *packed]


def _loose(source: DownloadSource) -> tuple[str, ...]:
    return source.members or tuple(name.removesuffix(".gz") for name in source.files)


def _find_one(folder: Path, name: str) -> Path | None:
    # Only IDX files have several names.
    names = [n + ending for n in (name, name.replace("-idx", ".idx")) for ending in ("", ".gz")]
    for variant in names if "-idx" in name else [name]:
        path = folder / variant
        if os.path.isfile(path):  # False, not an error, for a folder that may not be entered
            return path
    return None


def _from_environment(variable: str, default: str) -> Path:
    return Path(os.path.expanduser(os.environ.get(variable) or default))
