"""Damage: valid inputs with some of their bytes, words or numbers changed. All draws come from the given generator."""

from __future__ import annotations

import re

NUMBERS = [
    "0",
    "-0",
    "-1",
    "1",
    "2",
    "0.5",
    "-0.1",
    "1e400",
    "-1e400",
    "nan",
    "inf",
    "-inf",
    "NaN",
    "Infinity",
    "1e-320",
    "1e308",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "1_000",
    "0x10",
    "01",
    "1.",
    "9" * 400,
    "9" * 5000,
    "1" + "0" * 30,
    "１２",
    "²",
    "1e5",
    "1,5",
]
"""As people, other programs and nobody at all would write them."""

WORDS = [
    "",
    " ",
    "a",
    "true",
    "false",
    "none",
    "null",
    "None",
    "full",
    "..",
    "../..",
    "/",
    "/dev/null",
    "/etc",
    "~",
    "\\",
    "'",
    '"',
    "\n",
    "a\nb",
    "\r",
    "\t",
    "\x00",
    "\x1b[31m",
    "\x7f",
    "\x85",
    "\u2028",
    "\u202e",
    "\ufeff",
    "\U0001f600",
    "é" * 300,
    "x" * 3000,
    "<script>alert(1)</script>",
    "</script>",
    "<!--",
    "%{x}",
    "${title}",
    "$title",
    "{}",
    "{0}",
    "%s",
    "[bold]",
    "[/]",
    "[]",
    "[[",
    "{",
    "=",
    "==",
    "a=b",
    ":",
    ",",
    ",,",
    ";",
    "#",
    "--",
    "-",
    "--x",
    "*",
    "cvar:alpha=0.2",
    "1979-05-27",
    "07:32:00",
    "DRDM",
    "digits",
    "mnist",
    "worst_accuracy=0.5",
    "0..3",
    "con",
    "a" * 255 + "/b",
]

HEADS = [
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"\xff" * 8,
]
"""Sizes that are none, huge or negative, in either byte order."""

TOKEN = re.compile(r"[+-]?\d[\w.]*|\w+|\"[^\"\n]*\"|[^\w\s]")


def place(rng, length):
    """A position, with headers and trailers more often than their share."""
    near = min(length, 64)
    at = rng.choice((rng.randrange(near), length - 1 - rng.randrange(near), rng.randrange(length)))
    return at


def damaged(rng, data):
    """Bytes with one to eight faults."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if not data:
            return rng.randbytes(rng.randrange(40))
        data = rng.choice(FAULTS)(rng, data)
    return data


def _flip(rng, data):
    at = place(rng, len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _set(rng, data):
    at = place(rng, len(data))
    return data[:at] + rng.choice((b"\0", b"\xff", b"\x80", rng.randbytes(1))) + data[at + 1 :]


def _truncate(rng, data):
    return data[: place(rng, len(data))]


def _behead(rng, data):
    return data[place(rng, len(data)) :]


def _insert(rng, data):
    at = place(rng, len(data))
    return data[:at] + rng.randbytes(rng.choice((1, 2, 4, 64))) + data[at:]


def _duplicate(rng, data):
    start = place(rng, len(data))
    part = data[start : start + rng.choice((1, 4, 64, 512))]
    at = rng.choice((start, place(rng, len(data)), len(data)))
    return data[:at] + part * rng.choice((1, 1, 2, 9)) + data[at:]


def _delete(rng, data):
    at = place(rng, len(data))
    return data[:at] + data[at + rng.choice((1, 2, 4, 64)) :]


def _number(rng, data):
    at, head = place(rng, len(data)), rng.choice(HEADS)
    return data[:at] + head + data[at + len(head) :]


def _swap(rng, data):
    a, b = sorted((place(rng, len(data)), place(rng, len(data))))
    return data[b:] + data[a:b] + data[:a]


FAULTS = (_flip, _set, _truncate, _behead, _insert, _duplicate, _delete, _number, _swap)


def reworded(rng, text):
    """Text with one to four faults in its words, numbers and lines."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        text = rng.choice(REWRITES)(rng, text)
    return text


def _token(rng, text):
    found = list(TOKEN.finditer(text))
    if not found:
        return text + rng.choice(WORDS)
    token = rng.choice(found)
    new = rng.choice((rng.choice(NUMBERS), rng.choice(WORDS), rng.choice(found)[0], ""))
    return text[: token.start()] + new + text[token.end() :]


def _line(rng, text):
    lines = text.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    change = rng.randrange(4)
    if change == 0:
        del lines[at]
    elif change == 1:
        lines.insert(other, lines[at])
    elif change == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines.insert(at, rng.choice(WORDS))
    return "\n".join(lines)


def _letter(rng, text):
    at = rng.randrange(len(text) + 1)
    return (
        text[:at]
        + rng.choice(('"', "'", "\n", ",", "=", "[", "]", "{", ".", "\\", "\0", "é", " "))
        + text[at + rng.randrange(2) :]
    )


def _cut(rng, text):
    return text[: rng.randrange(len(text) + 1)]


def _nest(rng, text):
    at, depth = rng.randrange(len(text) + 1), rng.choice((2, 50, 3000))
    opening = rng.choice(("[", "{", '{"a":', "{a=", "(", '"'))
    return text[:at] + opening * depth + text[at:]


REWRITES = (_token, _token, _token, _line, _letter, _cut, _nest)


def written(rng, text):
    """A text file: the text with faults in its words, or in its bytes, or in neither."""
    kind = rng.randrange(10)
    if kind == 0:
        return damaged(rng, text.encode())
    return (text if kind == 1 else reworded(rng, text)).encode("utf-8", "surrogatepass")
