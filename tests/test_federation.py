"""What passes between server and clients, and what it costs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drfl import cohort
from drfl.federation import Ledger, Losses, Replies
from drfl.key import Key


def losses(clients, values):
    return Losses(torch.tensor(clients, dtype=torch.int64), torch.tensor(values, dtype=torch.float64))


def test_unbiased_by_hand():
    """N over the number who answered, at the clients that answered, whatever their order."""
    assert losses([3, 0], [1.0, 2.0]).unbiased(5).tolist() == [5.0, 0, 0, 2.5, 0]
    assert losses([2], [1.5]).unbiased(3).tolist() == [0, 0, 4.5]
    assert losses([1, 0], [1.0, 2.0]).unbiased(2).tolist() == [2.0, 1.0]


def test_nobody():
    assert losses([], []).unbiased(3).tolist() == [0, 0, 0]


@given(n=st.integers(1, 20), data=st.data())
def test_sum_is_n_times_the_mean(n, data):
    clients = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))
    values = data.draw(st.lists(st.floats(0, 10), min_size=len(clients), max_size=len(clients)))
    v = losses(clients, values).unbiased(n)
    assert v.dtype == torch.float64
    assert float(v.sum()) == pytest.approx(n * sum(values) / len(values))
    assert set(v.nonzero().flatten().tolist()) <= set(clients)


@pytest.mark.parametrize("m", [1, 3, 6])
def test_unbiased_over_uniform_cohorts(m):
    """E_U[v] is the vector of losses, each within four standard errors."""
    f, trials = torch.tensor([0.1, 2.0, 0.7, 1.3, 0.4, 3.1, 0.9], dtype=torch.float64), 3000
    total = torch.zeros(7, dtype=torch.float64)
    for r in range(trials):
        U = cohort.uniform(7, m, Key(9).fold(r)).clients
        total += Losses(U, f[U]).unbiased(7)
    error = f * ((7 / m - 1) / trials) ** 0.5
    assert ((total / trials - f).abs() <= 4 * error).all()
    assert float(Losses(torch.arange(7), f).unbiased(7).sub(f).abs().max()) < 1e-15


def test_ledger():
    ledger = Ledger()
    ledger.down(3, 100)
    ledger.up(2, 40)
    ledger.up(0, 1000)
    ledger.gradient_evaluations += 7
    assert ledger.totals() == {
        "bytes_down": 300,
        "bytes_up": 80,
        "messages": 5,
        "gradient_evaluations": 7,
        "loss_evaluations": 0,
    }


def test_totals_are_a_snapshot():
    ledger = Ledger()
    before = ledger.totals()
    ledger.down(1, 1)
    assert set(before.values()) == {0}


def test_parts_not_asked_for_are_empty():
    replies = Replies(torch.arange(2), torch.zeros(2, 3))
    assert replies.snapshot.numel() == replies.average.numel() == 0
