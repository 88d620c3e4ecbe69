"""The IDX format of MNIST and its relatives: reading it without trusting it, and writing it.

A file is two zero bytes, a type code, the number of dimensions, one big-endian 32-bit size a dimension, and
the values in row-major, big-endian order.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from drfl.data.files import atomic_write
from drfl.errors import InputError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_DIMENSIONS = 32  # what every NumPy can reshape to
_CHUNK = 1 << 20
_LIMIT = 1 << 28  # bytes of values; MNIST's take 47 MB
_MOST_RATIO = 100  # beyond the limit, bytes of values for a byte of the file; images' are below 10
_GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: str | Path) -> np.ndarray:
    """The array that an IDX file holds, gzipped or not (told by its first bytes, not by its name).

    Args:
        path: the file.

    Returns:
        A writable array of the file's own shape and type, in native byte order.

    Raises:
        InputError: when the file is missing, unreadable, not IDX, cut short, too long, or its gzip is broken.
    """
    path = Path(path)
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if not zipped:
                return _parse(path, raw)
            with gzip.GzipFile(fileobj=raw) as unzipped:
                return _parse(path, cast(BinaryIO, unzipped))
    except FileNotFoundError:
        raise InputError(f"there is no file '{path}'") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read '{path}': {error}; get the file anew") from error


def _parse(path: Path, file: BinaryIO) -> np.ndarray:
    head = _read_up_to(file, 4)
    if len(head) < 4 or head[:2] != b"\0\0":
        raise InputError(f"'{path}' is not an IDX file: it does not begin with two zero bytes and a type")
    if head[2] not in _TYPES:
        known = ", ".join(f"0x{code:02x}" for code in _TYPES)
        raise InputError(f"'{path}' is not a known IDX file: type code 0x{head[2]:02x} is none of {known}")
    if not 1 <= head[3] <= _MAX_DIMENSIONS:
        raise InputError(f"'{path}' is not a usable IDX file: it claims {head[3]} dimensions")
    sizes = _read_up_to(file, 4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise InputError(f"'{path}' is cut short: it ends inside its header; get the file anew")
    shape = struct.unpack(f">{head[3]}I", sizes)
    dtype = np.dtype(_TYPES[head[2]])
    expected = math.prod(shape) * dtype.itemsize
    if not expected:
        raise InputError(f"'{path}' holds no values: its shape is {shape}")
    if isinstance(file, gzip.GzipFile) and expected > max(_LIMIT, _MOST_RATIO * path.stat().st_size):
        # a small file could unpack to more than the memory holds
        raise InputError(
            f"'{path}' is too small for the {expected} bytes that its shape {shape} needs; get the file anew"
        )
    body = _read_up_to(file, expected + 1)
    if len(body) != expected:
        fault = f"is cut short: {len(body)} of" if len(body) < expected else "has more than"
        raise InputError(f"'{path}' {fault} the {expected} bytes that its shape {shape} needs; get the file anew")
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _read_up_to(file: BinaryIO, limit: int) -> bytearray:
    """Up to `limit` bytes, fewer only at the end of the file.

    In chunks, because the limit comes from the file's own header and one read of that size would allocate it.
    """
    data = bytearray()
    while len(data) < limit:
        chunk = file.read(min(_CHUNK, limit - len(data)))
        if not chunk:
            break
        data += chunk
    return data


def write_idx(path: str | Path, array: np.ndarray) -> None:
    """Writes bytes as an IDX file, gzipped if the name ends in ``.gz``; the same array gives the same file.

    Args:
        path: the file; its folder is made if need be.
        array: uint8, of 1 to 32 dimensions, not empty.

    Raises:
        InputError: when the array is of another kind.
    """
    path = Path(path)
    if array.dtype != np.uint8 or not 1 <= array.ndim <= _MAX_DIMENSIONS or not array.size:
        raise InputError(
            f"write_idx writes non-empty uint8 arrays of 1 to {_MAX_DIMENSIONS} dimensions, not "
            f"{array.dtype} of shape {array.shape}"
        )
    content = struct.pack(f">BBBB{array.ndim}I", 0, 0, 0x08, array.ndim, *array.shape) + array.tobytes()
    with atomic_write(path) as file:
        file.write(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
