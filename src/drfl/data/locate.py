"""Finding the files of a data set on this machine, without reading them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from drfl.data.sources import Source

SYSTEM_DATA = Path("/usr/share/datasets")
"""Where Debian puts data sets."""


class Place(NamedTuple):
    """A folder that holds a data set if it has all of certain files.

    Args:
        folder: the folder.
        names: the files. Of an IDX file it is the stem, such as ``train-images-idx3-ubyte``: the file may also be
            gzipped, with ``.gz``, and may have a dot for the second dash (``train-images.idx3-ubyte``), as some
            archives have.
    """

    folder: Path
    names: tuple[str, ...]


def cache_folder() -> Path:
    """The cache of drfl: ``$XDG_CACHE_HOME/drfl``, or ``~/.cache/drfl``."""
    return _from_environment("XDG_CACHE_HOME", "~/.cache") / "drfl"


def usual_places(source: Source, stems: Sequence[str]) -> list[Place]:
    """Where a data set may lie when the user names no folder, in the order in which they are tried.

    ``$DRFL_DATA``; Debian's folder; torchvision's layout below ``./data``, ``~/data`` and torch's cache;
    drfl's own cache. Only in ``$DRFL_DATA`` may the files lie loose: elsewhere the folder's name has to tell
    which data set it is, because many name their files alike.

    Args:
        source: the data set.
        stems: which of its IDX files are wanted; of no account where it is an archive.
    """
    places: list[Place] = []
    if os.environ.get("DRFL_DATA"):
        places += places_below(_from_environment("DRFL_DATA", "."), source, stems)
    places += own_places(SYSTEM_DATA / source.folder, source, stems)
    torch_home = _from_environment("TORCH_HOME", "~/.cache/torch")
    for root in (Path("data"), Path(os.path.expanduser("~/data")), torch_home / "datasets", torch_home):
        places += _named_places(root, source, stems)
    return places + own_places(cache_folder() / source.folder, source, stems)


def places_below(root: Path, source: Source, stems: Sequence[str]) -> list[Place]:
    """Where the files may lie below a folder that the user named, the most telling name first, loose ones last."""
    return [*_named_places(root, source, stems), Place(root, _loose(source, stems))]


def own_places(folder: Path, source: Source, stems: Sequence[str]) -> list[Place]:
    """Where the files may lie in a folder that has the data set's name."""
    loose = Place(folder, _loose(source, stems))
    if not source.members:
        return [loose]
    return [Place(folder / source.inner, source.members), loose, Place(folder, _packed(source))]


def find(places: Iterable[Place]) -> tuple[Path, ...] | None:
    """The files of the first place that has them all, in the order of its names, or None."""
    for place in places:
        found = [_find_one(place.folder, name) for name in place.names]
        paths = tuple(path for path in found if path is not None)
        if len(paths) == len(place.names):
            return paths
    return None


def missing(place: Place) -> list[str]:
    """The names of which a place has no file."""
    return [name for name in place.names if _find_one(place.folder, name) is None]


def find_refused(places: Iterable[Place], source: Source) -> Path | None:
    """An edition of the data set in one of these places that drfl does not read, or None."""
    for folder in dict.fromkeys(place.folder for place in places):
        if folder.name in source.refused and os.path.isdir(folder):
            return folder
        for name in source.refused:
            if os.path.exists(folder / name):
                return folder / name
    return None


def _named_places(root: Path, source: Source, stems: Sequence[str]) -> list[Place]:
    """Where the files may lie below any folder: in one that has their name, or in an archive that has."""
    inner = Place(root / source.inner, _loose(source, stems))
    packed = [Place(root, _packed(source))] if source.members else []
    return [*own_places(root / source.folder, source, stems), inner, *packed]


def _loose(source: Source, stems: Sequence[str]) -> tuple[str, ...]:
    return source.members or tuple(stems)


def _packed(source: Source) -> tuple[str, ...]:
    return tuple(file.name for file in source.files)


def _find_one(folder: Path, name: str) -> Path | None:
    # Only IDX files go by several names.
    names = [n + ending for n in (name, name.replace("-idx", ".idx")) for ending in ("", ".gz")]
    for variant in names if "-idx" in name else [name]:
        path = folder / variant
        if os.path.isfile(path):  # False, not an error, for a folder that may not be entered
            return path
    return None


def _from_environment(variable: str, default: str) -> Path:
    return Path(os.path.expanduser(os.environ.get(variable) or default))
