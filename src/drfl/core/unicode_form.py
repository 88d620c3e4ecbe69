"""Compare texts that are printed alike, although their characters differ."""

from __future__ import annotations

import unicodedata


def visible_form(text: str) -> str:
    """Return a text in one Unicode form (NFKC) and without invisible format characters.

    "ü" can be one character or two, and a space of no width is not seen at all.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", "".join(c for c in text if unicodedata.category(c) != "Cf"))


def is_printed_alike(first: str, second: str) -> bool:
    """Return whether two texts differ only in Unicode form."""
    return first != second and visible_form(first) == visible_form(second)


def difference(first: str, second: str, usual: str = "") -> str:
    """Describe how two similar texts differ: as usual, or by their code points if they are printed alike."""
    return f"Unicode form ({first!a} and {second!a})" if is_printed_alike(first, second) else usual
