"""Differences over the same seeds."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from tests.support.results import broken, results, trained
from tests.support.small_spec import SMALL, small_spec

from drfl.key import Key
from drfl.papers.paired_tests import RESAMPLES, bootstrap, differences, tables, to_csv
from drfl.papers.plan import Scale

ONE = {"settings": SMALL["settings"][:1]}


def by_seed(first, second):
    """Results whose two methods end at these worst accuracies, seed by seed; None = diverged."""
    worst = {"DRDM": first, "Fed-Avg": second}

    def record(setting, method, seed):
        value = worst[method][seed]
        return broken() if value is None else trained(0.1, value)

    return results(small_spec(**ONE), record, Scale(repeats=len(first)))


def seen(collected):
    return {d.metric: d.seen for d in differences(collected)}


@given(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=10))
def test_the_interval_lies_within_the_values_and_repeats(values):
    low, high = bootstrap(values)
    assert min(values) - 1e-12 <= low <= high <= max(values) + 1e-12
    assert bootstrap(values) == (low, high)


def test_the_interval_is_that_of_scipy():
    values = [0.01, 0.03, -0.005, 0.02, 0.04, 0.015]
    with_scipy = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="percentile",
        random_state=Key(1).generator(), vectorized=True, confidence_level=0.95,
    ).confidence_interval  # fmt: skip
    assert bootstrap(values) == pytest.approx(tuple(with_scipy), abs=1e-3)


def test_equal_values_have_a_point_for_an_interval():
    assert bootstrap([0.25, 0.25, 0.25]) == (0.25, 0.25)


@pytest.mark.parametrize("values", [[], [0.1]])
def test_too_few_values_have_no_interval(values):
    assert np.isnan(bootstrap(values)).all()


def test_a_clear_difference_is_better_also_where_less_is_better():
    found = seen(by_seed((0.80, 0.81, 0.82), (0.70, 0.72, 0.73)))
    assert found == {"avg_accuracy": "better", "worst_accuracy": "better", "std_accuracy": "better"}
    found = seen(by_seed((0.70, 0.72, 0.73), (0.80, 0.81, 0.82)))
    assert found == {"avg_accuracy": "worse", "worst_accuracy": "worse", "std_accuracy": "worse"}


def test_no_difference_is_seen_where_the_interval_has_zero():
    assert set(seen(by_seed((0.80, 0.70), (0.75, 0.75))).values()) == {"no difference seen"}
    assert set(seen(by_seed((0.80, 0.70), (0.80, 0.70))).values()) == {"no difference seen"}


def test_only_seeds_that_both_ended_are_pairs():
    found = differences(by_seed((0.80, None, 0.82), (0.70, 0.72, None)))
    assert [d.pairs for d in found] == [1, 1, 1]
    assert found[1].mean == pytest.approx(0.10)
    assert [d.seen for d in differences(by_seed((None, 0.8), (0.7, None)))] == ["no pair"] * 3


def test_the_table_is_in_points_and_the_file_in_fractions():
    collected = by_seed((0.80, 0.80), (0.70, 0.70))
    average, worst, std = tables(collected)
    assert worst.markdown() == (
        "## Paired differences: worst accuracy, points\n\n"
        "| difference     |                        α = 0.1 |\n"
        "| -------------- | -----------------------------: |\n"
        "| DRDM − Fed-Avg | +10.00 [+10.00, +10.00] better |\n"
    )
    assert std.rows[0][1].text == "−0.20 [−0.20, −0.20] better"
    assert "less is better" in std.title
    assert "fewer than 5 pairs" in std.notes[0]
    assert not average.notes
    assert to_csv(collected).splitlines()[2] == (
        "α = 0.1,worst_accuracy,DRDM,Fed-Avg,2,0.100000,0.100000,0.100000,better"
    )


def test_one_pair_and_none_have_no_interval():
    single = by_seed((0.80,), (0.70,))
    assert tables(single)[1].rows[0][1].text == "+10.00 (one pair only)"
    assert to_csv(single).splitlines()[2].endswith(",1,0.100000,,,one pair only")
    none = by_seed((None,), (0.70,))
    assert tables(none)[1].rows[0][1].text == "–"
    assert to_csv(none).splitlines()[2].endswith(",0,,,,no pair")


def test_the_reference_is_the_one_that_is_named():
    spec = small_spec(**ONE, reference="Fed-Avg")
    found = differences(results(spec, lambda s, m, k: trained(0.5 if m == "DRDM" else 0.6)))
    assert {(d.reference, d.method) for d in found} == {("Fed-Avg", "DRDM")}


def test_one_method_has_nothing_to_be_compared_with():
    spec = small_spec(methods=SMALL["methods"][:1], values={})
    assert tables(results(spec, lambda s, m, k: trained(0.5))) == ()


def test_unequal_numbers_of_rounds_are_told():
    methods = [SMALL["methods"][0], {**SMALL["methods"][1], "rounds": 9}]
    collected = results(small_spec(methods=methods), lambda s, m, k: trained(0.5))
    assert "same number of rounds" in tables(collected)[-1].notes[0]
