"""Test sums over a cohort that are computed a few columns at a time, and the default μ."""

from __future__ import annotations

import pytest
import torch

from drfl.algorithms import drift
from drfl.optim.local import LocalSGD


@pytest.mark.parametrize("columns", [1, 3, 7, 8, 100])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_in_pieces_equal_whole_sums(columns, weighted, monkeypatch):
    monkeypatch.setattr(drift, "COLUMNS", columns)
    g = torch.Generator().manual_seed(0)
    w_i, w = torch.randn(4, 7, generator=g).double(), torch.randn(7, generator=g).double()
    a = torch.rand(4, generator=g).double() if weighted else None
    expected = (w_i - w).sum(0) if a is None else a @ (w_i - w)
    torch.testing.assert_close(drift.sum_updates(w_i, w, a), expected, rtol=0, atol=1e-15)


def test_pieces_stay_within_the_allowed_width(monkeypatch):
    """Pieces avoid a buffer for the whole matrix."""
    monkeypatch.setattr(drift, "COLUMNS", 3)
    seen = []

    def rows(part):
        seen.append(part)
        return torch.ones(2, 7)[:, part]

    assert drift.sum_rows(rows, torch.zeros(7)).tolist() == [2.0] * 7
    assert [len(range(7)[part]) for part in seen] == [3, 3, 1]


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_default_mu_follows_the_rule(steps, momentum):
    """μ is a fifth of 1 divided by the distance that a unit direction moves a client."""
    local = LocalSGD(steps=steps, lr=0.05, momentum=momentum)
    distance = 0.05 * sum(momentum**k for t in range(steps) for k in range(t + 1))
    assert drift.penalty(None, local) == pytest.approx(0.2 / distance)
    assert drift.penalty(0.7, local) == 0.7
