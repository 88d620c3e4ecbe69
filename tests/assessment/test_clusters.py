"""Test bounds for rows of patients, which hold for every correlation within a patient."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from tests.support.marks import crossed

from drfl.assessment.clients import assess_clients, no_patient_intervals
from drfl.assessment.clusters import ClusterScores
from drfl.assessment.gains import assess_gain, sums_of_rows
from drfl.assessment.sentences import headline
from drfl.task.measure import Measure, Rows

ACCURACY = Measure("accuracy", more_is_better=True, percent=True, rows=Rows.BINARY)


def drawn(p, icc, patients, federations, seed=0):
    """Draw right answers, rows and rows of the largest patient: 1 to 20 rows per patient with correlation ICC."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 21, (federations, patients))
    together = rng.random(sizes.shape) < icc
    right = np.where(together, sizes * (rng.random(sizes.shape) < p), rng.binomial(sizes, p))
    return right.sum(1).astype(float), sizes.sum(1).astype(float), sizes.max(1).astype(float)


@pytest.mark.parametrize(("p", "icc", "patients"), crossed([0.02, 0.5, 0.95], [0.5, 0.9, 0.0], [100, 5, 20, 2]))
def test_bounds_have_their_coverage(p, icc, patients):
    right, rows, largest = drawn(p, icc, patients, 2000)
    scores, alpha = ClusterScores(rows, right, largest), 0.05
    for misses in (
        scores.lower(alpha) > p,
        scores.upper(alpha) < p,
        scores.above(p) <= alpha,
        scores.below(p) <= alpha,
    ):
        assert stats.binomtest(int(misses.sum()), len(misses), alpha, "greater").pvalue > 0.001


def test_bounds_agree_with_p_values():
    scores = ClusterScores(np.array([100.0]), np.array([80.0]), np.array([10.0]))
    assert scores.above(scores.lower(0.02))[0] == pytest.approx(0.02)
    assert scores.below(scores.upper(0.02))[0] == pytest.approx(0.02)
    # Ten patients with only correct rows have the bound of ten rows, α^(1/10).
    assert ClusterScores(np.array([50.0]), np.array([50.0]), np.array([5.0])).lower(0.05)[0] == pytest.approx(0.05**0.1)


def test_assessment_with_patients_is_wider():
    sums = np.array([[100.0, 80, 80, 0, 0], [100, 60, 60, 0, 0]])
    alone = assess_clients(ACCURACY, ["a", "b"], sums, np.array([100, 100]))
    sums[:, 3] = 10
    found = assess_clients(ACCURACY, ["a", "b"], sums, np.array([100, 100]))
    assert (found.low < alone.low).all()
    assert (found.high > alone.high).all()
    assert found.worst.low < alone.worst.low
    assert found.candidates.all()
    assert found.equal is None


def test_headline_names_the_patients_of_the_worst_client():
    sums = np.array([[100.0, 80, 80, 10, 0], [29, 16, 16, 4, 0]])
    rows = np.array([100, 29])
    found = assess_clients(ACCURACY, ["a", "graz"], sums, rows, patients=np.array([40, 13]))
    assert "29 test rows of 13 patients" in headline(found)
    single = assess_clients(ACCURACY, ["a", "graz"], sums, rows, patients=np.array([40, 1]))
    assert "29 test rows of 1 patient;" in headline(single)
    alone = headline(assess_clients(ACCURACY, ["a"], sums[:1], rows[:1]))
    assert alone.startswith("a has a measured accuracy of 80")
    assert "worst" not in alone
    for patients in (None, rows):
        assert "patient" not in headline(assess_clients(ACCURACY, ["a", "graz"], sums, rows, patients=patients))


def test_approximate_interval_of_a_fraction_is_not_called_unbounded():
    sums = np.array([[100.0, 80, 75, 0, 0], [100, 60, 55, 0, 0]])
    share = Measure("accuracy", percent=True, rows=Rows.REAL)
    loss = Measure("log_loss", more_is_better=False, rows=Rows.REAL)
    found = [assess_clients(measure, ["a", "b"], sums, np.array([100, 100])).method for measure in (share, loss)]
    assert ["unbounded" in method for method in found] == [False, True]
    assert all(method.startswith("Student's t (approximate") for method in found)


def test_client_with_non_finite_outputs_does_not_affect_the_others():
    sums = np.array([[100.0, 80, 80, 0, 0], [np.nan] * 5])
    found = assess_clients(ACCURACY, ["a", "b"], sums, np.array([100, 100]))
    alone = assess_clients(ACCURACY, ["a"], sums[:1], np.array([100]))
    assert found.low[0] == alone.low[0]
    assert found.undefined == ["b"]


def test_copied_rows_of_a_patient_are_not_evidence():
    # Four patients improve, in one row or in ten rows each.
    def p(rows):
        first, second = np.zeros(4 * rows), np.ones(4 * rows)
        sums = sums_of_rows(np.array([0, 4 * rows]), first, second, largest=np.array([float(rows)]))
        return assess_gain(ACCURACY, ["a"], *sums).p_holm[0]

    assert p(1) == pytest.approx(p(10))
    assert p(10) > 0.05


def test_auc_of_patients_has_no_interval():
    error = no_patient_intervals(Measure("auc", more_is_better=True, percent=True, rows=Rows.RANKS))
    assert (error.code, error.field) == ("unsupported-metric", "auc")


def test_client_without_a_value_does_not_change_the_method():
    undefined = np.array([0.0, np.nan, np.nan, np.nan, np.nan])
    sums = np.array([[50.0, 40.0, 40.0, 0.0, 0.0], [30.0, 15.0, 15.0, 0.0, 0.0]])
    without = assess_clients(ACCURACY, ["a", "b"], sums, np.array([50, 30]))
    with_it = assess_clients(ACCURACY, ["a", "b", "c"], np.vstack([sums, undefined]), np.array([50, 30, 0]))
    assert with_it.method == without.method == "Clopper–Pearson"
    assert (with_it.worst.low, with_it.worst.high) == (without.worst.low, without.worst.high)
