"""Getting a data set's files: from a folder or the cache, else by download, checked against their digests."""

from __future__ import annotations

import gzip
import http.client
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from drfl.atomic_files import atomic_write
from drfl.data.sources import (
    DownloadSource,
    Location,
    RemoteFile,
    cache_folder,
    digest_like,
    find_files,
    find_refused,
    missing,
    own_places,
    places_below,
    usual_places,
)
from drfl.errors import InputError

_CHUNK = 1 << 16
_LIMIT = 1 << 28  # bytes; a little more than the largest file, 248 MB, so that a wrong server cannot fill the disk
_TIMEOUT = 30.0
_CONTINUATIONS = 20  # a slow server that drops the line now and then still gives 248 MB


def mirrors_of(source: DownloadSource) -> tuple[str, ...]:
    """Folders on the network: ``$DRFL_MIRROR/<data set>/`` alone if it is set, else the published ones."""
    own = os.environ.get("DRFL_MIRROR")
    return (f"{own.rstrip('/')}/{source.folder}/",) if own else source.mirrors


def download_file(file: RemoteFile, folder: Path, mirrors: Sequence[str], *, timeout: float = _TIMEOUT) -> Path:
    """Fetches one file into a folder, its checksum verified.

    Args:
        file: what to fetch.
        folder: where it goes, under its published name; made if need be.
        mirrors: addresses that end in a slash, tried in order.
        timeout: seconds without an answer after which a mirror is given up.

    Returns:
        The path of the file. It exists under this name only when whole and right.

    Raises:
        InputError: when no mirror gave it; says what each one did.
    """
    target = folder / file.name
    faults = []
    for mirror in mirrors:
        url = f"{mirror}{target.name}"
        try:
            _fetch(url, target, file, timeout)
            return target
        except urllib.error.HTTPError as error:
            error.close()
            faults.append(f"{url}: HTTP {error.code} {error.reason}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            faults.append(f"{url}: {error}")
    raise InputError(f"could not download {target.name} into '{folder}' ({'; '.join(faults)})")


class _Received(NamedTuple):
    """How far a transfer came.

    Args:
        size: bytes that the file has now.
        fault: why it ended early, or None when it is whole.
        resumable: whether the server says that it can go on from there.
    """

    size: int
    fault: Exception | None
    resumable: bool


def _fetch(url: str, target: Path, file: RemoteFile, timeout: float) -> None:
    with atomic_write(target) as out:
        got, before = _receive(url, out, 0, timeout), 0
        for _ in range(_CONTINUATIONS):
            if got.fault is None or not got.resumable or got.size == before:
                break
            got, before = _receive(url, out, got.size, timeout), got.size
        if got.fault is not None:
            raise got.fault
        out.flush()
        with Path(out.name).open("rb") as whole:
            found = _digest(whole, file.sha256)
        if found != file.sha256 and not _same_content(Path(out.name), file):
            raise ValueError(f"its SHA-256 is {found}, it should be {file.sha256}")


def _receive(url: str, out: BinaryIO, start: int, timeout: float) -> _Received:
    """Appends what a server sends from byte `start` on; a line that drops is told in the result, not raised."""
    size = start
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        if start and not (answer.headers.get("Content-Range") or "").startswith(f"bytes {start}-"):
            raise ValueError(f"the transfer broke off after {start} bytes and the server does not go on from there")
        announced = answer.headers.get("Content-Length")
        resumable = bool(start) or answer.headers.get("Accept-Ranges") == "bytes"
        while True:
            try:
                chunk = answer.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                return _Received(size, error, resumable)
            if not chunk:
                break
            size += len(chunk)
            if size > _LIMIT:
                raise ValueError(f"it sends more than {_LIMIT} bytes")
            out.write(chunk)
    if announced is not None and size - start < int(announced):
        fault = ValueError(f"the transfer broke off after {size} of {start + int(announced)} bytes")
        return _Received(size, fault, resumable)
    return _Received(size, None, resumable)


def _same_content(path: Path, file: RemoteFile) -> bool:
    """Whether a file that was compressed anew unzips to the published content."""
    if file.content is None:
        return False
    try:
        with gzip.open(path) as unzipped:
            return _digest(unzipped, file.content) == file.content
    except (OSError, EOFError, zlib.error):
        return False


def _digest(file: BinaryIO | gzip.GzipFile, like: str) -> str:
    """The checksum of a file, of the kind that another one has by its length."""
    digest = digest_like(like)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def fetch_files(
    name: str, source: DownloadSource, files: Sequence[RemoteFile], data_dir: Path | None, download: bool
) -> tuple[Path, ...]:
    """The files of a data set.

    Args:
        name: what the user calls it, for errors.
        source: where it comes from.
        files: which of the source's files are needed.
        data_dir: the one folder to look in, or the archive itself; None looks in the usual places.
        download: whether what is in none of these may be downloaded into drfl's cache.

    Returns:
        IDX files in the order of `files`; or the archive alone; or the source's members, unpacked.

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
        raise InputError(f"{looked}; {remedy}, or allow the download")
    folder = cache_folder() / source.folder
    try:
        # A file that an earlier, interrupted download left under its name is whole and right, so it is kept.
        return tuple(
            (find_files(_in_cache(folder, source, file)) or (download_file(file, folder, mirrors_of(source)),))[0]
            for file in files
        )
    except (InputError, OSError) as error:
        raise InputError(f"{looked}; {error}; {remedy}") from error


def _below(name: str, source: DownloadSource, stems: Sequence[str], data_dir: Path) -> tuple[Path, ...]:
    if os.path.isfile(data_dir) and source.members:  # unlike pathlib's, False for a name that is too long
        if data_dir.name in source.refused:
            raise _pickled(name, data_dir, source)
        return (data_dir,)
    if not os.path.isdir(data_dir):
        raise InputError(f"dataset '{name}': there is no folder '{data_dir}'; check data_dir, or leave it out")
    places = places_below(data_dir, source, stems)
    found = find_files(places)
    if found:
        return found
    refused = find_refused(places, source)
    if refused is not None:
        raise _pickled(name, refused, source)
    nearest = max(places, key=_has)
    lacks = f"'{nearest.folder}' lacks {', '.join(missing(nearest))}; " if _has(nearest) else ""
    raise InputError(
        f"dataset '{name}': looked in {_folders(places, source)} for {_wanted(source, stems)}; {lacks}"
        "add the files, or leave data_dir out"
    )


def _has(place: Location) -> int:
    return len(place.names) - len(missing(place))


def _in_cache(folder: Path, source: DownloadSource, file: RemoteFile) -> list[Location]:
    return [Location(folder, (file.name,))] if source.members else own_places(folder, source, [file.stem])


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
        f"{source.files[0].name}"
    )
