"""Test the decision guide: picture and page ask the same questions, and every answer links to its evidence."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from scripts.decision_guide import PICTURE, QUESTIONS, picture

PAGE = (Path(PICTURE).parent / "choose.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]


def test_page_asks_the_questions_of_the_picture():
    assert len(QUESTIONS) <= 10
    headings = [section.partition("\n")[0] for section in SECTIONS]
    assert headings == [f"{k}. {question.text}" for k, question in enumerate(QUESTIONS, 1)]


def test_every_answer_links_to_evidence():
    for section in SECTIONS:
        assert re.search(r"\]\((?!choose)[^)]+\)", section), section


def test_texts_of_the_picture_fit_their_boxes():
    texts = [text.text for text in ElementTree.fromstring(picture()).iter("{http://www.w3.org/2000/svg}text")]
    for k, question in enumerate(QUESTIONS, 1):
        assert f"{k}. {question.text}" in texts
        assert set(question.answer) <= set(texts)
    assert max(map(len, texts)) <= 45, "wider text would leave its box"
