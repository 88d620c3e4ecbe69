"""Test ranks against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata

from drfl.core.ranks import average_ranks


@pytest.mark.parametrize("values", [[3.0, 1.0, 3.0, 2.0], [5], [], [0.5, -np.inf, np.inf, 0.5], [1.0, np.nan]])
def test_ranks_are_those_of_scipy(values):
    np.testing.assert_array_equal(average_ranks(np.array(values)), rankdata(values))


def test_many_ties():
    values = np.random.default_rng(0).integers(0, 20, 500)
    np.testing.assert_array_equal(average_ranks(values), rankdata(values))
