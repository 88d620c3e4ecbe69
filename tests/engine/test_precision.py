"""Test bfloat16 in the local steps: optional, close to full precision, and used nowhere else."""

from __future__ import annotations

import pytest
import torch
from tests.support.problems import federation
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.engine import Loop, Stacked, Threads
from drfl.optim.local import LocalSGD
from drfl.task import models

LOCAL, SIZES = LocalSGD(steps=3, lr=0.1, batch=8), (9, 20, 40)


def fed(engine, precision):
    return federation(SIZES, engine=engine, model=models.cnn, shape=(1, 8, 8), dtype=torch.float32, precision=precision)


def moved(engine, precision):
    clients = fed(engine, precision)
    return clients.train(torch.arange(3), clients.w0, LOCAL, Key(1)).w - clients.w0


@pytest.mark.parametrize("engine", [Loop(), Stacked(), Threads(2)], ids=["loop", "stacked", "threads"])
def test_bf16_is_close_to_full_precision(engine):
    full, half = moved(engine, "full"), moved(engine, "bf16")
    assert half.dtype == torch.float32
    error = (half - full).norm() / full.norm()
    assert 1e-4 < error < 0.05, "bfloat16 has three significant digits: neither exact nor far away"


def test_reports_gradients_and_evaluations_use_full_precision():
    full, half = fed(Stacked(), "full"), fed(Stacked(), "bf16")
    cohort, w = torch.arange(3), full.w0
    assert torch.equal(full.losses(cohort, w, Key(0)).values, half.losses(cohort, w, Key(0)).values)
    assert torch.equal(full.evaluate(w).loss, half.evaluate(w).loss)
    for whole, part in ((full, half), (full.pooled(), half.pooled())):
        # Step sizes and certificates follow the gradients, and SCAFF-PD's λ the losses that come with them.
        cohort = torch.arange(whole.n)
        exact, gradients = whole.gradients(cohort, w, Key(0)), part.gradients(cohort, w, Key(0))
        assert torch.equal(exact.values, gradients.values)
        assert torch.equal(exact.losses, gradients.losses)


@pytest.mark.parametrize(
    ("precision", "dtype", "error"),
    [
        ("fp8", torch.float32, ("unknown-name", "precision", "full, bf16")),
        ("bf16", torch.float64, ("unsupported-combination", "precision", "float32")),
    ],
)
def test_unsupported_precisions_are_refused(precision, dtype, error):
    with refused(*error):
        federation(SIZES, dtype=dtype, precision=precision)
