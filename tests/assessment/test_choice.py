"""Test the choice among models by their worst group of validation rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_1samp, ttest_ind

from drfl.assessment import choice as choice_module
from drfl.assessment.choice import FEW, group_clients, is_clear_gain, worst_group
from drfl.assessment.row_moments import RowMoments
from drfl.core.key import Key


def losses(groups, means, name, n=60):
    """Draw losses with these means; the same name gives the same draws for all means."""
    noise = Key(0).fold("choice", name).generator().gamma(2, 1 / 2, groups * n)
    return np.asarray(means).repeat(n) * noise


def rows(groups, n=60):
    return np.arange(groups).repeat(n)


def worst_group_p(reference, candidate, groups, patients=None, **options):
    parts = (RowMoments.of(x, groups, patients) for x in (reference, candidate, reference - candidate))
    return choice_module.worst_group_p(*parts, **options)


def choose(losses, groups, eligible, patients=None):
    moments = [RowMoments.of(x, groups, patients) if len(x) else None for x in losses]

    def gains(first, others):
        return [RowMoments.of(losses[first] - losses[k], groups, patients) for k in others]

    return choice_module.choose(moments, gains, eligible)


def test_clients_with_few_rows_share_a_group():
    assert group_clients([40, 3, 50, 19, 4]).tolist() == [0, 1, 2, 1, 1]
    assert group_clients([FEW, FEW]).tolist() == [0, 1]
    assert group_clients([2, 3]).tolist() == [0, 0]


def test_small_group_is_merged_with_the_smallest_client():
    assert group_clients([50, 2, 30]).tolist() == [0, 1, 1]
    assert group_clients([2, 30, 0]).tolist() == [0, 0, 0]


def test_worst_group_has_the_largest_mean():
    assert worst_group(RowMoments.of(np.array([1.0, 3.0, 5.0, 1.0, 1.0]), np.array([0, 0, 1, 1, 1]))) == (1, 7 / 3)


def test_one_group_gives_a_paired_t_test():
    a, b = losses(1, [1.0], "a"), losses(1, [0.9], "b")
    expected = ttest_1samp(a - b, 0, alternative="greater").pvalue
    assert worst_group_p(a, b, rows(1)) == pytest.approx(expected, rel=1e-9)


def test_two_groups_combine_the_paired_test_with_welchs_test():
    a, b = losses(2, [1.0, 0.5], "a"), losses(2, [0.9, 0.55], "b")
    (a0, a1), (b0, b1) = a.reshape(2, 60), b.reshape(2, 60)
    first = min(ttest_1samp(a0 - b0, 0, alternative="greater").pvalue, other(a1, b0))
    second = min(ttest_1samp(a1 - b1, 0, alternative="greater").pvalue, other(a0, b1))
    assert worst_group_p(a, b, rows(2)) == pytest.approx(min(1, 2 * max(first, second)), rel=1e-9)


def other(reference, candidate):
    return ttest_ind(reference, candidate, equal_var=False, alternative="greater").pvalue


def test_groups_with_shared_rows_use_only_paired_rows():
    a = losses(2, [1.0, 0.1], "a")
    b = np.where(rows(2) == 0, 0.5 * a, 1.5 * a)  # worse in the good group, and far better in the worst one
    assert worst_group_p(a, b, rows(2)) < 0.001
    assert worst_group_p(a, b, rows(2), independent=False) == pytest.approx(1)


def test_member_with_the_best_worst_group_is_chosen():
    reference, mild, strong = losses(3, [1.0, 0.4, 0.4], "a"), losses(3, [0.5] * 3, "b"), losses(3, [0.4] * 3, "c")
    choice = choose([reference, mild, strong], rows(3), [True] * 3)
    assert (choice.reference, choice.chosen) == (0, 2)
    assert np.isnan(choice.p[0])
    assert (choice.p[1:] <= 0.05).all()


@pytest.mark.parametrize(
    ("second", "chosen"), [([0.95, 0.5], 1), ([0.95, 0.58], 0), ([1.02, 0.3], 0), ([0.5, 0.58], 1)]
)
def test_insignificant_gain_counts_if_it_costs_the_others_nothing(second, chosen):
    noise = np.tile(np.linspace(0.2, 1.8, 60), 2)
    reference, candidate = (np.repeat(means, 60) * noise for means in ([1.0, 0.5], second))
    candidate += np.where(np.arange(120) % 2, 0.3, -0.3)  # the worst group's gain is now within its noise
    choice = choose([reference, candidate, reference], rows(2), [True] * 3)
    assert choice.chosen == chosen
    assert (choice.p[1] <= 0.05) == (second == [0.5, 0.58])


def test_excluded_member_is_not_chosen_and_not_the_reference():
    first, second, third = losses(2, [1, 1], "a"), losses(2, [0.9, 0.9], "b"), losses(2, [0.1, 0.1], "c")
    choice = choose([first, second, third], rows(2), [False, True, False])
    assert (choice.reference, choice.chosen) == (1, 1)
    assert np.isnan(choice.p).all()
    assert choose([np.zeros(0), second, third], rows(2), [False, True, True]).chosen == 2


def test_gain_outside_the_worst_group_does_not_count():
    """A bootstrap of the difference of the two maxima would call this better in 37 to 66 % of all cases."""
    cases, wrong = 300, 0
    for case in range(cases):
        rng = Key(1).fold("null", case).generator()
        reference = rng.gamma(1, 1, 4 * 60)
        candidate = np.where(rows(4) == 3, reference * rng.gamma(9, 1 / 9, 240), 0.5 * reference)
        wrong += worst_group_p(reference, candidate, rows(4)) <= 0.05
    assert binomtest(wrong, cases).proportion_ci(0.98).low <= 0.05


def test_clear_gain_needs_two_standard_errors_and_enough_rows():
    gains = np.tile([0.0, 1.0], 50)
    assert is_clear_gain(gains)
    assert not is_clear_gain(gains - 0.42)
    assert not is_clear_gain(gains[: FEW - 1])
    assert not is_clear_gain(np.zeros(100))


def test_model_with_an_infinite_loss_is_not_a_clear_gain():
    gains = np.append(np.ones(30), -np.inf)  # the candidate overflows on the last row
    assert not is_clear_gain(gains)


def test_rows_of_a_patient_count_once():
    a, b = losses(2, [1.0, 0.5], "a"), losses(2, [0.9, 0.45], "b")
    copies = np.tile(np.arange(120), 7)
    many = worst_group_p(a[copies], b[copies], rows(2)[copies], patients=copies)
    assert many == pytest.approx(worst_group_p(a, b, rows(2)), rel=1e-9)
    assert worst_group_p(a[copies], b[copies], rows(2)[copies]) < many / 2
    chosen = choose([a[copies], b[copies]], rows(2)[copies], [True, True], patients=copies)
    assert chosen.p[1] == pytest.approx(many)


def test_single_row_or_patient_is_not_enough():
    ones = np.ones(1)
    assert worst_group_p(ones, ones / 2, rows(1, 1)) >= 0.5
    gains = np.linspace(1, 2, 60)
    assert worst_group_p(gains, 0 * gains, rows(1), patients=np.zeros(60, dtype=int)) >= 0.5
    assert worst_group_p(gains, 0 * gains, rows(2, 30), patients=rows(2, 30)) >= 0.5


def test_equal_gains_have_the_p_value_of_their_sign_flips():
    ones = np.ones(10)
    assert worst_group_p(ones, ones / 2, rows(1, 10)) == pytest.approx(1 / 2**10)
    # Rounding in the last digit is no spread.
    assert worst_group_p(0.1 + 0.2 * ones, 0.3 * ones - 0.1, rows(1, 10)) == pytest.approx(1 / 2**10)
    assert worst_group_p(ones, ones / 2, rows(2, 5)) == pytest.approx(2 / math.comb(10, 5))
    assert worst_group_p(ones, ones / 2, rows(2, 5), independent=False) == pytest.approx(1 / 2**5)
    assert worst_group_p(ones, ones, rows(1, 10)) == pytest.approx(0.5)


def test_clear_gain_counts_patients():
    gains, patients = np.tile([0.0, 1.0], 50), np.arange(100) % 2
    assert is_clear_gain(gains, np.arange(100))
    assert not is_clear_gain(gains, patients)
    assert not is_clear_gain(np.zeros(0))
    same = np.repeat(np.tile([0.0, 1.0], 12) - 0.31, 10)
    assert is_clear_gain(same)
    assert not is_clear_gain(same, np.arange(24).repeat(10))
