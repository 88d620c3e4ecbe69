"""A checkpoint's files on disk: written whole, checked against their digests, and signed where there is a key."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from safetensors.torch import load as load_tensors
from torch import Tensor

from drfl.atomic_files import is_file
from drfl.checkpoint.state_tensors import DamagedError
from drfl.errors import InputError
from drfl.files import open_file, read_bytes

if TYPE_CHECKING:
    from drfl.checkpoint.record import Record

SIGNATURE = "HMAC-SHA256"
"""The file of a checkpoint that has its signature in hexadecimal digits."""

SHORTEST, LONGEST = 32, 4096
"""Bytes of a key."""


def read_key(path: Path) -> bytes:
    """The key in a file: all its bytes.

    Args:
        path: of the file; it must not lie where those can write against whom it protects.

    Raises:
        InputError: it cannot be read, or is no key.
    """
    with open_file(path, remedy="give a file with a key as checkpoint_key") as file:
        key = file.read(LONGEST + 1)
    if not SHORTEST <= len(key) <= LONGEST:
        size = f"{len(key)} bytes" if len(key) <= LONGEST else f"more than {LONGEST} bytes"
        raise InputError(
            f"checkpoint_key '{path}' has {size}: give a file with {SHORTEST} to {LONGEST} random bytes, such as "
            f"'head -c {SHORTEST} /dev/urandom' makes",
            code="invalid-key",
            field="checkpoint_key",
        )
    return key


def signature(key: bytes, name: str, sums: bytes) -> bytes:
    """The content of a checkpoint's signature file.

    Args:
        key: the key.
        name: the checkpoint's, as its round must not be changed.
        sums: its ``SHA256SUMS``, which stand for its other files.
    """
    return hmac.new(key, name.encode() + b"\n" + sums, hashlib.sha256).hexdigest().encode() + b"\n"


def is_signed(key: bytes, name: str, sums: bytes, given: bytes) -> bool:
    """Whether a signature is that of this key; the time that it takes does not tell how much of it is right."""
    return hmac.compare_digest(signature(key, name, sums), given)


SIGNED = re.compile(rb'(?:# HMAC-SHA256 |\{"hmac_sha256": ")([0-9a-f]{64})(?:",)?\n')
"""The first line of a signed file, a comment of TOML or the first key of a JSON object."""


def sign(key: bytes | None, name: str, content: bytes) -> bytes:
    """A TOML file or JSON object with its signature in the first line; unchanged without a key.

    Args:
        key: the key.
        name: the file's path within its folder, so that no file can take another's place.
        content: its bytes.
    """
    if key is None:
        return content
    mac = hmac.new(key, b"file\n" + name.encode() + b"\n" + content, hashlib.sha256).hexdigest().encode()
    if content.startswith(b"{"):
        return b'{"hmac_sha256": "' + mac + b'",\n' + content[1:]
    return b"# HMAC-SHA256 " + mac + b"\n" + content


def unsigned(data: bytes) -> bytes:
    """The content of a file that may be signed."""
    found = SIGNED.match(data)
    if found is None:
        return data
    return (b"{" if data.startswith(b"{") else b"") + data[found.end() :]


def check_signed(key: bytes, folder: Path, name: str) -> None:
    """Make sure that a file in a folder has this key's signature. Nothing in it is parsed.

    Raises:
        InputError: it is missing, is a link, or its signature is another's or missing.
    """
    path = folder / name
    if not is_file(path):
        raise InputError(f"{path} is missing from a signed folder: restore it", code="file-not-found", field=name)
    data = read_bytes(path, limit=None, follow=False)
    if SIGNED.match(data) is None:
        raise InputError(
            f"{path} is not signed, and a checkpoint_key was given: restore the file", code="not-signed", field=name
        )
    if not hmac.compare_digest(sign(key, name, unsigned(data)), data):
        raise InputError(
            f"{path}: its signature is not that of the checkpoint_key that was given: restore the file, or give the "
            "key that it was signed with",
            code="bad-signature",
            field=name,
        )


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
        sums = read_bytes(path / SUMS, limit=LONGEST, follow=False)
        if key is not None:  # before anything else is looked at
            _check_signature(path, key, sums)
        files = {name: read_bytes(path / name, limit=None, follow=False) for name in (STATE, RUN)}
    except InputError as error:
        raise DamagedError(f"{Path(error.field or path).name}: {error.code}") from None
    if sums != sums_of(files):
        raise DamagedError("its checksums do not fit")
    from drfl.checkpoint.record import read_record  # which loads pydantic

    record = read_record(files[RUN])
    if path.name != name_of(record.round):
        raise DamagedError(f"it is of round {record.round}, which its name is not")
    return Files(path, record, _tensors(files[STATE]), signed)


def _check_signature(path: Path, key: bytes, sums: bytes) -> None:
    place = path / SIGNATURE
    if not place.exists():
        raise DamagedError("it is not signed, and a checkpoint_key was given")
    if not is_signed(key, path.name, sums, read_bytes(place, limit=LONGEST, follow=False)):
        raise DamagedError("its signature is not that of the checkpoint_key that was given")


def _tensors(data: bytes) -> dict[str, Tensor]:
    try:
        return load_tensors(data)
    except MemoryError:
        raise
    except Exception as error:  # its reader raises half a dozen kinds for types and shapes that cannot be
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamagedError(f"{STATE} is no such file ({reason})") from None
