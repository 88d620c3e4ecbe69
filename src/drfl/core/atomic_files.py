"""Writing a file or a folder so that it is either whole under its name or not there at all."""

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
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write to that takes the name `path` only when the block ends without an error.

    The temporary file lies in the same folder, which is made if need be; both go on any error. A
    process that is killed may leave the temporary file, never a part under the final name.

    Raises:
        OSError: when the folder cannot be made or written to.
    """
    made = missing_folders(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not from tempfile, whose files are private: a cache must be readable like any file its owner makes.
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.part"
    try:
        with temporary.open("xb") as file:
            yield file
        # A rename within a folder is atomic: readers see the old file or the whole new one.
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        remove_empty(made)
        raise


def check_new(folder: Path) -> None:
    """Make sure that a folder is empty or not there.

    Raises:
        InputError: it is not, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder", code="not-a-folder", field=str(folder))
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: give a new folder", code="folder-not-empty", field=str(folder))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside ``folder``, empty or not there, that replaces it if the block succeeds, and is removed if not.

    Raises:
        InputError: it cannot be made.
    """
    made = missing_folders(folder.parent)
    stage = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A folder cannot be renamed across file systems, so this one is made beside the target.
        stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        # mkdtemp makes private folders, but other users may read this one.
        stage.chmod(0o755)
        yield stage
        os.rename(stage, folder)  # fails if there is anything but an empty folder
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}", code="cannot-write", field=str(folder)) from None
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        remove_empty(made)


def missing_folders(folder: Path) -> list[Path]:
    """Those of a folder and the ones above it that are not there yet, the innermost first."""
    return [place for place in (folder, *folder.parents) if not place.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, the innermost first, as far as nothing is in them."""
    with suppress(OSError):  # what is not empty is of use
        for folder in folders:
            folder.rmdir()


def is_folder(path: Path) -> bool:
    """Whether there is a folder at a path, and no link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Whether there is a regular file at a path, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def remove_known(folder: Path, known: re.Pattern[str], above: str = "") -> None:
    """Remove the files of a folder that are known by their names, then the folders left empty, itself included.

    Only regular files go: what is unknown stays and so do links, of which none is followed; the folder itself may be
    none. What the system does not let go stays too.

    Args:
        folder: where; nothing happens if it is not there.
        known: fits the whole path of a file within the folder, with / between its parts; a folder's path ends in /.
        above: the path that the folder itself has, where it is part of another.
    """
    if not is_folder(folder):
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            path = above + entry.name
            # Links are never followed: they could lead out of the folder.
            if entry.is_dir(follow_symlinks=False) and known.fullmatch(f"{path}/"):
                remove_known(Path(entry.path), known, f"{path}/")
            elif entry.is_file(follow_symlinks=False) and known.fullmatch(path):
                with suppress(OSError):
                    os.unlink(entry.path)
    remove_empty([folder])
