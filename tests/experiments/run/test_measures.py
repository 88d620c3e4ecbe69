"""Test how numbers are formatted for readers."""

from __future__ import annotations

import math

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refused

from drfl.experiments.compare.outcomes import Spread
from drfl.experiments.run.measures import Interval, column, paper_text, signed_text
from drfl.training.history import ACCURACY_COLUMNS


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12).filter(lambda values: max(values) - min(values) > 1e-6))
def test_interval_is_students_t(values):
    n, mean = len(values), sum(values) / len(values)
    error = math.sqrt(sum((x - mean) ** 2 for x in values) / (n - 1) / n)
    low, high = scipy.stats.t.interval(0.95, n - 1, loc=mean, scale=error)
    interval = Interval.of(values)
    assert interval.mean - interval.half == pytest.approx(low, abs=1e-9)
    assert interval.mean + interval.half == pytest.approx(high, abs=1e-9)


def test_single_value_has_no_interval():
    interval = Interval.of([0.908])
    assert math.isnan(interval.half)
    assert interval.text(1, 100) == "90.8"


def test_interval_of_three_values_by_hand():
    # Mean 0.90, standard deviation 0.01, t = 4.3027 for two degrees of freedom, divided by the root of 3.
    assert Interval.of([0.89, 0.90, 0.91]).text(1, 100) == "90.0 ± 2.5"
    assert Interval.of([0.9, 0.9]).text(1, 100) == "90.0 ± 0.0"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.25, "+1.2"), (-1.26, "−1.3"), (0.0, "0.0"), (-0.04, "0.0"), (0.04, "0.0"), (-0.05001, "−0.1")],
)
def test_differences_have_a_sign_unless_they_round_to_zero(value, text):
    assert signed_text(value, 1) == text


@pytest.mark.parametrize(("value", "text"), [(80.7, "80.70"), (8.494, "8.494"), (90.0, "90.00"), (2.37, "2.37")])
def test_number_of_a_paper_is_shown_as_printed(value, text):
    assert paper_text(value) == text


def test_every_metric_is_shown_with_its_direction():
    assert [name for name in ACCURACY_COLUMNS if column(name).small] == ["std_accuracy", "avg_loss", "worst_loss"]
    assert column("worst_accuracy").label == "worst accuracy, %"
    assert column("avg_loss").scale == 1
    with refused("unknown-name", "metric", "'worst_accuracy'"):
        column("worst_acuracy")


@pytest.mark.parametrize("spread", [Interval.of, Spread.of])
def test_non_finite_value_leaves_the_spread_unknown(spread):
    """This happens, for example, if the model diverges at one of three seeds."""
    found = spread([0.5, math.inf, 0.7])
    assert found.mean == math.inf
    assert math.isnan(found.std)
