"""Test requests for many rows at one model: passes of one shape agree with the loop for all sizes."""

from __future__ import annotations

import pytest
import torch
from tests.support.marks import crossed, long_except
from tests.support.problems import federation

from drfl.core.key import Key
from drfl.engine import Loop, Stacked, full_batch, sgd
from drfl.engine.batches import Batches
from drfl.task import models

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
UNEQUAL = (1, 2, 9, 40, 7, 33)
CASES = {
    "unequal": (UNEQUAL, range(6)),
    "some": (UNEQUAL, (4, 1, 2)),
    "alike": ((12,) * 5, range(5)),
    "one": ((50,), (0,)),
}
ROW = 4 * 8
"""Bytes of an input of four float64 numbers."""


@pytest.fixture
def small(monkeypatch):
    """Treat every request as large, with passes of twelve rows."""
    for module, name, value in ((full_batch, "LARGE", 0), (full_batch, "MINIBATCH", 0), (sgd, "BYTES", 12 * ROW)):
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize(
    ("model", "engine", "sizes", "cohort"),
    crossed(
        long_except(["linear"], [models.linear, models.mlp], ["linear", "mlp"]),
        [Stacked(), Stacked(0.0003)],
        [pytest.param(*case, id=name) for name, case in CASES.items()],
    ),
)
def test_large_requests_agree_with_the_loop(small, model, engine, sizes, cohort):
    loop, other = (federation(sizes, engine=e, model=model) for e in (Loop(), engine))
    ask = {"cohort": torch.tensor(list(cohort)), "w": loop.w0 + 0.1, "key": Key(3)}
    for a, b in zip(loop.gradients(**ask), other.gradients(**ask), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    torch.testing.assert_close(loop.losses(**ask).values, other.losses(**ask).values, rtol=0, atol=1e-10)
    again = other.gradients(**ask)
    assert torch.equal(again.values, other.gradients(**ask).values)


def test_diverged_client_does_not_affect_the_others(small):
    fed = federation((5, 30, 8), engine=Stacked())
    ask = (torch.arange(3), fed.w0, Key(0))
    before = fed.gradients(*ask)
    fed._train.x[fed._rows.of_client(1)[-1]] = torch.inf
    after = fed.gradients(*ask)
    assert after.values[[0, 2]].equal(before.values[[0, 2]])
    assert not after.values[1].isfinite().all()
    assert not fed.losses(*ask).values[1].isfinite()


def test_segments_contain_every_row_once():
    counts = torch.tensor([5, 1, 8])
    batches = Batches(torch.arange(24).view(3, 1, 8), counts)
    clients, rows, weights = full_batch.Segments.of(batches, 4, batches.weights(torch.empty(0, dtype=torch.float64)))
    assert clients.tolist() == [0, 0, 1, 2, 2]
    real = weights > 0
    assert rows[real].tolist() == [0, 1, 2, 3, 4, 8, *range(16, 24)]
    assert torch.equal(rows[~real], batches.samples[clients, 0, 0][:, None].expand(-1, 4)[~real])
    torch.testing.assert_close(torch.zeros(3).double().index_add_(0, clients, weights.sum(1)), torch.ones(3).double())


def test_equal_clients_need_no_padding():
    problem = federation((3,), engine=Stacked())._train
    for count in (1, 128, 2000, 10**6):
        length, stack = full_batch.shape_of_pass(problem, torch.full((7,), count), 2**25)
        pieces = -(-count // length)
        assert pieces * length - count < pieces
        assert length * stack <= sgd.pass_size(problem)


def test_only_clients_with_many_rows_are_segmented(monkeypatch):
    """Minibatches keep their bits, as in the search for η."""
    monkeypatch.setattr(full_batch, "LARGE", 0)
    problem = federation((3,), engine=Stacked())._train
    for rows in (full_batch.MINIBATCH, full_batch.MINIBATCH + 1):
        batches = Batches(torch.zeros(2, 1, rows, dtype=torch.int64), torch.tensor([rows, 3]))
        assert full_batch.large_batches(problem, batches) == (rows > full_batch.MINIBATCH)
