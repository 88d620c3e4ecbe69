"""Test updated sums over λ against sums over all rows: over many rounds, for every set, and through checkpoints."""

from __future__ import annotations

import pytest
import torch
from tests.support.marks import crossed, long_beyond
from tests.support.quadratics import Quadratics

from drfl.algorithms import DualDRDM, ScaffPD, weighted_sum
from drfl.algorithms.weighted_sum import FEW, WeightedRows, WeightedSum
from drfl.ambiguity import KL, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex
from drfl.core.key import Key
from drfl.federation.client_table import ClientTable
from drfl.optim.local import LocalSGD
from drfl.testing.state import bits_differ, far_apart, through_a_file

N, D, M = FEW + 88, 5, 4
SETS = {
    "simplex": Simplex(),
    "floor": Simplex(floor=0.5 / N),
    "cvar": CVaR(0.4),
    "box": Box(1.5 / N),
    "chi-square": ChiSquare(rho=0.1),
    "chi-square ball": ChiSquareBall(radius=0.3),
    "kl": KL(rho=0.1),
    "kl ball": KLBall(radius=0.3),
}
FULL = {"kl", "kl ball"}
"""Sets whose projection follows no law."""


class Walk:
    """Random changes of λ and rows: M clients report and M get new rows in every round."""

    def __init__(self, ambiguity, dtype, *, along=False, step=0.2 / N) -> None:
        self.draws, self.ambiguity, self.step = torch.Generator().manual_seed(0), ambiguity, step
        table = ClientTable.zeros(N, torch.zeros(D, dtype=dtype))
        uniform, losses = torch.full((N,), 1 / N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
        self.now = WeightedRows(table, ambiguity.project(uniform), losses if along else None)
        self.kept = WeightedSum.first(table, along=along)
        self.move(torch.arange(N))

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.draws, dtype=torch.float64)

    def some(self):
        return torch.randperm(N, generator=self.draws)[:M]

    def move(self, clients=None):
        """Play one round."""
        before, reported = self.now, self.some()
        clients = self.some() if clients is None else clients
        table = before.table.put(clients, self.normal(len(clients), D).to(before.table.dtype))
        v, along = torch.zeros(N, dtype=torch.float64), None
        if before.along is None:
            v[reported] = self.normal(M)
        else:  # as in SCAFF-PD, every weight moves along the client's newest loss
            along = before.along.index_copy(0, clients, 1 + 0.1 * self.normal(len(clients)))
            v = 2 * along - before.along
        target = before.lam + self.step * v
        self.now = WeightedRows(table, self.ambiguity.prox(target, self.step), along)
        self.kept = self.kept.after(before, self.now, clients, target, self.step)

    def error(self):
        """Return the error of the stored sum relative to Σ λ_i |h_i|."""
        rows, lam = self.now.table.dense().double(), self.now.lam
        return float(((self.kept.sums[0] - lam @ rows).abs() / (lam @ rows.abs())).max())


@pytest.fixture
def reads(monkeypatch):
    """Count the rows that each sum and each mixture reads."""
    counted, sums, mix = [], ClientTable.sums, ClientTable.mix

    def counted_sums(table, rows, weights):
        counted.append(len(rows))
        return sums(table, rows, weights)

    def counted_mix(table, weights):
        counted.append(len(table.clients))
        return mix(table, weights)

    monkeypatch.setattr(ClientTable, "sums", counted_sums)
    monkeypatch.setattr(ClientTable, "mix", counted_mix)
    return counted


@pytest.mark.parametrize(
    ("name", "along", "dtype"), crossed(list(SETS), [False, True], long_beyond(1, [torch.float64, torch.float32]))
)
def test_updated_sums_equal_sums_over_all_rows(name, dtype, along, reads):
    """Clients reach bounds and leave them; the exact sum follows from few rows, for every set."""
    walk, left, returned = Walk(SETS[name], dtype, along=along), 0, 0
    del reads[:]  # reads of the first round
    for _ in range(40):
        bound = walk.now.lam <= walk.now.lam.min() + 1e-15
        walk.move()
        now = walk.now.lam <= walk.now.lam.min() + 1e-15
        left, returned = left + int((now & ~bound).sum()), returned + int((bound & ~now).sum())
        assert walk.error() < (1e-13 if name not in FULL or dtype == torch.float64 else 3e-7)
    if name not in FULL:
        assert left > 0 < returned
        assert sum(n > 5 * M for n in reads) <= 2  # only in the first rounds


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "along"), [("floor", True), ("cvar", False), ("chi-square", False), ("chi-square ball", True)]
)
def test_rounding_errors_do_not_accumulate_over_thousands_of_rounds(name, along):
    walk = Walk(SETS[name], torch.float64, along=along)
    for _ in range(2 * weighted_sum.REFRESH + 100):
        walk.move()
    assert walk.error() < 1e-12


def test_all_rows_are_read_after_the_maximum_number_of_updates(monkeypatch, reads):
    """This removes accumulated errors."""
    monkeypatch.setattr(weighted_sum, "REFRESH", 10)
    walk = Walk(Simplex(), torch.float64)
    walk.move()
    walk.kept = walk.kept._replace(sums=walk.kept.sums + 1e-3)
    for _ in range(8):
        walk.move()
    assert walk.error() > 1e-4
    for _ in range(2):
        walk.move()
    assert walk.error() < 1e-13


def test_omitted_client_changes_the_sum(monkeypatch):
    """A client that is wrongly assumed to follow the law causes a detectable error."""
    monkeypatch.setattr(weighted_sum, "ROUNDING", 1.0)
    walk = Walk(Simplex(), torch.float64)
    for _ in range(20):
        walk.move()
    assert walk.error() > 1e-4


@pytest.mark.parametrize("ambiguity", [Simplex(), ChiSquare(0.2), Box(2 / N)], ids=repr)
@pytest.mark.parametrize("first", [3.0, 0.0])
def test_extreme_changes_of_lambda(ambiguity, first):
    """The changes are a support of one client, an unchanged λ, and a return to all clients."""
    walk = Walk(ambiguity, torch.float64)
    for way in (first, -1e-4, 0.0, -5.0, -5.0):
        before, v = walk.now, torch.zeros(N, dtype=torch.float64)
        v[7] = way
        goal = before.lam + v
        walk.now = before._replace(lam=ambiguity.prox(goal, 1.0))
        walk.kept = walk.kept.after(before, walk.now, torch.empty(0, dtype=torch.int64), goal)
        assert walk.error() < 1e-13


@pytest.mark.parametrize(
    ("algorithm", "step"),
    [(DualDRDM, {"gamma": 1e-7}), pytest.param(ScaffPD, {"sigma": 1e-6}, marks=pytest.mark.long)],
    ids=["dual", "pd"],
)
def test_rounds_equal_rounds_that_read_all_rows(algorithm, step, monkeypatch):
    """A state that was saved and loaded continues with the same bits."""
    fed = Quadratics.random(n=N, d=D).federation()
    method = algorithm(m=4, **step, local=LocalSGD(steps=2, lr=0.1), ambiguity=Simplex(floor=0.9 / N))
    state = kept = method.init(fed)
    for r in range(30):
        state, _ = method.round(through_a_file(state), fed, Key(0).fold("round", r))
        kept, _ = method.round(kept, fed, Key(0).fold("round", r))
    assert not bits_differ(state, kept)
    assert int(state.c.updates) > 10
    monkeypatch.setattr(weighted_sum, "FEW", N)
    whole = method.init(fed)
    assert whole.c is None
    for r in range(30):
        whole, _ = method.round(whole, fed, Key(0).fold("round", r))
    assert not far_apart(state._replace(c=None), whole, 1e-12)
