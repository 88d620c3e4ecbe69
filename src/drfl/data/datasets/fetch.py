"""Getting a data set's files: from a folder or the cache, else by download, checked against the digests they have."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from drfl.core.atomic_files import missing_folders, remove_empty
from drfl.core.errors import InputError
from drfl.data.datasets.sources import (
    DownloadSource,
    Location,
    RemoteFile,
    cache_folder,
    find_files,
    find_refused,
    missing,
    own_places,
    places_below,
    usual_places,
)

_TIMEOUT = 30.0
_ATTEMPTS = 3  # at one mirror, whose connection may drop

_LOG = logging.getLogger("drfl.data")


def mirrors_of(source: DownloadSource) -> tuple[str, ...]:
    """Folders on the network: ``$DRFL_MIRROR/<data set>/`` alone if it is set, else the published ones."""
    own = os.environ.get("DRFL_MIRROR")
    return (f"{own.rstrip('/')}/{source.folder}/",) if own else source.mirrors


def download_file(file: RemoteFile, folder: Path, mirrors: Sequence[str], *, timeout: float = _TIMEOUT) -> Path:
    """Fetches one file into a folder, its checksum verified where it has one.

    Args:
        file: what to fetch.
        folder: where it goes, under its published name; made if need be.
        mirrors: addresses that end in a slash, tried in order.
        timeout: seconds without an answer after which an attempt at a mirror ends.

    Returns:
        The path of the file. It exists under this name only when whole and right.

    Raises:
        InputError: when no mirror gave it; says what each one did.
    """
    import pooch  # here, as only a download needs it
    from requests.exceptions import ChunkedEncodingError, ConnectionError

    pooch.get_logger().setLevel(logging.WARNING)  # it would write to stderr, where an error is one line
    downloader: Any = pooch.HTTPDownloader(timeout=timeout, chunk_size=1 << 16)  # Any: not typed as what retrieve takes
    checksum = None if file.sha256 is None else f"sha256:{file.sha256}"
    # The folders made from here on are removed again if they remain empty.
    made = missing_folders(folder)
    handled = sys.exception()  # what the caller handles is not a cause of errors here
    faults = []
    try:
        for mirror in mirrors:
            url = f"{mirror}{file.name}"
            try:
                _LOG.info("downloading %s into '%s'", url, folder)
                attempt = partial(pooch.retrieve, url, checksum, file.name, folder, downloader=downloader)
                # Only dropped connections are tried again: a wrong checksum or a 404 would recur.
                for _ in range(_ATTEMPTS - 1):
                    with suppress(ConnectionError, ChunkedEncodingError):
                        return _readable(attempt())
                return _readable(attempt())
            except (OSError, ValueError) as error:  # the exceptions of requests are OSErrors
                # requests wraps the first exception, which is the most informative, in several others.
                cause: BaseException = error
                while cause.__context__ is not None and cause.__context__ is not handled:
                    cause = cause.__context__
                faults.append(f"{url}: {' '.join(str(cause).split()) or type(cause).__name__}")
                del cause  # otherwise a reference cycle through this frame would keep its socket open
    finally:
        remove_empty(made)  # those that are empty, as nothing came or the user pressed Ctrl-C
    raise InputError(
        f"could not download {file.name} into '{folder}' ({'; '.join(faults)})", code="download-failed", field=file.name
    )


def _readable(path: str) -> Path:
    """A file of pooch's, which is private, made readable to those with whom the cache is shared."""
    with suppress(OSError):  # of use to its owner all the same
        os.chmod(path, 0o644)
    return Path(path)


def fetch_files(
    name: str, source: DownloadSource, files: Sequence[RemoteFile], data_dir: Path | None, download: bool
) -> tuple[Path, ...]:
    """The files of a data set.

    Args:
        name: what the user calls it, for errors.
        source: where it comes from.
        files: which of the source's files are needed.
        data_dir: the one folder to look in, or the archive or the text itself; None looks in the usual places.
        download: whether what is in none of these may be downloaded into drfl's cache.

    Returns:
        The files in the order of `files`; or the archive alone; or the source's members, unpacked.

    Raises:
        InputError: when they are not found, or cannot be downloaded.
    """
    stems = [file.stem for file in files]
    if data_dir is not None:
        return _below(name, source, stems, data_dir)
    places = usual_places(source, stems)
    found = find_files(places)
    if found:
        return found
    looked = f"dataset '{name}' is not on this machine: no folder of {_folders(places, source)} has its files"
    refused = find_refused(places, source)
    if refused is not None:
        looked = str(_pickled(name, refused, source))
    remedy = f"give a folder that has {_wanted(source, stems)} with data_dir or $DRFL_DATA"
    if not download:
        raise InputError(f"{looked}; {remedy}, or allow the download", code="dataset-not-found", field=name)
    folder = cache_folder() / source.folder
    try:
        # A file that an earlier, interrupted download left under its name is whole and right, so it is kept.
        kept = []
        for file in files:
            own = [Location(folder, (file.name,))] if source.members else own_places(folder, source, [file.stem])
            kept.append((find_files(own) or (download_file(file, folder, mirrors_of(source)),))[0])
        return tuple(kept)
    except (InputError, OSError) as error:
        raise InputError(f"{looked}; {error}; {remedy}", code="download-failed", field=name) from error


def _below(name: str, source: DownloadSource, stems: Sequence[str], data_dir: Path) -> tuple[Path, ...]:
    if os.path.isfile(data_dir) and source.members:  # unlike pathlib's, False for a name that is too long
        if data_dir.name in source.refused:
            raise _pickled(name, data_dir, source)
        return (data_dir,)
    if not os.path.isdir(data_dir):
        raise InputError(
            f"dataset '{name}': there is no folder '{data_dir}'; check data_dir, or remove it",
            code="folder-not-found",
            field="data_dir",
        )
    places = places_below(data_dir, source, stems)
    found = find_files(places)
    if found:
        return found
    refused = find_refused(places, source)
    if refused is not None:
        raise _pickled(name, refused, source)
    # The user most likely meant the folder that has most of the files.
    nearest = max(places, key=_has)
    lacks = f"'{nearest.folder}' lacks {', '.join(missing(nearest))}; " if _has(nearest) else ""
    raise InputError(
        f"dataset '{name}': looked in {_folders(places, source)} for {_wanted(source, stems)}; {lacks}"
        "add the files, or leave data_dir out",
        code="dataset-not-found",
        field="data_dir",
    )


def _has(place: Location) -> int:
    return len(place.names) - len(missing(place))


def _folders(places: Sequence[Location], source: DownloadSource) -> str:
    folders = list(dict.fromkeys(place.folder for place in places))
    if source.members:  # which are looked for in so many folders that only the topmost ones are named
        folders = [folder for folder in folders if not any(above in folders for above in folder.parents)]
        return f"{', '.join(map(str, folders))} and below"
    return ", ".join(map(str, folders))


def _wanted(source: DownloadSource, stems: Sequence[str]) -> str:
    if not source.members:
        return f"{', '.join(stems)} (each may end in .gz)"
    return f"{source.files[0].name}, or {source.inner}/ with {', '.join(source.members)}"


def _pickled(name: str, refused: Path, source: DownloadSource) -> InputError:
    return InputError(
        f"dataset '{name}': '{refused}' is pickled, which drfl does not read: get the binary edition, "
        f"{source.files[0].name}",
        code="pickled-file",
        field=str(refused),
    )
