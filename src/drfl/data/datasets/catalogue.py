"""The catalogue of named data sets."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError, unknown
from drfl.core.key import Key
from drfl.core.packages import require
from drfl.data.dataset import Dataset, Pixels
from drfl.data.datasets.adult import GROUPS, read_adult
from drfl.data.datasets.downloads import fetch_files
from drfl.data.datasets.formats import read_cifar, read_pictures, read_tiny_imagenet
from drfl.data.datasets.shakespeare import VOCABULARY, WINDOW, read_shakespeare
from drfl.data.datasets.sources import (
    ADULT,
    CIFAR10,
    CIFAR100,
    FASHION,
    KMNIST,
    KMNIST_T10K,
    MNIST,
    SHAKESPEARE,
    TINY_IMAGENET,
    DownloadSource,
    find_files,
    usual_places,
)
from drfl.data.partition.splitting import split_rows
from drfl.data.tables.schema import Column, TableSchema

CATEGORIES = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2")}
NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
YES_NO = ("sex", "fbs", "exang")

# The first category has no column, because it would be redundant: it applies if no other does.
FEATURES = (*NUMBERS, *(f"{name}={value}" for name, values in CATEGORIES.items() for value in values[1:]))
"""The 13 columns of the inputs: ten features, two of which are categorical."""

HEART_SCHEMA = TableSchema(
    (
        *(Column(name, "yes/no", levels=("0", "1")) if name in YES_NO else Column(name, "number") for name in NUMBERS),
        *(Column(name, "category", levels=values) for name, values in CATEGORIES.items()),
        Column("hospital", "text", role="client"),
        Column("num > 0", "yes/no", levels=("no", "yes"), role="target"),
    ),
    inferred=True,
)
"""The columns of the published table, with which models of the data predict."""


def heart_disease() -> Dataset:
    """Read heart disease data of 740 patients in four hospitals.

    The target is 1 if the diagnosis is heart disease of any degree. The ten features are those that all four hospitals
    recorded, and the rows are those without missing values, as in FLamby (du Terrail et al. 2022).
    ``embedded/README.md`` states the source of the table and what was changed.

    Returns:
        A data set without a separate test part, with inputs (740, 13) as recorded, to be standardised; the groups are
        the hospitals. A third of the rows are for testing, because the smallest hospital has 46 of them.
    """
    text = (resources.files("drfl.data.datasets") / "embedded" / "heart_disease.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    columns = [[float(row[name]) for row in rows] for name in NUMBERS]
    for name, (_, *values) in CATEGORIES.items():
        columns += [[float(row[name] == value) for row in rows] for value in values]
    inputs = torch.from_numpy(np.array(columns).T.astype(np.float32))
    targets = torch.tensor([int(row["num"] != "0") for row in rows])
    groups = tuple(row["hospital"] for row in rows)
    return Dataset(
        "heart-disease", inputs, targets, inputs, targets, 2, groups, standardise=True, schema=HEART_SCHEMA,
        test_fraction=1 / 3,
    )  # fmt: skip


# Splits that drfl makes itself are part of the data set: they do not depend on the seed of a run.
_SPLIT_KEY = Key(0).fold("drfl.data", "split")


@dataclass(frozen=True)
class DatasetInfo:
    """Description of a data set that does not require loading it.

    Args:
        name: Name to load it by.
        title: Description in one line.
        train: Number of training samples; None if it depends on the edition of the files.
        test: Number of test samples; None if it depends on the edition of the files.
        classes: Number of classes.
        shape: Shape of one input.
        licence: Licence of the data.
        source: Web address of the publisher.
        found: Where it is on this machine; None if it would have to be downloaded.
        partition: Default partition.
    """

    name: str
    title: str
    train: int | None
    test: int | None
    classes: int
    shape: tuple[int, ...]
    licence: str
    source: str
    found: str | None
    partition: str = "zipf-dirichlet"


@dataclass(frozen=True)
class DatasetSpec:
    """An entry of `DATASETS`: the description, and how to obtain the data.

    Args:
        info: The description; `found` is the package for an embedded data set, else None.
        source: The files; None for a data set that is embedded in a package.
        read: Function that reads the data set from the paths of these files; images keep their published pixels.
        pillow: Whether reading requires Pillow.
        groupings: Other groupings of the rows, and the function that reads the data set with each.
    """

    info: DatasetInfo
    source: DownloadSource | None
    read: Callable[[Sequence[Path]], Pixels | Dataset]
    pillow: bool = False
    groupings: Mapping[str, Callable[[Sequence[Path]], Dataset]] = field(default_factory=dict)

    def reader(self, group: str | None) -> Callable[[Sequence[Path]], Pixels | Dataset]:
        """Return the function that reads the data set with the values of a column as groups."""
        if group is None:
            return self.read
        if not self.groupings:
            raise InputError(
                f"dataset '{self.info.name}' has no column to group its rows by. Remove `group`",
                code="missing-groups",
                field="group",
            )
        if group not in self.groupings:
            raise unknown("group", group, self.groupings, place=f"of dataset '{self.info.name}'")
        return self.groupings[group]


def load(name: str, *, data_dir: Path | str | None = None, download: bool = True, group: str | None = None) -> Dataset:
    """Load a data set by name.

    ``digits`` and ``heart-disease`` come with drfl. The others are searched for in ``$DRFL_DATA``,
    Debian's ``/usr/share/datasets/<name>``, torchvision's folders and drfl's cache. Otherwise they are downloaded into
    the cache, and their checksum is verified if the publisher's file does not change. For files that are already on
    this machine, only the structure is checked.

    Args:
        name: One of `DATASETS`; case is ignored, and dashes and underscores are equivalent.
        data_dir: The only folder to search (including its ``<name>`` and torchvision's subfolders), or the file of a
            data set that consists of one archive or text. If the files are missing, an error is raised; nothing is
            downloaded. Embedded data sets ignore it.
        download: Whether the network may be used.
        group: Column that defines the clients, for a data set with several such columns, such as ``adult``; None uses
            the default.

    Returns:
        The data set. Images are (n, channels, height, width) float32 in [0, 1]; tables are (n, features) float32 or
        float64 as recorded; texts are (n, characters) int64.

    Raises:
        InputError: If the name is unknown, or the files are missing, cannot be downloaded, or are damaged.
    """
    loaded = _loaded(name, data_dir, download, group)
    return loaded.dataset() if isinstance(loaded, Pixels) else loaded


def load_pixels(name: str, *, data_dir: Path | str | None = None, download: bool = True) -> Pixels:
    """Load an image data set as bytes, in a quarter of the memory that :func:`load` needs.

    The images and their order are the same: ``load_pixels(name).dataset()`` equals ``load(name)``.

    Args:
        name: As in `load`.
        data_dir: As in `load`.
        download: As in `load`.

    Raises:
        InputError: As in `load`, and if the data set has no images.
    """
    loaded = _loaded(name, data_dir, download, None)
    if isinstance(loaded, Dataset):
        raise InputError(
            f"dataset '{loaded.name}' has no images. Use drfl.load",
            code="unsupported-data",
            field="dataset",
        )
    return loaded


def describe() -> list[DatasetInfo]:
    """Describe every data set and where it is on this machine, without opening data files or connections."""
    infos = []
    for spec in DATASETS.values():
        info = spec.info
        if spec.source is not None:
            paths = find_files(usual_places(spec.source))
            info = replace(info, found=str(paths[0].parent) if paths else None)
        infos.append(info)
    return infos


def _loaded(name: str, data_dir: Path | str | None, download: bool, group: str | None) -> Pixels | Dataset:
    spec = DATASETS.get(name.strip().lower().replace("_", "-"))
    if spec is None:
        raise unknown("dataset", name, DATASETS)
    read = spec.reader(group)  # raise the error before a long download
    if spec.source is None:
        return read([])
    if spec.pillow:  # raise the error before a long download
        message = f"dataset '{spec.info.name}' requires Pillow. Install it with: pip install 'drfl[experiments]'"
        require("PIL", message, "pillow")
    folder = None if data_dir is None else Path(data_dir)
    return read(fetch_files(spec.info.name, spec.source, folder, download))


_KUZUSHIJI = "http://codh.rois.ac.jp/kmnist/"


def _idx(
    name: str, title: str, licence: str, address: str, source: DownloadSource, sizes: tuple[int, int] = (60_000, 10_000)
) -> DatasetSpec:
    """Return the entry of a data set of grey images, 28x28 in ten classes, in IDX files."""

    def read(paths: Sequence[Path]) -> Pixels:
        train, *rest = read_pictures(source, paths, 10)
        if not rest:  # only the test files, which drfl splits into training and test rows
            return _split(name, *train, 1 / 5)
        return Pixels(name, *train, *rest[0], 10)

    return DatasetSpec(DatasetInfo(name, title, *sizes, 10, (1, 28, 28), licence, address, None), source, read)


def _split(name: str, pictures: Tensor, labels: Tensor, test_fraction: float, white: int = 255) -> Pixels:
    # The key is fixed, because the split is part of the data set, not of a run.
    train, test = split_rows(np.arange(len(labels)), labels.numpy(), _SPLIT_KEY.fold(name), test_fraction)
    return Pixels(name, pictures[train], labels[train], pictures[test], labels[test], 10, white)


@cache
def _digit_rows() -> np.ndarray:
    """Return 64 pixels and the label of each digit, (n, 65)."""
    path = resources.files("drfl.data.datasets") / "embedded" / "digits.csv.gz"
    with path.open("rb") as file, gzip.open(file, "rt") as lines:
        return np.loadtxt(lines, np.uint8, delimiter=",")


def _digits(_: Sequence[Path]) -> Pixels:
    rows = _digit_rows()
    pictures = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8))
    return _split("digits", pictures, torch.from_numpy(rows[:, -1].astype(np.int64)), 1 / 3, white=16)


_DIGITS = DatasetInfo(
    "digits", "Handwritten digits, 8x8 (UCI optical recognition, as in scikit-learn)", 1198, 599, 10, (1, 8,
    8), "CC BY 4.0", "https://archive.ics.uci.edu/dataset/80", "drfl",
)  # fmt: skip
_HEART = DatasetInfo(
    "heart-disease", "Heart disease in four hospitals, 13 features (UCI; rows and features as in FLamby)", 494, 246,
    2, (13,), "CC BY 4.0", "https://archive.ics.uci.edu/dataset/45", "drfl", "natural",
)  # fmt: skip
_ADULT = DatasetInfo(
    "adult", "Income above 50,000 dollars, census of 1994 (UCI)", 32_561, 16_281, 2, (43,),
    "CC BY 4.0", "https://archive.ics.uci.edu/dataset/2", None, "natural",
)  # fmt: skip
_SHAKESPEARE = DatasetInfo(
    "shakespeare", "Next character in a role's lines, from Shakespeare's plays (Project Gutenberg)", None, None,
    len(VOCABULARY), (WINDOW,), "public domain", "https://www.gutenberg.org/ebooks/100", None, "natural",
)  # fmt: skip
_CIFAR10 = DatasetInfo(
    "cifar-10", "Colour photographs in ten classes, 32x32", 50_000, 10_000, 10, (3, 32, 32),
    "none stated", "https://www.cs.toronto.edu/~kriz/cifar.html", None,
)  # fmt: skip
_CIFAR100 = DatasetInfo(
    "cifar-100", "Colour photographs in a hundred classes, 32x32", 50_000, 10_000, 100, (3, 32, 32),
    "none stated", "https://www.cs.toronto.edu/~kriz/cifar.html", None,
)  # fmt: skip
_TINY_IMAGENET = DatasetInfo(
    "tiny-imagenet", "200 classes of ImageNet at 64x64; its validation part is the test part", 100_000, 10_000, 200,
    (3, 64, 64), "non-commercial research, as ImageNet", "http://cs231n.stanford.edu/tiny-imagenet-200.zip", None,
)  # fmt: skip

DATASETS: dict[str, DatasetSpec] = {
    spec.info.name: spec
    for spec in (
        DatasetSpec(_DIGITS, None, _digits),
        DatasetSpec(_HEART, None, lambda _: heart_disease()),
        DatasetSpec(_ADULT, ADULT, read_adult, groupings={name: partial(read_adult, group=name) for name in GROUPS}),
        DatasetSpec(_SHAKESPEARE, SHAKESPEARE, read_shakespeare),
        _idx("mnist", "Handwritten digits", "CC BY-SA 3.0", "http://yann.lecun.com/exdb/mnist/", MNIST),
        _idx(
            "fashion-mnist", "Articles of clothing", "MIT", "https://github.com/zalandoresearch/fashion-mnist", FASHION
        ),
        _idx("kmnist", "Handwritten hiragana (Kuzushiji-MNIST)", "CC BY-SA 4.0", _KUZUSHIJI, KMNIST),
        _idx(
            "kmnist-t10k",
            "Only the 10,000 test images of Kuzushiji-MNIST, split by drfl",
            "CC BY-SA 4.0",
            _KUZUSHIJI,
            KMNIST_T10K,
            (8_000, 2_000),
        ),
        DatasetSpec(_CIFAR10, CIFAR10, partial(read_cifar, "cifar-10", CIFAR10, (10,))),
        # A record of CIFAR-100 has its superclass, one of 20, before its class.
        DatasetSpec(_CIFAR100, CIFAR100, partial(read_cifar, "cifar-100", CIFAR100, (20, 100))),
        DatasetSpec(
            _TINY_IMAGENET,
            TINY_IMAGENET,
            partial(read_tiny_imagenet, "tiny-imagenet", TINY_IMAGENET),
            pillow=True,
        ),
    )
}
"""The data sets by name."""
