"""Clients' names as reports show them: distinct, and in characters that the PDF's fonts have."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

from drfl.report.formatting import ISOLATE, ISOLATE_END, clean

BOX = "\u25a1"
"""Replacement in a PDF for a character that its fonts lack."""

LONGEST = 40
"""Maximum length of a client's name in characters."""

GLYPHS = (
    (0x20, 0x34E), (0x374, 0x3CE), (0x3F0, 0x45F), (0x490, 0x4C4),  # Latin, Greek and Cyrillic
    (0x5D0, 0x5EA), (0x621, 0x63A), (0x640, 0x655), (0x660, 0x669),  # Hebrew and Arabic
    (0x1E00, 0x1E9B), (0x1EA0, 0x1EF9), (0x2010, 0x2037),  # Latin with more accents, punctuation
    (0x2190, 0x2220), (0x2241, 0x226B), (0x2500, 0x262F),  # arrows, mathematics and shapes
)  # fmt: skip
"""First and last characters of the ranges that the fonts in the package typst cover."""


def in_glyphs(text: str) -> str:
    """Replace each character that the PDF's fonts lack by a box."""
    if text.isascii():  # fast path: most names are ASCII, and there may be a million
        return text
    covered = ((ISOLATE, ISOLATE), (ISOLATE_END, ISOLATE_END), *((chr(low), chr(high)) for low, high in GLYPHS))
    composed = unicodedata.normalize("NFC", text)
    return "".join(c if any(low <= c <= high for low, high in covered) else BOX for c in composed)


def display_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the clients' names for display, with their position in clients.csv if only that distinguishes them."""
    plain = [clean(name, LONGEST).strip() for name in names]
    printed = [in_glyphs(name) for name in plain]
    # Different names may look the same if they are cut or have missing glyphs.
    occurrences = Counter(printed)
    return tuple(
        name if name and BOX not in glyphs and occurrences[glyphs] == 1 else f"{name or BOX} (no. {place})"
        for place, (name, glyphs) in enumerate(zip(plain, printed, strict=True), start=1)
    )
