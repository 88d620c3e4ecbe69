"""Keys, and the signatures of checkpoints and of the other files that resuming reads."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from drfl.core.atomic_files import is_file
from drfl.core.errors import InputError
from drfl.core.files import open_file, read_bytes

SHORTEST, LONGEST = 32, 4096
"""Bytes of a key."""

SIGNED = re.compile(rb'(?:# HMAC-SHA256 |\{"hmac_sha256": ")([0-9a-f]{64})(?:",)?\n')
"""The first line of a signed file, a comment of TOML or the first key of a JSON object."""


def read_key(path: Path) -> bytes:
    """Read a key: all bytes of a file.

    Args:
        path: of the file. Nobody against whom the key protects may be able to read it.

    Raises:
        InputError: it cannot be read, or its length is not that of a key.
    """
    with open_file(path, remedy="give a file with a key as checkpoint_key") as file:
        # One byte beyond the limit shows that a key is too long, without reading a large file.
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
    """Compute the content of a checkpoint's signature file.

    Args:
        key: the key.
        name: the checkpoint's, so that nobody can change its round.
        sums: its ``SHA256SUMS``, which stand for its other files.
    """
    # A name has no line break, so the boundary between name and sums is unambiguous.
    return hmac.new(key, name.encode() + b"\n" + sums, hashlib.sha256).hexdigest().encode() + b"\n"


def sign(key: bytes | None, name: str, content: bytes) -> bytes:
    """Put a signature into the first line of a TOML file or JSON object; without a key the content is unchanged.

    Args:
        key: the key.
        name: the file's path within its folder, so that no file can take another's place.
        content: its bytes.
    """
    if key is None:
        return content
    # The prefix prevents the use of a file's signature as a checkpoint's.
    mac = hmac.new(key, b"file\n" + name.encode() + b"\n" + content, hashlib.sha256).hexdigest().encode()
    if content.startswith(b"{"):
        return b'{"hmac_sha256": "' + mac + b'",\n' + content[1:]
    return b"# HMAC-SHA256 " + mac + b"\n" + content


def read_signed(key: bytes | None, folder: Path, name: str) -> bytes:
    """Read a file without its signature, after verifying it if there is a key. Nothing in it is parsed.

    Args:
        key: the file must be signed with; None = a signature is dropped and not verified.
        folder: where the file is.
        name: its path within the folder.

    Raises:
        InputError: it is missing, is a link, or its signature is missing or of another key.
    """
    path = folder / name
    if not is_file(path):
        raise InputError(
            f"there is no file {path}, which resuming needs: restore it", code="file-not-found", field=name
        )
    data = read_bytes(path, follow=False)
    # Only the first line is looked at before the signature is verified.
    line = SIGNED.match(data)
    content = data if line is None else (b"{" if data.startswith(b"{") else b"") + data[line.end() :]
    if key is None:
        return content
    if line is None:
        raise InputError(
            f"{path} is not signed, and a checkpoint_key was given: restore the file", code="not-signed", field=name
        )
    # The comparison takes constant time, so its duration reveals nothing about the right signature.
    if not hmac.compare_digest(sign(key, name, content), data):
        raise InputError(
            f"{path}: its signature is not that of the checkpoint_key that was given: restore the file, or give the "
            "key that it was signed with",
            code="bad-signature",
            field=name,
        )
    return content
