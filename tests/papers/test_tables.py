"""Test the table of final metrics beside the paper's numbers."""

from __future__ import annotations

import pytest
from tests.support.results import broken, of, results, trained
from tests.support.small_spec import SMALL, small_spec

from drfl_papers.plan import Scale
from drfl_papers.tables import ResultTable, TableEntry, final, sentence

WORST = {"DRDM": (0.80, 0.82), "Fed-Avg": (0.70, 0.70)}


def plain(setting, method, seed):
    return trained(0.1, WORST[method][seed])


def test_our_numbers_are_beside_the_papers():
    _, worst, _ = final(*of(results(small_spec(), plain)))
    # Half width for 80 and 82: t = 12.706 with one degree of freedom, times √2 / √2.
    assert worst.markdown() == (
        "## Worst accuracy, %\n\n"
        "| method  |         α = 0.1 |     paper |         α = 0.5 |\n"
        "| ------- | --------------: | --------: | --------------: |\n"
        "| DRDM    | **81.0 ± 12.7** | **84.81** | **81.0 ± 12.7** |\n"
        "| Fed-Avg |      70.0 ± 0.0 |     80.70 |      70.0 ± 0.0 |\n"
    )


def test_smaller_deviation_is_better_and_notes_come_last():
    average, worst, std = final(*of(results(small_spec(), plain)))
    assert std.rows[0][2] == TableEntry("2.96", True)
    assert std.rows[1][2] == TableEntry("3.93", False)
    assert [row[1].best for row in std.rows] == [True, False], "5 − worst/50 points: the better one deviates less"
    assert not average.notes
    assert not worst.notes
    assert "95 % t-interval" in std.notes[0]


def test_single_repeat_has_no_interval():
    tables = final(*of(results(small_spec(), plain, Scale(repeats=1))))
    assert [row[1].text for row in tables[1].rows] == ["80.0", "70.0"]
    assert "t-interval" not in tables[-1].notes[0]


def test_equal_displayed_values_are_both_bold():
    close = {"DRDM": 0.80004, "Fed-Avg": 0.79996}
    table = final(*of(results(small_spec(), lambda s, m, k: trained(close[m]), Scale(repeats=1))))[1]
    assert [row[1] for row in table.rows] == [TableEntry("80.0", True), TableEntry("80.0", True)]


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ((broken(), broken()), "diverged"),
        ((broken("refused"), broken()), "1 of 2 diverged, 1 of 2 refused"),
        ((trained(0.9), broken()), "1 of 2 diverged"),
    ],
)
def test_method_with_failed_seeds_has_no_mean(records, text):
    def mixed(setting, method, seed):
        return records[seed] if method == "DRDM" else plain(setting, method, seed)

    table = final(*of(results(small_spec(), mixed)))[1]
    assert table.rows[0][1] == TableEntry(text, False)
    assert table.rows[1][1].best
    assert "failed" in final(*of(results(small_spec(), mixed)))[2].notes[0]


def test_method_missing_in_the_paper_has_a_dash():
    values = {"α = 0.1": {"Fed-Avg": [88.46, 80.7, 3.93]}}
    table = final(*of(results(small_spec(values=values), plain)))[1]
    assert [row[2] for row in table.rows] == [TableEntry("–"), TableEntry("80.70", True)]


def test_missing_paper_numbers_give_no_column():
    table = final(*of(results(small_spec(values={}), plain)))[0]
    assert table.header == ("method", "α = 0.1", "α = 0.5")


def test_losses_are_not_percentages():
    table = final(*of(results(small_spec(metrics=["worst_loss"], values={}), plain, Scale(repeats=1))))[0]
    assert table.title == "Worst loss"
    assert [row[1] for row in table.rows] == [TableEntry("1.200", True), TableEntry("1.300")]


def test_names_cannot_break_the_table():
    methods = [{**SMALL["methods"][0], "name": "a|b\nc"}, SMALL["methods"][1]]
    spec = small_spec(methods=methods, values={})
    text = final(*of(results(spec, lambda s, m, k: trained(0.5))))[0].markdown()
    assert "| a\\|b c " in text
    assert len({line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_short_columns_fit_the_rule_below_the_heading():
    table = ResultTable("t", ("a", "b"), ((TableEntry("x"), TableEntry("1", True)),))
    assert table.markdown() == "## t\n\n| a   |     b |\n| --- | ----: |\n| x   | **1** |\n"


def test_greek_symbol_at_the_start_of_a_sentence_is_unchanged():
    assert sentence("τ = 5 is left out") == "τ = 5 is left out"
    assert sentence("best") == "Best"
