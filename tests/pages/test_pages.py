"""Test that the parts of pages without a generator match the code."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest
from tests.support.marks import long_except
from tests.support.refusals import check_refusal
from tests.support.scripts import ROOT

from drfl.algorithms import ALGORITHMS, theory
from drfl.ambiguity import AMBIGUITY_SETS, parse
from drfl_papers.specification import PAPERS

PRINTING = (
    "ambiguity", "certificate", "losses", "metrics", "models", "own", "python-data", "testing", "theory", "uncertainty",
)  # fmt: skip
"""Pages whose code prints the shown output."""

PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in (*PRINTING, "data", "scale", "tuning")
}


def rows(page: str) -> list[list[str]]:
    """Return the cells of every row of a table."""
    lines = [line for line in PAGES[page].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize(
    "page",
    long_except(
        ["losses", "uncertainty"],
        PRINTING,
    ),
)
def test_code_prints_the_shown_output(page, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "page", ModuleType("page"))  # dataclasses look up their module
    names: dict[str, object] = {"__name__": "page"}
    shown = 0
    for code, printed in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGES[page], flags=re.DOTALL):
        exec(code, names)
        out = capsys.readouterr().out
        assert out == printed
        shown += bool(printed)
    assert shown


def test_example_of_the_scale_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGES["scale"], flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["result"].rounds == 5  # pyright: ignore[reportAttributeAccessIssue]


def test_example_with_raw_rows_runs(capsys):
    section = PAGES["data"].partition("## Standardisation")[2]
    names: dict[str, object] = {}
    (example,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    exec(example, names)
    assert capsys.readouterr().out == re.findall(r"```text\n(.*?)```", section, flags=re.DOTALL)[0]


def test_ambiguity_set_names_match_the_command_line():
    named = {row[0].strip("`"): row[1] for row in rows("ambiguity") if re.match(r"`[\w-]+:\w+=", row[0])}
    assert [text.split(":")[0] for text in named] == list(AMBIGUITY_SETS)
    for text, shown in named.items():
        assert shown.startswith(f"`{type(parse(text)).__name__}(")


def test_every_algorithm_with_an_ambiguity_set_is_in_one_row():
    cells = [row[0] for row in rows("ambiguity") if re.fullmatch(r"(`\w+`(, )?)+", row[0])]
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell) if name in ALGORITHMS]
    robust = {name for name, made in ALGORITHMS.items() if "ambiguity" in made.__dataclass_fields__}
    assert robust <= set(listed)
    assert len(listed) == len(set(listed))


def test_every_function_of_the_theory_is_in_its_table():
    public = {name for name in vars(theory) if not name.startswith("_") and callable(vars(theory)[name])}
    functions = {name for name in public if name.islower() and vars(theory)[name].__module__ == theory.__name__}
    listed = {row[0].split("(")[0].strip("`") for row in rows("theory")}
    assert functions <= listed


REFUSED = [
    ("certificate = true\nmodel = 'mlp'", "no-certificate", "`--model mlp`"),
    ("certificate = true\nmodel = 'cnn'", "no-certificate", "`--model cnn`"),
    ("certificate = 'gradient'", "unsupported-combination", '`certificate = "gradient"` without weight decay'),
]


@pytest.mark.parametrize(("text", "code", "case"), REFUSED, ids=["mlp", "cnn", "gradient"])
def test_refusals_match_the_page(text, code, case, tmp_path):
    (tmp_path / "job.toml").write_text(text)
    check_refusal(["run", str(tmp_path / "job.toml"), "--out", str(tmp_path / "out")], code, "certificate")
    assert [row[0] for row in rows("certificate")].count(case) == 1


def test_named_tuning_jobs_exist():
    (named,) = re.findall(r"\(((?:`[\w-]+`,? )+)…\)", " ".join(PAGES["tuning"].split()))
    assert set(re.findall(r"`([\w-]+)`", named)) <= {path.stem for path in (PAPERS / "jobs").glob("*.toml")}
