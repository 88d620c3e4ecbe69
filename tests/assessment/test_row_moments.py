"""Test moments of rows: groups from clients, and standard errors of means."""

from __future__ import annotations

import numpy as np
import pytest

from drfl.assessment.row_moments import RowMoments
from drfl.core.key import Key


def values(n=300, clients=5):
    rng = Key(3).generator()
    return rng.normal(size=n) + 5, rng.permutation(np.arange(n) % clients)


@pytest.mark.parametrize("has_patients", [False, True])
def test_groups_of_clients_have_the_moments_of_their_rows(has_patients):
    x, of = values()
    # up to four rows per patient, all at one client
    patients = np.unique(np.stack([of, np.arange(300) // 20]), axis=1, return_inverse=True)[1].reshape(-1)
    patients = patients if has_patients else None
    groups = np.array([0, 1, 0, 2, 1])
    merged, direct = RowMoments.of(x, of, patients).merged(groups), RowMoments.of(x, groups[of], patients)
    for one, other in zip(merged, direct, strict=True):
        assert one == pytest.approx(other, rel=1e-12, abs=1e-11)
    assert merged.error == pytest.approx(direct.error, rel=1e-12)


def test_without_patients_the_error_is_that_of_a_mean():
    x, of = values()
    moments = RowMoments.of(x, of)
    for k in range(5):
        own = x[of == k]
        assert moments.mean[k] == pytest.approx(own.mean())
        assert moments.error[k] == pytest.approx(own.var(ddof=1) / len(own))
    assert RowMoments.of(x[:1], of[:1] * 0).error.tolist() == [np.inf]


def test_some_clients_are_selected():
    x, of = values()
    two = RowMoments.of(x, of).select(np.array([3, 1]))
    assert two.mean.tolist() == [x[of == 3].mean(), x[of == 1].mean()]
