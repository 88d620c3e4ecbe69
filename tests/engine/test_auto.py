"""Test which engine ``Auto`` chooses."""

from __future__ import annotations

import logging

import pytest
import torch
from tests.support.problems import federation
from tests.support.replies import parts
from torch import nn

from drfl.core.key import Key
from drfl.engine import Auto, Stacked, Threads, auto
from drfl.engine.auto import choice, pass_choice
from drfl.optim.local import LocalSGD
from drfl.task import models

SIZES = (9, 20, 70)


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self, shape, classes, repeats=1) -> None:
        super().__init__()
        self.lstm, self.out, self.repeats = nn.LSTM(shape[-1], 4, batch_first=True), nn.Linear(4, classes), repeats

    def forward(self, x):
        return self.out(self.lstm(x[:, 0].repeat(1, self.repeats, 1))[0][:, -1])


class Unknown(torch.autograd.Function):
    """A function without a rule for vmap."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Odd(nn.Module):
    def __init__(self, shape, classes) -> None:
        super().__init__()
        self.layer = models.linear(shape, classes)

    def forward(self, x):
        return Unknown.apply(self.layer(x))


@pytest.mark.parametrize(
    ("model", "batch", "engine"),
    [
        (models.linear, 9999, Stacked()),
        (models.mlp, 64, Stacked()),
        (lambda *shape: models.mlp(*shape, (2000, 800)), 8, Threads()),
        (models.cnn, 8, Stacked()),
        (models.cnn, 64, Threads()),
        (Recurrent, 1, Stacked()),
        (lambda *shape: Recurrent(*shape, repeats=8), 1, Threads()),
        (Odd, 1, Threads()),
    ],
)
def test_engine_choice_follows_the_rule(model, batch, engine):
    fed = federation(SIZES, engine=Auto(), model=model, shape=(1, 8, 8), dtype=torch.float32)
    assert fed.engine == Auto()
    assert choice(fed._train, len(SIZES), batch) == engine


def test_number_of_clients_affects_the_choice():
    """Clients share the operations of a stack; a single client pays for all of them."""
    fed = federation(SIZES, model=lambda *shape: models.mlp(*shape, (256,)), shape=(1, 8, 8), dtype=torch.float32)
    assert [choice(fed._train, clients, 32) for clients in (1, 20)] == [Threads(), Stacked()]


def test_passes_without_gradients_are_not_counted():
    fed = federation(SIZES, model=models.cnn, shape=(1, 8, 8), dtype=torch.float32)
    assert [pass_choice(fed._train, rows) for rows in (8, 64)] == [Stacked(), Threads()]
    tokens = federation(SIZES, model=models.linear, shape=(1, 8, 8), dtype=torch.float32)
    assert [pass_choice(tokens._train, rows) for rows in (10_000, 1_000_000)] == [Stacked(), Threads()]


def test_choice_is_logged_once(caplog):
    fed = federation(SIZES, model=models.linear, shape=(1, 8, 8), dtype=torch.float32)
    with caplog.at_level(logging.DEBUG, "drfl.engine"):
        for _ in range(2):
            choice(fed._train, 3, 8)
        choice(fed._train, 2, 8)
    assert [record.args[0] for record in caplog.records] == ["stacked", "stacked"]
    assert [record.args[2:4] for record in caplog.records] == [(3, 8), (2, 8)]


def test_large_models_are_not_tried_in_a_stack(monkeypatch):
    """If threads are faster even than a stack without any overhead, no stacked step is tried."""
    monkeypatch.setattr(auto, "trial_of", lambda problem: pytest.fail("a step was tried"))
    model = federation(SIZES, model=models.cnn, shape=(1, 8, 8), dtype=torch.float32)
    assert choice(model._train, len(SIZES), 64) == Threads()


def test_unstackable_model_runs():
    fed = federation(SIZES, model=Odd, shape=(1, 8, 8))
    double = federation(SIZES, model=lambda *a: nn.Sequential(models.linear(*a), Twice()), shape=(1, 8, 8))
    local = LocalSGD(steps=2, lr=0.1, batch=8)
    ends = [f.train(torch.arange(3), f.w0, local, Key(1)).w for f in (fed, double)]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


@pytest.mark.long
@pytest.mark.parametrize("batch", [8, 64])
def test_auto_forwards_requests_to_the_chosen_engine(batch):
    local, key = LocalSGD(steps=2, lr=0.1, batch=batch), Key(1)
    fed, chosen = (federation(SIZES, model=models.cnn, shape=(1, 8, 8), engine=e) for e in (Auto(), None))
    cohort, w = torch.arange(3), fed.w0
    chosen.engine = choice(chosen._train, 3, batch)
    options = {"prox": 0.1, "shift": torch.ones(3, len(w)).to(w), "snapshot": 1, "average": True}
    replies = (parts(side.train(cohort, w, local, key, **options)) for side in (fed, chosen))
    for a, b in zip(*replies, strict=True):
        assert torch.equal(a, b)
    # Passes without steps use another engine, which sums in another order.
    torch.testing.assert_close(
        fed.gradients(cohort, w, key, batch=batch).values, chosen.gradients(cohort, w, key, batch=batch).values
    )
    torch.testing.assert_close(
        fed.losses(cohort, w, key, batch=batch).values, chosen.losses(cohort, w, key, batch=batch).values
    )
    torch.testing.assert_close(fed.evaluate(w).loss, chosen.evaluate(w).loss)
