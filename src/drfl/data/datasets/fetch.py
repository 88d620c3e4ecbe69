"""The files of a data set: from a folder or the cache, otherwise by download."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from drfl.core.errors import InputError
from drfl.data.datasets.downloads import download
from drfl.data.datasets.sources import (
    DownloadSource,
    Location,
    find_files,
    find_refused,
    missing_files,
    places_below,
    usual_places,
)


def fetch_files(name: str, source: DownloadSource, data_dir: Path | None, allow_download: bool) -> tuple[Path, ...]:
    """Return the files of a data set.

    Returns:
        The files in the order of the source; or the archive alone; or the source's members, unpacked.
    """
    if data_dir is not None:
        return _below(name, source, data_dir)
    places = usual_places(source)
    found = find_files(places)
    if found:
        return found
    looked = f"dataset '{name}' is not on this machine: its files are not in {_folders(places, source)}"
    refused = find_refused(places, source)
    if refused is not None:
        looked = str(_pickled(name, refused, source))
    remedy = f"Set data_dir or $DRFL_DATA to a folder that contains {_wanted(source)}"
    if not allow_download:
        raise InputError(f"{looked}. {remedy}, or allow the download", code="dataset-not-found", field=name)
    try:
        return tuple(download(f"{source.folder}/{file}") for file in source.files)
    except (InputError, OSError) as error:
        raise InputError(f"{looked}; {error}. {remedy}", code="download-failed", field=name) from error


def _below(name: str, source: DownloadSource, data_dir: Path) -> tuple[Path, ...]:
    if os.path.isfile(data_dir) and source.members:  # unlike pathlib's, False for a name that is too long
        if data_dir.name in source.refused:
            raise _pickled(name, data_dir, source)
        return (data_dir,)
    if not os.path.isdir(data_dir):
        raise InputError(
            f"dataset '{name}': the folder '{data_dir}' does not exist. Check data_dir, or remove it",
            code="folder-not-found",
            field="data_dir",
        )
    places = places_below(data_dir, source)
    found = find_files(places)
    if found:
        return found
    refused = find_refused(places, source)
    if refused is not None:
        raise _pickled(name, refused, source)
    # The user most likely meant the folder that has most of the files.
    nearest = max(places, key=_has)
    lacks = f"'{nearest.folder}' lacks {', '.join(missing_files(nearest))}. " if _has(nearest) else ""
    raise InputError(
        f"dataset '{name}': found no {_wanted(source)} in {_folders(places, source)}. {lacks}Add the "
        "files, or remove data_dir",
        code="dataset-not-found",
        field="data_dir",
    )


def _has(place: Location) -> int:
    return len(place.names) - len(missing_files(place))


def _folders(places: Sequence[Location], source: DownloadSource) -> str:
    folders = list(dict.fromkeys(place.folder for place in places))
    if source.members:  # name only the topmost folders, because there are many
        folders = [folder for folder in folders if not any(above in folders for above in folder.parents)]
        return f"{', '.join(map(str, folders))} and subfolders"
    return ", ".join(map(str, folders))


def _wanted(source: DownloadSource) -> str:
    if not source.members:
        return f"{', '.join(file.removesuffix('.gz') for file in source.files)} (each may end in .gz)"
    return f"{source.files[0]}, or {source.inner}/ with {', '.join(source.members)}"


def _pickled(name: str, refused: Path, source: DownloadSource) -> InputError:
    return InputError(
        f"dataset '{name}': '{refused}' is pickled, and drfl does not read pickled files. Use the binary "
        f"edition, {source.files[0]}",
        code="pickled-file",
        field=str(refused),
    )
