"""Test the measures of scripts/prose.py on texts with known values."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from scripts import prose


def patterns(words):
    return [name for name, _ in prose.found_in(prose.Text("docs", "here", words))]


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("Whoever answers is counted.", ["headless clause"]),
        ("Test rows are drawn anew where there are groups.", ["where", "anew"]),
        ("A list is no algorithm.", ["is no"]),
        ("There is no limit, and the run is no longer active.", []),
        ("What does the certificate mean?", []),
        ("what: Name of the call.", []),
        ("Use torch.where.", []),
        ("Give the folder from where it was read.", []),
    ],
)
def test_sentences_are_split(sentence, found):
    assert patterns(sentence) == found


PAGE = """# A heading that does not count

One two three `code` four. Five six!

| a | table |
| --- | --- |

```sh
a command
```

<!-- page.block: written by make pages -->
generated
<!-- end -->

- seven [eight](address.md)
- nine
"""


def test_sentences_of_a_page_are_split(tmp_path):
    (path := tmp_path / "page.md").write_text(PAGE)
    found = prose.ease(path)
    assert prose.words_of(found.longest) == ["One", "two", "three", "four"]


def test_reading_ease_formula(tmp_path, monkeypatch):
    """Nine words in four sentences have two syllables each."""
    monkeypatch.setattr(prose, "pyphen", SimpleNamespace(Pyphen=lambda lang: SimpleNamespace(positions=lambda _: [1])))
    (path := tmp_path / "page.md").write_text(PAGE)
    assert prose.ease(path).flesch == pytest.approx(206.835 - 1.015 * 9 / 4 - 84.6 * 2)


def test_reading_ease_needs_pyphen(tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "pyphen", None)
    (path := tmp_path / "page.md").write_text(PAGE)
    assert math.isnan(prose.ease(path).flesch)


def test_hard_page_is_reported(tmp_path, monkeypatch, capsys):
    (path := tmp_path / "page.md").write_text(" ".join(["word"] * (prose.LONGEST_SENTENCE + 1)))
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "first_pages", lambda: [path])
    (wrong,) = [line for line in prose.print_ease() if "words in a sentence" in line]
    assert wrong.startswith(f"page.md: {prose.LONGEST_SENTENCE + 1} ")
    assert "page.md" in capsys.readouterr().out
