"""Test the finding of a comparison on a claim with a known answer."""

from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest, ttest_1samp

from drfl.core.csv_cells import csv_text
from drfl_papers.claims import findings
from drfl_papers.claims.findings import NOT_SIGNIFICANT, OPPOSITE, SIGNIFICANT, UNDECIDED, Place, lead_of, sign_test_p
from drfl_papers.claims.measures import LastModel, ToLevel
from drfl_papers.claims.results import StoredResults

ACCURACY = LastModel(of="last model", metric="worst_accuracy")
ROUNDS = ToLevel(of="to level", metric="worst_accuracy", level=0.5)
PLACES = (Place("r", "s", "ours"), Place("r", "s", "theirs"))
NEVER = math.inf


def lead(ours, theirs, measure=ACCURACY):
    sign = -1 if measure.display.small else 1
    return lead_of(measure, PLACES, (dict(enumerate(ours)), dict(enumerate(theirs))), sign)


def ahead(ours, theirs, measure=ACCURACY, tests=1):
    found = lead(ours, theirs, measure)
    return findings.with_lead_outcome(found, min(1.0, tests * found.tests.p_t)).outcome


LOW, HIGH = [0.50, 0.52, 0.49, 0.51, 0.50], [0.61, 0.60, 0.62, 0.59, 0.60]


def test_lead_opposite_or_undecided():
    assert ahead(HIGH, LOW) == SIGNIFICANT
    assert ahead(LOW, HIGH) == OPPOSITE
    assert ahead(LOW, [0.51, 0.50, 0.50, 0.50, 0.51]) == NOT_SIGNIFICANT
    assert ahead(HIGH, LOW, tests=1000) == NOT_SIGNIFICANT


def test_p_value_is_that_of_the_paired_t_test():
    found = lead(HIGH, LOW)
    assert found.tests.p_t == pytest.approx(
        ttest_1samp([a - b for a, b in zip(HIGH, LOW, strict=True)], 0).pvalue, rel=1e-9
    )


def test_settings_that_look_like_formulas_are_found(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r/cells.csv").write_text(csv_text(("setting", "method"), [("+ decay", "DRFA")]))
    assert StoredResults(tmp_path).settings("r") == ("+ decay",)


def test_four_pairs_are_undecided():
    assert ahead(HIGH[:4], LOW[:4]) == UNDECIDED
    assert ahead([], []) == UNDECIDED


def test_only_common_seeds_are_paired():
    found = lead_of(ACCURACY, PLACES, ({0: 0.5, 1: 0.6, 7: 0.1}, {1: 0.4, 0: 0.4}), 1)
    assert found.leads == pytest.approx((0.1, 0.2))


def test_fewer_rounds_are_better():
    assert ahead([10, 12, 11, 9, 10], [20, 23, 21, 20, 19], ROUNDS) == SIGNIFICANT


@pytest.mark.parametrize(("wins", "losses"), [(5, 0), (6, 0), (9, 1), (3, 3), (2, 7), (0, 0)])
def test_sign_test_is_exact(wins, losses):
    n = wins + losses
    assert sign_test_p(wins, losses) == pytest.approx(binomtest(wins, n).pvalue if n else 1.0)


def test_method_that_never_arrives_is_later():
    sooner = [10, 12, 11, 9, 10, 10]
    assert ahead(sooner, [NEVER] * 6, ROUNDS) == SIGNIFICANT
    assert ahead([NEVER] * 6, sooner, ROUNDS) == OPPOSITE
    assert ahead(sooner[:5], [NEVER] * 5, ROUNDS) == UNDECIDED
    assert ahead(sooner, [9, NEVER, NEVER, NEVER, NEVER, NEVER], ROUNDS) == NOT_SIGNIFICANT


def test_methods_that_never_arrive_are_level():
    found = lead([NEVER, 3.0], [NEVER, NEVER], ROUNDS)
    assert found.leads == (0.0, math.inf)
    assert (found.wins, found.losses) == (1, 0)


def level(ours, theirs, margin, both_sides=False, measure=ACCURACY, tests=1):
    found = lead(ours, theirs, measure)
    p = min(1.0, tests * findings.beyond_p(found, margin, both_sides)) if found.testable else math.nan
    return findings.with_level_outcome(found, p, margin, both_sides).outcome


def test_level_requires_the_interval_within_the_margin():
    near = [x + 0.001 * (-1) ** k for k, x in enumerate(LOW)]
    assert level(near, LOW, 0.01) == SIGNIFICANT
    assert level(near, LOW, 0.001) == NOT_SIGNIFICANT  # the interval is wider than the margin
    assert level(near[:4], LOW[:4], 0.01) == UNDECIDED


def test_being_ahead_counts_against_level_only_on_request():
    assert level(HIGH, LOW, 0.01) == SIGNIFICANT
    assert level(HIGH, LOW, 0.01, both_sides=True) == OPPOSITE
    assert level(LOW, HIGH, 0.01) == OPPOSITE
    assert level(LOW, HIGH, 0.01, tests=1000) == NOT_SIGNIFICANT
    assert level(LOW, HIGH, 0.2) == SIGNIFICANT


def test_equal_numbers_are_level():
    assert level([640.0] * 5, [640.0] * 5, 0.5, both_sides=True) == SIGNIFICANT


def test_method_that_never_arrives_is_not_level():
    assert level([NEVER] * 6, [10.0] * 6, 30, both_sides=True, measure=ROUNDS) == OPPOSITE
    assert level([10.0] * 6, [NEVER] * 6, 30, measure=ROUNDS) == NOT_SIGNIFICANT


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ([1, 2, 3, 3, 3], SIGNIFICANT),
        ([1, 2, 3, 3, 4], NOT_SIGNIFICANT),
        ([4, 5, 6, NEVER, 9], OPPOSITE),
        ([1, 2, 3], UNDECIDED),
    ],
)
def test_claim_on_every_seed_requires_five_seeds(values, outcome):
    found = findings.every_seed(ROUNDS, PLACES[0], dict(enumerate(values)), 1, 3)
    assert found.outcome == outcome


@pytest.mark.parametrize(("agree", "n"), [(0, 5), (3, 5), (5, 5), (9, 10)])
def test_share_of_seeds_has_an_exact_interval(agree, n):
    found = findings.every_seed(ROUNDS, PLACES[0], {k: float(k >= agree) for k in range(n)}, 0, 0.5)
    assert found.share == pytest.approx(tuple(binomtest(agree, n).proportion_ci()))
