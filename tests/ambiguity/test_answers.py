"""Test every set against its optimality conditions and a solver; ``evidence/ambiguity_kkt.py`` runs many more cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.ambiguity.answers import residuals
from tests.ambiguity.cases import CASES, ONE_OF_EACH, drawn, steps
from tests.ambiguity.kkt import definition, residual
from tests.ambiguity.solver import differences
from tests.support.marks import crossed, long_except

from drfl.ambiguity import AMBIGUITY_SETS

EACH = 300
"""Vectors per set, divided among its tested parameters."""
LENGTHS = {1: 0.02, 2: 0.23, 3: 0.25, 10: 0.3, 50: 0.2}
"""The share of vectors by number of entries."""
SOLVED = [name for name in CASES if "steep" not in name]  # weights of 1e-9 are beyond the solver
POLYHEDRAL = ("Simplex", "CVaR", "Box", "ChiSquare(")


def test_every_set_is_tested():
    assert {type(make(4)) for make in CASES.values()} == set(AMBIGUITY_SETS.values())


@pytest.mark.parametrize("name", long_except(ONE_OF_EACH, CASES))
def test_answers_meet_the_optimality_conditions(name):
    kin = [other for other in CASES if type(CASES[other](4)) is type(CASES[name](4))]
    for n, share in LENGTHS.items():
        g, draws = np.random.default_rng([n, kin.index(name)]), math.ceil(share * EACH / len(kin))
        found = residuals(CASES[name](n), drawn(g, draws, n), steps(g, draws))
        assert found.worst() <= 1e-9, (n, found)


@pytest.mark.parametrize("name", long_except(ONE_OF_EACH, SOLVED))
def test_answers_agree_with_a_solver(name):
    g = np.random.default_rng(7)
    v = g.normal(size=(4, 6)) * 10 ** g.uniform(-1, 0.5, (4, 1))
    found = differences(CASES[name](6), v, 10 ** g.uniform(-1, 1, 4))
    assert found.objective <= 1e-6
    flat = not name.startswith(POLYHEDRAL)  # on a curved boundary the solver's λ is less accurate than its objective
    assert found.lam <= (1e-5 if flat else 1e-6)


@pytest.mark.parametrize(("name", "scale"), crossed(long_except(ONE_OF_EACH, CASES), [0.01, 1.0, 100.0]))
def test_residual_detects_an_error_of_one_millionth(name, scale):
    """An answer moved by 1e-6 within Σλ = 1, or used for another vector, is rejected."""
    g, ambiguity = np.random.default_rng(3), CASES[name](5)
    what, v = definition(ambiguity, 5), scale * g.normal(size=(20, 5))
    for q, lams in (
        (1.0, [ambiguity.project(torch.from_numpy(row)).numpy() for row in v]),
        (0.0, [ambiguity.worst_case(torch.from_numpy(row)).lam.numpy() for row in v]),
    ):
        lam, c = np.stack(lams), np.full(20, 1 - q)
        moved = lam + 1e-6 * (np.arange(5) - 2)
        assert (residual(what, v, moved, q, c) > 1e-9).all()
        others = np.roll(lam, 1, axis=0)
        differ = np.abs(others - lam).max(1) > 1e-6
        assert (residual(what, v, others, q, c)[differ] > 1e-9).all()
