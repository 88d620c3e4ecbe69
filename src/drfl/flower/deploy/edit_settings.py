"""Edit server.toml without changing any other line or comment, and keep a copy of the previous file."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import tomli_w

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError
from drfl.flower.deploy.dated_folders import timestamp

_SITE = re.compile(r"""\s*\[\[\s*(?:sites|"sites"|'sites')\s*\]\]""")
_PART_OF_SITE = re.compile(r"""\s*\[\[?\s*(?:sites|"sites"|'sites')\s*\.""")
_HEADER = re.compile(r"\s*\[\[?[^\[\]]*\]\]?\s*(?:#.*)?$")
_NAME = re.compile(r"""\s*(?:name|"name"|'name')\s*=""")


def remove_site(text: str, name: str) -> str:
    """Remove a site's ``[[sites]]`` table and the comments adjacent to it from ``server.toml``.

    Raises:
        InputError: If the file cannot be edited line by line.
    """
    settings = tomllib.loads(text)
    index = [table["name"] for table in settings["sites"]].index(name)
    # Edit lines, because a TOML writer would lose comments and order.
    lines = text.split("\n")
    start, end = _site_tables(lines, len(settings["sites"]))[index]
    stop = 1 + max(n for n in range(start, end) if not _is_blank(lines[n]) and not _is_comment(lines[n]))
    while stop < end and _is_comment(lines[stop]):
        stop += 1
    above = start
    while above and _is_comment(lines[above - 1]):
        above -= 1
    # Comments between two tables without a blank line belong to the table above them.
    if above == 0 or _is_blank(lines[above - 1]):
        start = above
    if start and _is_blank(lines[start - 1]) and (stop == len(lines) or _is_blank(lines[stop])):
        start -= 1
    others = [table for number, table in enumerate(settings["sites"]) if number != index]
    return _verify("\n".join(lines[:start] + lines[stop:]), {**settings, "sites": others})


def add_site(text: str, table: Mapping[str, str | int | float]) -> str:
    """Add a ``[[sites]]`` table at the end of ``server.toml``.

    Raises:
        InputError: If the sites in the file are not tables.
    """
    settings, end = tomllib.loads(text), "\r\n" if "\r\n" in text else "\n"
    lines = tomli_w.dumps(table).splitlines()
    added = end.join(["", "[[sites]]", *lines, ""])
    return _verify(text.rstrip("\r\n") + end + added, {**settings, "sites": [*settings["sites"], dict(table)]})


def add_limits(text: str, limits: Mapping[str, Mapping[str, int | float]]) -> str:
    """Add keys to the ``[[sites]]`` tables of ``server.toml``, below each site's name.

    ``limits`` has for each site its new keys with their values. The table must not have them yet.
    """
    settings = tomllib.loads(text)
    lines = text.split("\n")
    ranges = _site_tables(lines, len(settings["sites"]))
    # Start at the end of the file, so that the line numbers of earlier tables stay valid.
    for table, (start, end) in reversed(list(zip(settings["sites"], ranges, strict=True))):
        names = (number for number in range(start, end) if _NAME.match(lines[number]))
        above = next(names, start)
        # The file may have Windows line endings.
        carriage_return = "\r" if lines[above].endswith("\r") else ""
        new_lines = tomli_w.dumps(limits.get(table["name"], {})).splitlines()
        lines[above + 1 : above + 1] = [line + carriage_return for line in new_lines]
    sites = [{**table, **limits.get(table["name"], {})} for table in settings["sites"]]
    return _verify("\n".join(lines), {**settings, "sites": sites})


def replace(path: Path, text: str) -> Path:
    """Replace the text of a settings file, and keep a copy of the previous file beside it.

    Returns:
        The path of the copy.

    Raises:
        InputError: If the file cannot be written. It is unchanged then.
    """
    real = path.resolve()  # write to the target of a link, so that the link stays
    backup = real.with_name(f"{real.name}.{timestamp()}")
    try:
        shutil.copy2(real, backup)
        try:
            with atomic_write(real) as file:
                # Keep the permissions of the file.
                os.fchmod(file.fileno(), stat.S_IMODE(real.stat().st_mode))
                file.write(text.encode())
        except BaseException:
            with suppress(OSError):
                backup.unlink()
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", code="cannot-write", field=path.name) from None
    return backup


def _site_tables(lines: Sequence[str], count: int) -> list[tuple[int, int]]:
    """Return the start and end lines of each ``[[sites]]`` table, including the tables inside it."""
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line) and not _PART_OF_SITE.match(line)]
    ranges = [
        (number, following) for number, following in pairwise([*headers, len(lines)]) if _SITE.match(lines[number])
    ]
    if len(ranges) != count:
        raise _cannot_edit()
    return ranges


def _verify(text: str, expected: Mapping[str, object]) -> str:
    try:
        # Parse the new text before writing it, because lines of a multi-line string may look like headers.
        is_correct = tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        is_correct = False
    if not is_correct:
        raise _cannot_edit()
    return text


def _cannot_edit() -> InputError:
    return InputError(
        "server.toml cannot be edited line by line. Write each site as a table [[sites]], or edit the file by hand",
        code="cannot-edit",
        field="server.toml",
    )


def _is_blank(line: str) -> bool:
    return not line.strip()


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")
