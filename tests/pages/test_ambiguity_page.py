"""The page on ambiguity sets says what the code does and what is stored."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.ambiguity.cases import CASES
from tests.conformance.wrong.traps import AMBIGUITY_TRAPS

from drfl.algorithms import ALGORITHMS
from drfl.ambiguity import AMBIGUITY_SETS, parse
from drfl.testing import AMBIGUITY_CHECKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ambiguity.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]
EVIDENCE = json.loads((ROOT / "experiments" / "results" / "ambiguity" / "summary.json").read_text(encoding="utf-8"))
TIMES = json.loads((ROOT / "benchmarks" / "results" / "ambiguity.json").read_text(encoding="utf-8"))


def test_the_code_prints_what_the_page_shows(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "page", ModuleType("page"))  # dataclasses look their module up
    code, printed = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)[0]
    exec(code, {"__name__": "page"})
    assert capsys.readouterr().out == printed


def test_names_on_the_command_line():
    named = {row[0].strip("`"): row[1] for row in ROWS if ":" in row[0] and "=" in row[0]}
    assert [text.split(":")[0] for text in named] == list(AMBIGUITY_SETS)
    for text, shown in named.items():
        assert shown.startswith(f"`{type(parse(text)).__name__}(")


def test_every_algorithm_is_in_one_row():
    rows = [re.findall(r"`(\w+)`", row[0]) for row in ROWS if re.fullmatch(r"(`\w+`(, )?)+", row[0])]
    shown = [name for row in rows for name in row if name in ALGORITHMS]
    assert sorted(shown) == sorted(ALGORITHMS)


def test_every_check_is_listed_with_its_first_line():
    listed = [row for row in ROWS if row[0].strip("`") in {check.__name__ for check in AMBIGUITY_CHECKS}]
    assert listed == [[f"`{c.__name__}`", (c.__doc__ or "").strip().splitlines()[0]] for c in AMBIGUITY_CHECKS]
    assert f"`tests/conformance/wrong/ambiguity.py` has {len(AMBIGUITY_TRAPS)} of them" in PAGE


def test_times_are_those_that_are_stored():
    names = dict.fromkeys(row["set"] for row in TIMES["rows"])
    for name in names:
        (shown,) = (row[1:] for row in ROWS if row[0] == f"`{name}`" and len(row) == 4 and row[1][0].isdigit())
        for operation, cell in zip(("project", "prox", "worst_case"), shown, strict=True):
            key = (name, 100_000, operation)
            medians = [r["median_s"] for r in TIMES["rows"] if (r["set"], r["n"], r["operation"]) == key]
            assert cell == f"{1e3 * max(medians):.1f}"
    assert max(row["median_s"] for row in TIMES["rows"]) == TIMES["slowest_median_s"] <= 0.050


def test_evidence_is_stored_and_within_its_bounds():
    assert [record["set"] for record in EVIDENCE["sets"]] == list(CASES)
    assert sum(EVIDENCE["draws_by_length"].values()) == 10_000
    assert max(max(record["residuals"].values()) for record in EVIDENCE["sets"]) <= 1e-9
    assert max(record["solver"]["objective"] for record in EVIDENCE["sets"] if record["solver"]) <= 1e-6
    assert f"tries {len(CASES)} sets and parameters on 10,000 random vectors each" in PAGE.replace("\n", " ")
    assert f"The largest residual of all is {EVIDENCE['largest_residual']:.0e}." in PAGE.replace("\n", " ")
    assert f"agree within {EVIDENCE['largest_objective_difference']:.0e}." in PAGE.replace("\n", " ")


def test_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)", PAGE)
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []


@pytest.mark.parametrize("path", re.findall(r"`((?:src|tests|experiments|benchmarks)/[\w/.]+)`", PAGE))
def test_files_named_exist(path):
    assert (ROOT / path).exists()
