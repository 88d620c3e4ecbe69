"""The page on tuning says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from drfl.papers.specification import PAPERS
from drfl.tuning.search import STARTUP
from drfl.tuning.spaces import EVERYBODY, LR, SPACES

PAGE = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


def test_the_spaces_are_those_of_the_code():
    rows = dict(re.findall(r"^\| (\w+) \| (lr.*) \|$", PAGE, flags=re.MULTILINE))
    assert rows == {name: "; ".join(["lr", *(f"{d.name} {d}" for d in space[1:])]) for name, space in SPACES.items()}
    assert f"lr is η, {LR}" in WORDS
    assert STARTUP == 8
    assert "the first eight" in WORDS
    assert EVERYBODY == ("ScaffPD",)


def test_the_jobs_it_names_are_there():
    named = re.search(r"one of the papers' \((.*?) …\)", WORDS)
    assert named is not None
    assert set(re.findall(r"`([\w-]+)`", named[1])) <= {path.stem for path in (PAPERS / "jobs").glob("*.toml")}
