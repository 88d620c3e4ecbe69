"""Checkpoints in a folder that others may write to: signed with a key that lies elsewhere."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from drfl.errors import InputError

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
    try:
        with path.open("rb") as file:
            key = file.read(LONGEST + 1)
    except (OSError, ValueError) as error:  # the latter for a name with a zero in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read checkpoint_key '{path}' ({reason}): give a file with a key") from None
    if not SHORTEST <= len(key) <= LONGEST:
        size = f"{len(key)} bytes" if len(key) <= LONGEST else f"more than {LONGEST} bytes"
        raise InputError(
            f"checkpoint_key '{path}' has {size}: give a file with {SHORTEST} to {LONGEST} random bytes, such as "
            f"'head -c {SHORTEST} /dev/urandom' makes"
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
