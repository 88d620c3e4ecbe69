"""Having the files of a data set: found on this machine, else downloaded, else one line that says what to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from drfl.data.download import download as download_file
from drfl.data.download import mirrors_of
from drfl.data.locate import (
    Place,
    cache_folder,
    find,
    find_refused,
    missing,
    own_places,
    places_below,
    usual_places,
)
from drfl.data.sources import RemoteFile, Source
from drfl.errors import InputError


def obtain(
    name: str, source: Source, files: Sequence[RemoteFile], data_dir: Path | None, download: bool
) -> tuple[Path, ...]:
    """The files of a data set.

    Args:
        name: what the user calls it, for errors.
        source: where it comes from.
        files: which of the source's files are needed.
        data_dir: the one folder to look in, or the archive itself; None looks in the usual places.
        download: whether what is in none of these may be downloaded into drfl's cache.

    Returns:
        IDX files in the order of `files`; or the archive alone; or the source's members, unpacked.

    Raises:
        InputError: when they are not found, or cannot be downloaded.
    """
    stems = [file.stem for file in files]
    if data_dir is not None:
        return _below(name, source, stems, data_dir)
    places = usual_places(source, stems)
    found = find(places)
    if found:
        return found
    looked = f"dataset '{name}' is not on this machine: no folder of {_folders(places, source)} has its files"
    refused = find_refused(places, source)
    if refused is not None:
        looked = str(_pickled(name, refused, source))
    remedy = f"give a folder that has {_wanted(source, stems)} with data_dir or $DRFL_DATA"
    if not download:
        raise InputError(f"{looked}; {remedy}, or allow the download")
    folder = cache_folder() / source.folder
    try:
        # A file that an earlier, interrupted download left under its name is whole and right, so it is kept.
        return tuple(
            (find(_in_cache(folder, source, file)) or (download_file(file, folder, mirrors_of(source)),))[0]
            for file in files
        )
    except (InputError, OSError) as error:
        raise InputError(f"{looked}; {error}; {remedy}") from error


def _below(name: str, source: Source, stems: Sequence[str], data_dir: Path) -> tuple[Path, ...]:
    if os.path.isfile(data_dir) and source.members:  # unlike pathlib's, False for a name that is too long
        if data_dir.name in source.refused:
            raise _pickled(name, data_dir, source)
        return (data_dir,)
    if not os.path.isdir(data_dir):
        raise InputError(f"dataset '{name}': there is no folder '{data_dir}'; check data_dir, or leave it out")
    places = places_below(data_dir, source, stems)
    found = find(places)
    if found:
        return found
    refused = find_refused(places, source)
    if refused is not None:
        raise _pickled(name, refused, source)
    nearest = max(places, key=_has)
    lacks = f"'{nearest.folder}' lacks {', '.join(missing(nearest))}; " if _has(nearest) else ""
    raise InputError(
        f"dataset '{name}': looked in {_folders(places, source)} for {_wanted(source, stems)}; {lacks}"
        "add the files, or leave data_dir out"
    )


def _has(place: Place) -> int:
    return len(place.names) - len(missing(place))


def _in_cache(folder: Path, source: Source, file: RemoteFile) -> list[Place]:
    return [Place(folder, (file.name,))] if source.members else own_places(folder, source, [file.stem])


def _folders(places: Sequence[Place], source: Source) -> str:
    folders = list(dict.fromkeys(place.folder for place in places))
    if source.members:  # which are looked for in so many folders that only the topmost ones are named
        folders = [folder for folder in folders if not any(above in folders for above in folder.parents)]
        return f"{', '.join(map(str, folders))} and below"
    return ", ".join(map(str, folders))


def _wanted(source: Source, stems: Sequence[str]) -> str:
    if not source.members:
        return f"{', '.join(stems)} (each may end in .gz)"
    return f"{source.files[0].name}, or {source.inner}/ with {', '.join(source.members)}"


def _pickled(name: str, refused: Path, source: Source) -> InputError:
    return InputError(
        f"dataset '{name}': '{refused}' is pickled, which drfl does not read: get the binary edition, "
        f"{source.files[0].name}"
    )
