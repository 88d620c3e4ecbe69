"""How a message travels as Flower's records: its fields in MessagePack, and its vectors as arrays beside them.

A vector travels in its own type, never pickled. A message has one encoding, and is refused if it arrives in another.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from drfl.core.audit_log import Head
from drfl.core.errors import InputError
from drfl.core.errors import printable as one_line

PROTOCOL = 8
"""Both ends must have the same; changed with every change of the messages that the other end would misread."""

MESSAGE, VECTORS, AUDIT = "message", "vectors", "audit"
"""The records of a message: its fields, its vectors, and the head of the sender's audit log if it keeps one."""

RAW = "drfl.vector"
"""How the bytes of an array are laid out: the numbers alone, in C order, little-endian."""

TYPES = {"float32": 4, "float64": 8}
"""Bytes of a number, by the types that a vector may have."""

MOST_FIELDS = 2**16
"""Bytes of a message beside its vectors."""

MOST_SHOWN = 200
"""Characters of a site's own text that go into a line of the log."""


class ProtocolError(InputError):
    """A message that this end cannot read."""

    code = "protocol"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """A message or a part of one. :func:`read` checks every field against the type and the range in its annotation."""


M = TypeVar("M", bound=Message)


def array_of(vector: Tensor) -> Array:
    """A vector as Flower's array."""
    values = vector.detach().cpu().contiguous().numpy()
    # The bytes mean the same on machines of either byte order; on a little-endian one nothing is copied.
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return Array(dtype=str(values.dtype), shape=values.shape, stype=RAW, data=little.tobytes())


def vector_of(array: Array) -> Tensor:
    """The vector in Flower's array.

    Raises:
        ProtocolError: it is none, or has not as many bytes as it says.
    """
    if array.stype != RAW or array.dtype not in TYPES:
        raise ProtocolError("an array is of another type than drfl's vectors")
    shape = tuple(array.shape)
    # Bytes are counted before anything of the claimed size is allocated.
    if len(shape) != 1 or shape[0] < 0 or len(array.data) != TYPES[array.dtype] * shape[0]:
        raise ProtocolError("an array is no vector of the length that it says")
    values = np.frombuffer(array.data, dtype=np.dtype(array.dtype).newbyteorder("<"))
    return torch.from_numpy(values.astype(array.dtype))


def write(message: Message, packed: dict[Tensor, Array] | None = None) -> RecordDict:
    """The records of a message.

    Args:
        message: its fields; a tensor is a vector (d,), or a number ().
        packed: vectors that were packed before, so that messages with the same ones share the bytes; those of this
            message are added.
    """
    packed, vectors = {} if packed is None else packed, dict[str, Array]()

    def place_of(value: object) -> object:
        if isinstance(value, np.generic):  # a user's hyperparameter
            return value.item()
        if not isinstance(value, Tensor):
            raise NotImplementedError
        if not value.ndim:
            # A loss is a float64 at both ends.
            return float(value)
        # A tensor's hash is its identity.
        if value not in packed:
            packed[value] = array_of(value)
        vectors[str(len(vectors))] = packed[value]
        return len(vectors) - 1

    fields = msgspec.msgpack.encode(message, enc_hook=place_of)
    about = ConfigRecord({"protocol": PROTOCOL, "fields": fields})
    return RecordDict({MESSAGE: about, VECTORS: ArrayRecord(vectors)})


def read(content: RecordDict, kind: type[M]) -> M:
    """The message in records.

    Whether a vector has the length of the model, and its numbers are finite, is checked elsewhere.

    Args:
        content: a message's.
        kind: of message.

    Raises:
        ProtocolError: it is another message, or one of another version of drfl.
    """
    fields, arrays = _opened(content)
    unread, places = dict(arrays), dict[Tensor, int | float]()

    def tensor(field: type, value: object) -> Tensor:
        if field is not Tensor:
            raise NotImplementedError
        if type(value) is float:
            values = torch.tensor(value, dtype=torch.float64)
        elif type(value) is int and str(value) in unread:
            values = vector_of(unread.pop(str(value)))
        else:
            raise ValueError("there is no such vector")
        places[values] = value
        return values

    try:
        message = msgspec.msgpack.decode(fields, type=kind, dec_hook=tensor)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(_reason(error)) from None
    if unread:
        raise ProtocolError("a message has vectors that no field of it names")
    # The decoder lets some fields pass that are missing, doubled or surplus, and an integer in place of a float.
    if msgspec.msgpack.encode(message, enc_hook=places.__getitem__) != fields:
        raise ProtocolError("a message is not encoded as drfl does it: a field may be missing, or be there twice")
    return message


def _opened(content: RecordDict) -> tuple[bytes, ArrayRecord]:
    """The encoded fields of a message, and its vectors."""
    record, arrays = content.get(MESSAGE), content.get(VECTORS)
    if not isinstance(record, ConfigRecord):
        raise ProtocolError("a message has other records than drfl's")
    # The version comes first, as everything else may differ between versions.
    protocol, fields = record.get("protocol"), record.get("fields")
    if type(protocol) is not int or protocol != PROTOCOL:
        raise ProtocolError(
            f"the other end does not speak version {PROTOCOL} of drfl's protocol: install the same drfl at both ends"
        )
    # A record that drfl does not read could carry data out of a site unseen.
    if not isinstance(arrays, ArrayRecord) or set(content) - {AUDIT} != {MESSAGE, VECTORS}:
        raise ProtocolError("a message has other records than drfl's")
    # Check the length first, as parsing takes time before it fails.
    if set(record) != {"protocol", "fields"} or not isinstance(fields, bytes) or len(fields) > MOST_FIELDS:
        raise ProtocolError("a message is not drfl's: its fields are missing or too long")
    return fields, arrays


def _reason(error: Exception) -> str:
    """What is wrong with a message, in a line that quotes little of it."""
    if isinstance(error, RecursionError):
        return "a message is nested too deeply"
    text, _, place = str(error).partition(" - at `$")
    # Cut it short, as msgspec may quote a name or a value of the message.
    return printable(f"{place.strip('.`') or 'a message'} cannot be read: {text[:1].lower()}{text[1:]}")


def digest_of_content(content: RecordDict) -> str:
    """Name all that a message says by 32 hexadecimal digits, the head of the sender's audit log apart."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(set(content) - {AUDIT}):
        for key, value in sorted(content[name].items()):
            array = isinstance(value, Array)
            plain = f"{value.dtype} {tuple(value.shape)} {value.stype}" if array else repr(value)
            data = value.data if array else b""
            digest.update(repr((name, key, plain, len(data))).encode("utf-8", "surrogatepass"))
            digest.update(data)
    return digest.hexdigest()


def write_head(content: RecordDict, head: Head | None) -> RecordDict:
    """Add the head of the sender's audit log to a message; nothing if it keeps none."""
    if head is not None:
        content[AUDIT] = ConfigRecord({"head": str(head)})
    return content


def read_head(content: RecordDict) -> Head | None:
    """The head of the sender's audit log; None if the message has none.

    Raises:
        ProtocolError: It has another form.
    """
    if AUDIT not in content:
        return None
    record = content[AUDIT]
    text = record.get("head") if isinstance(record, ConfigRecord) and len(record) == 1 else None
    try:
        return Head.parse(text if isinstance(text, str) else "")
    except ValueError:
        raise ProtocolError("the head of its audit log has another form") from None


def payload(content: RecordDict) -> int:
    """Bytes of a message's records as they travel, without what Flower and HTTP add."""
    total = 0
    for name, record in content.items():
        total += len(name)
        for key, value in record.items():
            total += len(key) + _size(value)
    return total


def _size(value: object) -> int:
    """Bytes of a value; Flower's own count raises where a text is empty."""
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_size, value)) if isinstance(value, list) else 8


def rejection_reason(error: Exception) -> str:
    """The reason for which a message is rejected, in a line; of an unforeseen error only its type."""
    return str(error) if isinstance(error, ProtocolError) else f"it cannot be read ({type(error).__name__})"


def printable(text: object, most: int = MOST_SHOWN) -> str:
    """A site's text for a line of the log: what a terminal would not print becomes a space, and the end is cut."""
    return one_line(text, most)
