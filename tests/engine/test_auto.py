"""Which engine ``Auto`` hands on to."""

from __future__ import annotations

import pytest
import torch
from tests.support.problems import federation

from drfl import models
from drfl.engine import Auto, Stacked, Threads
from drfl.engine.auto import choice
from drfl.key import Key
from drfl.local import LocalSGD

SIZES = (9, 20, 70)


@pytest.mark.parametrize(
    ("model", "batch", "engine"),
    [
        (models.linear, 9999, Stacked()),
        (models.mlp, 64, Stacked()),
        (models.cnn, 8, Stacked()),
        (models.cnn, 64, Threads()),
    ],
)
def test_rule(model, batch, engine):
    fed = federation(SIZES, model=model, shape=(1, 8, 8))
    assert fed.engine == Auto(), "the default"
    assert choice(fed._train, batch) == engine


@pytest.mark.parametrize("batch", [8, 64])
def test_hands_on(batch):
    local, key = LocalSGD(steps=2, lr=0.1, batch=batch), Key(1)
    auto, chosen = (federation(SIZES, model=models.cnn, shape=(1, 8, 8), engine=e) for e in (Auto(), None))
    cohort, w = torch.arange(3), auto.w0
    chosen.engine = choice(chosen._train, batch)
    options = {"prox": 0.1, "shift": torch.ones(3, len(w)).to(w), "snapshot": 1, "average": True}
    for a, b in zip(
        auto.train(cohort, w, local, key, **options), chosen.train(cohort, w, local, key, **options), strict=True
    ):
        assert torch.equal(a, b)
    assert torch.equal(
        auto.gradients(cohort, w, key, batch=batch).values, chosen.gradients(cohort, w, key, batch=batch).values
    )
    assert torch.equal(
        auto.losses(cohort, w, key, batch=batch).values, chosen.losses(cohort, w, key, batch=batch).values
    )
    torch.testing.assert_close(auto.evaluate(w).loss, chosen.evaluate(w).loss)
