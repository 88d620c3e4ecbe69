"""Reading files out of archives, which are not trusted, without unpacking them onto the disk.

Nothing is written, so that no name in an archive can lead anywhere; and every read has a limit, so that a small
archive that claims or unpacks to a huge one cannot fill the memory.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from drfl.core.errors import InputError
from drfl.core.files import open_file, read_bytes, read_whole, reading

TAR_LIMIT = 1 << 28
"""Bytes that a tar file may unpack to; CIFAR's take 185 MB."""

MEMBER_LIMIT = 1 << 22
"""Bytes that one file in a tree may have; Tiny ImageNet's largest is its list of 10,000 test pictures."""

REMEDY = "get the file again"

_CHUNK = 1 << 20
_READS_AT_END = 8  # tarfile and the check of the end need two


def read_tar_gz(path: Path, folder: str, names: Collection[str]) -> dict[str, bytes]:
    """Certain files of a gzipped tar file, read to its end, so that damage anywhere is noticed.

    Args:
        path: the archive.
        folder: the folder in it that has the files.
        names: of the files.

    Returns:
        Name → content.

    Raises:
        InputError: when it is damaged, cut short, lacks a file or unpacks to more than `TAR_LIMIT`.
    """
    found: dict[str, bytes] = {}
    with (
        open_file(path, remedy=REMEDY) as file,
        reading(path, remedy=REMEDY),
        _Limited(file, TAR_LIMIT) as unzipped,
    ):
        # Reading as a stream unpacks everything once, and nothing to the disk.
        with tarfile.open(fileobj=unzipped, mode="r|") as tar:
            for member in tar:
                place = PurePosixPath(member.name)
                # Only plain files: a link may lead anywhere.
                if member.isreg() and place.parent == PurePosixPath(folder) and place.name in names:
                    body = tar.extractfile(member)
                    found[place.name] = body.read() if body else b""
        while unzipped.read(_CHUNK):  # the checksum comes last
            pass
    lacking = [name for name in names if name not in found]
    if lacking:
        raise InputError(
            f"'{path}' lacks {', '.join(f'{folder}/{name}' for name in lacking)}; get the file again",
            code="damaged-file",
            field=str(path),
        )
    return found


class _Limited(gzip.GzipFile):
    """A gzipped file that refuses to unpack to more than so many bytes, or to be read on and on after its end."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._unused = limit
        self._reads_at_end = 0

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes."""
        data = super().read(size)
        self._unused -= len(data)
        if self._unused < 0:
            raise ValueError("it unpacks to far more than it should")
        # A header that claims a huge size makes tarfile skip that much, block by block, whether it is there or not.
        self._reads_at_end += not data
        if self._reads_at_end > _READS_AT_END:
            raise EOFError("it is cut short, or a size in it is wrong")
        return data


class Tree(Protocol):
    """A folder with files, packed or not."""

    @property
    def path(self) -> Path:
        """Where it is: the folder or the archive."""
        ...

    def files(self, folder: str) -> list[str]:
        """Names of the files directly in a folder of it, sorted; none where there is no such folder."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Names of the folders directly in a folder of it, sorted."""
        ...

    def read(self, name: str) -> bytes:
        """The content of a file, its path relative to the tree.

        Raises:
            InputError: when there is no such file, it is too large, or it cannot be read.
        """
        ...


class Folder:
    """A `Tree` that lies unpacked on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self, folder: str) -> list[str]:
        """See `Tree`."""
        return [entry.name for entry in self._entries(folder) if entry.is_file()]

    def folders(self, folder: str) -> list[str]:
        """See `Tree`."""
        return [entry.name for entry in self._entries(folder) if entry.is_dir()]

    def read(self, name: str) -> bytes:
        """See `Tree`."""
        if not (self.path / name).is_file():
            raise lacks(self, name)
        return read_bytes(self.path / name, limit=MEMBER_LIMIT, remedy=REMEDY)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        if not (self.path / folder).is_dir():
            return []
        with reading(self.path / folder, remedy=REMEDY), os.scandir(self.path / folder) as entries:
            # File systems list a folder in different orders, but the order of rows must be the same.
            return sorted(entries, key=lambda entry: entry.name)


class Zip:
    """A `Tree` that is one folder in a zip file.

    Args:
        path: the zip file.
        top: the folder in it; empty where its files lie in none.

    Raises:
        InputError: when it is no whole zip file.
    """

    def __init__(self, path: Path, top: str) -> None:
        self.path = path
        self._top = f"{top}/" if top else ""
        self._file = open_file(path, remedy=REMEDY)
        try:
            with reading(path, remedy=REMEDY):
                self._zip = zipfile.ZipFile(self._file)
        except InputError:
            self._file.close()
            raise
        # The index saves a search through a hundred thousand names for every class.
        self._files: dict[str, list[str]] = {}
        names = set(self._zip.namelist()) - {""}  # a crafted one can be empty, which is_dir() does not take
        for name in sorted(name for name in names if not self._zip.getinfo(name).is_dir()):
            folder, _, file = name.rpartition("/")
            self._files.setdefault(folder, []).append(file)

    def files(self, folder: str) -> list[str]:
        """See `Tree`."""
        return self._files.get(f"{self._top}{folder}", [])

    def folders(self, folder: str) -> list[str]:
        """See `Tree`."""
        start = f"{self._top}{folder}/"
        return sorted({place[len(start) :].split("/")[0] for place in self._files if place.startswith(start)})

    def read(self, name: str) -> bytes:
        """See `Tree`."""
        try:
            # zipfile only reads from the archive, whatever path a name contains.
            info = self._zip.getinfo(f"{self._top}{name}")
        except KeyError:
            raise lacks(self, name) from None
        with reading(self.path, remedy=REMEDY), self._zip.open(info) as file:
            return read_whole(file, self.path / name, MEMBER_LIMIT)

    def close(self) -> None:
        """Closes the file."""
        self._zip.close()
        self._file.close()


@contextmanager
def open_tree(path: Path, top: str) -> Iterator[Tree]:
    """A folder, or the folder `top` in a zip file, empty where there is none."""
    if path.is_dir():
        yield Folder(path)
        return
    tree = Zip(path, top)
    try:
        yield tree
    finally:
        tree.close()


def lacks(tree: Tree, name: str) -> InputError:
    """The error for a file that should be in a tree and is not."""
    return InputError(f"'{tree.path}' lacks {name}; get it again", code="damaged-file", field=str(tree.path))
