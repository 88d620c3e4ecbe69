"""Write messages to Flower's records and read them: fields in MessagePack, vectors as arrays beside them.

A vector is sent in its own data type and never pickled. A message has one valid encoding; all others are rejected.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar, TypeVar

import msgspec
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from drfl.core.audit_log import Head
from drfl.core.errors import InputError, printable

PROTOCOL = 12
"""Version of the protocol; both ends must have the same. Increase it with every incompatible change of a message."""

MESSAGE, VECTORS, AUDIT = "message", "vectors", "audit"
"""Names of a message's records: its fields, its vectors, and the head of the sender's audit log, if there is one."""

RAW = "drfl.vector"
"""Name of the layout of an array's bytes: only the numbers, in C order, little-endian."""

TYPES = {"float32": 4, "float64": 8}
"""Allowed data types of a vector, with the bytes per number."""

MOST_FIELDS = 2**16
"""Maximum number of bytes of a message without its vectors, unless its class has another ``limit``."""

MOST_SHOWN = 200
"""Maximum number of characters of a site's text in a log line."""


class ProtocolError(InputError):
    """Raised for a message that this end cannot read."""

    code = "protocol"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """A message or a part of it. :func:`read` checks every field against the type and range in its annotation."""

    limit: ClassVar[int] = MOST_FIELDS


M = TypeVar("M", bound=Message)


def array_of(vector: Tensor) -> Array:
    """Convert a vector to Flower's array."""
    values = vector.detach().cpu().contiguous().numpy()
    # Send little-endian bytes from every machine; on a little-endian machine this copies nothing.
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return Array(dtype=str(values.dtype), shape=values.shape, stype=RAW, data=little.tobytes())


def vector_of(array: Array) -> Tensor:
    """Convert Flower's array to a vector.

    Raises:
        ProtocolError: If the array is not a vector, or its number of bytes does not match its length.
    """
    if array.stype != RAW or array.dtype not in TYPES:
        raise ProtocolError("an array is not of a type that drfl sends")
    shape = tuple(array.shape)
    # Check the number of bytes before allocating memory of the claimed size.
    if len(shape) != 1 or shape[0] < 0 or len(array.data) != TYPES[array.dtype] * shape[0]:
        raise ProtocolError("an array is not a vector of its stated length")
    values = np.frombuffer(array.data, dtype=np.dtype(array.dtype).newbyteorder("<"))
    return torch.from_numpy(values.astype(array.dtype))


def write(message: Message, packed: dict[Tensor, Array] | None = None) -> RecordDict:
    """Encode a message as Flower's records.

    Args:
        message: The message. A tensor in it is a vector (d,) or a number ().
        packed: Vectors that were encoded before, so that messages with equal vectors share the bytes. The vectors of
            this message are added.
    """
    packed, vectors = {} if packed is None else packed, dict[str, Array]()

    def encode(value: object) -> object:
        if isinstance(value, np.generic):  # a hyperparameter that a user gave as a NumPy number
            return value.item()
        if not isinstance(value, Tensor):
            raise NotImplementedError
        if not value.ndim:
            # A loss is a float64 at both ends.
            return float(value)
        # The dictionary distinguishes tensors by identity, so a vector is encoded once per object.
        if value not in packed:
            packed[value] = array_of(value)
        vectors[str(len(vectors))] = packed[value]
        return len(vectors) - 1

    fields = msgspec.msgpack.encode(message, enc_hook=encode)
    record = ConfigRecord({"protocol": PROTOCOL, "fields": fields})
    return RecordDict({MESSAGE: record, VECTORS: ArrayRecord(vectors)})


def read(content: RecordDict, kind: type[M]) -> M:
    """Decode a message from Flower's records.

    The function does not check whether vectors have the length of the model or finite numbers.

    Raises:
        ProtocolError: If the records contain another message, or one of another protocol version.
    """
    record, arrays = content.get(MESSAGE), content.get(VECTORS)
    if not isinstance(record, ConfigRecord):
        raise ProtocolError("a message does not consist of drfl's records")
    # Check the version first, because everything else may differ between versions.
    protocol, fields = record.get("protocol"), record.get("fields")
    if type(protocol) is not int or protocol != PROTOCOL:
        raise ProtocolError(
            f"the other end does not use version {PROTOCOL} of drfl's protocol. Install the same drfl at both ends"
        )
    # An unknown record could carry data out of a site unnoticed.
    if not isinstance(arrays, ArrayRecord) or set(content) - {AUDIT} != {MESSAGE, VECTORS}:
        raise ProtocolError("a message does not consist of drfl's records")
    # Check the length before parsing, which takes time before it fails.
    if set(record) != {"protocol", "fields"} or not isinstance(fields, bytes) or len(fields) > kind.limit:
        raise ProtocolError("the fields of a message are missing or too long")
    unread, encoded = dict(arrays), dict[Tensor, int | float]()

    def tensor(field: type, value: object) -> Tensor:
        if field is not Tensor:
            raise NotImplementedError
        if type(value) is float:
            values = torch.tensor(value, dtype=torch.float64)
        elif type(value) is int and str(value) in unread:
            values = vector_of(unread.pop(str(value)))
        else:
            raise ValueError("it refers to a missing vector")
        encoded[values] = value
        return values

    try:
        message = msgspec.msgpack.decode(fields, type=kind, dec_hook=tensor)
    except RecursionError:
        raise ProtocolError("a message is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        text, _, field = str(error).partition(" - at `$")
        # Shorten the text, because msgspec may quote a name or a value of the message.
        reason = f"cannot read {field.strip('.`') or 'a message'}: {text[:1].lower()}{text[1:]}"
        raise ProtocolError(printable(reason, MOST_SHOWN)) from None
    if unread:
        raise ProtocolError("a message has vectors that none of its fields refers to")
    # Encode the message again and compare: the decoder accepts some missing, duplicate or surplus fields, and integers
    # in place of floats.
    if msgspec.msgpack.encode(message, enc_hook=encoded.__getitem__) != fields:
        raise ProtocolError("a message is not in drfl's encoding: a field may be missing or occur twice")
    return message


def digest_of_content(content: RecordDict) -> str:
    """Return the digest (32 hexadecimal digits) of a message, without the head of the sender's audit log."""
    digest = hashlib.blake2b(digest_size=16)
    # Sort, because the order of records may change on the way.
    for name in sorted(set(content) - {AUDIT}):
        for key, value in sorted(content[name].items()):
            is_array = isinstance(value, Array)
            text = f"{value.dtype} {tuple(value.shape)} {value.stype}" if is_array else repr(value)
            data = value.data if is_array else b""
            digest.update(repr((name, key, text, len(data))).encode("utf-8", "surrogatepass"))
            digest.update(data)
    return digest.hexdigest()


def write_head(content: RecordDict, head: Head | None) -> RecordDict:
    """Add the head of the sender's audit log to a message, unless it is None."""
    if head is not None:
        content[AUDIT] = ConfigRecord({"head": str(head)})
    return content


def read_head(content: RecordDict) -> Head | None:
    """Return the head of the sender's audit log; None if the message has none.

    Raises:
        ProtocolError: If the head is malformed.
    """
    if AUDIT not in content:
        return None
    record = content[AUDIT]
    text = record.get("head") if isinstance(record, ConfigRecord) and len(record) == 1 else None
    try:
        return Head.parse(text if isinstance(text, str) else "")
    except ValueError:
        raise ProtocolError("the head of its audit log is malformed") from None


def payload_size(content: RecordDict) -> int:
    """Return the bytes of a message's records, without the overhead of Flower and HTTP."""
    total = 0
    for name, record in content.items():
        total += len(name)
        for key, value in record.items():
            total += len(key) + _size(value)
    return total


def _size(value: object) -> int:
    # Flower's own count raises an error for an empty text.
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_size, value)) if isinstance(value, list) else 8


def rejection_reason(error: Exception) -> str:
    """Return the reason why a message is rejected, in one line; for an unexpected error only its type."""
    return str(error) if isinstance(error, ProtocolError) else f"it cannot be read ({type(error).__name__})"
