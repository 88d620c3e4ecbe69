"""Test distances to a known optimum."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.results import approached, results
from tests.support.small_spec import small_spec

from drfl_papers.convergence import error_curves, first_round, rate, summary, tables, to_csv

SPEC = {
    "kind": "distance",
    "job": {"sigma": 0.1, "steps": 2},
    "values": {},
    "settings": [{"name": "ρ = 0.1", "job": {"rho": 0.1}}],
    "methods": [
        {"name": "SCAFF-PD", "algorithm": "ScaffPD", "grid": {"reach": [0.5, 1.0]}},
        {"name": "DRFA", "algorithm": "DRFAProx", "grid": {"reach": [0.5]}},
    ],
}


def falling(seed):
    return approached([10.0 ** -(r + seed) for r in range(15)])


def record(setting, method, seed):
    return falling(seed) if method == "SCAFF-PD" else approached([1.0, 0.5, 0.5])


@given(st.floats(0.05, 1.5), st.floats(-2, 2))
@example(0.05, 2.0)
def test_straight_line_is_fitted_exactly(slope, height):
    # In 200 rounds even the slowest line from the highest start reaches the fitted range.
    found = rate([10 ** (height - slope * r) for r in range(200)])
    assert found.slope == pytest.approx(-slope, rel=1e-6)
    assert found.r2 == pytest.approx(1, abs=1e-9)


def test_only_errors_within_the_range_are_fitted():
    far, near = [10.0, 5.0, 4.0], [1e-21, 1e-24, 1e-26]
    assert rate([*far, 1e-4, 1e-5, 1e-6, *near]).slope == pytest.approx(-1)
    assert rate([*far, *near]) is None
    assert rate([1e-4, 1e-5]) is None


def test_flat_line_has_no_r2():
    found = rate([1e-4] * 5)
    assert found.slope == pytest.approx(0, abs=1e-12)
    assert found.r2 != found.r2


def test_first_round_at_a_level():
    assert first_round([1.0, 1e-12, 1e-13]) == 1
    assert first_round([1.0, 1e-11]) is None
    assert first_round([], 1.0) is None


def test_table_has_medians():
    assert tables(results(small_spec(**SPEC), record))[0].markdown() == (
        "## ρ = 0.1\n\n"
        "| method   | last ‖w − w*‖² | rounds to 1e-12 | log10 per round |     R² |\n"
        "| -------- | -------------: | --------------: | --------------: | -----: |\n"
        "| SCAFF-PD |        5.5e-15 |            11.5 |         −1.0000 | 1.0000 |\n"
        "| DRFA     |        5.0e-01 |               – |               – |      – |\n\n"
        "Medians over the seeds; for R², the minimum. The rate is fitted to ‖w − w*‖² between 1e-20 and 0.001. "
        "– means: never reached.\n"
    )


def test_diverged_and_late_seeds_are_reported():
    def mixed(setting, method, seed):
        if method == "DRFA":
            return approached([1.0, 1e9], stopped="diverged")
        return falling(0) if seed else approached([1.0, 0.5])

    collected = results(small_spec(**SPEC), mixed)
    rows = [[entry.text for entry in row] for row in tables(collected)[0].rows]
    assert rows[0][2] == "1 of 2 seeds"
    assert rows[1] == ["DRFA", "diverged", "–", "–", "–"]
    assert not any(way.errors for way in error_curves(collected)["ρ = 0.1", "DRFA"])


def test_summary_has_the_chosen_values():
    found = summary(error_curves(results(small_spec(**SPEC), record))["ρ = 0.1", "SCAFF-PD"])
    assert found["chosen"] == [{"reach": 0.5}] * 2
    assert found["rounds_to_level"] == [12, 11]
    assert found["slope"] == -1.0
    assert (found["n"], found["diverged"]) == (2, 0)


def test_file_has_every_round():
    lines = to_csv(results(small_spec(**SPEC, repeats=1), record)).splitlines()
    assert lines[:3] == [
        "setting,method,seed,round,squared_distance",
        "ρ = 0.1,SCAFF-PD,0,0,1.000000e+00",
        "ρ = 0.1,SCAFF-PD,0,1,1.000000e-01",
    ]
    assert len(lines) == 1 + 15 + 3
