"""Test the suite of benchmarks/gpu.py: the combinations that it runs, and the results after an interruption."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations, product

import pytest
from tests.support.scripts import ROOT

PLACE = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def parts():
    sys.path.insert(0, str(PLACE))
    try:
        from gpu_parts import correctness, pairs, report

        yield correctness, pairs, report
    finally:
        sys.path.remove(str(PLACE))


def test_every_possible_pair_of_levels_occurs(parts):
    correctness, pairs, _ = parts
    factors = correctness.FACTORS
    cases = pairs.all_pairs(factors, correctness.allowed)
    covered = {pair for case in cases for pair in combinations(case.items(), 2)}
    for (a, levels), (b, others) in combinations(factors.items(), 2):
        for one, other in product(levels, others):
            assert (((a, one), (b, other)) in covered) == correctness.allowed({a: one, b: other})
    assert all(map(correctness.allowed, cases))
    # The minimum is one case per pair of the two longest factors; the full product has thousands.
    *_, second, longest = sorted(map(len, factors.values()))
    assert len(cases) <= 1.2 * second * longest


def test_first_cases_cover_all_algorithms_and_engines(parts):
    correctness, pairs, _ = parts
    first = pairs.all_pairs(correctness.FACTORS, correctness.allowed)[:25]
    assert {case["algorithm"] for case in first} == set(correctness.FACTORS["algorithm"])
    assert {case["engine"] for case in first} == set(correctness.FACTORS["engine"])


@pytest.mark.parametrize("change", [1e-4, None], ids=["another model", "another cohort"])
def test_wrong_device_is_detected(parts, change):
    correctness, _, _ = parts
    case = {"algorithm": "FedAvg", "engine": "auto", "model": "linear", "type": "float64", "graphs": "on",
            "local": "plain"}  # fmt: skip
    rounds = correctness.rounds_of(case, "cpu", correctness.Loop())
    assert correctness.difference(case, rounds, rounds) == (0, len(rounds))
    (cohort, w, losses), *rest = rounds
    wrong = (cohort.flip(0), w, losses) if change is None else (cohort, w * (1 + change), losses)
    assert correctness.difference(case, rounds, [wrong, *rest])[0] > correctness.TOLERANCES["float64"]


def test_rows_are_stored_as_they_are_measured(parts, tmp_path):
    _, _, report = parts
    part = report.Report("speed", tmp_path, "command", "cpu", 0.0)
    part.add(check="engine", ok=False)
    stored = json.loads((tmp_path / "speed.json").read_text())
    assert stored["rows"][0]["check"] == "engine"
    assert stored["summary"] == {"finished": False}
    part.finish()
    assert part.failures == 1
    assert json.loads((tmp_path / "speed.json").read_text())["summary"] == {"finished": True, "cut_off": True}


@pytest.mark.long
def test_unknown_part_is_refused(tmp_path):
    command = [sys.executable, str(PLACE / "gpu.py"), "--smoke", "--parts", "speeed", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_part_without_time_is_stopped_and_others_run(tmp_path):
    command = [sys.executable, str(PLACE / "gpu.py"), "--smoke", "--seconds", "0.5", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert "correctness was stopped" in ended.stdout
    assert "table was stopped" in ended.stdout
