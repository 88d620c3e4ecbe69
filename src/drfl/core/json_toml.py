"""Readers of JSON and TOML with limits on size and depth."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from drfl.core.files import TEXT_LIMIT, check_expansion, read_bytes, reading

SETTINGS_LIMIT = 2**20
"""Maximum size of a TOML file in bytes. tomllib needs about five seconds for this size."""

DEEPEST = 100
"""Maximum nesting depth of JSON and TOML, so that recursive code that reads the content does not overflow the stack."""

_DOTTED = re.compile(
    rb"""(?:(?<![\w-])[\w-]+|"[^"\n]*"|'[^'\n]*')(?:[ \t]*\.[ \t]*(?:[\w-]+|"[^"\n]*"|'[^'\n]*')){100}"""
)
"""A dotted key with more than 100 parts. The running time of tomllib is quadratic in the number of parts."""


def read_json(
    path: Path,
    *,
    limit: int | None = TEXT_LIMIT,
    follow: bool = True,
    problem: str = "is not valid JSON",
    remedy: str = "",
) -> object:
    """Read a JSON file; see :func:`drfl.core.files.open_file` and :func:`drfl.core.files.reading` for the arguments."""
    data = read_bytes(path, limit=limit, follow=follow, remedy=remedy)
    return parse_json(data, path, problem, remedy)


def parse_json(data: bytes, path: Path, problem: str = "is not valid JSON", remedy: str = "") -> object:
    """Parse JSON.

    Args:
        data: The JSON text.
        path: Path of the file that the text comes from, for messages.
        problem: See :func:`drfl.core.files.reading`.
        remedy: See :func:`drfl.core.files.reading`.

    Raises:
        InputError: If the text is not JSON, is nested too deeply, or would need far more memory than its size suggests.
    """
    # An empty list takes two bytes of text but about 70 bytes as an object. Counting brackets bounds the memory before
    # parsing.
    openings = data.count(b"[") + data.count(b"{")
    check_expansion(path, len(data), 70 * openings + 40 * data.count(b",") + 4 * len(data), ratio=20)
    with reading(path, problem, remedy):
        content: object = json.loads(data)
        # Checking the depth of a large file takes time, and a few brackets cannot nest too deeply.
        if openings > DEEPEST:
            _check_depth(content)
        return content


def read_toml(
    path: Path, *, follow: bool = True, problem: str = "is not valid TOML", remedy: str = ""
) -> dict[str, object]:
    """Read a TOML file; see :func:`drfl.core.files.open_file` and :func:`drfl.core.files.reading` for the arguments."""
    data = read_bytes(path, limit=SETTINGS_LIMIT, follow=follow, remedy=remedy)
    with reading(path, problem, remedy):
        if _DOTTED.search(data):
            raise ValueError("a key has too many dots")
        content = tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
        _check_depth(content)
        return content


def toml_value(text: str) -> object:
    """Return the TOML value of a text, or the text itself if it is not a TOML value."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also for numbers with thousands of digits and for deep nesting
        return text


def _check_depth(content: object) -> None:
    """Raise RecursionError if values are nested more than :data:`DEEPEST` levels deep."""
    level: list[object] = [content]
    # Go level by level, because a recursive check could itself overflow the stack.
    for _ in range(DEEPEST):
        level = [
            part
            for value in level
            if isinstance(value, dict | list)
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise RecursionError
