"""Writing a report to a file that a user has named."""

from __future__ import annotations

import os
from pathlib import Path

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError


def write_bytes(data: bytes, path: Path) -> None:
    """Write a file atomically, in a folder that is there; an older file is replaced.

    Raises:
        InputError: there is no such folder, or the file cannot be written.
    """
    if not os.path.isdir(path.parent):  # which is not made: its name may be misspelt
        raise InputError(
            f"cannot write {path}: there is no folder {path.parent}", code="folder-not-found", field=str(path.parent)
        )
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", code="cannot-write", field=str(path)) from None
