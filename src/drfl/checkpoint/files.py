"""The files of a checkpoint, and reading them.

A checkpoint is a folder ``round-00000120`` with ``state.safetensors`` (vectors), ``run.json`` (the rest) and
``SHA256SUMS``, which ``sha256sum -c`` checks; where there is a key, with ``HMAC-SHA256`` too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load as load_tensors
from torch import Tensor

from drfl.checkpoint.damage import DamagedError
from drfl.checkpoint.record import Record, read_record
from drfl.checkpoint.signing import SIGNATURE, is_signed

STATE, RUN, SUMS = "state.safetensors", "run.json", "SHA256SUMS"

NAME = re.compile(r"round-(\d+)", re.ASCII)

Identity = Mapping[str, object]
"""What a run must have in common with its checkpoint, as plain values."""


class Files(NamedTuple):
    """A checkpoint whose files are whole.

    Args:
        folder: where.
        record: its ``run.json``.
        tensors: its vectors by name.
        signed: whether it has a signature.
    """

    folder: Path
    record: Record
    tensors: Mapping[str, Tensor]
    signed: bool


def name_of(r: int) -> str:
    """What the checkpoint after round r is called."""
    return f"round-{r:08d}"


def checkpoints(folder: Path) -> list[Path]:
    """Everything in a folder that is called like a checkpoint, newest first."""
    found = ((NAME.fullmatch(path.name), path) for path in folder.glob("round-*"))
    return [path for _, path in sorted(((int(m[1]), path) for m, path in found if m), reverse=True)]


def sums_of(files: Mapping[str, bytes]) -> bytes:
    """Checksums as ``sha256sum`` writes them."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


def read(path: Path, key: bytes | None) -> Files:
    """A checkpoint.

    Args:
        path: its folder.
        key: it must be signed with; None = whatever its signature.

    Raises:
        DamagedError: a file is missing or cannot be read, the checksums or the signature do not fit, or the record
            holds what it cannot hold.
    """
    signed = (path / SIGNATURE).exists()
    try:
        sums = (path / SUMS).read_bytes()
        if key is not None:  # before anything else is looked at
            _check_signature(path, key, sums)
        files = {name: (path / name).read_bytes() for name in (STATE, RUN)}
    except OSError as error:
        raise DamagedError(f"{Path(error.filename or path).name}: {error.strerror}") from None
    if sums != sums_of(files):
        raise DamagedError("its checksums do not fit")
    record = read_record(files[RUN])
    if path.name != name_of(record.round):
        raise DamagedError(f"it is of round {record.round}, which its name is not")
    return Files(path, record, _tensors(files[STATE]), signed)


def _check_signature(path: Path, key: bytes, sums: bytes) -> None:
    place = path / SIGNATURE
    if not place.exists():
        raise DamagedError("it is not signed, and a checkpoint_key was given")
    if not is_signed(key, path.name, sums, place.read_bytes()):
        raise DamagedError("its signature is not that of the checkpoint_key that was given")


def _tensors(data: bytes) -> dict[str, Tensor]:
    try:
        return load_tensors(data)
    except MemoryError:
        raise
    except Exception as error:  # its reader raises half a dozen kinds for types and shapes that cannot be
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamagedError(f"{STATE} is no such file ({reason})") from None
