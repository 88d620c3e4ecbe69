"""Signatures of audit logs with ECDSA keys, those of a deployment's nodes. Needs the package cryptography."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from drfl.core.errors import InputError
from drfl.core.files import read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

MISSING = "audit logs are signed with the package cryptography, which is not installed: pip install 'drfl[flower]'"

KEY_LIMIT = 2**16
"""Bytes of a file with a key."""


@dataclass(frozen=True)
class SigningKey:
    """A private key that signs an audit log.

    Args:
        public: Its public half, as an OpenSSH line without a comment.
        private: The key itself.
    """

    public: str
    private: EllipticCurvePrivateKey

    def sign(self, message: bytes) -> str:
        """Sign a message; the signature has the same length every time, in hexadecimal digits."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        # Both numbers have full width, unlike in DER, so that all signatures of a key have one length.
        size = (self.private.key_size + 7) // 8
        pair = decode_dss_signature(self.private.sign(message, ec.ECDSA(hashes.SHA384())))
        return b"".join(number.to_bytes(size, "big") for number in pair).hex()


def fingerprint(public: str) -> str:
    """Name a public key by 16 hexadecimal digits."""
    return hashlib.sha256(public.encode()).hexdigest()[:16]


def read_signing_key(path: Path) -> SigningKey:
    """Read a private key that ssh-keygen or openssl made, without a passphrase.

    Raises:
        InputError: There is no such file, or it holds no such key.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise InputError(MISSING, code="package-missing", field="cryptography") from None
    data = read_bytes(path, limit=KEY_LIMIT)
    # Keys for Flower come from ssh-keygen, which has its own format, or from openssl, which writes PEM.
    load = serialization.load_ssh_private_key if b"OPENSSH" in data else serialization.load_pem_private_key
    try:
        private = load(data, None)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"'{path}' is not a private key without a passphrase: {error}", code="invalid-key", field="key"
        ) from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"'{path}' is not an ECDSA key: make one with ssh-keygen -t ecdsa -b 384 -N ''",
            code="invalid-key",
            field="key",
        )
    return SigningKey(_line(private.public_key()), private)


def load_public_key(path: Path, remedy: str = "") -> EllipticCurvePublicKey:
    """Load an OpenSSH file with a public ECDSA key, such as ssh-keygen makes.

    Args:
        path: The file.
        remedy: What to do if it cannot be read, for the message.

    Raises:
        InputError: The file does not exist or does not hold such a key.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    line = public_key(read_bytes(path, limit=KEY_LIMIT, remedy=remedy))
    if line is None:
        raise InputError(
            f"'{path}' does not hold a public ECDSA key: give the .pub file of ssh-keygen -t ecdsa -b 384",
            code="invalid-key",
            field=str(path),
        )
    return cast("EllipticCurvePublicKey", load_ssh_public_key(line.encode()))


def read_public_key(path: Path, remedy: str = "") -> str:
    """Read a public ECDSA key as an OpenSSH line without a comment; arguments as of :func:`load_public_key`.

    Raises:
        InputError: The file does not exist or does not hold such a key.
    """
    return _line(load_public_key(path, remedy))


def public_key(data: bytes) -> str | None:
    """Convert a public key, in the format of OpenSSH or PEM, to an OpenSSH line; None if it is no ECDSA key."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise InputError(MISSING, code="package-missing", field="cryptography") from None
    load = serialization.load_pem_public_key if b"-----BEGIN" in data else serialization.load_ssh_public_key
    try:
        found = load(data)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return _line(found) if isinstance(found, ec.EllipticCurvePublicKey) else None


def is_signed(message: bytes, signature: str, public: str) -> bool:
    """Whether the signature is that of the message with the private half of a public key."""
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    except ImportError:
        raise InputError(MISSING, code="package-missing", field="cryptography") from None
    try:
        key, raw = serialization.load_ssh_public_key(public.encode()), bytes.fromhex(signature)
        half = len(raw) // 2
        pair = int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big")
        # Other lengths would be other encodings of the same signature.
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
