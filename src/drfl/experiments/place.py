"""Where results go: what is there is known by its manifest, and nothing else is ever overwritten."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from pathlib import Path

from drfl.data.files import is_folder
from drfl.errors import InputError
from drfl.experiments.manifest import (
    KINDS,
    Kind,
    Manifest,
    check_links,
    ended,
    entries,
    foreign,
    read_manifest,
)


def default_directory(root: Path, name: str) -> Path:
    """``root/name``, or ``root/name-2`` and so on where that is taken."""
    path, k = root / name, 1
    while os.path.lexists(path):
        k += 1
        path = root / f"{name}-{k}"
    return path


def check_free(path: Path, kind: Kind, *, overwrite: bool = False) -> None:
    """Make sure that a folder of results can be written at ``path``, and leave nothing behind.

    Args:
        path: where; a link to a folder is one.
        kind: what is to be written.
        overwrite: whether a folder of this kind may be there.

    Raises:
        InputError: something is there already, what is there and may be overwritten is of another kind or not drfl's,
            or the place cannot be written to.
    """
    try:
        _check_place(path)
        held(path, kind, overwrite=overwrite)
    except OSError as error:  # such as a name that is too long
        raise InputError(f"cannot write into {path} ({error.strerror}): give another --out") from None


def _check_place(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: give another --out")
    if path.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{path} is the folder you are in, or around it: give another --out")
    place = path
    while not place.exists():
        place = place.parent
    try:  # asking for permission is not enough: root has it also where nothing can be created
        os.rmdir(tempfile.mkdtemp(prefix=".drfl-", dir=place))
    except OSError as error:
        raise InputError(f"cannot write into {place} ({error.strerror}): give another --out") from None


def held(path: Path, kind: Kind, *, resume: bool = False, overwrite: bool = False) -> Manifest | None:
    """The manifest of a folder of this kind; None where there is nothing yet.

    Args:
        path: the folder.
        kind: what it should be.
        resume: whether it may be there, as what is there is gone on with.
        overwrite: whether it may be there, as what is there is replaced.

    Raises:
        InputError: it may not be there, it is of another kind or not drfl's, or a link or a file of somebody else lies
            where drfl would write.
        OSError: it cannot be read.
    """
    if not path.is_dir() or not entries(path):
        return None
    manifest = read_manifest(path)
    if manifest is None:
        raise InputError(f"{path} holds something else than a {kind} of drfl, which stays: give another --out")
    if manifest.kind != kind:
        raise InputError(f"{path} holds a {manifest.kind}, not a {kind}: give another --out")
    if not resume and not overwrite:
        if not ended(path):
            remedy = "--resume to go on, or --overwrite" if kind in ("run", "comparison") else "--overwrite"
            raise InputError(f"{path} holds a {kind} that has not ended: give {remedy}")
        raise InputError(f"{path} exists already: give another --out, or --overwrite to replace it")
    check_links(path)
    for name in foreign(path, manifest):
        if name in KINDS[kind].fixed:
            raise InputError(f"{path / name} is in the way and not of this {kind}: move it elsewhere")
    check_cells(path, manifest.cells)
    return manifest


def check_cells(path: Path, cells: Collection[str]) -> None:
    """Make sure that sub-folders which are runs of their own are that, or not there.

    Raises:
        InputError: one is a link, or holds something else.
        OSError: one cannot be read.
    """
    for name in cells:
        cell = path / name
        if os.path.lexists(cell) and not is_folder(cell):
            raise InputError(f"{cell} is no folder but a link or a file: take it away")
        held(cell, "run", resume=True)
