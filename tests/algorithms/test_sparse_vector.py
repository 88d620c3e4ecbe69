"""Test vectors of which most entries are equal: results from the few other entries equal those from all entries."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.quadratics import Quadratics
from tests.support.rounds import states

from drfl.algorithms import DRFA, DualDRDM, ScaffPD, sparse_vector
from drfl.algorithms.sparse_vector import SparseVector, spread
from drfl.optim.local import LocalSGD

SIZES = st.floats(-1e3, 1e3)


@st.composite
def vectors(draw):
    """Return two vectors with the same rows."""
    n = draw(st.integers(1, 12))
    rows = torch.tensor(draw(st.permutations(range(n)))[: draw(st.integers(0, n))], dtype=torch.int64)
    values = st.lists(SIZES, min_size=len(rows), max_size=len(rows)).map(lambda v: torch.tensor(v).double())
    return tuple(SparseVector(n, rows, draw(values), draw(SIZES)) for _ in range(2))


def near(one, other):
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("many", [0, 2**16])
@given(pair=vectors())
def test_sparse_vector_equals_its_dense_vector(many, pair):
    v, u = pair
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_vector, "MANY", many)
        near(v.sum(), v.dense().sum())
        near(v.spread(), spread(v.dense()))
    lam = torch.linspace(0, 1, v.n, dtype=torch.float64)
    assert torch.equal(v.plus(lam, 0.3), lam + 0.3 * v.dense())
    assert torch.equal(v.combined(u, lambda a, b: 2 * a - 0.7 * b).dense(), 2 * v.dense() - 0.7 * u.dense())


def test_operations_on_all_entries():
    v = SparseVector(5, torch.tensor([3, 0]), torch.tensor([2.0, -1.0]).double(), 0.5)
    assert v.dense().tolist() == [-1.0, 0.5, 0.5, 2.0, 0.5]


@pytest.mark.parametrize("value", [0.1, 3.3, 1e17])
def test_equal_entries_have_no_spread(monkeypatch, value):
    monkeypatch.setattr(sparse_vector, "MANY", 0)
    rows = torch.arange(4)
    assert float(SparseVector(4, rows, torch.full((4,), value).double()).spread()) == 0
    assert float(SparseVector(1, rows[:1], torch.tensor([value]).double()).spread()) == 0


def test_order_of_clients_does_not_matter(monkeypatch):
    """The results are bitwise equal, also if sums depend on the order."""
    monkeypatch.setattr(sparse_vector, "MANY", 0)
    values = torch.tensor([1.0, 2.0**-53, 2.0**-53, -1.0, 3.0]).double()
    found = {
        (float(v.sum()), float(v.spread()))
        for order in (torch.arange(5), torch.tensor([1, 2, 0, 4, 3]), torch.tensor([4, 3, 2, 1, 0]))
        for v in [SparseVector(9, order, values[order])]
    }
    assert len(found) == 1


@pytest.mark.parametrize("make", [DRFA, DualDRDM, ScaffPD])
@pytest.mark.parametrize("m", [2, 5])
def test_rounds_with_many_clients_equal_rounds_with_few(make, m, monkeypatch):
    def played():
        return states(make(m=m, local=LocalSGD(steps=3, lr=0.1)), Quadratics.random().federation(), 6)

    few = played()
    monkeypatch.setattr(sparse_vector, "MANY", 0)
    for state, many in zip(few, played(), strict=True):
        for name in ("w", "lam", "squares"):
            torch.testing.assert_close(getattr(many, name), getattr(state, name), rtol=1e-12, atol=1e-13)
