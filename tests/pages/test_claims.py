"""Test that every verdict on the papers' claims follows from its rule and the stored results."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

import pytest
from tests.support.scripts import ROOT, script

from drfl_papers.claims import measures
from drfl_papers.claims.energy import least_energy_steps, steps_of
from drfl_papers.claims.measures import ToLevel
from drfl_papers.claims.results import StoredResults
from drfl_papers.claims.rules import Ahead, Every, Level, Trend
from drfl_papers.specification import load_spec, names

SCRIPT = script("evidence/claims.py")
STORED = StoredResults(SCRIPT.RESULTS)
MEASURED = [claim for claim in SCRIPT.load(SCRIPT.RULES) if isinstance(claim, (Ahead, Every, Level, Trend))]


@pytest.fixture(scope="module")
def found():
    """Return all claims, decided from the stored results."""
    return SCRIPT.decided()


def test_stored_files_follow_from_stored_results(found):
    assert not SCRIPT.differing(found), "run python evidence/claims.py, and make pages"
    texts = SCRIPT.texts(found)
    assert set(texts) == {"claims.csv", "comparisons.csv"}
    for name, text in texts.items():
        assert (SCRIPT.STORED / name).read_text(encoding="utf-8") == text


def test_every_verdict_is_on_the_page(found):
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    sections = dict(section.split("\n", 1) for section in page.split("\n## ")[1:])
    for one in found:
        start = f"| {one.claim.says} ({one.claim.where}) | {one.verdict} |"
        rows = [line for line in sections[one.claim.paper].splitlines() if line.startswith(start)]
        assert len(rows) == 1, one.claim.id


def named(claim):
    """Return results with the settings and methods that a claim names; channels are not settings."""
    found = [(result, claim.settings or [], claim.methods + getattr(claim, "others", [])) for result in claim.results]
    if isinstance(claim, Trend):
        first = claim.results[0]
        steps = [(first, s) if isinstance(s, str) else (s.result, s.name) for row in claim.steps for s in row]
        found += [(r, [n], []) if claim.over == "settings" else (r, [], [n]) for r, n in steps]
    return found


@pytest.mark.parametrize("claim", MEASURED, ids=[claim.id for claim in MEASURED])
def test_names_in_claims_exist_in_the_specifications(claim):
    channels = any(measure.of == "least-energy steps" for measure in claim.measures)
    for result, settings, methods in named(claim):
        assert result in names()
        spec = load_spec(result)
        known = {setting.name for setting in spec.settings}
        if channels:
            assert all(measures.CHANNEL.fullmatch(setting) for setting in settings)
            assert spec.energy is not None
            assert [measure.level for measure in claim.measures] == [spec.energy.target]
        else:
            assert set(settings) <= known
            assert set(methods) <= {method.name for method in spec.methods}


def test_least_energy_matches_the_map():
    """The map uses mean rounds, as in `energy.csv`; claims use single seeds."""
    result = "drdm-figure-4"
    reach = ToLevel(of="to level", metric="worst_accuracy", level=0.8)

    def mean_rounds(stored, result, setting, method):
        return {0: fmean(reach.values(stored, result, setting, method).values())}

    rows = STORED.rows(result, "energy.csv")
    assert len(rows) == 35
    for row in rows:
        channel = float(row["snr_db"]), float(row["bandwidth_hz"])
        assert least_energy_steps(STORED, result, mean_rounds, *channel) == {0: float(row["tau"])}
    assert set(steps_of(STORED, result).values()) == {1, 5, 10, 15, 20, 25, 30}


def test_changed_number_changes_the_finding(tmp_path):
    """The rules read the results, not earlier decisions."""
    result = "drdm-table-3"
    (tmp_path / result).mkdir()
    text = (SCRIPT.RESULTS / result / "cells.csv").read_text(encoding="utf-8")
    head, *lines = text.splitlines()
    column = head.split(",").index("worst_accuracy") - len(head.split(","))
    changed = defaultdict(int)
    for k, line in enumerate(lines):
        parts = line.split(",")
        if ",DRDM,DRDM," in line:
            parts[column] = f"{float(parts[column]) - 0.2:.6f}"
            changed[line] += 1
        lines[k] = ",".join(parts)
    (tmp_path / result / "cells.csv").write_text("\n".join([head, *lines]), encoding="utf-8")
    claim = next(claim for claim in MEASURED if claim.id == "drdm-linear-worst")
    claim = claim.model_copy(update={"results": [result]})
    assert len(changed) == 40
    assert SCRIPT.decide(claim, STORED).verdict == "not significant"
    assert SCRIPT.decide(claim, StoredResults(tmp_path)).verdict == "does not hold"
