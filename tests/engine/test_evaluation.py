"""Test that evaluating several models in one pass equals evaluating them one after another."""

from __future__ import annotations

import pytest
import torch
from tests.support.marks import crossed

from drfl import ClientData, Simulation, Task
from drfl.engine import Loop, Stacked, evaluation
from drfl.task import models

METRICS = ("f1", "brier", "log_loss")


def simulation(kind, engine, shared=False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(70, 3, 4, generator=generator)
    y = torch.randint(0, 4, (70,), generator=generator)
    train = (torch.arange(5), torch.arange(5, 12))
    test = (torch.arange(20), torch.arange(20, 55))
    if shared:  # few rows of the pool, one of which is at both clients
        test = (torch.tensor([3, 9, 1]), torch.tensor([9, 60, 44, 2]))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = models.linear((3, 4), 4) if kind == "linear" else models.mlp((3, 4), 4, (9,))
    return Simulation(
        ClientData(x, y, train, x, y, test, names=("a", "b")), Task(model, metrics=METRICS), engine=engine
    )


@pytest.mark.parametrize(("kind", "shared", "rows"), crossed(["mlp", "linear"], [False, True], [16, 70]))
def test_joint_evaluation_equals_separate_evaluations(kind, shared, rows, monkeypatch):
    fed, loop = simulation(kind, Stacked(), shared), simulation(kind, Loop(), shared)
    generator = torch.Generator().manual_seed(2)
    several = [fed.w0 + torch.randn(fed.w0.shape, generator=generator) for _ in range(3)]
    plain = [fed.evaluate(w) for w in several]
    monkeypatch.setattr(evaluation, "MIN_TRACED", 0)
    monkeypatch.setattr(evaluation, "pass_size", lambda problem: rows)
    for found, one, expected in zip(fed.evaluate_all(several), plain, map(loop.evaluate, several), strict=True):
        for other in (one, expected):
            assert torch.allclose(found.loss, other.loss, rtol=1e-5)
            assert torch.equal(found.score, other.score)
            assert torch.allclose(found.sums.nan_to_num(-1), other.sums.nan_to_num(-1), rtol=1e-5)
    assert torch.equal(fed.evaluate(several[1]).loss, fed.evaluate_all(several)[1].loss)
