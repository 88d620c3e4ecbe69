"""Remove differences in spelling that people overlook."""

from __future__ import annotations

import re

from drfl.core.unicode_form import visible_form

LETTER = r"[^\W\d_]"


def plain(value: str) -> str:
    """Return a value without differences in case, outer blanks, Unicode form and punctuation between letters."""
    value = visible_form(value).strip().casefold()
    value = re.sub(rf"(?<={LETTER})[\s\-_.]+(?={LETTER})", "", value)
    # An abbreviation may end in a full stop.
    return re.sub(r"(?<=\w)\.$", "", value)


def folded(name: str) -> str:
    """Return a name without differences in case, blanks and Unicode form."""
    return " ".join(visible_form(name).split()).casefold()
