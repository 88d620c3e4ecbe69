"""Files of weights: reading them without running what they hold, and fetching ImageNet's."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load
from torch import Tensor

from drfl.data.files import atomic_write
from drfl.data.locate import cache_folder
from drfl.errors import InputError

LIMIT = 2**28
"""Bytes; six times the file's size."""

TIMEOUT = 30.0
"""Seconds without an answer."""


class Published(NamedTuple):
    """A file of weights on the network.

    Args:
        url: where it is.
        sha256: its checksum.
    """

    url: str
    sha256: str

    @property
    def file(self) -> str:
        """Its name."""
        return self.url.rpartition("/")[2]


RESNET18 = Published(
    "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
)
"""ResNet-18 on ImageNet-1k, torchvision's ``IMAGENET1K_V1``."""


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
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file of weights '{path}'") from None
    except (OSError, ValueError) as error:  # the latter for a name with a zero in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read the weights '{path}': {reason}") from None
    try:
        if path.suffix.lower() == ".safetensors":
            return load(content)
        with warnings.catch_warnings(action="ignore"):  # on other versions of pickle, before it fails on them
            found = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # for crafted bytes the readers of zip and pickle files raise a dozen kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"'{path}' is no file of weights that drfl reads: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"'{path}' is no dictionary of tensors: save model.state_dict()")
    return {str(name): value for name, value in found.items()}


def published(what: Published) -> Path:
    """A published file on this machine: from torch's hub cache or drfl's own, else downloaded into the latter.

    Its checksum is looked at every time; a file in the caches that is damaged counts as missing.

    Raises:
        InputError: it could not be had.
    """
    target = folder() / what.file
    for path in (Path(torch.hub.get_dir()) / "checkpoints" / what.file, target):
        if path.is_file() and _right(path.read_bytes(), what):
            return path
    mirror = os.environ.get("DRFL_MIRROR")
    url = f"{mirror.rstrip('/')}/backbones/{what.file}" if mirror else what.url
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            content = answer.read(LIMIT)
        if not _right(content, what):
            raise ValueError(f"its SHA-256 should be {what.sha256}, but is another")
        with atomic_write(target) as file:
            file.write(content)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InputError(
            f"could not download {url} into '{target.parent}' ({error}): put the file there yourself, or give its path "
            "as backbone"
        ) from None
    return target


def _right(content: bytes, what: Published) -> bool:
    return hashlib.sha256(content).hexdigest() == what.sha256
