"""The folder where a run keeps its last two checkpoints: written whole, signed, verified and read.

Each checkpoint is a folder, which is written under a temporary name, brought to the disk and renamed: it is whole or
not there. See :mod:`drfl.training.checkpoint.schema` for what it holds.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from drfl.core.atomic_files import remove_known
from drfl.core.errors import InputError
from drfl.core.files import read_bytes
from drfl.training.checkpoint.schema import FORMAT, DamagedError, run_tensors
from drfl.training.checkpoint.signatures import LONGEST, signature
from drfl.training.run_state import RunState

if TYPE_CHECKING:
    from drfl.training.checkpoint.record import CheckpointRecord, Extent

STATE, RUN, SUMS, SIGNATURE = "state.safetensors", "run.json", "SHA256SUMS", "HMAC-SHA256"

REPLIES = "replies.csv"
"""The file beside the checkpoints of a deployment that lists whose replies counted."""

NAME = re.compile(r"round-(\d+)", re.ASCII)

FILES = re.compile("|".join(map(re.escape, (STATE, RUN, SUMS, SIGNATURE))))
"""The names of files that a checkpoint may have; nothing else is ever removed."""

KEPT = 2

Identity = Mapping[str, object]
"""What a run must have in common with its checkpoint, as plain values."""


class Files(NamedTuple):
    """A checkpoint whose files are whole.

    Args:
        folder: where.
        record: its ``run.json``.
        tensors: its tensors by name, not checked yet.
        signed: whether it has a signature.
    """

    folder: Path
    record: CheckpointRecord
    tensors: Mapping[str, Tensor]
    signed: bool


def name_of(r: int) -> str:
    """Name the checkpoint after round r."""
    return f"round-{r:08d}"


def checkpoints(folder: Path) -> list[Path]:
    """List everything in a folder that is called like a checkpoint, newest first."""
    found = ((NAME.fullmatch(path.name), path) for path in folder.glob("round-*"))
    return [path for _, path in sorted(((int(m[1]), path) for m, path in found if m), reverse=True)]


def sums_of(files: Mapping[str, bytes]) -> bytes:
    """Write checksums as ``sha256sum`` does."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


def read(path: Path, key: bytes | None) -> Files:
    """Read a checkpoint: verify its signature and checksums, then parse the bytes that were verified.

    Args:
        path: its folder.
        key: it must be signed with; None = whatever its signature.

    Raises:
        DamagedError: a file is missing or cannot be read, the checksums or the signature do not fit, or the record
            holds what it cannot hold.
    """
    signed = (path / SIGNATURE).exists()
    try:
        sums = read_bytes(path / SUMS, limit=LONGEST, follow=False)
        if key is not None:  # before anything else is looked at
            if not signed:
                raise DamagedError("it is not signed, and a checkpoint_key was given", field=SIGNATURE)
            given = read_bytes(path / SIGNATURE, limit=LONGEST, follow=False)
            # The time that this takes does not tell how much of the signature is right.
            if not hmac.compare_digest(signature(key, path.name, sums), given):
                raise DamagedError("its signature is not that of the checkpoint_key that was given", field=SIGNATURE)
        files = {name: read_bytes(path / name, limit=None, follow=False) for name in (STATE, RUN)}
        if sums != sums_of(files):
            raise DamagedError("its checksums do not fit", field=SUMS)
        from drfl.training.checkpoint.record import record_of  # which loads pydantic

        record = record_of(files[RUN])
    except InputError as error:
        raise DamagedError(str(error), field=error.field) from None
    if path.name != name_of(record.round):
        raise DamagedError(f"it is of round {record.round}, which its name is not", field="round")
    try:
        tensors = load_tensors(files[STATE])
    except MemoryError:
        raise
    except Exception as error:  # its reader raises half a dozen kinds for types and shapes that cannot be
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamagedError(f"{STATE} is no such file ({reason})", field=STATE) from None
    return Files(path, record, tensors, signed)


def write(folder: Path, progress: RunState, identity: Identity, replies: Extent | None, key: bytes | None) -> None:
    """Write a checkpoint, and remove those before the last two.

    Args:
        folder: for checkpoints; made if need be.
        progress: where the run is.
        identity: of the run.
        replies: what is written of a deployment's ``replies.csv``.
        key: to sign with; None = it is not signed.

    Raises:
        OSError: the folder cannot be written to, or the disk is full. The checkpoints before are whole.
    """
    record = {name: getattr(progress, name) for name in ("round", "skipped", "ledger", "seconds")}
    record |= {"identity": identity, "replies": replies, "format": FORMAT}
    files = {
        STATE: save_tensors(run_tensors(progress)),
        RUN: (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode(),
    }
    files[SUMS] = sums_of(files)
    if key is not None:
        files[SIGNATURE] = signature(key, name_of(progress.round), files[SUMS])
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / name_of(progress.round)
    # The folder is written under a temporary name and renamed, so a folder with its final name is complete.
    temporary = folder / f".{final.name}.part"
    remove_known(temporary, FILES)
    temporary.mkdir()
    try:
        for name, data in files.items():
            _put(temporary / name, data)
        _flush(temporary)
        remove_known(final, FILES)
        # The files are on the disk before the rename, so a power cut cannot leave an incomplete checkpoint.
        os.rename(temporary, final)
        _flush(folder)
    except BaseException:
        remove_known(temporary, FILES)
        raise
    # those with a higher number were passed over: they must not push out the ones that can be used
    mine = [path for path in checkpoints(folder) if int(path.name[6:]) <= progress.round]
    for old in mine[KEPT:]:
        remove_known(old, FILES)


def _put(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can."""
    # Otherwise a power cut may lose the new name, although the files are on the disk.
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
