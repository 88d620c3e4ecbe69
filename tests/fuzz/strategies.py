"""Hypothesis strategies of bad input: valid bytes, texts and documents in which some parts are changed."""

from __future__ import annotations

import copy
import io
import json
import re

import numpy as np
from hypothesis.strategies import binary, composite, integers, just, one_of, sampled_from

NUMBERS = (
    "0", "-0", "-1", "1", "2", "0.5", "-0.1", "1e400", "-1e400", "nan", "inf", "-inf", "NaN", "Infinity", "1e-320",
    "1e308", "2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1_000", "0x10", "01",
    "1.", "9" * 400, "9" * 5000, "1" + "0" * 30, "１２", "²", "1e5", "1,5",
)  # fmt: skip
"""Numbers in common and uncommon notations."""

WORDS = (
    "", " ", "a", "true", "false", "none", "null", "None", "full", "..", "../..", "/", "/dev/null", "/etc", "~", "\\",
    "'", '"', "\n", "a\nb", "\r", "\t", "\x00", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u202e", "\ufeff", "\U0001f600",
    "é" * 300, "x" * 3000, "<script>alert(1)</script>", "</script>", "<!--", "%{x}", "${title}", "$title", "{}", "{0}",
    "%s", "[bold]", "[/]", "[]", "[[", "{", "=", "==", "a=b", ":", ",", ",,", ";", "#", "--", "-", "--x", "*",
    "cvar:alpha=0.2", "1979-05-27", "07:32:00", "DRDM", "digits", "mnist", "worst_accuracy=0.5", "0..3", "con",
    "a" * 255 + "/b",
)  # fmt: skip

VALUES = (
    None, True, False, -1, 0, 1, 2, 3, 4, 7, 0.5, -0.0, 2.0, 1e300, 1e999, -1e999, float("nan"), 2**31, 2**62, 2**63,
    -(2**63), 10**15, 10**400, "", "2", "x", "nan", "</script>", "a\nb", "\ud800", "\x1b[2J", "x" * 5000, [], [1], [-1],
    ["a"], [[1]], [[]], [1] * 500, {}, {"a": "b"}, {"a": {"b": []}},
)  # fmt: skip
"""Values of every JSON type."""

SIZES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\0\x80",
         b"\xff" * 8)  # fmt: skip
"""Zero, huge and negative sizes, in either byte order."""

PARTS = {
    "token": re.compile(r"[+-]?\d[\w.]*|\w+|\"[^\"\n]*\"|[^\w\s]"),
    "line": re.compile(r"[^\n]*\n|[^\n]+"),
    "letter": re.compile(r"(?s)."),
    "rest": re.compile(r"(?s)(?=.)"),
}
"""Parts of a text that can be replaced."""


def chance(percent):
    """Return True in about this percentage of examples."""
    return integers(0, 99).map(lambda k: k >= 100 - percent)


def position(length):
    """Draw an index up to the length, more often in headers and trailers."""
    near = min(length, 64)
    return one_of(integers(0, near), integers(length - near, length), integers(0, length))


@composite
def mutated_bytes(draw, data):
    """Replace, delete, insert or repeat one to eight parts of the bytes."""
    for _ in range(draw(sampled_from((1, 1, 1, 2, 3, 8)))):
        start = draw(position(len(data)))
        end = draw(sampled_from((start, start + 1, start + 1, start + 4, start + 8, start + 64, len(data))))
        kind = draw(sampled_from(("nothing", "bit", "byte", "bytes", "size", "copy")))
        if kind == "nothing":
            part = b""
        elif kind == "bit":
            part, end = bytes(byte ^ 1 << draw(integers(0, 7)) for byte in data[start : start + 1]), start + 1
        elif kind == "byte":
            part, end = draw(one_of(sampled_from((b"\0", b"\xff", b"\x80")), binary(min_size=1, max_size=1))), start + 1
        elif kind == "bytes":
            part = draw(binary(min_size=1, max_size=64))
        elif kind == "size":
            part = draw(sampled_from(SIZES))
            end = start + len(part)
        else:
            other = draw(position(len(data)))
            part = data[other : other + draw(sampled_from((1, 4, 64, 512)))] * draw(sampled_from((1, 1, 2, 9)))
        data = data[:start] + part + data[end:]
    return data


@composite
def mutated_text(draw, text):
    """Make one to four faults in a text's words, numbers, lines and letters."""
    for _ in range(draw(sampled_from((1, 1, 2, 4)))):
        kind = draw(sampled_from(("token",) * 6 + ("line", "letter", "rest") * 2 + ("deep",)))
        if kind == "deep":
            # Use a separate line, because inside a line nesting seldom reaches the parser's limit.
            start = draw(sampled_from([match.start() for match in PARTS["line"].finditer(text)] or [0]))
            text = f"{text[:start]}x = {draw(sampled_from(('[', '{a='))) * 3000}\n{text[start:]}"
            continue
        spans = [match.span() for match in PARTS[kind].finditer(text)] or [(0, 0)]
        start, end = draw(sampled_from(spans))
        if kind == "rest":
            text = text[:start]
            continue
        other = slice(*draw(sampled_from(spans)))
        new = draw(
            one_of(
                sampled_from(NUMBERS), sampled_from(WORDS), sampled_from(("", "", text[other], text[other] + "\n")),
                sampled_from(('"', "'", "\n", ",", "=", "[", "]", "{", ".", "\\", "\0", "é", " ")),
                sampled_from(("[", "{", '{"a":', "{a=", "(", '"')).map(lambda opening: opening * 3000),
            )
        )  # fmt: skip
        text = text[:start] + new + text[start if draw(chance(20)) else end :]
    return text


def mutated_file(text):
    """Draw the bytes of a text file with faults in its words, sometimes in its bytes or in neither."""
    texts = one_of(*[mutated_text(text)] * 8, just(text)).map(lambda text: text.encode("utf-8", "surrogatepass"))
    return one_of(*[texts] * 9, mutated_bytes(text.encode()))


@composite
def mutated_json(draw, document, values=VALUES):
    """Change, remove, add or rename one part of a JSON value at any depth."""
    document = copy.deepcopy(document)
    place = document
    while nested := [
        v for v in (place.values() if isinstance(place, dict) else place) if v and type(v) in (dict, list)
    ]:
        if draw(chance(40)):
            break
        place = draw(sampled_from(nested))
    names = list(place) if isinstance(place, dict) else range(len(place))
    name, kind = draw(sampled_from(names)), draw(sampled_from(("change",) * 5 + ("drop", "rename", "add")))
    if kind == "drop":
        del place[name]
    elif kind == "add" and isinstance(place, dict):
        place[draw(sampled_from(("x", "", "a\nb", "more", "partition", "averaged")))] = draw(sampled_from(values))
    elif kind == "rename" and isinstance(place, dict):
        place[f"{name}s"] = place.pop(name)
    else:
        place[name] = draw(sampled_from(values))
    return document


@composite
def mutated_safetensors(draw, data):
    """Change names, types, shapes or offsets in the header of a safetensors file, or its bytes."""
    if draw(chance(35)):
        return draw(mutated_bytes(data))
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    name = draw(sampled_from([name for name in header if name != "__metadata__"]))
    entry, kind = header[name], draw(sampled_from(("shape", "dtype", "data_offsets", "name", "drop", "text")))
    size = draw(sampled_from((0, 1, -1, 2**20, 2**31, 2**40, 2**63)))
    if kind == "shape":
        shapes = ([], [0], [size], [size, 0], [0, size], [size, 1, 1], entry["shape"][::-1])
        entry["shape"] = draw(sampled_from(shapes))
        if draw(chance(70)):
            entry["data_offsets"] = [entry["data_offsets"][0]] * 2
    elif kind == "dtype":
        entry["dtype"] = draw(sampled_from(("F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "X")))
    elif kind == "data_offsets":
        entry["data_offsets"] = draw(sampled_from(([0, size], [size, 0], [0], "x")))
    elif kind == "name":
        header[draw(sampled_from(("fc.weight", "0.weight", "", "a\nb", "__metadata__")))] = header.pop(name)
    elif kind == "drop":
        del header[name]
    head = json.dumps(header)
    if kind == "text":
        head = draw(mutated_text(head.replace("0", draw(sampled_from(NUMBERS)), 1)))
    encoded = head.encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(8, "little") + encoded + data[8 + length :]


@composite
def mutated_npz(draw, arrays):
    """Remove an array of a file, change its type, shape, value or name, or change the file's bytes."""
    arrays = dict(arrays)
    name = draw(sampled_from(list(arrays)))
    old = arrays[name]
    kind = draw(sampled_from(("type", "shape", "value", "drop", "name", "bytes", "bytes", "bytes")))
    if kind == "type":
        arrays[name] = old.astype(draw(sampled_from(("f2", "f8", "i1", "u8", "c8", "U3", "O", "M8[s]", "?"))))
    elif kind == "shape":
        arrays[name] = draw(sampled_from((old[:-1], old[:0], old[None], old[..., None], old.ravel(), old.sum())))
    elif kind == "value":
        arrays[name] = old.astype("f8")
        arrays[name].flat[draw(integers(0, old.size - 1))] = draw(
            sampled_from((np.nan, np.inf, -np.inf, -1, 1.5, 1e30, 1e300))
        )
    elif kind in ("drop", "name"):
        del arrays[name]
        arrays |= {draw(sampled_from(("x", name.upper(), f"{name}/a", "a\nb"))): old} if kind == "name" else {}
    out = io.BytesIO()
    np.savez(out, **arrays)
    return draw(mutated_bytes(out.getvalue())) if kind == "bytes" else out.getvalue()
