"""Finding the files of an IDX data set on this machine, without reading them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from drfl.data.sources import Source

SYSTEM_DATA = Path("/usr/share/datasets")
"""Where Debian puts data sets."""


def cache_folder() -> Path:
    """The cache of drfl: ``$XDG_CACHE_HOME/drfl``, or ``~/.cache/drfl``."""
    return _from_environment("XDG_CACHE_HOME", "~/.cache") / "drfl"


def usual_folders(source: Source) -> list[Path]:
    """Folders where a data set may lie when the user names none, in the order in which they are tried.

    ``$DRFL_DATA``; Debian's folder; torchvision's layout below ``./data``, ``~/data`` and torch's cache;
    drfl's own cache. Only in ``$DRFL_DATA`` may the files lie loose: elsewhere the folder's name has to tell
    which data set it is, because all of them name their files alike.
    """
    folders: list[Path] = []
    if os.environ.get("DRFL_DATA"):
        folders += folders_below(_from_environment("DRFL_DATA", "."), source)
    folders.append(SYSTEM_DATA / source.folder)
    torch_home = _from_environment("TORCH_HOME", "~/.cache/torch")
    for root in (Path("data"), Path(os.path.expanduser("~/data")), torch_home / "datasets", torch_home):
        folders += folders_below(root, source)[:-1]
    folders.append(cache_folder() / source.folder)
    return folders


def folders_below(root: Path, source: Source) -> list[Path]:
    """The folders of one root where the files may lie, the most telling name first, the root itself last."""
    return [root / source.folder, root / source.torchvision / "raw", root]


def find_files(folders: Sequence[Path], stems: Sequence[str]) -> tuple[Path, ...] | None:
    """The files with these stems from the first folder that has them all, or None.

    Args:
        folders: where to look.
        stems: names such as ``train-images-idx3-ubyte``. Each file may also be gzipped, with ``.gz``, and may
            have a dot for the second dash (``train-images.idx3-ubyte``), as some archives have.
    """
    for folder in folders:
        found = [_find_one(folder, stem) for stem in stems]
        paths = tuple(path for path in found if path is not None)
        if len(paths) == len(stems):
            return paths
    return None


def missing_files(folder: Path, stems: Sequence[str]) -> list[str]:
    """The stems of which a folder has no file."""
    return [stem for stem in stems if _find_one(folder, stem) is None]


def _find_one(folder: Path, stem: str) -> Path | None:
    for name in (stem, stem.replace("-idx", ".idx")):
        for ending in ("", ".gz"):
            path = folder / (name + ending)
            if os.path.isfile(path):  # False, not an error, for a folder that may not be entered
                return path
    return None


def _from_environment(variable: str, default: str) -> Path:
    return Path(os.path.expanduser(os.environ.get(variable) or default))
