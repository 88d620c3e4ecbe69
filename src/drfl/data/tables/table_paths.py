"""Find the files of tables, and name them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from drfl.core.errors import InputError, Notice
from drfl.core.files import open_file

SHEET = re.compile(r"(?P<file>.*\.xlsx):(?P<sheet>.+)", re.IGNORECASE)
"""A sheet of a workbook, such as ``wards.xlsx:North``."""


SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".npz", ".xlsx")


def files_of(paths: Sequence[Path]) -> list[Path]:
    """List the files. A folder is replaced by the files in it that drfl reads, sorted by name, or is itself a folder of
    arrays. Workbooks next to other tables are ignored, because they are often the originals of these tables.
    """
    found: list[Path] = []
    for path in paths:
        if os.path.isdir(path):  # unlike pathlib's, False for a name that is too long
            # Excel keeps a file "~$…" next to an open workbook.
            inside = sorted(file for file in path.iterdir() if is_table_file(file) and not file.name.startswith("~$"))
            if not inside and is_array_folder(path):
                found.append(path)
                continue
            if not inside:
                below = sorted(file for file in path.glob("*/*") if is_table_file(file))
                text = f"the folder {path} has no {' or '.join(SUFFIXES)} file"
                if below:
                    text += f". drfl reads no subfolders: move files such as {below[0].relative_to(path)} into one "
                    text += "folder, and name each file after its client"
                raise InputError(text, code="file-not-found", field=str(path))
            found += [file for file in inside if not file.name.lower().endswith(".xlsx")] or inside
        elif not os.path.isfile(workbook(path)[0]):
            open_file(workbook(path)[0]).close()  # raises an error about what is there instead
        else:
            check_format(path)
            found.append(path)
    return found


def check_format(path: Path) -> None:
    """Check that drfl reads files of this name as tables."""
    if path.suffix == ".npy":
        raise InputError(
            f"{path} is one array: pass the folder that has one npy file each for inputs, target and group",
            code="unsupported-file",
            field=str(path),
        )
    if not is_table_file(path) and not is_array_folder(path):
        raise InputError(f"{path} is not a {' or '.join(SUFFIXES)} file", code="unsupported-file", field=str(path))


def is_table_file(path: Path) -> bool:
    """Return whether drfl reads a file with this name as a table."""
    return workbook(path)[0].name.lower().endswith(SUFFIXES)


def is_arrays(path: Path) -> bool:
    """Return whether the data are arrays: an npz file, or a folder of npy files."""
    return path.suffix.lower() == ".npz" or is_array_folder(path)


def is_array_folder(path: Path) -> bool:
    """Return whether a folder holds arrays, an npy file for each, and no tables."""
    if not os.path.isdir(path):
        return False
    files = [*path.iterdir()]
    return any(file.suffix == ".npy" for file in files) and not any(map(is_table_file, files))


def workbook(path: Path) -> tuple[Path, str | None]:
    """Return the file of ``FILE.xlsx:SHEET`` and the sheet; other paths are the file, without a sheet."""
    found = SHEET.fullmatch(str(path))
    # A file of that name itself wins.
    return (path, None) if found is None or os.path.isfile(path) else (Path(found["file"]), found["sheet"])


def changed(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of change of a file, or of the files in a folder and its subfolders."""
    files, found = [workbook(path)[0], *path.glob("*"), *path.glob("*/*")], []
    for file in files:
        with suppress(OSError):  # reading the file reports what is wrong
            state = os.stat(file)
            found.append((str(file), state.st_size, state.st_mtime_ns))
    return tuple(sorted(found))


def name_of(path: Path) -> str:
    """Return the name of a file without its ending, which becomes the client's name; that of a sheet follows it."""
    if os.path.isdir(path):
        return path.resolve().name
    file, sheet = workbook(path)
    end = next(end for end in sorted(SUFFIXES, key=len, reverse=True) if file.name.lower().endswith(end))
    return file.name[: -len(end)] + ("" if sheet is None else f" {sheet}")


def unread_notices(
    paths: Sequence[Path], files: Sequence[Path], damaged: Sequence[Path] = (), most: int | None = 10
) -> list[Notice]:
    """Warn of files and subfolders in the folders that are not read, and name up to ``most`` files that are."""
    left = [
        item.name + "/" * item.is_dir()
        for path in paths
        if os.path.isdir(path) and path not in files
        for item in sorted(path.iterdir())
        if not item.name.startswith((".", "~$")) and item not in files
    ]
    if not left:
        return []
    first, read = (
        ", ".join(names[:most]) + " …" * (most is not None and len(names) > most)
        for names in (left, [path.name for path in files if path not in damaged])
    )
    text = f"not read: {first}; read: {read or 'no file'}. drfl reads {', '.join(SUFFIXES)} files and no subfolders"
    return [Notice(text, "unread-files", left[0] if len(left) == 1 else None)]


def label_of_files(paths: Sequence[Path]) -> str:
    """Return the name of the data in files and tables."""
    if len(paths) > 1:
        return paths[0].resolve().parent.name
    return name_of(paths[0]) if is_table_file(paths[0]) else paths[0].stem


def check_stems(files: Sequence[Path], group: str | None) -> None:
    """Raise InputError if two files are clients of the same name."""
    stems = [name_of(path) for path in files]
    if group is None and len(set(stems)) < len(stems):
        twice = next(stem for stem in stems if stems.count(stem) > 1)
        raise InputError(
            f"two files are called {twice}, but clients are named after files: rename one, or set `group`",
            code="duplicate-name",
            field=twice,
        )
