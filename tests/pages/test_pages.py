"""The pages on the certificate, the batteries and the theory say what the code does."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.conformance.wrong.traps import ALGORITHM_TRAPS, FEDERATION_TRAPS
from tests.support.marks import only

from drfl import theory
from drfl.cli.app import call
from drfl.testing import ALGORITHM_CHECKS, FEDERATION_CHECKS

ROOT = Path(__file__).parents[2]
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("certificate", "testing", "theory")
}
CHECKS = [*ALGORITHM_CHECKS, *FEDERATION_CHECKS]
STORED = ROOT / "experiments" / "results" / "digits_certificate"


def rows(page: str) -> list[list[str]]:
    """The cells of every row of a table."""
    lines = [line for line in PAGES[page].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize("page", only(["certificate", "theory"], PAGES))
def test_the_code_prints_what_the_page_shows(page, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "page", ModuleType("page"))  # dataclasses look their module up
    names: dict[str, object] = {"__name__": "page"}
    shown = 0
    for code, printed in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGES[page], flags=re.DOTALL):
        exec(code, names)
        out = capsys.readouterr().out
        assert out == printed
        shown += bool(printed)
    assert shown


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    targets = [t for t in re.findall(r"\]\(([^)#]+)", PAGES[page]) if not t.startswith("http")]
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_check_is_listed_with_its_first_line(check):
    line = (check.__doc__ or "").strip().splitlines()[0]
    line = re.sub(r":class:`(?:\w+\.)*(\w+)`", r"`\1`", line).replace("``", "`")
    assert [f"`{check.__name__}`", line] in rows("testing")


def test_the_numbers_of_checks():
    assert f"The {len(ALGORITHM_CHECKS)} checks of an algorithm" in PAGES["testing"]
    assert f"The {len(FEDERATION_CHECKS)} checks of a federation" in PAGES["testing"]
    listed = [row[0].strip("`") for row in rows("testing") if len(row) == 2]
    assert [name for name in listed if name in {c.__name__ for c in CHECKS}] == [check.__name__ for check in CHECKS]


def test_traps_name_their_variant_and_its_checks():
    expected = {
        (f"`{t.variant}`", ", ".join(f"`{c}`" for c in t.caught_by)) for t in ALGORITHM_TRAPS + FEDERATION_TRAPS
    }
    shown = [(row[1], row[2]) for row in rows("testing") if len(row) == 3 and row[0] not in ("trap", "---")]
    assert len(shown) >= 24
    assert [pair for pair in shown if pair not in expected] == []


def test_every_function_of_the_theory_is_in_its_table():
    public = {name for name in vars(theory) if not name.startswith("_") and callable(vars(theory)[name])}
    functions = {name for name in public if name.islower() and vars(theory)[name].__module__ == theory.__name__}
    listed = {row[0].split("(")[0].strip("`") for row in rows("theory")}
    assert functions <= listed


def gaps(path: Path) -> dict[str, str]:
    """Algorithm → gap in a stored table."""
    lines = path.read_text(encoding="utf-8").splitlines()[2:]
    return {cells[0].strip(): cells[-1].strip() for cells in (line.strip("| ").split("|") for line in lines)}


def test_gaps_are_those_that_are_stored():
    stored = gaps(STORED / "table.md")
    with (STORED / "compare.csv").open(newline="", encoding="utf-8") as file:
        first = {row["algorithm"]: row for row in csv.DictReader(file) if row["seed"] == "0"}
    shown = {row[0]: row[1:] for row in rows("certificate") if row[0] in stored and "±" not in row[1]}
    assert set(shown) == set(stored)
    for name, (primal, lower, gap) in shown.items():
        digits = len(primal.split(".")[1])
        assert (primal, lower) == tuple(f"{float(first[name][side]):.{digits}f}" for side in ("primal", "lower"))
        assert gap == stored[name]


def test_gaps_at_other_steps_are_those_that_are_stored():
    steps = STORED.with_name("digits_certificate_steps")
    small, chosen, large = (gaps(path) for path in (steps / "small.md", STORED / "table.md", steps / "large.md"))
    expected = [[name, small[name], chosen[name], large[name]] for name in small]
    assert [row for row in rows("certificate") if row in expected] == expected
    assert gaps(steps / "one_step.md")["DRFA"] in PAGES["certificate"]


def test_the_theory_s_steps_are_those_that_are_stored():
    stored = (ROOT / "experiments" / "results" / "theory_steps" / "table.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in stored if line not in PAGES["theory"]] == ["| --- | --- | --- | --- | --- |"]


def test_bounds_are_those_that_are_stored():
    with (STORED / "bounds.csv").open(newline="", encoding="utf-8") as file:
        stored = [[row["round"], row["gap_pooled"], row["exchanges_pooled"], row["gap_one_gradient"]]
                  for row in csv.DictReader(file)]  # fmt: skip
    assert [row for row in rows("certificate") if row in stored] == stored


REFUSED = [
    ("certificate = true\nmodel = 'mlp'", "`--model mlp`"),
    ("certificate = true\nmodel = 'cnn'", "`--model cnn`"),
    ("certificate = 'gradient'", '`certificate = "gradient"` without weight decay'),
]


@pytest.mark.parametrize(("text", "case"), REFUSED, ids=["mlp", "cnn", "gradient"])
def test_refusals_are_those_on_the_page(text, case, tmp_path, capsys):
    (tmp_path / "job.toml").write_text(text)
    assert call(["run", str(tmp_path / "job.toml"), "--out", str(tmp_path / "out")]) == 2
    (line,) = [row[1] for row in rows("certificate") if row[0] == case]
    assert capsys.readouterr().err == f"drfl: {line}\n"
