"""Downloading a file from the first mirror that gives it whole and right."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from pathlib import Path

from drfl.data.files import atomic_write
from drfl.data.sources import RemoteFile, Source
from drfl.errors import InputError

_CHUNK = 1 << 16
_LIMIT = 1 << 28  # bytes; ten times the largest file, so that a wrong server cannot fill the disk
_TIMEOUT = 30.0


def mirrors_of(source: Source) -> tuple[str, ...]:
    """Folders on the network: ``$DRFL_MIRROR/<data set>/`` alone if it is set, else the published ones."""
    own = os.environ.get("DRFL_MIRROR")
    return (f"{own.rstrip('/')}/{source.folder}/",) if own else source.mirrors


def download(file: RemoteFile, folder: Path, mirrors: Sequence[str], *, timeout: float = _TIMEOUT) -> Path:
    """Fetches one ``.gz`` file into a folder, its checksum verified.

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
    target = folder / f"{file.stem}.gz"
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


def _fetch(url: str, target: Path, file: RemoteFile, timeout: float) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    size = 0
    with urllib.request.urlopen(url, timeout=timeout) as answer, atomic_write(target) as out:
        announced = answer.headers.get("Content-Length")
        while chunk := answer.read(_CHUNK):
            size += len(chunk)
            if size > _LIMIT:
                raise ValueError(f"it sends more than {_LIMIT} bytes")
            digest.update(chunk)
            out.write(chunk)
        if announced is not None and size < int(announced):
            raise ValueError(f"the transfer broke off after {size} of {announced} bytes")
        out.flush()
        if digest.hexdigest() != file.md5 and not _same_content(Path(out.name), file):
            raise ValueError(f"its MD5 is {digest.hexdigest()}, it should be {file.md5}")


def _same_content(path: Path, file: RemoteFile) -> bool:
    """Whether a file that was compressed anew unzips to the published content."""
    if file.md5_content is None:
        return False
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with gzip.open(path) as unzipped:
            while chunk := unzipped.read(_CHUNK):
                digest.update(chunk)
    except (OSError, EOFError, zlib.error):
        return False
    return digest.hexdigest() == file.md5_content
