"""Write a report to a file that the user has named."""

from __future__ import annotations

import os
from pathlib import Path

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError


def write_bytes(data: bytes, path: Path) -> None:
    """Write a file atomically in an existing folder; an existing file is replaced.

    Raises:
        InputError: If the folder does not exist, or the file cannot be written.
    """
    if not os.path.isdir(path.parent):  # do not create it: the name may be misspelt
        raise InputError(
            f"cannot write {path}: the folder {path.parent} does not exist",
            code="folder-not-found",
            field=str(path.parent),
        )
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", code="cannot-write", field=str(path)) from None
