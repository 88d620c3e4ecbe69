"""Follow the recipes for contributors as written: make their changes and run their commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.scripts import ROOT

RECIPES = sorted((ROOT / "docs" / "contributing").glob("add-*.md"))
TITLED = re.compile(
    r'^(?P<fence>`{3,})(?P<language>\w+) title="(?P<file>[^"]+)"\n(?P<body>.*?)^(?P=fence)$', re.M | re.S
)
SHOWN = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LARGE = ("results", "__pycache__", ".*", "build", "runs", "*.egg-info")
"""Files that a copy of the repository omits."""

PLAY = """
import json, sys
import drfl
from drfl.cli.app import call

commands, examples = json.loads(sys.argv[1])
for words in commands:
    assert call(words) == 0, words
print("from", drfl.__file__)
for example in examples:
    exec(example, {})
"""
"""Runs commands and examples of all recipes in one process, because torch takes seconds to load."""


def commands(page: Path) -> list[str]:
    """Return the lines of a page's blocks of commands."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def changed(text: str, block: str) -> str:
    """Return a file after the changes of a block, each of which must match at exactly one place."""
    lines = text.split("\n")
    for change in block.split("@@\n"):
        marked = change.splitlines()
        assert all(line[:1] in ("+", "-", " ") for line in marked), change
        old, new = ([line[1:] for line in marked if line[0] != other] for other in "+-")
        places = [i for i in range(len(lines)) if lines[i : i + len(old)] == old]
        assert len(places) == 1, f"fits at {len(places)} places: say where in the page\n{change}"
        lines[places[0] : places[0] + len(old)] = new
    return "\n".join(lines)


def follow(page: Path, copy: Path, within: str = "") -> list[str]:
    """Apply a page's changes of the files in a folder to a copy of the repository, and return the files."""
    files = []
    for block in TITLED.finditer(page.read_text(encoding="utf-8")):
        if not block["file"].startswith(within):
            continue
        path = copy / block["file"]
        if block["language"] == "diff":
            path.write_text(changed(path.read_text(encoding="utf-8"), block["body"]), encoding="utf-8")
        else:
            assert not path.exists(), block["file"]
            path.write_text(block["body"], encoding="utf-8")
        files.append(block["file"])
    return files


def run(copy: Path, *words: str) -> str:
    """Output of Python in a copy, with the copy's drfl."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def play(copy: Path, lines: list[list[str]], pages: list[Path]) -> None:
    """Run these commands and the pages' examples, which must print what the pages show."""
    examples = [found for page in pages for found in SHOWN.findall(page.read_text(encoding="utf-8"))]
    out = run(copy, "-c", PLAY, json.dumps([lines, [code for code, _ in examples]]))
    where, _, printed = out.rpartition("from ")[2].partition("\n")
    assert where == str(copy / "src" / "drfl" / "__init__.py")
    assert printed == "".join(shown for _, shown in examples)


def test_each_recipe_has_a_new_file_changes_commands_and_an_example():
    assert [page.stem for page in RECIPES] == ["add-an-algorithm", "add-an-ambiguity-set", "add-an-engine"]
    for page in RECIPES:
        text = page.read_text(encoding="utf-8")
        languages = [block["language"] for block in TITLED.finditer(text)]
        assert languages[0] == "python", page
        assert {*languages[1:]} <= {"diff", "markdown"}, page
        assert len(SHOWN.findall(text)) == 1, page
        assert {line.split()[0] for line in commands(page)} == {"drfl", "pytest", "make"}, page


def test_change_must_match_exactly_once():
    assert changed("a\nb\nc\nb", " a\n+x\n b\n@@\n-c\n") == "a\nx\nb\nb"
    for block in (" b\n+x\n", " d\n+x\n"):
        with pytest.raises(AssertionError, match=r"\b[02]\b"):
            changed("a\nb\nc\nb", block)


@pytest.mark.long
def test_repository_passes_its_tests_after_all_recipes(tmp_path):
    """This covers lint, format, import order, the pages' examples, a run with each part, and the named tests."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LARGE))
    shutil.copytree(ROOT / ".github", copy / ".github")
    for folder in ("evidence", "benchmarks"):
        (copy / folder / "results").symlink_to(ROOT / folder / "results")
    shutil.copytree(ROOT / "docs" / "results", copy / "docs" / "results")
    files = [file for page in RECIPES for file in follow(page, copy) if file.endswith(".py")]
    run(copy, "-m", "ruff", "check", *files)
    run(copy, "-m", "ruff", "format", "--check", *files)
    run(copy, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    lines = [shlex.split(line) for page in RECIPES for line in commands(page)]
    play(copy, [words for program, *words in lines if program == "drfl"], RECIPES)
    tests = [words for program, *words in lines if program == "pytest"]
    whole = {path for words in tests if "-k" not in words for path in words}  # several recipes name the same file
    for words in [*(words for words in tests if "-k" in words), sorted(whole)]:
        assert " passed" in run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words)
