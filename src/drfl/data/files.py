"""Writing a file so that it is either whole under its name or not there at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write to that takes the name `path` only when the block ends without an error.

    The temporary file lies in the same folder, which is made if need be; it is deleted on any error. A
    process that is killed may leave the temporary file, never a part under the final name.

    Raises:
        OSError: when the folder cannot be made or written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not from tempfile, whose files are private: a cache must be readable like any file its owner makes.
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.part"
    try:
        with temporary.open("xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
