"""Test comparisons of methods at equal numbers of gradients."""

from __future__ import annotations

import csv

from tests.support.results import broken, of, results, trained
from tests.support.small_spec import SMALL, small_spec

from drfl_papers.equal_gradients import cut, result_tables, to_csv
from drfl_papers.output import contents
from drfl_papers.plan import Scale

ONE = {"settings": SMALL["settings"][:1]}


def dear(setting, method, seed):
    """Return a record. DRDM needs more gradients per round, and is better at the end but worse at equal gradients."""
    if method == "DRDM":
        return trained(0.10, 0.40, 0.60, 0.80, 0.90 + seed / 100, steps=20)
    return trained(0.10, 0.50, 0.70, 0.72, 0.74 + seed / 100, steps=5)


def test_runs_end_at_the_budget_of_the_cheapest():
    plan, found = of(results(small_spec(**ONE), dear))
    shorter = cut(plan, found)
    assert shorter is not None
    first, other = shorter["α = 0.1", "DRDM"][0], shorter["α = 0.1", "Fed-Avg"][0]
    assert (first.rounds, first.final["gradient_evaluations"], first.final["worst_accuracy"]) == (1, 200, 0.40)
    assert (other.rounds, other.final["gradient_evaluations"], other.final["worst_accuracy"]) == (4, 200, 0.74)


def test_failed_run_does_not_limit_the_budget_and_is_kept():
    plan, found = of(results(small_spec(**ONE), lambda s, m, k: broken() if m == "Fed-Avg" and k else dear(s, m, k)))
    shorter = cut(plan, found)
    assert shorter is not None
    assert [run.rounds for run in shorter["α = 0.1", "DRDM"]] == [1, 4], "at seed 1 nobody else came to the end"
    assert not shorter["α = 0.1", "Fed-Avg"][1].has_ended


def test_tables_and_file():
    plan, found = of(results(small_spec(**ONE), dear, Scale(repeats=5)))
    average, worst, *_ = result_tables(plan, found)
    assert average.title == "At equal gradients: average accuracy, %"
    assert "at most 0.0002·10⁶. Mean rounds: DRDM 1, Fed-Avg 4." in average.notes[0]
    assert [row[1].text for row in worst.rows] == ["40.0 ± 0.0", "76.0 ± 2.0"]
    rows = list(csv.DictReader((to_csv(plan, found) or "").splitlines()))
    assert [row["round"] for row in rows] == ["1"] * 5 + ["4"] * 5
    assert rows[5]["worst_accuracy"] == "0.740000"
    assert any("paired differences" in table.title for table in result_tables(plan, found))


def test_equal_costs_give_no_table():
    alike = results(small_spec(**ONE), lambda s, m, k: trained(0.1, 0.2, 0.3))
    assert to_csv(*of(alike)) is None
    ends = results(small_spec(**ONE), lambda s, m, k: trained(0.1, 0.2, steps=2 if m == "DRDM" else 9))
    assert result_tables(*of(ends)) == ()
    assert not any("equal gradients" in table.title for table in contents(alike))
