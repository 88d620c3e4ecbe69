"""Test that values that are not numbers are refused like numbers out of range."""

from __future__ import annotations

import pytest
from tests.support.refusals import refused

from drfl.ambiguity import KL, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex

NAMES = {
    Simplex: "floor", CVaR: "alpha", Box: "cap", ChiSquare: "rho", ChiSquareBall: "radius", KL: "rho", KLBall: "radius"
}  # fmt: skip


@pytest.mark.parametrize(("make", "name"), NAMES.items())
@pytest.mark.parametrize("value", ["half", None, (0.5,)])
def test_values_that_are_not_numbers_are_refused(make, name, value):
    with refused("out-of-range", name):
        make(value)
