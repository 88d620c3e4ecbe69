"""Keys, and the signatures of checkpoints and of the other files that resuming a run reads."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from drfl.core.atomic_files import is_file
from drfl.core.errors import InputError
from drfl.core.files import open_file, read_bytes

SHORTEST, LONGEST = 32, 4096
"""Minimum and maximum length of a key in bytes."""

SIGNED = re.compile(rb'(?:# HMAC-SHA256 |\{"hmac_sha256": ")([0-9a-f]{64})(?:",)?\n')
"""The first line of a signed file: a TOML comment or the first key of a JSON object."""


def read_key(path: Path) -> bytes:
    """Read a key: all bytes of a file.

    Args:
        path: The file. Anyone who can read it can forge signatures.

    Raises:
        InputError: If the file cannot be read, or its length is not that of a key.
    """
    with open_file(path, remedy="set `checkpoint_key` to a file with a key") as file:
        # One byte beyond the limit reveals a key that is too long without reading a large file.
        key = file.read(LONGEST + 1)
    if not SHORTEST <= len(key) <= LONGEST:
        size = f"{len(key)} bytes" if len(key) <= LONGEST else f"more than {LONGEST} bytes"
        raise InputError(
            f"`checkpoint_key` '{path}' must have {SHORTEST} to {LONGEST} random bytes, got {size}. "
            f"Create one with 'head -c {SHORTEST} /dev/urandom'.",
            code="invalid-key",
            field="checkpoint_key",
        )
    return key


def signature(key: bytes, name: str, sums: bytes) -> bytes:
    """Compute the content of a checkpoint's signature file.

    Args:
        key: The key.
        name: Name of the checkpoint, so that its round cannot be changed.
        sums: Its ``SHA256SUMS``, which covers its other files.
    """
    # A name has no line break, so the boundary between name and sums is unambiguous.
    return hmac.new(key, name.encode() + b"\n" + sums, hashlib.sha256).hexdigest().encode() + b"\n"


def sign(key: bytes | None, name: str, content: bytes) -> bytes:
    """Put a signature into the first line of a TOML file or JSON object; without a key the content is unchanged.

    Args:
        key: The key.
        name: The file's path within its folder, so that one file cannot replace another.
        content: Content of the file.
    """
    if key is None:
        return content
    # The prefix prevents the use of a file's signature as that of a checkpoint.
    mac = hmac.new(key, b"file\n" + name.encode() + b"\n" + content, hashlib.sha256).hexdigest().encode()
    if content.startswith(b"{"):
        return b'{"hmac_sha256": "' + mac + b'",\n' + content[1:]
    return b"# HMAC-SHA256 " + mac + b"\n" + content


def read_signed(key: bytes | None, folder: Path, name: str) -> bytes:
    """Read a file without its signature, after verifying the signature if there is a key; do not parse the content.

    Args:
        key: The key with which the file must be signed; None = drop a signature without verifying it.
        folder: The folder of the file.
        name: The file's path within the folder.

    Raises:
        InputError: If the file is missing or a link, or its signature is missing or made with another key.
    """
    path = folder / name
    if not is_file(path):
        raise InputError(
            f"file {path}, which resuming needs, does not exist. Restore it.", code="file-not-found", field=name
        )
    data = read_bytes(path, follow=False)
    # Only the first line is parsed before the signature is verified.
    line = SIGNED.match(data)
    content = data if line is None else (b"{" if data.startswith(b"{") else b"") + data[line.end() :]
    if key is None:
        return content
    if line is None:
        raise InputError(
            f"{path} is not signed, but `checkpoint_key` is set. Restore the signed file.",
            code="not-signed",
            field=name,
        )
    # The comparison takes constant time, so its duration reveals nothing about the correct signature.
    if not hmac.compare_digest(sign(key, name, content), data):
        raise InputError(
            f"the signature of {path} does not match `checkpoint_key`. Restore the file, or use the key "
            "with which it was signed.",
            code="bad-signature",
            field=name,
        )
    return content
