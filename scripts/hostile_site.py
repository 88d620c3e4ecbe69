"""A site that sends false data, fails or is slow on purpose, as the file ``mode`` beside it specifies.

It is the ``loader`` of a site.toml for trials, and the list of behaviours for tests. Each changes
the records of a reply, or of the site's description, before they are sent; all other content is that of an honest site.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Proto

from drfl.data import ClientData
from drfl.flower import client_app
from drfl.flower.messages import Answer
from drfl.flower.records import MESSAGE, PROTOCOL, RAW, VECTORS, Message, write

HERE = Path(__file__).parent
LONG = 3600.0
"""Seconds that a site sleeps, longer than any exchange."""

FIRST = 2
"""Number of values per field in trials with real SuperNodes; tests in one process use all values."""

Change = Callable[[RecordDict], RecordDict]


class Behaviour(NamedTuple):
    """A behaviour of a hostile site.

    Args:
        name: name in tables.
        change: change of the records that the site sends.
        of: "identity", or "reply", from the second reply on, so that the site's first test is known.
        process: whether it needs a separate process, so that tests in one process cannot use it.
        first: whether trials with real SuperNodes include it, as one of the first of its kind.
    """

    name: str
    change: Change
    of: str = "reply"
    process: bool = False
    first: bool = True


def fields_of(content: RecordDict) -> dict[str, object]:
    """Return the fields of a message, as plain values."""
    return msgspec.msgpack.decode(content.config_records[MESSAGE]["fields"])  # pyright: ignore[reportArgumentType]


def field(path: str, value: object) -> Change:
    """Set a field, whose path is separated by dots, to another value; ``...`` removes the field."""

    def change(content: RecordDict) -> RecordDict:
        found = fields_of(content)
        *outer, name = path.split(".")
        place = found
        for one in outer:
            place = place[one] if isinstance(place.get(one), dict) else {}  # a reply without a test is not changed
        place[name] = lone(value) if isinstance(value, str) else value
        if value is ...:
            del place[name]
        return encoded(msgspec.msgpack.encode(found))(content)

    return change


def lone(text: str) -> str | msgspec.Raw:
    """Encode any text in MessagePack; half a surrogate pair is not valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
        return msgspec.Raw(b"\xdb" + len(data).to_bytes(4) + data)
    return text


def encoded(fields: object, protocol: object = PROTOCOL) -> Change:
    """Replace the fields by other bytes; ``...`` removes them, or the protocol's version."""

    def change(content: RecordDict) -> RecordDict:
        about = {
            "protocol": protocol,
            "fields": content.config_records[MESSAGE]["fields"] if fields is None else fields,
        }
        content[MESSAGE] = ConfigRecord({name: value for name, value in about.items() if value is not ...})  # pyright: ignore[reportArgumentType]
        return content

    return change


def twice(name: str, value: object) -> Change:
    """Repeat a field."""

    def change(content: RecordDict) -> RecordDict:
        before = content.config_records[MESSAGE]["fields"]
        assert isinstance(before, bytes)
        # The first byte of a small map counts its fields.
        more = bytes([before[0] + 1]) + before[1:] + msgspec.msgpack.encode(name) + msgspec.msgpack.encode(value)
        return encoded(more)(content)

    return change


def vectors(make: Callable[[Array], Array | None]) -> Change:
    """Replace the vectors; None removes a vector."""

    def change(content: RecordDict) -> RecordDict:
        made = {name: make(array) for name, array in content.array_records[VECTORS].items()}
        content[VECTORS] = ArrayRecord({name: array for name, array in made.items() if array is not None})
        return content

    return change


def another(**parts: object) -> Change:
    """Replace these parts (dtype, shape, stype, data) of the vectors."""

    def make(array: Array) -> Array:
        own = {"dtype": array.dtype, "shape": tuple(array.shape), "stype": array.stype, "data": array.data}
        return Array(**{**own, **parts})  # pyright: ignore[reportArgumentType]

    return vectors(make)


def scaled(factor: float) -> Change:
    """Multiply vectors and reported losses by a factor."""

    def change(content: RecordDict) -> RecordDict:
        with np.errstate(all="ignore"):
            content = vectors(lambda a: packed((np.frombuffer(a.data, dtype=a.dtype) * factor).astype(a.dtype)))(
                content
            )
        parts = fields_of(content)["parts"]
        assert isinstance(parts, list)
        return field("parts", [part * factor if isinstance(part, float) else part for part in parts])(content)

    return change


def packed(values: np.ndarray) -> Array:
    """Encode a vector as drfl does."""
    return Array(dtype=str(values.dtype), shape=values.shape, stype=RAW, data=values.tobytes())


def statistics(mean: float, variance: float) -> Change:
    """Return the same mean and variance for every column."""

    def change(content: RecordDict) -> RecordDict:
        (length,) = content.array_records[VECTORS]["0"].shape
        found = {"0": packed(np.full(length, mean)), "1": packed(np.full(length, variance))}
        return added(vectors=ArrayRecord(found))(content)

    return change


def added(**records: ArrayRecord | MetricRecord | ConfigRecord) -> Change:
    """Add or replace records."""

    def change(content: RecordDict) -> RecordDict:
        for name, record in records.items():
            content[name] = record
        return content

    return change


def without(name: str) -> Change:
    """Remove a record."""

    def change(content: RecordDict) -> RecordDict:
        del content[name]
        return content

    return change


def raising(message: str) -> Change:
    """Let the site's program fail."""

    def change(content: RecordDict) -> RecordDict:
        raise RuntimeError(message)

    return change


def sleeping(seconds: float) -> Change:
    """Delay the reply, or send none."""

    def change(content: RecordDict) -> RecordDict:
        time.sleep(seconds)
        return content

    return change


def dying(content: RecordDict) -> RecordDict:
    """End the process without a message."""
    os._exit(9)


def repeated(content: RecordDict) -> RecordDict:
    """Repeat the first reply to any request."""
    return recorddict_from_proto(Proto.FromString((HERE / "first").read_bytes()))


def changing(content: RecordDict) -> RecordDict:
    """Report other data in every reply."""
    return field("digest", f"{time.monotonic_ns():032x}")(content)


INF, NAN = float("inf"), float("nan")
ANSWERS: dict[str, tuple[object, ...]] = {
    "gradients": (INF, NAN, -1, 2**62, 1.5, [1, 2], ...),
    "losses": (INF, -(2**62), ...),
    "seconds": (INF, NAN, -5.0, 1e300, ...),
    "test samples": (INF, 1e300, -1, 2**62, ...),
    "test score": (INF, NAN, 7.5, -0.5, ...),
    "test loss": (INF, NAN, ...),
    "test sums": (
        [[15.0, 1e300, 1e300, 0.0, 0.0]],
        [[NAN] * 5],
        [[15.0, -1.0, -1.0, 0.0, 0.0]],
        [[15.0, 0.5]],
        [],
        INF,
        ...,
    ),
    "also sums": ([[INF] * 5], ...),
    "products": ([[NAN] * 2], [[1e300, 0.0]], [[1.0, 2.0, 3.0]], INF, 7, ...),
    "answer.parts": (INF, -1, 10**9, 2**64 - 1, "2", None, [7], [-1], [True], [[0]], [2**64 - 1], [0.5] * 10**4, ...),
    "answer.version": ("x" * 10**7, "\ud800", 7, ...),
    "answer.lacking": (True, "yes", ...),
    "answer.digest": ("", "\ud800", ...),
    "answer.more": ("than asked",),
}
TELLS: dict[str, tuple[object, ...]] = {
    "train": (INF, -5, 0, 2.0**64, 2**64 - 1, 10**15, "30", ...),
    "test": (INF, -1, 2**64 - 1),
    "classes": (INF, 10**9, 0, -3),
    "shape": ([INF], [-1], [10**9], [1] * 1000, "10", {}),
    "digest": ("", "\ud800", "zz" * 16),
    "majority": (INF, NAN, -0.5, 7, "1", ...),
    "name": ("", "\ud800", "x" * 10**7, "\x1b[2J\nhungary", ...),
    "columns": (INF, [], [0], [0, 0], [1, 0, 0], [0.5, 0.5], {"mean": 0}, ...),
    "more": ("x" * 10**6, 7),
}
PROTOCOLS: tuple[object, ...] = (99, "2", INF, ...)


def named(name: str, value: object) -> str:
    """Return a behaviour's name in a table."""
    told = "missing" if value is ... else ascii(value)
    return f"{name} = {told if len(told) <= 24 else told[:12] + '… (' + str(len(told)) + ' characters)'}"


def behaviours() -> list[Behaviour]:
    """Return all behaviours."""
    found = []
    identity = {f"identity.{name}": values for name, values in TELLS.items()}
    for of, table in (("reply", ANSWERS), ("identity", identity)):
        for name, values in table.items():
            path = name.removeprefix("answer.").removeprefix("identity.").replace(" ", ".")
            for place, value in enumerate(values):
                found.append(Behaviour(named(name, value), field(path, value), of, first=place < FIRST))
    for of, name in (("reply", "answer.protocol"), ("identity", "identity.protocol")):
        for place, value in enumerate(PROTOCOLS):
            found.append(Behaviour(named(name, value), encoded(None, value), of, first=place < FIRST))
    deep = b"\x81\xa1a" * 5000 + b"\x01"
    deep_part = b"\x81\xa5parts" + b"\x91" * 5000 + b"\x01"
    huge = np.zeros(2**22, dtype=np.float32)
    found += [
        Behaviour("vectors are NaN", scaled(NAN)),
        Behaviour("vectors are infinite", scaled(INF)),
        Behaviour("vectors times 1e30", scaled(1e30)),
        Behaviour("vectors are missing", vectors(lambda array: None)),
        Behaviour("vectors of another length", vectors(lambda a: packed(np.zeros(3, dtype=a.dtype)))),
        Behaviour("vectors of 16 MB", vectors(lambda a: packed(huge))),
        Behaviour("vectors of another type", vectors(lambda a: packed(np.zeros(tuple(a.shape), dtype=np.float64)))),
        Behaviour("vectors of objects", another(dtype="object")),
        Behaviour("vectors in another style", another(stype="numpy.ndarray")),
        Behaviour("a shape of 2^80 numbers", another(shape=(2**40, 2**40))),
        Behaviour("a negative shape", another(shape=(-1,))),
        Behaviour("bytes are missing", another(data=b"\0\0\0")),
        Behaviour("a part is there twice", field("parts", [0, 0])),
        Behaviour("a vector too many", added(vectors=ArrayRecord({"0": packed(huge[:7]), "9": packed(huge[:7])}))),
        Behaviour("a number too many", field("parts", [0, 0.5, 0.5])),
        Behaviour("an empty reply", lambda content: RecordDict()),
        Behaviour("no vectors' record", without(VECTORS)),
        Behaviour("no fields' record", without(MESSAGE)),
        Behaviour("a record too many", added(more=MetricRecord({"a": 1}))),
        Behaviour("a record of another type", added(message=MetricRecord({"protocol": PROTOCOL}))),
        Behaviour("a vectors' record of another type", added(vectors=ConfigRecord({"0": b"\0\0\0\0"}))),
        Behaviour("an identity for a reply", encoded(msgspec.msgpack.encode({"name": "hungary"}))),
        Behaviour("the fields are no MessagePack", encoded(b"\xc1")),
        Behaviour("the fields are missing", encoded(...)),
        Behaviour("the fields are nested 5,000 deep", encoded(deep)),
        Behaviour("a part is nested 5,000 deep", encoded(deep_part)),
        Behaviour("the fields are text", encoded("{}")),
        Behaviour("the fields are those of a list of 2^32 numbers", encoded(b"\x81\xa5parts\xdd\xff\xff\xff\xff")),
        Behaviour("a field stands there twice", twice("gradients", 1)),
        Behaviour("other data in every reply", changing),
        Behaviour("it raises, with control characters", raising("\x1b[2J\x1b[31mdrfl: completed\r\nround 3 of 3\x07")),
        Behaviour("it raises, with 1 MB of text", raising("x" * 10**6)),
        Behaviour("the first reply, repeated", repeated, process=True),
        Behaviour("it never replies", sleeping(LONG), process=True),
        Behaviour("it replies late", sleeping(25.0), process=True),
        Behaviour("its process dies", dying, process=True),
        Behaviour("another site's name", field("name", "hungary"), "identity"),
        Behaviour("a name that a spreadsheet runs", field("name", "=1+1"), "identity"),
        Behaviour("a field stands there twice in the identity", twice("train", 7), "identity"),
        Behaviour("statistics of columns are NaN", statistics(np.nan, np.nan), "identity"),
        Behaviour("a variance is infinite", statistics(0.0, np.inf), "identity"),
        Behaviour("a variance is negative", statistics(0.0, -1.0), "identity"),
        Behaviour("a variance is 1e40", statistics(0.0, 1e40), "identity"),
        Behaviour("a mean is 1e30", statistics(1e30, 1.0), "identity"),
        Behaviour("statistics of columns are missing", vectors(lambda array: None), "identity"),
        Behaviour("statistics of 3 columns", vectors(lambda array: packed(np.zeros(3))), "identity"),
        Behaviour("statistics of columns in float32", vectors(lambda array: packed(huge[:6])), "identity"),
        Behaviour("statistics of columns of 16 MB", vectors(lambda array: packed(huge)), "identity"),
        Behaviour("the identity is a list", encoded(b"\x90"), "identity"),
        Behaviour("the identity is nested 5,000 deep", encoded(deep), "identity"),
        Behaviour("the identity is empty", lambda content: RecordDict(), "identity"),
        Behaviour("the identity raises", raising("I will not tell\x1b[2J"), "identity"),
        Behaviour("the identity never comes", sleeping(LONG), "identity", process=True),
    ]
    return found


def load() -> ClientData:
    """Return the site's data."""
    with np.load(HERE / "data.npz") as found:
        arrays = {name: torch.from_numpy(found[name]) for name in found}
    train = {HERE.name: (arrays["train_inputs"], arrays["train_targets"])}
    return ClientData.from_arrays(train, {HERE.name: (arrays["test_inputs"], arrays["test_targets"])})


def spoilt(content: RecordDict, of: str) -> RecordDict:
    """Return the records, changed by the mode."""
    mode = (HERE / "mode").read_text(encoding="utf-8") if (HERE / "mode").exists() else ""
    chosen = next((one for one in behaviours() if one.name == mode and one.of == of), None)
    if of == "reply" and chosen is not None and not (HERE / "first").exists():
        (HERE / "first").write_bytes(recorddict_to_proto(content).SerializeToString())
        return content
    return content if chosen is None else chosen.change(content)


def _written(message: Message) -> RecordDict:
    content = write(message)
    return spoilt(content, "reply") if isinstance(message, Answer) else content


HONEST = client_app.identity
client_app.write = _written
client_app.identity = lambda site: spoilt(HONEST(site), "identity")
