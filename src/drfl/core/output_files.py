"""Write files that the user has named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError


def check_output(path: Path, option: str, *, overwrite: bool, inputs: Sequence[Path] = ()) -> None:
    """Check that a file can be written later, before work that takes long.

    Args:
        path: The file.
        option: Name of the option that named it, such as "--out".
        overwrite: Whether an existing file may be replaced.
        inputs: Files that the command reads, which it never replaces.

    Raises:
        InputError: If the file exists, the path is a folder, or its folder does not exist.
    """
    if path.is_dir():  # `overwrite` would not help
        raise InputError(f"{path} is a folder: pass the name of a file to {option}", code="not-a-file", field=str(path))
    if path.exists() and any(other.exists() and path.samefile(other) for other in inputs):
        raise InputError(
            f"{path} is a file that the command reads, so it is not replaced: pass another {option}",
            code="already-exists",
            field=str(path),
        )
    if path.exists() and not overwrite:
        raise InputError(
            f"{path} already exists: pass another {option}, or `overwrite` to replace it",
            code="already-exists",
            field=str(path),
        )
    _check_folder(path)


def _check_folder(path: Path) -> None:
    if not os.path.isdir(path.parent):  # do not create it: the name may be misspelt
        raise InputError(
            f"cannot write {path}: the folder {path.parent} does not exist",
            code="folder-not-found",
            field=str(path.parent),
        )


def write_bytes(data: bytes, path: Path, *, private: bool = False) -> None:
    """Write a file atomically in an existing folder; an existing file is replaced.

    With ``private``, only this user can read it.

    Raises:
        InputError: If the folder does not exist, or the file cannot be written.
    """
    _check_folder(path)
    try:
        with atomic_write(path, private=private) as file:
            file.write(data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", code="cannot-write", field=str(path)) from None


@contextmanager
def writing_into(folder: Path, remedy: str = "give another `out`") -> Iterator[None]:
    """Name the folder and the remedy if files cannot be written within this context.

    Raises:
        InputError: If the system raises OSError.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write into {folder} ({error.strerror}): {remedy}", code="cannot-write", field=str(folder)
        ) from None
