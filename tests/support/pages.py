"""Find numbers on a page regardless of the words around them."""

from __future__ import annotations

import re

from tests.support.refusals import quotes
from tests.support.scripts import ROOT


def one_paragraph_quotes(page: str, *numbers: str) -> bool:
    """Whether one paragraph of the page has all these numbers, in whatever sentence.

    Args:
        page: Path from the repository's root.
        numbers: As they are written.
    """
    paragraphs = re.split(r"\n\s*\n", (ROOT / page).read_text(encoding="utf-8"))
    return any(quotes(paragraph, *numbers) for paragraph in paragraphs)
