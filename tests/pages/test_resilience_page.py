"""The page on what can go wrong says what the experiments have stored."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "resilience.md").read_text(encoding="utf-8")
RESULTS = ROOT / "experiments" / "results"

NAMES = {"SCAFF-PD": "ScaffPD", "dual DRDM": "DualDRDM"}
DEFENCES = {
    "nothing or the default": "none", "`probe`": "Audit(16 rows)", "CVaR(0.3)": "CVaR(0.3)",
    "`robust:k=3,floor=0.1`": "RobustClip(3, 0.1)",
}  # fmt: skip

Cells = list[Mapping[str, str]]


def cells(name: str) -> Cells:
    with (RESULTS / name / "cells.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(corner: str) -> dict[str, list[str]]:
    """The cells of the rows below a header that begins so, by their first one."""
    lines = PAGE.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {corner}"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *others = (cell.strip() for cell in line[1:-1].split("|"))
        rows[first] = others
    return rows


def mean(seeds: Cells, column: str) -> float:
    assert len(seeds) == 3
    return statistics.fmean(float(row[column]) for row in seeds)


def test_dropouts():
    rows, shown = cells("dropout"), table("average / worst client %")
    assert len(shown) == 7
    for name, numbers in shown.items():
        mine = [row for row in rows if row["algorithm"] == NAMES.get(name, name)]
        for drop, number in zip((0.0, 0.1, 0.3, 0.5), numbers, strict=True):
            seeds = [row for row in mine if float(row["drop"]) == drop]
            assert number == f"{mean(seeds, 'avg_percent'):.1f} / {mean(seeds, 'worst_percent'):.1f}"


def test_liars():
    rows, shown = cells("abuse"), table("| nobody lies")
    assert len(shown) == 13
    for label, numbers in shown.items():
        name, _, defence = label.partition(", ")
        own = {"algorithm": NAMES.get(name, name), "defence": DEFENCES[defence]}
        for liars, number in zip((0, 1, 3, 6), numbers, strict=True):
            cell = {**own, "attack": "100 times" if liars else "none", "liars": str(liars)}
            seeds = [row for row in rows if cell.items() <= row.items()]
            worst = f"{mean(seeds, 'worst'):.1f}"
            assert number == (f"{worst} ({mean(seeds, 'mass'):.0f})" if liars else worst), label


def test_the_default_guard_does_what_none_does():
    rows = [row for row in cells("abuse") if row["attack"] == "100 times"]
    default, none = ([row for row in rows if row["defence"] == name] for name in ("default", "none"))
    assert len(default) == 36
    for row, other in zip(default, none, strict=True):
        assert (row["algorithm"], row["liars"], row["seed"]) == (other["algorithm"], other["liars"], other["seed"])
        assert (row["worst"], row["mass"]) == (other["worst"], other["mass"])


@pytest.mark.parametrize("name", ["dropout", "abuse", "fuzz", "survival"])
def test_what_is_stored_names_its_command(name):
    summary = json.loads((RESULTS / name / "summary.json").read_text(encoding="utf-8"))
    (script,) = re.findall(r"experiments/\w+\.py", summary["command"])[:1]
    assert script in PAGE
    assert (ROOT / script).exists()


def test_links_lead_somewhere():
    targets = [target for target in re.findall(r"\]\(([^)#]+)", PAGE) if not target.startswith("http")]
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []


def test_hostile_sites():
    """The page's table is the one that the script makes of what is stored."""
    script = ROOT / "experiments" / "hostile_sites.py"
    spec = importlib.util.spec_from_file_location("hostile_sites", script)
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    assert module.summary() in PAGE
    assert all(row["right"] for rows in module.stored().values() for row in rows)
    assert len(module.stored()) == 2
    assert min(map(len, module.stored().values())) >= 60
