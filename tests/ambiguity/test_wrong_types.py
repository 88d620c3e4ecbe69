"""Test that values that are not numbers are refused like numbers out of range."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.refusals import refused

from drfl.ambiguity import KL, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex

NAMES = {
    Simplex: "floor", CVaR: "alpha", Box: "cap", ChiSquare: "rho", ChiSquareBall: "radius", KL: "rho", KLBall: "radius"
}  # fmt: skip


SETS = [Simplex(0.01), CVaR(0.5), Box(0.6), ChiSquare(1.0), ChiSquareBall(0.1), KL(1.0), KLBall(0.1)]


@pytest.mark.parametrize("ambiguity", SETS, ids=repr)
@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda v: torch.tensor(v).float()])
def test_vectors_may_be_any_sequence_of_numbers(ambiguity, kind):
    v = [0.25, 0.5, 0.25]
    for method in (
        ambiguity.project, lambda v: ambiguity.prox(v, 0.1), lambda v: ambiguity.worst_case(v).lam, ambiguity.contains,
        ambiguity.penalty, ambiguity.penalty_gradient,
    ):  # fmt: skip
        expected, result = method(torch.tensor(v).double()), method(kind(v))
        assert torch.equal(torch.as_tensor(result), torch.as_tensor(expected))


@pytest.mark.parametrize("ambiguity", SETS, ids=repr)
@pytest.mark.parametrize(
    ("v", "code"), [(["a"], "wrong-type"), ({"a": 1}, "wrong-type"), (1.0, "wrong-shape"), ([[1.0]], "wrong-shape")]
)
def test_values_other_than_vectors_are_refused(ambiguity, v, code):
    for method in (ambiguity.project, lambda v: ambiguity.prox(v, 0.1), ambiguity.worst_case, ambiguity.contains):
        with refused(code):
            method(v)


@pytest.mark.parametrize(("make", "name"), NAMES.items())
@pytest.mark.parametrize("value", ["half", None, (0.5,)])
def test_values_that_are_not_numbers_are_refused(make, name, value):
    with refused("out-of-range", name):
        make(value)
