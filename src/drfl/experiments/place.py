"""Where results go: a folder appears whole or not at all, and nothing that is there is lost."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from drfl.errors import InputError


def default_directory(root: Path, name: str) -> Path:
    """``root/name``, or ``root/name-2`` and so on where that is taken."""
    path, k = root / name, 1
    while os.path.lexists(path):
        k += 1
        path = root / f"{name}-{k}"
    return path


def check_free(path: Path, overwrite: bool) -> None:
    """Make sure that a run directory can be written at ``path``, and leave nothing behind.

    Raises:
        InputError: something is there already, what is there and may be overwritten is no run, or the place cannot
            be written to.
    """
    try:
        _check_free(path, overwrite)
    except OSError as error:  # such as a name that is too long
        raise InputError(f"cannot write into {path} ({error.strerror}): give another --out") from None


def _check_free(path: Path, overwrite: bool) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: give another --out")
    if path.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{path} is the folder you are in, or around it: give another --out")
    if path.is_dir() and any(path.iterdir()):
        if not overwrite and (path / "checkpoint").is_dir():
            raise InputError(f"{path} holds a run that has not ended: give --resume to go on, or --overwrite")
        if not overwrite:
            raise InputError(f"{path} exists already: give another --out, or --overwrite to replace it")
        if not (path / "summary.json").is_file() and not (path / "checkpoint").is_dir():
            raise InputError(f"{path} holds something else than a run, so it is not overwritten: give another --out")
    place = path
    while not place.exists():
        place = place.parent
    try:  # asking for permission is not enough: root has it also where nothing can be created
        os.rmdir(tempfile.mkdtemp(prefix=".drfl-", dir=place))
    except OSError as error:
        raise InputError(f"cannot write into {place} ({error.strerror}): give another --out") from None


@dataclass
class Stage:
    """A folder in the making.

    Args:
        folder: the temporary folder to write into.
        final: where it is to appear; after :func:`staged` has ended, where it did.
    """

    folder: Path
    final: Path


@contextmanager
def staged(path: Path, overwrite: bool = False) -> Iterator[Stage]:
    """A temporary folder beside ``path`` that takes its place when the block succeeds, and vanishes when it fails.

    Should something have appeared at ``path`` in the meantime, such as the results of a run beside this one, the folder
    takes the next free name: neither is lost.

    Raises:
        InputError: the place cannot be written to.
    """
    made = [place for place in path.parents if not place.exists()]
    stage = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = Stage(Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent)), path)
        stage.folder.chmod(0o755)
        yield stage
        _put(stage, overwrite)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        if stage is not None:
            shutil.rmtree(stage.folder, ignore_errors=True)
        with suppress(OSError):  # a folder that is not empty is of use to somebody else
            for place in made:
                place.rmdir()


def _put(stage: Stage, overwrite: bool) -> None:
    if overwrite and stage.final.is_dir():
        old = Path(tempfile.mkdtemp(prefix=f".{stage.final.name}-old-", dir=stage.final.parent))
        os.rename(stage.final, old / "run")
        os.rename(stage.folder, stage.final)
        shutil.rmtree(old)
        return
    try:
        os.rename(stage.folder, stage.final)  # fails if there is anything but an empty folder
    except OSError:
        stage.final = default_directory(stage.final.parent, stage.final.name)
        os.rename(stage.folder, stage.final)
