"""Numbers on a page, looked for without the words around them."""

from __future__ import annotations

import re

from tests.support.scripts import ROOT


def quotes(page: str, *numbers: str) -> bool:
    """Whether one paragraph of the page has all these numbers, in whatever sentence.

    Args:
        page: Path from the repository's root.
        numbers: As they are written; "7" is not found in "17" or "7.5".
    """
    paragraphs = re.split(r"\n\s*\n", (ROOT / page).read_text(encoding="utf-8"))
    patterns = [rf"(?<![\d.,−-]){re.escape(number)}(?!\d|[.,]\d)" for number in numbers]
    return any(all(re.search(pattern, text) for pattern in patterns) for text in paragraphs)
