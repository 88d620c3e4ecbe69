"""Test the files of the heat map."""

from __future__ import annotations

import importlib.util
import re

import pytest
from tests.support.marks import long_beyond
from tests.support.refusals import refused

from drfl_papers.energy import Cost, LinkConditions, Measurement, plan
from drfl_papers.energy.output import save_heatmap


def a_plan(rounds):
    places = [LinkConditions(snr, hertz) for hertz in (1e5, 1e6) for snr in (0.0, 10.0, 20.0)]
    table = [Measurement(tau, 0, t) for tau, t in rounds.items()]
    return plan(table, {place: Cost(1.0, 1e6 / place.bandwidth * (25 - place.snr_db), 1.0, 1.0) for place in places})


@pytest.mark.parametrize(
    "rounds", long_beyond(1, [{1: 60, 5: 20, 30: 8}, {7: 3}, {1: None}], ["several", "one", "none"])
)
def test_same_plan_gives_the_same_bytes(rounds, tmp_path):
    for name in ("a", "b"):
        save_heatmap(a_plan(rounds), [tmp_path / f"{name}.png", tmp_path / f"{name}.svg"], "DRDM on digits")
    for kind in ("png", "svg"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert b"matplotlib" not in (tmp_path / "a.png").read_bytes().lower()
    svg = (tmp_path / "a.svg").read_text()
    assert "<dc:date>" not in svg


def test_every_cell_shows_its_number(tmp_path):
    save_heatmap(a_plan({1: 60, 5: 20, 30: 8}), [tmp_path / "a.svg"])
    texts = re.findall(r"<!-- (.*?) -->", (tmp_path / "a.svg").read_text())
    numbers = [text for text in texts if text.isdigit()]
    expected = [str(cell.best.tau) for cell in a_plan({1: 60, 5: 20, 30: 8}).cells if cell.best]
    assert len(set(expected)) == 2
    assert "\n".join(expected) in "\n".join(numbers)
    save_heatmap(a_plan({1: None}), [tmp_path / "b.svg"])
    assert re.findall(r"<!-- (.*?) -->", (tmp_path / "b.svg").read_text()).count("–") == 6


def test_missing_matplotlib_names_the_remedy(monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    with refused("package-missing", "matplotlib", "'drfl[experiments]'"):
        save_heatmap(a_plan({1: 3}), [tmp_path / "a.png"])
