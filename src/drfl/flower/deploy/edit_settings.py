"""Edits of server.toml that leave all other lines, comments included, as they are and keep the file before."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import tomli_w

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError

_SITE = re.compile(r"""\s*\[\[\s*(?:sites|"sites"|'sites')\s*\]\]""")
_PART_OF_SITE = re.compile(r"""\s*\[\[?\s*(?:sites|"sites"|'sites')\s*\.""")
_HEADER = re.compile(r"\s*\[\[?[^\[\]]*\]\]?\s*(?:#.*)?$")
_NAME = re.compile(r"""\s*(?:name|"name"|'name')\s*=""")


def without_site(text: str, name: str) -> str:
    """Take a site's ``[[sites]]`` table, and the comments that stand directly at it, out of server.toml.

    Args:
        text: Of server.toml; it names the site.
        name: Of the site.

    Raises:
        InputError: The file is written in a way that cannot be edited line by line.
    """
    settings = tomllib.loads(text)
    place = [table["name"] for table in settings["sites"]].index(name)
    # Edit lines, as a TOML writer would lose comments and order.
    lines = text.split("\n")
    start, end = _site_tables(lines, len(settings["sites"]))[place]
    stop = 1 + max(number for number in range(start, end) if not _blank(lines[number]) and not _comment(lines[number]))
    while stop < end and _comment(lines[stop]):
        stop += 1
    above = start
    while above and _comment(lines[above - 1]):
        above -= 1
    # Comments between two tables without a blank line belong to the one before.
    if above == 0 or _blank(lines[above - 1]):
        start = above
    if start and _blank(lines[start - 1]) and (stop == len(lines) or _blank(lines[stop])):
        start -= 1
    others = [table for number, table in enumerate(settings["sites"]) if number != place]
    return _verified("\n".join(lines[:start] + lines[stop:]), {**settings, "sites": others})


def with_limits(text: str, limits: Mapping[str, Mapping[str, int | float]]) -> str:
    """Add keys to the ``[[sites]]`` tables of server.toml, below each site's name.

    Args:
        text: Of server.toml.
        limits: Site → its new keys, none of which it has.

    Raises:
        InputError: The file is written in a way that cannot be edited line by line.
    """
    settings = tomllib.loads(text)
    lines = text.split("\n")
    ranges = _site_tables(lines, len(settings["sites"]))
    # Start at the end, so that the line numbers of earlier tables stay valid.
    for table, (start, end) in reversed(list(zip(settings["sites"], ranges, strict=True))):
        names = (number for number in range(start, end) if _NAME.match(lines[number]))
        place = next(names, start)
        # The file may have Windows line endings.
        carriage = "\r" if lines[place].endswith("\r") else ""
        added = tomli_w.dumps(limits.get(table["name"], {})).splitlines()
        lines[place + 1 : place + 1] = [line + carriage for line in added]
    sites = [{**table, **limits.get(table["name"], {})} for table in settings["sites"]]
    return _verified("\n".join(lines), {**settings, "sites": sites})


def replace(path: Path, text: str) -> Path:
    """Give a file of settings a new text, and keep the old one beside it.

    Args:
        path: Of the file.
        text: The new text.

    Returns:
        The copy of the file before.

    Raises:
        InputError: It cannot be written to; then it is as it was.
    """
    real = path.resolve()  # a link stays one
    kept = real.with_name(f"{real.name}.{stamp()}")
    try:
        shutil.copy2(real, kept)
        try:
            with atomic_write(real) as file:
                # Keep the permissions that the operator gave the file.
                os.fchmod(file.fileno(), stat.S_IMODE(real.stat().st_mode))
                file.write(text.encode())
        except BaseException:
            with suppress(OSError):
                kept.unlink()
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", code="cannot-write", field=path.name) from None
    return kept


def stamp() -> str:
    """The time, for the name of a file that is put away: make-keys.sh knows keys by this form."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"


def _site_tables(lines: Sequence[str], count: int) -> list[tuple[int, int]]:
    """The first line and the line after the last of each ``[[sites]]`` table, with the tables inside it.

    Raises:
        InputError: They are not as many as the file has sites.
    """
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line) and not _PART_OF_SITE.match(line)]
    ranges = [
        (number, following) for number, following in pairwise([*headers, len(lines)]) if _SITE.match(lines[number])
    ]
    if len(ranges) != count:
        raise _cannot_edit()
    return ranges


def _verified(text: str, expected: Mapping[str, object]) -> str:
    try:
        # Parse the new text before writing it, as lines of a multi-line string may look like headers.
        same = tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise _cannot_edit()
    return text


def _cannot_edit() -> InputError:
    return InputError(
        "server.toml cannot be edited line by line: write each site as a table [[sites]], or edit it by hand",
        code="cannot-edit",
        field="server.toml",
    )


def _blank(line: str) -> bool:
    return not line.strip()


def _comment(line: str) -> bool:
    return line.lstrip().startswith("#")
