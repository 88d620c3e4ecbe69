"""Atomic writes: a file or folder either appears complete under its name or does not appear at all."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from drfl.core.errors import InputError


@contextmanager
def atomic_write(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary binary file that is renamed to `path` if the block ends without an error.

    The temporary file is in the same folder, which is created if necessary. On an error, both are removed. A process
    that is killed may leave the temporary file behind, but never an incomplete file under the final name.

    With ``private``, only this user can read the file.

    Raises:
        OSError: If the folder cannot be created or written to.
    """
    created = missing_folders(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Files from tempfile are private to their owner. Other users must be able to read a shared cache, so this file gets
    # the default permissions.
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.part"
    try:
        mode = 0o600 if private else 0o666
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        # A rename within a folder is atomic: readers see the old file or the whole new one.
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        remove_empty(created)
        raise


def check_new(folder: Path) -> None:
    """Check that a folder is empty or does not exist.

    Raises:
        InputError: If the folder is not empty, or the path is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder. Choose a folder.", code="not-a-folder", field=str(folder))
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty. Choose a new folder.", code="folder-not-empty", field=str(folder))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Create a temporary folder that is renamed to ``folder`` if the block succeeds and removed otherwise.

    Args:
        folder: The final path. It must be an empty folder or not exist.

    Raises:
        InputError: If the folder cannot be created.
    """
    created = missing_folders(folder.parent)
    stage = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A folder cannot be renamed across file systems, so the temporary one is created beside the target.
        stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        # mkdtemp creates private folders, but other users may read this one.
        stage.chmod(0o755)
        yield stage
        os.rename(stage, folder)  # Fails if the target is anything but an empty folder.
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}", code="cannot-write", field=str(folder)) from None
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        remove_empty(created)


def missing_folders(folder: Path) -> list[Path]:
    """List which of a folder and its parents do not exist, innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, given innermost first, until one is not empty."""
    with suppress(OSError):  # A folder that is not empty is in use.
        for folder in folders:
            folder.rmdir()


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Return whether a path is a regular file and not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def remove_known(folder: Path, known: re.Pattern[str], above: str = "") -> None:
    """Remove the files in a folder whose paths match a pattern, then all folders left empty, including the folder.

    Only regular files are removed. Files that do not match, links, and files that the system refuses to delete remain.
    Links are never followed, and the folder itself must not be a link.

    Args:
        folder: The folder. Nothing happens if it does not exist.
        known: Pattern for the whole path of a file relative to the folder, with / as the separator. It must also match
            the path of each folder to descend into, which ends in /.
        above: Path to put before the relative paths, if the folder is itself part of another.
    """
    if not is_folder(folder):
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            path = above + entry.name
            # A link could lead out of the folder, so none is followed.
            if entry.is_dir(follow_symlinks=False) and known.fullmatch(f"{path}/"):
                remove_known(Path(entry.path), known, f"{path}/")
            elif entry.is_file(follow_symlinks=False) and known.fullmatch(path):
                with suppress(OSError):
                    os.unlink(entry.path)
    remove_empty([folder])
