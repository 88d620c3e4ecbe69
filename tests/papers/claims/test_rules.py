"""Test each kind of claim on results made by hand."""

from __future__ import annotations

import csv
import io

import pytest
from tests.support.refusals import refused

from drfl.core.csv_cells import csv_text
from drfl_papers.claims.decide import claims_csv, decide, findings_csv, load
from drfl_papers.claims.results import StoredResults

LOW, HIGH = [0.50, 0.52, 0.49, 0.51, 0.50], [0.61, 0.60, 0.62, 0.59, 0.60]
RULE = """
[[claim]]
id = "c"
paper = "DRDM"
where = "Table 0"
says = "better"
"""
AHEAD = """
kind = "ahead"
measures = [{ of = "last model", metric = "worst_accuracy" }]
results = ["made"]
methods = ["ours"]
others = ["theirs"]
"""


@pytest.fixture
def made(tmp_path):
    """Write a result's cells.csv and other files, and decide a rule on them."""

    def of(rule, cells, **files):
        folder = tmp_path / "made"
        folder.mkdir(exist_ok=True)
        rows = [
            [setting, method, seed, "diverged" if value is None else "rounds", 10, "" if value is None else value]
            for (setting, method), values in cells.items()
            for seed, value in enumerate(values)
        ]
        names = ("setting", "method", "seed", "stopped", "rounds", "worst_accuracy")
        (folder / "cells.csv").write_text(csv_text(names, rows), encoding="utf-8")
        for name, (head, lines) in files.items():
            (folder / f"{name}.csv").write_text(csv_text(head, lines), encoding="utf-8")
        (tmp_path / "claims.toml").write_text(RULE + rule, encoding="utf-8")
        (claim,) = load(tmp_path / "claims.toml")
        return decide(claim, StoredResults(tmp_path))

    return of


def cells(ours, theirs, setting="s"):
    return {(setting, "ours"): ours, (setting, "theirs"): theirs}


def test_ahead_in_all_some_and_no_settings(made):
    same = [x + 0.001 * (-1) ** k for k, x in enumerate(LOW)]
    assert made(AHEAD, cells(HIGH, LOW)).verdict == "holds"
    assert made(AHEAD, cells(HIGH, LOW) | cells(same, LOW, "t")).verdict == "holds partly"
    assert made(AHEAD, cells(same, LOW)).verdict == "not significant"
    assert made(AHEAD, cells(HIGH, LOW) | cells(LOW, HIGH, "t")).verdict == "does not hold"


def test_too_few_seeds_and_missing_results_are_undecided(made):
    assert made(AHEAD, cells(HIGH[:3], LOW[:3])).verdict == "not decided"
    broken = made(AHEAD, cells(HIGH, [None, *LOW[1:]]))
    assert broken.verdict == "not decided"
    assert broken.decides.endswith("4 seeds. Failed: theirs 1 run")
    assert made(AHEAD, {("s", "ours"): HIGH}).verdict == "not decided"
    assert made(f'{AHEAD}settings = ["s", "elsewhere"]', cells(HIGH, LOW)).verdict == "not decided"
    assert made(AHEAD.replace('"made"', '"nowhere"'), cells(HIGH, LOW)).verdict == "not decided"


def test_more_comparisons_are_corrected(made):
    """Without the correction each of them would be significant."""
    weak = [0.53, 0.53, 0.51, 0.52, 0.53]
    many = {}
    for k in range(8):
        many |= cells(weak, LOW, f"setting {k}")
    alone, all_of_them = made(AHEAD, cells(weak, LOW)), made(AHEAD, many)
    assert alone.verdict == "holds"
    assert all_of_them.verdict == "not significant"


def test_correction_of_the_table_applies_to_each_difference(made):
    head = ("setting", "metric", "reference", "method", "p_holm")
    for p, expected in (("0.01", "opposite significant"), ("0.2", "not significant")):
        paired = (head, [["s", "worst_accuracy", "theirs", "ours", p]])
        (found,) = made(AHEAD, cells(LOW, HIGH), paired=paired).findings
        assert found.outcome == expected


BOTH = AHEAD.replace('"theirs"]', '"theirs", "third"]')


def test_claim_on_several_differences_needs_all_in_one_setting(made):
    """Each difference is significant in some setting, but never both in one, so the claim is confirmed in none."""
    same = [x + 0.001 * (-1) ** k for k, x in enumerate(LOW)]
    first = cells(HIGH, LOW) | {("s", "third"): [x + 0.1 for x in same]}
    second = cells(HIGH, [x + 0.1 for x in same], "t") | {("t", "third"): LOW}
    found = made(BOTH, first | second)
    assert [one.outcome for one in found.findings].count("significant") == 2
    assert found.verdict == "not significant"
    assert found.decides.startswith("As worded: significant in 0 of 2 settings. ")
    assert made(BOTH, first | cells(HIGH, LOW, "t") | {("t", "third"): LOW}).verdict == "holds partly"


def test_weakest_difference_decides_a_setting(made):
    """Several differences in a setting need no correction, but several settings do."""
    weak = [0.53, 0.53, 0.51, 0.52, 0.53]
    alone = made(BOTH, cells(weak, LOW) | {("s", "third"): LOW})
    (p,) = {round(one.tests.p_t, 9) for one in alone.findings}
    assert 0.025 > p > 0.05 / 8
    assert {round(one.p_worded, 9) for one in alone.findings} == {p}
    assert alone.verdict == "holds"
    many = {}
    for k in range(8):
        many |= cells(weak, LOW, f"setting {k}") | {(f"setting {k}", "third"): LOW}
    found = made(BOTH, many)
    assert [one.p_worded for one in found.findings] == pytest.approx([8 * p] * 16, abs=1e-7)
    assert (found.verdict, len(found.settings)) == ("not significant", 8)
    (line,) = csv.DictReader(io.StringIO(claims_csv([found])))
    assert (line["settings"], line["shown as worded"]) == ("8", "0")


def test_confirmed_claim_confirms_its_differences(made):
    head = ("setting", "metric", "reference", "method", "p_holm")
    paired = (head, [["s", "worst_accuracy", "theirs", "ours", "0.2"]])
    found = made(AHEAD, cells(HIGH, LOW), paired=paired)
    assert (found.verdict, found.findings[0].outcome) == ("holds", "significant")


def test_confirmed_claim_needs_its_own_numbers_and_all_comparisons(made):
    paired = (("setting", "metric", "reference", "method", "p_holm"), [["s", "worst_accuracy", "ours", "theirs", "1"]])
    both = cells(HIGH, LOW) | {("s", "third"): LOW}
    assert made(AHEAD.replace('"theirs"]', '"theirs", "third"]'), both, paired=paired).verdict == "holds"
    lines = [["s", m, k, v] for (_, m), values in cells(HIGH, LOW).items() for k, v in enumerate(values)]
    other = (("setting", "method", "seed", "worst_accuracy"), lines)
    rule = AHEAD.replace('metric = "worst_accuracy"', 'metric = "worst_accuracy", file = "equal_gradients.csv"')
    assert made(rule, cells(LOW, HIGH), paired=paired, equal_gradients=other).verdict == "holds"


def curves(**runs):
    """Return curves of a setting s by method and seed, at rounds 0, 1, 2, …"""
    lines = [
        ["s", method, seed, r, 10 * r, value]
        for method, seeds in runs.items()
        for seed, values in enumerate(seeds)
        for r, value in enumerate(values)
    ]
    return ("setting", "method", "seed", "round", "iterations", "worst_accuracy"), lines


ROUNDS = AHEAD.replace("last model", "to level").replace(" }]", ", level = 0.5 }]")


def test_rounds_to_a_level_come_from_the_curves(made):
    soon, late = [[0.1, 0.5, 0.2]] * 3 + [[0.1, 0.2, 0.6]] * 3, [[0.1, 0.2, 0.2]] * 6
    run = made(ROUNDS, cells(HIGH, LOW), curves=curves(ours=soon, theirs=late))
    assert run.verdict == "holds"
    assert "ahead at 6 and behind at 0 of 6 seeds" in run.decides
    rule = ROUNDS.replace('"ahead"', '"every"').replace('others = ["theirs"]', "most = 2")
    assert made(rule, cells(HIGH, LOW), curves=curves(ours=soon)).decides == (
        "Rounds to 50 % worst accuracy: 6 of 6 seeds (1 to 2; 95 % interval of the share 54 to 100 %). 6 seeds"
    )


def test_diverged_run_differs_from_one_that_never_arrives(made):
    head = ("setting", "method", "seed", "metric", "target", "round", "iterations")
    lines = [["s", m, k, "worst_accuracy", 0.5, r, r] for m, r in (("ours", 3), ("theirs", "")) for k in range(6)]
    well, broken = [0.5] * 6, [0.5] * 5 + [None]
    assert made(ROUNDS, cells(well, well), reached=(head, lines)).verdict == "holds"
    assert made(ROUNDS, cells(well, broken), reached=(head, lines)).verdict == "not decided"


def test_metrics_during_training(made):
    rule = AHEAD.replace("last model", "during training")
    at_one = rule.replace(" }]", ", round = 1 }]")
    ours, theirs = ([[0, x, 0.5] for x in values] for values in (HIGH, LOW))
    assert made(rule, cells(LOW, HIGH), curves=curves(ours=ours, theirs=theirs)).verdict == "holds"
    assert made(at_one, cells(LOW, HIGH), curves=curves(ours=theirs, theirs=ours)).verdict == "does not hold"


TREND = """
kind = "trend"
measures = [{ of = "last model", metric = "worst_accuracy" }]
results = ["made"]
over = "methods"
steps = [["a", "b", "c"]]
direction = "rises"
"""


def test_trend_between_neighbours_or_ends(made):
    up = {("s", name): [x + k / 10 for x in LOW] for k, name in enumerate("abc")}
    up["s", "b"] = [x + 0.001 * k for k, x in enumerate(up["s", "b"])]
    dip = up | {("s", "b"): [x - 0.2 + 0.001 * k for k, x in enumerate(up["s", "a"])]}
    up["s", "c"] = [x + 0.002 * (-1) ** k for k, x in enumerate(up["s", "c"])]
    dip["s", "c"] = up["s", "c"]
    assert made(TREND, up).verdict == "holds"
    assert made(TREND.replace("rises", "falls"), up).verdict == "does not hold"
    assert made(TREND, dip).verdict == "does not hold"
    assert made(f'{TREND}compared = "ends"', dip).verdict == "holds"
    flat = up | {("s", "c"): [x + 0.001 * (-1) ** k for k, x in enumerate(up["s", "b"])]}
    assert made(TREND, flat).verdict == "not significant", "of two steps one is shown"


def test_trend_over_settings_needs_all_methods(made):
    rule = TREND.replace('"methods"', '"settings"').replace('["a", "b", "c"]', '["a", "b"], ["c", "d"]')
    rule += 'methods = ["m", "n"]'
    flat = [x + 0.001 * (-1) ** k for k, x in enumerate(LOW)]
    first = {("a", "m"): LOW, ("a", "n"): LOW, ("b", "m"): HIGH, ("b", "n"): HIGH}
    second = {("c", "m"): LOW, ("c", "n"): LOW, ("d", "m"): HIGH, ("d", "n"): flat}
    found = made(rule, first | second)
    assert found.verdict == "holds partly"
    assert [(s.is_significant, s.has_opposite) for s in found.settings] == [(True, False), (False, False)]


def test_trend_over_settings_can_join_two_results(made, tmp_path):
    (tmp_path / "second").mkdir()
    rule = TREND.replace('"methods"', '"settings"') + 'methods = ["m"]'
    rule = rule.replace('["a", "b", "c"]', '["a", { result = "second", name = "b" }]')
    lines = [["b", "m", k, "rounds", 10, x] for k, x in enumerate(HIGH)]
    head = ("setting", "method", "seed", "stopped", "rounds", "worst_accuracy")
    (tmp_path / "second" / "cells.csv").write_text(csv_text(head, lines), encoding="utf-8")
    assert made(rule, {("a", "m"): LOW}).verdict == "holds"


def test_straightness_of_falling_and_flat_curves(made):
    rule = AHEAD.replace('"ahead"', '"every"').replace('others = ["theirs"]', "least = 0.98")
    rule = rule.replace('{ of = "last model", metric = "worst_accuracy" }', '{ of = "straightness" }')
    for factor, expected in ((0.1, "holds"), (1.0, "does not hold")):
        lines = [["s", "ours", seed, r, 1e-4 * factor**r] for seed in range(5) for r in range(10)]
        head = ("setting", "method", "seed", "round", "squared_distance")
        assert made(rule, cells(HIGH, LOW), curves=(head, lines)).verdict == expected


def test_level_and_behind(made):
    rule = AHEAD.replace('"ahead"', '"level"') + "margin = 0.01"
    near = [x - 0.002 * (k % 2) for k, x in enumerate(HIGH)]
    assert made(rule, cells(near, HIGH)).verdict == "holds"
    assert made(rule, cells(LOW, HIGH)).verdict == "does not hold"
    assert made(rule, cells([x + 0.1 for x in near], HIGH)).verdict == "holds"
    assert made(f"{rule}\nboth_sides = true", cells([x + 0.1 for x in near], HIGH)).verdict == "does not hold"
    wide = [x + 0.02 * (-1) ** k for k, x in enumerate(HIGH)]
    assert made(rule, cells(wide, HIGH)).verdict == "not significant"
    assert made(rule, cells(HIGH, HIGH)).verdict == "holds"
    # the claim needs all its settings
    assert made(rule, cells(near, HIGH) | cells(wide, HIGH, "t")).verdict == "holds partly"


DERIVED = """
kind = "derived"
verdict = "does not hold"
page = "docs/p.md"

[[claim.confirmed_by]]
result = "made"
file = "cells.csv"
rows = { method = "ours" }
column = "worst_accuracy"
least = 0.55
says = "gap"
"""


def test_derivation_needs_confirming_numbers(made):
    confirmed = made(DERIVED, cells(HIGH, LOW))
    assert (confirmed.verdict, confirmed.decides) == ("does not hold", "[derivation](docs/p.md); gap 0.59 to 0.62")
    assert made(DERIVED, cells(LOW, HIGH)).verdict == "not decided"
    assert made(DERIVED, {("s", "theirs"): HIGH}).verdict == "not decided"


def test_quoted_numbers_match_the_files(made):
    found = made(AHEAD, cells(HIGH, LOW))
    assert found.decides == "Worst accuracy, points: theirs +10.0 [+7.4, +12.6] (significant). 5 seeds"
    (row,) = csv.DictReader(io.StringIO(findings_csv([found])))
    assert (row["lead"], row["pairs"], row["wins"], row["outcome"]) == ("0.1", "5", "5", "significant")
    (line,) = csv.DictReader(io.StringIO(claims_csv([found])))
    assert (line["id"], line["comparisons"], line["shown"], line["verdict"]) == ("c", "1", "1", "holds")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (RULE + AHEAD + "colour = 1", ("invalid-value", "claims.toml", "colour")),
        (RULE + AHEAD.replace("ahead", "behind"), ("invalid-value", "claims.toml", "kind")),
        (RULE + AHEAD + RULE + AHEAD, ("duplicate-name", "c")),
        ("[[claim", ("invalid-value", "claims.toml")),
    ],
)
def test_mismatched_file_is_a_one_line_error(text, error, tmp_path):
    (tmp_path / "claims.toml").write_text(text, encoding="utf-8")
    with refused(*error) as error:
        load(tmp_path / "claims.toml")
    assert "\n" not in str(error.value)
