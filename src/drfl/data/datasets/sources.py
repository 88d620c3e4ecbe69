"""Where the files of each data set come from, and where they are looked for on this machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set as it is published.

    Args:
        stem: its name without the ending.
        sha256: checksum of the published file; None where its publisher revises it.
        content: of test labels, checksum of what is inside the ``.gz`` file, by which files that lie in another data
            set's folder are known. SHA-256, or MD5 (32 digits) for Fashion-MNIST, whose is not published.
        ending: the rest of its name.
    """

    stem: str
    sha256: str | None
    content: str | None = None
    ending: str = ".gz"

    @property
    def name(self) -> str:
        """Its name as it is published."""
        return self.stem + self.ending


@dataclass(frozen=True)
class DownloadSource:
    """A data set as files: four IDX files, or others, such as one archive that is read packed or unpacked.

    Args:
        folder: its folder's name in caches, mirrors and distributions.
        inner: the folder that it unpacks to, or that torchvision keeps it in.
        mirrors: addresses of folders that hold the files; they end in a slash.
        files: training images, training labels, test images, test labels; or the archive; or all that there are.
        members: the files that are read, or of an archive those by which the unpacked folder is known, relative to it;
            empty for IDX files.
        refused: names of another edition of the data set that drfl does not read, because it is pickled.
    """

    folder: str
    inner: str
    mirrors: tuple[str, ...]
    files: tuple[RemoteFile, ...]
    members: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


_TRAIN_IMAGES, _TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST_IMAGES, _TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"

MNIST = DownloadSource(
    "mnist",
    "MNIST/raw",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
    (
        RemoteFile(_TRAIN_IMAGES, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        RemoteFile(_TRAIN_LABELS, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        RemoteFile(_TEST_IMAGES, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        RemoteFile(
            _TEST_LABELS,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
)

FASHION = DownloadSource(
    "fashion-mnist",
    "FashionMNIST/raw",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    (
        RemoteFile(_TRAIN_IMAGES, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        RemoteFile(_TRAIN_LABELS, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        RemoteFile(_TEST_IMAGES, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        RemoteFile(
            _TEST_LABELS,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
)

KMNIST = DownloadSource(
    "kmnist",
    "KMNIST/raw",
    ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    (
        RemoteFile(_TRAIN_IMAGES, "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4"),
        RemoteFile(_TRAIN_LABELS, "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17"),
        RemoteFile(_TEST_IMAGES, "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5"),
        RemoteFile(
            _TEST_LABELS,
            "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
            "a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
        ),
    ),
)

CIFAR10 = DownloadSource(
    "cifar-10",
    "cifar-10-batches-bin",
    ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    (
        RemoteFile(
            "cifar-10-binary", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", ending=".tar.gz"
        ),
    ),
    (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"),
    ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
)

CIFAR100 = DownloadSource(
    "cifar-100",
    "cifar-100-binary",
    CIFAR10.mirrors,
    (
        RemoteFile(
            "cifar-100-binary", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", ending=".tar.gz"
        ),
    ),
    ("train.bin", "test.bin"),
    ("cifar-100-python", "cifar-100-python.tar.gz"),
)

TINY_IMAGENET = DownloadSource(
    "tiny-imagenet",
    "tiny-imagenet-200",
    ("http://cs231n.stanford.edu/",),
    (
        RemoteFile(
            "tiny-imagenet-200", "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821", ending=".zip"
        ),
    ),
    ("wnids.txt", "val/val_annotations.txt"),
)

ADULT = DownloadSource(
    "adult",
    "adult",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",),
    (
        RemoteFile("adult", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", ending=".data"),
        RemoteFile("adult", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", ending=".test"),
    ),
    ("adult.data", "adult.test"),
)

SHAKESPEARE = DownloadSource(
    "shakespeare",
    "shakespeare",
    ("https://www.gutenberg.org/cache/epub/100/",),
    (RemoteFile("pg100", None, ending=".txt"),),  # Project Gutenberg corrects its texts, so that no checksum would last
    ("pg100.txt",),
)

IDX_SOURCES = (MNIST, FASHION, KMNIST)
"""Those in IDX files, which all have the same names."""


def digest_like(checksum: str) -> hashlib._Hash:
    """A fresh digest of the kind that a checksum has by its length: SHA-256, or MD5 if it has 32 digits."""
    return hashlib.md5(usedforsecurity=False) if len(checksum) == 32 else hashlib.sha256()


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


def usual_places(source: DownloadSource, stems: Sequence[str]) -> list[Location]:
    """Where a data set may lie when the user names no folder, in the order in which they are tried.

    ``$DRFL_DATA``; Debian's folder; torchvision's layout below ``./data``, ``~/data`` and torch's cache;
    drfl's own cache. Only in ``$DRFL_DATA`` may the files lie loose: elsewhere the folder's name has to tell
    which data set it is, because many name their files alike.

    Args:
        source: the data set.
        stems: which of its IDX files are wanted; of no account where it is an archive.
    """
    places: list[Location] = []
    if os.environ.get("DRFL_DATA"):
        # The folder that the user names comes first, and drfl's cache last.
        places += places_below(_from_environment("DRFL_DATA", "."), source, stems)
    places += own_places(SYSTEM_DATA / source.folder, source, stems)
    torch_home = _from_environment("TORCH_HOME", "~/.cache/torch")
    for root in (Path("data"), Path(os.path.expanduser("~/data")), torch_home / "datasets", torch_home):
        places += _named_places(root, source, stems)
    return places + own_places(cache_folder() / source.folder, source, stems)


def places_below(root: Path, source: DownloadSource, stems: Sequence[str]) -> list[Location]:
    """Where the files may lie below a folder that the user named, the most telling name first, loose ones last."""
    return [*_named_places(root, source, stems), Location(root, _loose(source, stems))]


def own_places(folder: Path, source: DownloadSource, stems: Sequence[str]) -> list[Location]:
    """Where the files may lie in a folder that has the data set's name."""
    loose = Location(folder, _loose(source, stems))
    if not source.members:
        return [loose]
    return [Location(folder / source.inner, source.members), loose, Location(folder, _packed(source))]


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


def _named_places(root: Path, source: DownloadSource, stems: Sequence[str]) -> list[Location]:
    """Where the files may lie below any folder: in one that has their name, or in an archive that has."""
    inner = Location(root / source.inner, _loose(source, stems))
    packed = [Location(root, _packed(source))] if source.members else []
    return [*own_places(root / source.folder, source, stems), inner, *packed]


def _loose(source: DownloadSource, stems: Sequence[str]) -> tuple[str, ...]:
    return source.members or tuple(stems)


def _packed(source: DownloadSource) -> tuple[str, ...]:
    return tuple(file.name for file in source.files)


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
