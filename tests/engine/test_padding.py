"""Test that few CUDA graphs serve all rounds and padding changes no result, on the CPU with a stand-in for a
capture.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.support.marks import crossed, long_beyond
from tests.support.problems import federation
from tests.support.replies import parts
from torch import nn

import drfl
from drfl import DRDM, DRFA, DRFAGA, DualDRDM, FedAvg, Key, LocalSGD
from drfl.engine import Stacked, stacked
from drfl.engine.padding import padded_size
from drfl.optim.local_optimizers import SAM, Adam
from drfl.optim.schedules import Cosine

N, M, SIZES = 30, 20, tuple(range(6, 36))


@pytest.fixture
def captures(monkeypatch):
    """Treat the CPU as a device with graphs, and list the captures."""
    made = []

    def capture(function, arguments):
        made.append([tuple(a.shape) for a in arguments])
        return function

    monkeypatch.setattr(stacked, "uses_graphs", lambda w: True)
    monkeypatch.setattr(stacked, "capture", capture)
    return made


def final(algorithm, rounds, **options):
    fed = federation(SIZES, engine=Stacked(), **options)
    return drfl.run(algorithm, fed, rounds=rounds, evaluate_every=rounds, check_data=False).end.state.w


def test_sizes_are_rounded_up_to_few_values():
    sizes = [padded_size(n) for n in range(1, 1025)]
    assert all(n <= size < 1.25 * n or size == n for n, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) <= 4 * 10
    assert {padded_size(n) for n in range(13, 21)} == {14, 16, 20}


@pytest.mark.long
@pytest.mark.parametrize(
    "algorithm", long_beyond(2, [FedAvg, DualDRDM, DRFA, DRDM], ["FedAvg", "DualDRDM", "DRFA", "DRDM"])
)
def test_hundred_rounds_need_few_graphs(captures, algorithm):
    # The penalty of DRDM and dual DRDM depends on η, so it changes in every round.
    final(algorithm(m=M, local=LocalSGD(steps=10, lr=0.02, batch=8, lr_schedule=Cosine(100, 0.1))), 100)
    assert 1 <= len(captures) <= stacked.GRAPHS


LOCALS = {
    "minibatches": LocalSGD(steps=3, lr=0.1, batch=4),
    "momentum and decay": LocalSGD(steps=3, lr=0.1, batch=16, momentum=0.5, weight_decay=0.1),
    "full batch": LocalSGD(steps=3, lr=0.1, batch=None),
    "epochs": LocalSGD(epochs=2, lr=0.1, batch=4),
    "radius": LocalSGD(steps=3, lr=0.1, batch=4, radius=0.5),
    "sam": LocalSGD(steps=3, lr=0.1, batch=4, optimizer=SAM()),
    "adam": LocalSGD(steps=3, lr=0.01, batch=4, optimizer=Adam()),
}


def named(*names):
    return {name: LOCALS[name] for name in names}


@pytest.mark.parametrize(
    ("cls", "local"),
    [
        *crossed([FedAvg, DRFA, DRFAGA, DRDM], named("minibatches", "momentum and decay", "full batch", "radius")),
        *crossed([FedAvg, DRFA, DRFAGA], named("sam", "adam")),  # DRDM supports no other optimiser
        *crossed([FedAvg], named("epochs")),
    ],
)
def test_padding_does_not_change_a_run(monkeypatch, request, cls, local):
    algorithm = cls(m=13, local=dataclasses.replace(local, lr_schedule=Cosine(5, 0.1)))
    plain = final(algorithm, 2)
    captures = request.getfixturevalue("captures")
    assert torch.allclose(final(algorithm, 2), plain, rtol=1e-12, atol=1e-13)
    assert captures


@pytest.mark.long
def test_shifts_averages_and_noise_are_padded(captures):
    def model(shape, classes):
        return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, classes))

    def reply(engine):
        fed = federation(SIZES, engine=engine, model=model)
        shift = torch.randn(13, fed.w0.numel(), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        local = LocalSGD(steps=4, lr=0.1, batch=8)
        return fed.train(
            torch.arange(13), fed.w0, local, Key(0), prox=0.3, shift=shift, snapshot=2, average=True
        )  # fmt: skip

    for found, right in zip(parts(reply(Stacked())), parts(reply(drfl.Loop())), strict=True):
        assert found.shape == right.shape
        assert torch.allclose(found, right, rtol=1e-12, atol=1e-13)
    (shapes,) = captures
    assert shapes[3] == (14, 4, 8)


def test_graph_without_prox_is_not_used_for_rounds_with_prox(captures):
    def end(prox):
        fed = federation(SIZES, engine=Stacked())
        local = LocalSGD(steps=4, lr=0.1, batch=8)
        return [fed.train(torch.arange(13), fed.w0, local, Key(0), prox=p).w for p in prox]

    plain, weak, strong = end([0.0, 0.1, 5.0])
    assert len(captures) == 2
    fed = federation(SIZES, engine=drfl.Loop())
    for found, prox in ((plain, 0.0), (weak, 0.1), (strong, 5.0)):
        right = fed.train(torch.arange(13), fed.w0, LocalSGD(steps=4, lr=0.1, batch=8), Key(0), prox=prox).w
        assert torch.allclose(found, right, rtol=1e-12, atol=1e-13)


@pytest.mark.long
def test_step_size_beyond_the_model_type_diverges(captures):
    fed = federation(SIZES, engine=Stacked(), dtype=torch.float32)
    assert not fed.train(torch.arange(13), fed.w0, LocalSGD(steps=2, lr=1e300, batch=8), Key(0)).w.isfinite().all()
