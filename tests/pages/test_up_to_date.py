"""Test that generated blocks are current and named files exist."""

from __future__ import annotations

import re

import pytest
from tests.support.marks import long_except
from tests.support.scripts import ROOT, script

GENERATOR = script("scripts/pages.py")
TEXTS = {page: path.read_text(encoding="utf-8") for page, path in GENERATOR.PAGES.items()}
READ = [
    "README.md",
    "CONTRIBUTING.md",
    "EXPERIMENTS.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
]
"""Paths of all pages whose links and file names are checked."""
TREE = r"(?:src|tests|evidence|benchmarks|scripts|examples)"


@pytest.mark.parametrize("page", TEXTS)
def test_page_is_current(page):
    text, differing = GENERATOR.written(page, TEXTS[page])
    assert not differing, f"run make pages: {', '.join(differing)}"
    assert text == TEXTS[page]


@pytest.mark.parametrize("path", GENERATOR.FILES, ids=lambda path: path.name)
def test_file_is_current(path):
    assert path.read_text(encoding="utf-8") == GENERATOR.FILES[path](), "run make pages"


def test_changed_file_is_detected(tmp_path, monkeypatch):
    (path := tmp_path / "picture.svg").write_text("old")
    monkeypatch.setattr(GENERATOR, "FILES", {path: lambda: "new"})
    assert GENERATOR.differing_files() == {path: "new"}
    path.write_text("new")
    assert GENERATOR.differing_files() == {}


def test_every_block_is_in_a_page():
    assert sorted(name for text in TEXTS.values() for name in GENERATOR.STARTS.findall(text)) == sorted(
        GENERATOR.BLOCKS
    )


@pytest.mark.parametrize("block", long_except(["hospitals.deployed", "EXPERIMENTS.verdicts"], GENERATOR.BLOCKS))
def test_changed_number_is_detected(block):
    page = block.partition(".")[0]
    before, start, after = TEXTS[page].partition(GENERATOR.START.format(block))
    other = re.sub(r"\d|`", lambda found: "7" if found[0] == "3" else "3", after, count=1)
    text, differing = GENERATOR.written(page, before + start + other)
    assert differing == [block]
    assert text == TEXTS[page]


START = GENERATOR.START.format("scale.numbers")
ONE_END = r"scale: .*scale\.\w+,? .*<!-- end -->"
WRONG = {
    "unknown": (TEXTS["scale"] + GENERATOR.START.format("scale.nothing") + GENERATOR.END, "scale.nothing"),
    "of another page": (TEXTS["scale"] + GENERATOR.START.format("speed.auto") + GENERATOR.END, "speed.auto"),
    "missing": (TEXTS["scale"].replace(START, ""), r"scale\.numbers.*\b0\b"),
    "twice": (TEXTS["scale"] + START + GENERATOR.END, r"scale\.numbers.*\b2\b"),
    "without an end": (TEXTS["scale"].replace(GENERATOR.END, ""), ONE_END),
    "with two ends": (TEXTS["scale"] + GENERATOR.END, ONE_END),
    "an end before it": (GENERATOR.END + TEXTS["scale"], "scale: <!-- end -->"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_mismatched_comments_are_one_line_errors(text, said):
    with pytest.raises(GENERATOR.PageError, match=said) as error:
        GENERATOR.written("scale", text)
    assert "\n" not in str(error.value)


def read(page: str) -> str:
    """Return a page without the files that a contributor should write."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.sub(r"^(`{3,})\w+ title=.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", READ)
def test_links_resolve(page):
    targets = re.findall(r"\]\(([^)#\s]+)", re.sub(r"`[^`\n]*`", "", read(page)))  # code can look like a link
    local = [target for target in targets if not target.startswith("http")]
    assert [target for target in local if not (ROOT / page).parent.joinpath(target).exists()] == []


@pytest.mark.parametrize("page", READ)
def test_named_files_exist(page):
    """These are names in backticks, and files of commands in code blocks."""
    named = re.findall(rf"(?:`|(?:python|sh) )({TREE}/[\w/-]+\.\w+)", read(page))
    assert [path for path in named if not (ROOT / path).exists()] == []
