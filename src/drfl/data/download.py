"""Downloading a file from the first mirror that gives it whole and right."""

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

from drfl.data.files import atomic_write
from drfl.data.sources import RemoteFile, Source, digest_like
from drfl.errors import InputError

_CHUNK = 1 << 16
_LIMIT = 1 << 28  # bytes; a little more than the largest file, 248 MB, so that a wrong server cannot fill the disk
_TIMEOUT = 30.0
_CONTINUATIONS = 20  # a slow server that drops the line now and then still gives 248 MB


def mirrors_of(source: Source) -> tuple[str, ...]:
    """Folders on the network: ``$DRFL_MIRROR/<data set>/`` alone if it is set, else the published ones."""
    own = os.environ.get("DRFL_MIRROR")
    return (f"{own.rstrip('/')}/{source.folder}/",) if own else source.mirrors


def download(file: RemoteFile, folder: Path, mirrors: Sequence[str], *, timeout: float = _TIMEOUT) -> Path:
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
