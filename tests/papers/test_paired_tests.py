"""Test differences over the same seeds."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import scipy.stats
from tests.support.results import broken, of, results, trained
from tests.support.small_spec import SMALL, small_spec

from drfl.assessment.seeds import holm
from drfl_papers import paired_tests
from drfl_papers.paired_tests import OVER, differences, over_settings, tables
from drfl_papers.plan import Scale

ONE = {"settings": SMALL["settings"][:1]}


def by_seed(first, second):
    """Return results whose two methods end at these worst accuracies, seed by seed; None = diverged."""
    worst = {"DRDM": first, "Fed-Avg": second}

    def record(setting, method, seed):
        value = worst[method][seed]
        return broken() if value is None else trained(0.1, value)

    return results(small_spec(**ONE), record, Scale(repeats=len(first)))


def to_csv(plan, found):
    return paired_tests.to_csv(differences(plan, found))


def seen(collected):
    return {d.metric: d.verdict for d in differences(*of(collected))}


FAR = (0.80, 0.81, 0.82, 0.80, 0.83), (0.70, 0.72, 0.73, 0.70, 0.72)
NEAR = (0.80, 0.70, 0.75, 0.72, 0.78), (0.75, 0.75, 0.74, 0.76, 0.76)


def test_clear_difference_is_better_in_either_direction():
    found = seen(by_seed(*FAR))
    assert found == {"avg_accuracy": "better", "worst_accuracy": "better", "std_accuracy": "better"}
    found = seen(by_seed(*reversed(FAR)))
    assert found == {"avg_accuracy": "worse", "worst_accuracy": "worse", "std_accuracy": "worse"}


def test_insignificant_difference_is_not_claimed():
    assert set(seen(by_seed(*NEAR)).values()) == {"not significant"}
    assert set(seen(by_seed(*[FAR[0]] * 2)).values()) == {"not significant"}


def test_fewer_than_five_pairs_are_undecided():
    assert set(seen(by_seed(*(values[:4] for values in FAR))).values()) == {"not decided"}


def test_p_values_match_scipy_with_correction():
    noise = np.random.default_rng(0).normal(0, 0.02, (2, 6)).round(6)

    def record(setting, method, seed):
        return trained(0.1, 0.7 + noise[int(setting == "α = 0.5"), seed] if method == "DRDM" else 0.68)

    rows = list(csv.DictReader(to_csv(*of(results(small_spec(), record, Scale(repeats=6)))).splitlines()))
    assert [row["setting"] for row in rows] == ["α = 0.1", "α = 0.5"] * 3
    known = [scipy.stats.ttest_rel(0.7 + values, np.full(6, 0.68)).pvalue for values in noise]
    p = [float(row["p_t"]) for row in rows]
    assert p[2:4] == pytest.approx(known, rel=1e-3)
    assert [float(row["p_holm"]) for row in rows] == pytest.approx(list(holm(p)), rel=1e-3)
    assert all(float(row["p_sign_flips"]) >= 2 / 2**6 for row in rows)


def in_both_settings(noise, broken_off=()):
    """Make results in which DRDM leads 0.68 by 0.02 plus noise at each seed; the given settings and seeds diverge."""

    def record(setting, method, seed):
        if (setting, seed) in broken_off:
            return broken()
        return trained(0.1, 0.7 + noise[int(setting == "α = 0.5"), seed] if method == "DRDM" else 0.68)

    return results(small_spec(), record, Scale(repeats=noise.shape[1]))


def test_mean_over_settings_has_its_own_family():
    noise = np.random.default_rng(1).normal(0, 0.02, (2, 6)).round(6)
    found = over_settings(*of(in_both_settings(noise)))
    assert [(d.setting, d.metric) for d in found] == [
        (OVER, metric) for metric in ("avg_accuracy", "worst_accuracy", "std_accuracy")
    ]
    known = scipy.stats.ttest_1samp(0.02 + noise.mean(0), 0)
    worst = found[1].difference
    assert (worst.n, worst.mean) == (6, pytest.approx(0.02 + noise.mean()))
    assert worst.p_t == pytest.approx(known.pvalue, rel=1e-3)
    assert [d.p_holm for d in found] == pytest.approx(list(holm([d.difference.p_t for d in found])))


def test_small_lead_can_be_significant_over_all_settings():
    noise = np.array([[0.03, -0.03] * 3, [-0.03, 0.03] * 3]) + 0.002 * np.arange(6)
    collected = in_both_settings(noise)
    assert set(seen(collected).values()) == {"not significant"}
    assert [d.verdict for d in over_settings(*of(collected)) if d.metric == "worst_accuracy"] == ["better"]
    last = tables(*of(collected))[-1]
    assert last.title == "Paired differences: mean over the settings, points"
    assert last.header == ("difference", "average accuracy", "worst accuracy", "standard deviation")
    assert "corrected for the 3 differences of this table alone" in last.notes[0]


def test_method_with_a_failed_seed_has_no_mean_over_settings():
    found = over_settings(*of(in_both_settings(np.zeros((2, 6)), broken_off=[("α = 0.1", 2)])))
    assert {d.difference.n for d in found} == {0}


def test_single_setting_and_curves_have_no_mean_over_settings():
    assert over_settings(*of(by_seed(*FAR))) == ()
    curves = {"kind": "curves", "panels": [{"y": "worst_accuracy"}], "values": {}}
    assert over_settings(*of(results(small_spec(**curves), lambda s, m, k: trained(0.5)))) == ()


def test_method_with_a_failed_seed_is_not_compared():
    found = differences(*of(by_seed((0.80, None, 0.82, 0.81, 0.83, 0.84), (0.70, 0.72, 0.71, 0.73, 0.70, 0.72))))
    assert [d.verdict for d in found] == ["no pair"] * 3
    assert [d.verdict for d in differences(*of(by_seed((None, 0.8), (0.7, None))))] == ["no pair"] * 3


def test_table_is_in_points_and_file_in_fractions():
    collected = by_seed((0.80, 0.82), (0.70, 0.70))
    average, worst, std = tables(*of(collected))
    assert worst.markdown() == (
        "## Paired differences: worst accuracy, points\n\n"
        "| difference     |                            α = 0.1 |\n"
        "| -------------- | ---------------------------------: |\n"
        "| DRDM − Fed-Avg | +11.00 [−1.71, +23.71] not decided |\n"
    )
    assert std.rows[0][1].text == "−0.22 [−0.47, +0.03] not decided"
    assert "lower is better" in std.title
    assert not average.notes
    assert to_csv(*of(collected)).splitlines()[2] == (
        "α = 0.1,worst_accuracy,DRDM,Fed-Avg,2,0.110000,-0.017062,0.237062,0.05772,,,not decided"
    )


def test_equal_differences_have_no_interval():
    worst = tables(*of(by_seed((0.80, 0.80), (0.70, 0.70))))[1]
    assert worst.rows[0][1].text == "+10.00 not decided"


def test_note_names_the_test_and_number_of_comparisons():
    few, five, six = (tables(*of(by_seed(*pair)))[-1].notes[0] for pair in (
        [values[:3] for values in FAR], FAR, [(*values, 0.7) for values in FAR],
    ))  # fmt: skip
    assert few.endswith(
        " (3), each with its own 95 % t-interval in brackets. With fewer than 5 pairs, no difference is decided."
    )
    assert "corrected for the 3 differences here (Holm), is at most 0.05. `paired.csv`" in five
    assert "sign-flip" not in five
    assert "the uncorrected p-value of the sign-flip test is at most 0.05 too" in six


def test_one_pair_or_none_has_no_interval():
    single = by_seed((0.80,), (0.70,))
    assert tables(*of(single))[1].rows[0][1].text == "+10.00 (one pair only)"
    assert to_csv(*of(single)).splitlines()[2].endswith(",1,0.100000,,,,,,one pair only")
    none = by_seed((None,), (0.70,))
    assert tables(*of(none))[1].rows[0][1].text == "–"
    assert to_csv(*of(none)).splitlines()[2].endswith(",0,,,,,,,no pair")


def test_named_reference_is_used():
    spec = small_spec(**ONE, reference="Fed-Avg")
    found = differences(*of(results(spec, lambda s, m, k: trained(0.5 if m == "DRDM" else 0.6))))
    assert {(d.reference, d.method) for d in found} == {("Fed-Avg", "DRDM")}


def test_single_method_has_no_comparison():
    spec = small_spec(methods=SMALL["methods"][:1], values={})
    assert tables(*of(results(spec, lambda s, m, k: trained(0.5)))) == ()


def test_unequal_numbers_of_rounds_are_reported():
    methods = [SMALL["methods"][0], {**SMALL["methods"][1], "rounds": 9}]
    collected = results(small_spec(methods=methods), lambda s, m, k: trained(0.5))
    assert "same number of rounds" in tables(*of(collected))[-2].notes[0]
