"""Signatures of audit logs with the ECDSA keys of a deployment's nodes. Requires the package cryptography."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from drfl.core.errors import InputError
from drfl.core.files import read_bytes
from drfl.core.packages import require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

MISSING = "signing audit logs needs the package cryptography, which is not installed. Run pip install 'drfl[flower]'."

KEY_LIMIT = 2**16
"""Maximum size of a key file in bytes."""


@dataclass(frozen=True)
class SigningKey:
    """A private key that signs an audit log.

    Args:
        public: The public key as an OpenSSH line without a comment.
        private: The private key.
    """

    public: str
    private: EllipticCurvePrivateKey

    def sign(self, message: bytes) -> str:
        """Sign a message and return the signature in hexadecimal digits; its length depends only on the key size."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        # Unlike DER, this writes both numbers at full width, so that all signatures of a key have the same length.
        size = (self.private.key_size + 7) // 8
        pair = decode_dss_signature(self.private.sign(message, ec.ECDSA(hashes.SHA384())))
        return b"".join(number.to_bytes(size, "big") for number in pair).hex()


def fingerprint(public: str) -> str:
    """Return a fingerprint of 16 hexadecimal digits for a public key."""
    return hashlib.sha256(public.encode()).hexdigest()[:16]


def read_signing_key(path: Path) -> SigningKey:
    """Read a private ECDSA key without a passphrase, as made by ssh-keygen or openssl.

    Raises:
        InputError: If the file does not exist or does not hold an ECDSA key.
    """
    require("cryptography", MISSING)
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    data = read_bytes(path, limit=KEY_LIMIT)
    # Keys for Flower come from ssh-keygen, which uses the OpenSSH format, or from openssl, which writes PEM.
    load = serialization.load_ssh_private_key if b"OPENSSH" in data else serialization.load_pem_private_key
    try:
        private = load(data, None)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"'{path}' is not a private key without a passphrase: {error}", code="invalid-key", field="key"
        ) from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"'{path}' is not an ECDSA key. Create one with ssh-keygen -t ecdsa -b 384 -N ''",
            code="invalid-key",
            field="key",
        )
    return SigningKey(_line(private.public_key()), private)


def load_public_key(path: Path, remedy: str = "") -> EllipticCurvePublicKey:
    """Load a public ECDSA key from an OpenSSH file, such as the .pub file of ssh-keygen.

    Args:
        path: Path of the file.
        remedy: Advice to append to the error message if the file cannot be read.

    Raises:
        InputError: If the file does not exist or does not hold an ECDSA key.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    line = public_key(read_bytes(path, limit=KEY_LIMIT, remedy=remedy))
    if line is None:
        raise InputError(
            f"'{path}' does not hold a public ECDSA key. Use the .pub file of ssh-keygen -t ecdsa -b 384",
            code="invalid-key",
            field=str(path),
        )
    return cast("EllipticCurvePublicKey", load_ssh_public_key(line.encode()))


def read_public_key(path: Path, remedy: str = "") -> str:
    """Read a public ECDSA key as an OpenSSH line without a comment.

    The arguments are those of :func:`load_public_key`.

    Raises:
        InputError: If the file does not exist or does not hold an ECDSA key.
    """
    return _line(load_public_key(path, remedy))


def public_key(data: bytes) -> str | None:
    """Convert a public key in OpenSSH or PEM format to an OpenSSH line; None if it is not an ECDSA key."""
    require("cryptography", MISSING)
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    load = serialization.load_pem_public_key if b"-----BEGIN" in data else serialization.load_ssh_public_key
    try:
        key = load(data)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return _line(key) if isinstance(key, ec.EllipticCurvePublicKey) else None


def is_signed(message: bytes, signature: str, public: str) -> bool:
    """Return whether a signature of a message was made with the private key that belongs to a public key."""
    require("cryptography", MISSING)
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    try:
        key, raw = serialization.load_ssh_public_key(public.encode()), bytes.fromhex(signature)
        half = len(raw) // 2
        pair = int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big")
        # Each signature must have exactly one encoding, so other lengths are rejected.
        if not isinstance(key, ec.EllipticCurvePublicKey) or len(raw) != 2 * ((key.key_size + 7) // 8):
            return False
        key.verify(encode_dss_signature(*pair), message, ec.ECDSA(hashes.SHA384()))
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _line(key: object) -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
