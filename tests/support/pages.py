"""Find numbers on a page, regardless of the words around them."""

from __future__ import annotations

import re

from tests.support.refusals import quotes
from tests.support.scripts import ROOT


def one_paragraph_quotes(page: str, *numbers: str) -> bool:
    """Return whether one paragraph of the page has all these numbers.

    Args:
        page: Path from the repository's root.
        numbers: The numbers in the page's notation.
    """
    paragraphs = re.split(r"\n\s*\n", (ROOT / page).read_text(encoding="utf-8"))
    return any(quotes(paragraph, *numbers) for paragraph in paragraphs)
