"""The files of a data set, read from a folder or directly from the archive in which they are published."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from drfl.core.errors import InputError
from drfl.core.files import check_expansion, open_file, read_bytes, read_gzip, reading

REMEDY = "download the file again"


def unusable(path: Path, problem: str, code: str) -> InputError:
    """Return the error for a file that is not one of the data set."""
    return InputError(f"'{path}' {problem}", code=code, field=str(path))


def damaged(path: object, problem: str, at: str = "") -> InputError:
    """Return the error for an incomplete or altered file, and the place in it."""
    return InputError(f"'{path}'{at} {problem}. Download the file again", code="damaged-file", field=str(path))


def read_tar_gz(path: Path, folder: str, names: Collection[str]) -> dict[str, memoryview]:
    """Read files of a folder in a gzipped tar file, which is read to its end, so that damage anywhere is detected."""
    unpacked = read_gzip(path, remedy=REMEDY)
    found: dict[str, memoryview] = {}
    with reading(path, remedy=REMEDY), tarfile.open(fileobj=unpacked, mode="r:") as tar:
        end = 0
        for member in tar:
            if member.offset < end:  # a negative size would make tarfile loop forever
                raise tarfile.ReadError("the archive's members overlap")
            end = member.offset_data
            place = PurePosixPath(member.name)
            # Accept only plain files, whose content is contiguous: a link may point anywhere.
            plain = member.isreg() and not member.issparse()
            if plain and place.parent == PurePosixPath(folder) and place.name in names:
                found[place.name] = unpacked.getbuffer()[member.offset_data : member.offset_data + member.size]
    lacking = [name for name in names if name not in found]
    if lacking:
        raise damaged(path, f"lacks {', '.join(f'{folder}/{name}' for name in lacking)}")
    return found


class Tree:
    """The files in a folder, or in the folder ``top`` of a zip file (its top level if ``top`` is empty)."""

    def __init__(self, path: Path, archive: zipfile.ZipFile | None = None, size: int = 0, top: str = "") -> None:
        self.path = path
        self._archive = archive
        self._size = size
        self._top = f"{top}/" if top else ""

    def names(self, pattern: str) -> list[str]:
        """Return the sorted paths in the folder that match a pattern; ``*`` is any name, as in ``train/*/images/*``."""
        if self._archive is None:
            return sorted(path.relative_to(self.path).as_posix() for path in self.path.glob(pattern))
        fits = re.compile(re.escape(self._top + pattern).replace(r"\*", "[^/]+"))
        # An archive can list a name twice.
        return sorted({name.removeprefix(self._top) for name in self._archive.namelist() if fits.fullmatch(name)})

    def read(self, name: str) -> bytes:
        """Return the content of a file, by its path in the folder."""
        if self._archive is None and (self.path / name).is_file():
            return read_bytes(self.path / name, limit=None, remedy=REMEDY)
        if self._archive is None or self._top + name not in self._archive.NameToInfo:
            raise damaged(self.path, f"lacks {name}")
        info = self._archive.getinfo(self._top + name)
        check_expansion(self.path, self._size, info.file_size)
        with reading(self.path, remedy=REMEDY):
            return self._archive.read(info)


@contextmanager
def open_tree(path: Path, top: str) -> Iterator[Tree]:
    """Open a folder, or the folder `top` of a zip file (its top level if `top` is empty)."""
    if path.is_dir():
        yield Tree(path)
        return
    with open_file(path, remedy=REMEDY) as file:
        with reading(path, remedy=REMEDY):
            archive = zipfile.ZipFile(file)
        yield Tree(path, archive, os.fstat(file.fileno()).st_size, top)
