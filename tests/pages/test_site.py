"""Test the documentation site: every public name is in it, and its navigation is complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from scripts import reference
from scripts.site_hooks import ELSEWHERE, NOTEBOOKS, links, to
from tests.support.scripts import ROOT

from drfl.cli.app import call

DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """Read mkdocs.yml."""


def leaves(nav: object) -> Iterator[str]:
    """Yield the pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        yield from (page for part in nav.values() for page in leaves(part))
    else:
        yield from (page for part in nav for page in leaves(part))  # pyright: ignore


NAV = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["nav"]


def test_navigation_has_every_page_once():
    pages = sorted(leaves(NAV))
    written = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    made = [*ELSEWHERE.values(), *NOTEBOOKS, *reference.api(), "reference/command.md"]
    assert pages == sorted([*written, *made])


def test_tables_have_at_most_seven_columns():
    rules = [
        (str(path.relative_to(ROOT)), number)
        for path in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.fullmatch(r"\|(?: *:?-+:? *\|){8,}", line)
    ]
    assert rules == []


@pytest.mark.parametrize("package", reference.PACKAGES)
def test_every_public_name_is_in_the_reference(package):
    told = {line.removeprefix("::: ") for text in reference.api().values() for line in text.splitlines()}
    known = reference.named()
    module = import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            assert f"## `{value.__name__}`" in told or value.__name__.endswith("sampling"), name
        else:
            assert known[f"{package}.{name}"] in told, name


def test_name_without_a_page_is_an_error():
    with pytest.raises(LookupError, match=r"drfl\.nowhere"):
        reference.page_of("drfl.nowhere")


def test_commands_page_has_every_command():
    text = reference.command()
    for name in ("run", "compare", "report", "assess", "reproduce", "tune", "new", "deploy init", "deploy audit"):
        assert f"## `drfl {name}`" in text
    assert "`--over-select" in text  # an option that only the long help shows


@pytest.mark.parametrize(
    ("question", "answer", "says"),
    [
        ("How do I use my CSV files?", "start/your-data.md", "--data sites"),
        ("How do I add an algorithm?", "own.md", "FILE.py:"),
        ("What does the certificate mean?", "certificate.md", "duality gap"),
        ("How do I deploy on two machines?", "deploy.md", "drfl deploy init"),
    ],
)
def test_four_questions_are_linked_from_the_start_page(question, answer, says):
    (line,) = [line for line in (DOCS / "index.md").read_text(encoding="utf-8").splitlines() if question in line]
    assert f"docs/{answer}" in links(line, "docs/index.md")
    assert says in (DOCS / answer).read_text(encoding="utf-8")


def test_link_outside_the_docs_leads_to_a_copy():
    assert links("[a](../EXPERIMENTS.md#b) `[c](d.md)` [e](https://f.g)", "docs/x.md") == {"EXPERIMENTS.md"}
    assert to("EXPERIMENTS.md") == "results/papers.md"
    assert to("evidence/results/x/table.md") == "files/evidence/results/x/table.md"
    assert to("docs/algorithms/drfa.md") == "algorithms/drfa.md"
    assert to("docs/tutorials/table.ipynb") == "tutorials/table.md"


START = [(page, line) for page in sorted((DOCS / "start").glob("*.md"))
         for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
         for line in block.splitlines() if line.startswith("drfl ")]  # fmt: skip


@pytest.mark.parametrize("page", sorted({page for page, _ in START}), ids=lambda page: page.stem)
@pytest.mark.long
def test_commands_of_the_first_pages_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    tables(tmp_path)
    for _, line in [found for found in START if found[0] == page]:
        words = [word for part in shlex.split(line.split(" #")[0]) for word in expanded(part)]
        small = ["--rounds", "2", "--seeds", "2"] if words[1] == "compare" else []
        small = ["--rounds", "2"] if words[1] == "run" else small
        assert call([*words[1:], *small]) == 0, line
    assert capsys.readouterr().out


def expanded(word: str) -> list[str]:
    """Expand a word with a star as a shell does."""
    return sorted(str(path) for path in Path().glob(word)) if "*" in word else [word]


def tables(folder: Path) -> None:
    """Write the tables of start/your-data.md."""
    head, rows = "age,dose,sick", [f"{20 + 7 * i % 60},{i % 5},{(i * i) % 3 > 0:d}" for i in range(40)]
    for name in ("a", "b"):
        (folder / "sites" / f"{name}.csv").write_text("\n".join([head, *rows, ""]))
    named = [f"{row},{'ab'[i % 2]},{i}" for i, row in enumerate(rows)]
    (folder / "all.csv").write_text("\n".join([f"{head},hospital,patient_id", *named, ""]))
    subprocess.run([sys.executable, ROOT / "examples" / "own" / "messy_wards.py", folder / "wards"], check=True)


@pytest.mark.long
def test_site_builds_strictly_and_loads_nothing_external(tmp_path):
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|iframe)[^>]+src="https?:', text), page
        assert not re.search(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?:', text), page


def test_start_page_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(code, {})
    assert len(re.findall(r"\d\.\d+", capsys.readouterr().out)) == 3  # a number for each of three clients
