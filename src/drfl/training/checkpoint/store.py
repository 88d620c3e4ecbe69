"""The folder in which a run stores its last two checkpoints, and how they are written, signed, verified and read.

Each checkpoint is a folder. It is written under a temporary name, flushed to the disk and then renamed, so a checkpoint
is either whole or absent. See :mod:`drfl.training.checkpoint.state_schema` for its content.
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
from drfl.training.checkpoint.signatures import LONGEST, signature
from drfl.training.checkpoint.state_schema import FORMAT, DamagedError, run_tensors
from drfl.training.run_identity import Identity
from drfl.training.run_state import RunState

if TYPE_CHECKING:
    from drfl.training.checkpoint.record import CheckpointRecord, Extent

STATE, RUN, SUMS, SIGNATURE = "state.safetensors", "run.json", "SHA256SUMS", "HMAC-SHA256"

REPLIES = "replies.csv"
"""The file beside the checkpoints of a deployment that records which clients' replies were used."""

NAME = re.compile(r"round-(\d+)", re.ASCII)

FILES = re.compile("|".join(map(re.escape, (STATE, RUN, SUMS, SIGNATURE))))
"""The names of files that a checkpoint may contain; no other file is ever removed."""

MAX_CHECKPOINTS = 2


class Files(NamedTuple):
    """A checkpoint whose files are whole.

    Args:
        folder: Folder of the checkpoint.
        record: Its ``run.json``.
        tensors: Its tensors by name, not checked yet.
        signed: Whether it has a signature.
    """

    folder: Path
    record: CheckpointRecord
    tensors: Mapping[str, Tensor]
    signed: bool


def name_of(r: int) -> str:
    """Return the name of the checkpoint after round r."""
    return f"round-{r:08d}"


def checkpoints(folder: Path) -> list[Path]:
    """List everything in a folder that is named like a checkpoint, newest first."""
    matches = ((NAME.fullmatch(path.name), path) for path in folder.glob("round-*"))
    return [path for _, path in sorted(((int(m[1]), path) for m, path in matches if m), reverse=True)]


def sums_of(files: Mapping[str, bytes]) -> bytes:
    """Return checksums in the format of ``sha256sum``."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


def read(path: Path, key: bytes | None) -> Files:
    """Read a checkpoint: verify its signature and checksums, then parse the verified bytes.

    Args:
        path: Folder of the checkpoint.
        key: Key with which it must be signed; None = the signature is not checked.

    Raises:
        DamagedError: If a file is missing or unreadable, the checksums or the signature do not match, or the record is
            not valid.
    """
    signed = (path / SIGNATURE).exists()
    try:
        sums = read_bytes(path / SUMS, limit=LONGEST, follow=False)
        if key is not None:  # before anything else is parsed
            if not signed:
                raise DamagedError("it is not signed, but checkpoint_key is set", field=SIGNATURE)
            stored = read_bytes(path / SIGNATURE, limit=LONGEST, follow=False)
            # The comparison takes constant time, so its duration reveals nothing about the correct signature.
            if not hmac.compare_digest(signature(key, path.name, sums), stored):
                raise DamagedError("its signature does not match checkpoint_key", field=SIGNATURE)
        files = {name: read_bytes(path / name, limit=None, follow=False) for name in (STATE, RUN)}
        # Without a key, checksums reveal damage but not manipulation, because anyone can compute them.
        if sums != sums_of(files):
            raise DamagedError("its checksums do not match", field=SUMS)
        from drfl.training.checkpoint.record import record_of  # loads pydantic

        record = record_of(files[RUN])
    except InputError as error:
        raise DamagedError(str(error), field=error.field) from None
    if path.name != name_of(record.round):
        raise DamagedError(f"its name does not match its round, {record.round}", field="round")
    try:
        tensors = load_tensors(files[STATE])
    except MemoryError:
        raise
    except Exception as error:  # safetensors raises various errors for invalid types and shapes
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamagedError(f"{STATE} is not a valid safetensors file ({reason})", field=STATE) from None
    return Files(path, record, tensors, signed)


def write(folder: Path, progress: RunState, identity: Identity, replies: Extent | None, key: bytes | None) -> None:
    """Write a checkpoint, and remove all but the last two.

    Args:
        folder: Folder for checkpoints, which is created if necessary.
        progress: The state of the run.
        identity: Identity of the run.
        replies: How much of a deployment's ``replies.csv`` is written.
        key: Key with which the checkpoint is signed; None = not signed.

    Raises:
        OSError: If the folder cannot be written or the disk is full. Earlier checkpoints remain whole.
    """
    record = {name: getattr(progress, name) for name in ("round", "skipped", "ledger", "seconds")}
    record |= {"identity": identity, "replies": replies, "format": FORMAT}
    files = {
        STATE: save_tensors(run_tensors(progress)),
        RUN: (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode(),
    }
    # The signature covers the checksums and the checkpoint's name, and through them both files.
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
            with (temporary / name).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        _flush(temporary)
        remove_known(final, FILES)
        # The files are on the disk before the rename, so a power failure cannot leave an incomplete checkpoint.
        os.rename(temporary, final)
        _flush(folder)
    except BaseException:
        remove_known(temporary, FILES)
        raise
    # Checkpoints of later rounds were skipped as unusable. They must not displace the ones that can be used.
    usable = [path for path in checkpoints(folder) if int(path.name[6:]) <= progress.round]
    for old in usable[MAX_CHECKPOINTS:]:
        remove_known(old, FILES)


def _flush(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the system supports it."""
    # Without this a power failure may lose the new name, although the files are on the disk.
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
