"""Text from outside as it can be printed: in the glyphs that there are, without paths, each client told apart."""

from __future__ import annotations

import functools
import importlib.util
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from drfl.core.errors import InputError
from drfl.report.formatting import clean

BOX = "\u25a1"
"""Stands for a character that the font lacks."""

LONGEST = 40
"""Characters of a client's name."""

QUOTED = re.compile(r"""(["'])(?:~?/|[A-Za-z]:\\)[^"']*[/\\]([^"'/\\]*)\1""")
PATH = re.compile(r"(?<![\w.…/\\-])(?:~?/|[A-Za-z]:\\+|\\\\+)(?:[^/\\\s'\"]+[/\\]+)+([^/\\\s'\"]*)")
"""An absolute path in quotation marks, which may have spaces, or without, and its last part; a web address is none."""

RIGHT_TO_LEFT = ("R", "AL")


class Fonts(NamedTuple):
    """Files of the fonts.

    Args:
        plain: of text.
        bold: of headings.
        mono: of digests and configurations.
    """

    plain: Path
    bold: Path
    mono: Path


def check() -> None:
    """Make sure that a report can be printed.

    Raises:
        InputError: a package is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in ("fpdf", "matplotlib")):
        raise InputError(
            "a report as PDF needs fpdf2 and matplotlib's fonts: pip install 'drfl[pdf]'",
            code="package-missing",
            field="fpdf2",
        )


def fonts() -> Fonts:
    """DejaVu Sans, which comes with matplotlib: Latin, Greek, Cyrillic, Hebrew and Arabic letters, and symbols."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return Fonts(*(folder / f"DejaVuSans{kind}.ttf" for kind in ("", "-Bold", "Mono")))


def printable(value: object, limit: int = 2000) -> str:
    """Text as one line in glyphs of the fonts; of an absolute path the last part alone is left.

    Args:
        value: the text.
        limit: characters; what is longer is cut.
    """
    return in_glyphs(without_folders(clean(value, limit)))


def without_folders(text: str) -> str:
    """Text in which of every absolute path the last part alone is left: a report is shared, a home folder's is not."""
    return PATH.sub(r"…/\1", QUOTED.sub(r"\1…/\2\1", text))


def in_glyphs(text: str, *, mono: bool = False) -> str:
    """Text with a box for each character that the fonts of text lack, or the one of configurations."""
    plain, bold, fixed = fonts()
    known = _glyphs(fixed) if mono else _glyphs(plain) & _glyphs(bold)
    return "".join(c if c in known else BOX for c in unicodedata.normalize("NFC", text))


def client_names(names: Sequence[str]) -> tuple[str, ...]:
    """Clients' names as they are printed; with their place in clients.csv where that alone tells them apart.

    Args:
        names: in the order of clients.csv.
    """
    plain = [in_glyphs(without_folders(clean(name, LONGEST).strip())) for name in names]
    for i, name in enumerate(plain):
        # fpdf2 draws from left to right: reorder right-to-left text.
        if any(unicodedata.bidirectional(c) in RIGHT_TO_LEFT for c in name):
            from fpdf.bidi import BidiParagraph

            plain[i] = BidiParagraph(name).get_reordered_string()
    return tuple(
        # Different names may look alike if they are cut or have missing glyphs.
        f"{shown or BOX} (no. {place})" if BOX in shown or not shown or plain.count(shown) > 1 else shown
        for place, shown in enumerate(plain, start=1)
    )


@functools.cache
def _glyphs(font: Path) -> frozenset[str]:
    from fontTools.ttLib import TTFont

    with TTFont(font, lazy=True) as found:
        return frozenset(map(chr, found.getBestCmap() or ()))
