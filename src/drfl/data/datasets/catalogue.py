"""The data sets that drfl knows by name."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError, unknown
from drfl.core.key import Key
from drfl.data.dataset import Dataset, Pixels
from drfl.data.datasets.adult import GROUPS, read_adult
from drfl.data.datasets.fetch import fetch_files
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

# A category that is a combination of the others' absence would be redundant, so the first has no column of its own.
CATEGORIES = {"cp": ("2", "3", "4"), "restecg": ("1", "2")}
NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")

FEATURES = (*NUMBERS, *(f"{name}={value}" for name, values in CATEGORIES.items() for value in values))
"""The 13 columns of the inputs: ten features, of which two are categorical."""


def heart_disease() -> Dataset:
    """740 patients of four hospitals; target 1 where the diagnosis is heart disease of any degree.

    The ten features are those that all four hospitals recorded, as in FLamby (du Terrail et al. 2022), and so are the
    rows: those without a blank in them. ``embedded/README.md`` says where the table is from and what was changed.

    Returns:
        A data set of one pool with inputs (740, 13) as recorded, to be standardised; groups are the hospitals.
    """
    text = (resources.files("drfl.data.datasets") / "embedded" / "heart_disease.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    columns = [[float(row[name]) for row in rows] for name in NUMBERS]
    for name, values in CATEGORIES.items():
        columns += [[float(row[name] == value) for row in rows] for value in values]
    inputs = torch.from_numpy(np.array(columns).T.astype(np.float32))
    targets = torch.tensor([int(row["num"] != "0") for row in rows])
    groups = tuple(row["hospital"] for row in rows)
    return Dataset("heart-disease", inputs, targets, inputs, targets, 2, groups, standardise=True)


# Splits that drfl makes itself are part of the data set: they never depend on the seed of a run.
_SPLIT_KEY = Key(0).fold("drfl.data", "split")


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set without loading it.

    Args:
        name: the name to load it by.
        title: one line for people.
        train: training samples; None where that depends on the edition of the files.
        test: test samples, likewise.
        classes: number of classes.
        shape: of one input.
        licence: of the data.
        source: address of its publisher.
        found: where it is now on this machine, or None when it would have to be downloaded.
        partition: how it is divided among clients where nobody says otherwise.
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
    """An entry of `DATASETS`: the facts, and how the data is had.

    Args:
        info: the facts; `found` is the package for an embedded data set, else None.
        source: its files, or None for a data set that is embedded in a package.
        read: makes the data set from the paths of these files; a table at once, pictures as they are published.
        pillow: whether Pillow must be installed to read it.
        groupings: what else its rows can be grouped by, and how it is read then.
    """

    info: DatasetInfo
    source: DownloadSource | None
    read: Callable[[Sequence[Path]], Pixels | Dataset]
    pillow: bool = False
    groupings: Mapping[str, Callable[[Sequence[Path]], Dataset]] = field(default_factory=dict)

    def grouped(self, group: str | None) -> Callable[[Sequence[Path]], Pixels | Dataset]:
        """How it is read where its clients are the values of a column.

        Raises:
            InputError: its rows cannot be grouped so.
        """
        if group is None:
            return self.read
        if not self.groupings:
            raise InputError(
                f"dataset '{self.info.name}' has no column to group its rows by. Remove group",
                code="missing-groups",
                field="group",
            )
        if group not in self.groupings:
            raise unknown(f"group of dataset '{self.info.name}'", group, self.groupings, field="group")
        return self.groupings[group]


def load(name: str, *, data_dir: Path | str | None = None, download: bool = True, group: str | None = None) -> Dataset:
    """Loads a data set by name.

    ``digits`` comes with scikit-learn, ``heart-disease`` with drfl. The others are sought in ``$DRFL_DATA``, Debian's
    ``/usr/share/datasets/<name>``, torchvision's folders and drfl's own cache, and else downloaded into that
    cache, checksum verified where the publisher's file has a lasting one. Files found are trusted, apart from their
    structure.

    Args:
        name: one of `DATASETS`, in any case, with dashes or underscores.
        data_dir: the one folder to look in (also its ``<name>`` and torchvision's sub-folders), or the archive or
            the text of a data set that comes as one. Without the files it is an error: nothing is downloaded instead.
            Embedded data sets ignore it.
        download: whether the network may be used.
        group: what names the clients of a data set that has several such columns, as ``adult`` has; None = its usual.

    Returns:
        The data set; images are (n, channels, height, width) float32 in [0, 1], tables (n, features) float32 or
        float64 as recorded, texts (n, characters) int64.

    Raises:
        InputError: when the name is unknown, or the files are not found, cannot be downloaded, or are broken.
    """
    loaded = _loaded(name, data_dir, download, group)
    return loaded.dataset() if isinstance(loaded, Pixels) else loaded


def load_pixels(name: str, *, data_dir: Path | str | None = None, download: bool = True) -> Pixels:
    """Loads a data set of pictures as bytes, a quarter of the memory of what :func:`load` gives.

    The same pictures in the same order: ``load_pixels(name).dataset()`` is ``load(name)``.

    Args:
        name: as in `load`.
        data_dir: as in `load`.
        download: as in `load`.

    Raises:
        InputError: as in `load`, and when the data set is none of pictures.
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
    """What every data set is and where it lies now; opens no data file and no connection."""
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
    read = spec.grouped(group)  # said before a long download, not after it
    if spec.source is None:
        return read([])
    if spec.pillow and find_spec("PIL") is None:  # said before a long download, not after it
        raise InputError(
            f"dataset '{spec.info.name}' requires Pillow. Install it with: pip install 'drfl[experiments]'",
            code="package-missing",
            field="pillow",
        )
    folder = None if data_dir is None else Path(data_dir)
    return read(fetch_files(spec.info.name, spec.source, folder, download))


def _as_published(info: DatasetInfo, source: DownloadSource, paths: Sequence[Path]) -> Pixels:
    train, *rest = read_pictures(source, paths, info.classes)
    if not rest:  # only the test files, which are split into training and test rows
        return _split(info.name, *train, 1 / 5)
    return Pixels(info.name, *train, *rest[0], info.classes)


def _split(name: str, pictures: Tensor, labels: Tensor, test_fraction: float, white: int = 255) -> Pixels:
    # The key is fixed: the split is part of the data set, not of a run.
    train, test = split_rows(np.arange(len(labels)), labels.numpy(), _SPLIT_KEY.fold(name), test_fraction)
    return Pixels(name, pictures[train], labels[train], pictures[test], labels[test], 10, white)


def _digits(_: Sequence[Path]) -> Pixels:
    from sklearn.datasets import load_digits  # here, because it takes a second to import

    bunch = cast(dict[str, np.ndarray], load_digits())
    pictures = torch.from_numpy(bunch["images"].astype(np.uint8)).unsqueeze(1)
    return _split("digits", pictures, torch.from_numpy(bunch["target"].astype(np.int64)), 1 / 3, white=16)


_DIGITS = DatasetInfo(
    "digits", "Handwritten digits, 8x8 (UCI optical recognition, as in scikit-learn)", 1198, 599, 10, (1, 8,
    8), "CC BY 4.0", "https://archive.ics.uci.edu/dataset/80", "scikit-learn",
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
    "shakespeare", "The next character of what a role says, in Shakespeare's plays (Project Gutenberg)", None, None,
    len(VOCABULARY), (WINDOW,), "public domain", "https://www.gutenberg.org/ebooks/100", None, "natural",
)  # fmt: skip
_MNIST = DatasetInfo(
    "mnist", "Handwritten digits", 60_000, 10_000, 10, (1, 28, 28),
    "CC BY-SA 3.0", "http://yann.lecun.com/exdb/mnist/", None,
)  # fmt: skip
_FASHION = DatasetInfo(
    "fashion-mnist", "Articles of clothing", 60_000, 10_000, 10, (1, 28, 28),
    "MIT", "https://github.com/zalandoresearch/fashion-mnist", None,
)  # fmt: skip
_KMNIST = DatasetInfo(
    "kmnist", "Handwritten hiragana (Kuzushiji-MNIST)", 60_000, 10_000, 10, (1, 28, 28),
    "CC BY-SA 4.0", "http://codh.rois.ac.jp/kmnist/", None,
)  # fmt: skip
_KMNIST_T10K = DatasetInfo(
    "kmnist-t10k", "Only the 10,000 test images of Kuzushiji-MNIST, split anew", 8_000, 2_000, 10, (1, 28,
    28), "CC BY-SA 4.0", "http://codh.rois.ac.jp/kmnist/", None,
)  # fmt: skip
_CIFAR10 = DatasetInfo(
    "cifar-10", "Colour photographs of ten kinds of things, 32x32", 50_000, 10_000, 10, (3, 32, 32),
    "none stated", "https://www.cs.toronto.edu/~kriz/cifar.html", None,
)  # fmt: skip
_CIFAR100 = DatasetInfo(
    "cifar-100", "Colour photographs of a hundred kinds of things, 32x32", 50_000, 10_000, 100, (3, 32, 32),
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
        DatasetSpec(_MNIST, MNIST, partial(_as_published, _MNIST, MNIST)),
        DatasetSpec(_FASHION, FASHION, partial(_as_published, _FASHION, FASHION)),
        DatasetSpec(_KMNIST, KMNIST, partial(_as_published, _KMNIST, KMNIST)),
        DatasetSpec(_KMNIST_T10K, KMNIST_T10K, partial(_as_published, _KMNIST_T10K, KMNIST_T10K)),
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
