"""Test that the page on energy matches the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from drfl.cli.app import call
from drfl_papers.commands import energy
from drfl_papers.commands.options import EnergyOptions
from drfl_papers.energy.cost import CAPACITANCE, FREQUENCY, POWER
from drfl_papers.energy.measurements import read_csv

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "energy.md").read_text(encoding="utf-8")
NUMBER = r"\d+(?:\.\d+)?"
ROWS = [[cell.strip() for cell in line.strip("| ").split("|")] for line in PAGE.splitlines() if line.startswith("|")]


@pytest.mark.long
def test_code_prints_the_shown_output(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "page", ModuleType("page"))
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(code, {"__name__": "page"})
    found = capsys.readouterr().out
    assert re.sub(NUMBER, "#", found) == re.sub(NUMBER, "#", printed)
    # Rounding differs between processors, and so do the drawn clients and, slightly, the energy of 200 rounds.
    assert [*map(float, re.findall(NUMBER, found))] == pytest.approx(
        [*map(float, re.findall(NUMBER, printed))], rel=0.02
    )


@pytest.mark.long
def test_shown_plan_follows_from_the_shown_rounds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    at = next(i for i, row in enumerate(ROWS) if row[0] == "τ")
    lines = [f"{tau},{seed},{t}" for tau, *rounds in ROWS[at + 2 : at + 9] for seed, t in enumerate(rounds)]
    (tmp_path / "m.csv").write_text("\n".join(["tau,seed,rounds", *lines]))
    assert len(read_csv(tmp_path / "m.csv")) == 21
    monkeypatch.setattr(energy.console.out, "width", 200)
    assert call(["energy", "--measurements", "m.csv", "--out", "a"]) == 0
    shown = capsys.readouterr().out.splitlines()
    printed = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in shown if line.startswith("│")]
    start = next(i for i, row in enumerate(ROWS) if row[0] == "bandwidth")
    assert printed == ROWS[start + 2 : start + 5]


@pytest.mark.parametrize(
    ("option", "value"), [("--capacitance", CAPACITANCE), ("--frequency", FREQUENCY), ("--power", POWER)]
)
def test_constants_match_the_code(option, value):
    (row,) = [row for row in ROWS if len(row) == 4 and row[2] == f"`{option}`"]
    assert float(row[1].split()[0]) == value


def test_shown_command_is_the_default():
    (command,) = re.findall(r"```sh\ndrfl energy (.*?)\n```", PAGE)
    found = {part.split()[0]: part.split()[1:] for part in command.split("--") if part}
    assert tuple(map(float, found["snr"])) == energy.SNRS
    assert tuple(map(float, found["bandwidth"])) == energy.BANDWIDTHS
    assert tuple(map(int, found["steps"])) == energy.STEPS
    assert (found["target-worst"], found["seeds"]) == ([str(EnergyOptions.target_worst)], [energy.SEEDS])
