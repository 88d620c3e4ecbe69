"""Test that tokens, embeddings and LSTMs give the results of Loop in all engines."""

from __future__ import annotations

import pytest
import torch
from tests.support.marks import crossed

from drfl import ClientData, Task
from drfl.core.key import Key
from drfl.engine import Auto, Loop, Simulation, Stacked, Threads, stacked
from drfl.engine.auto import choice
from drfl.engine.sgd import gradient_of_one
from drfl.optim.local import LocalSGD
from drfl.task import models

VOCABULARY, LENGTH = 11, 4


@pytest.fixture(scope="module")
def clients():
    rng = torch.Generator().manual_seed(0)
    texts = [torch.randint(VOCABULARY, (n, LENGTH + 1), generator=rng) for n in (9, 20, 33)]
    return ClientData.from_arrays([(text[:, :-1], text[:, -1]) for text in texts])


def simulation(clients, engine, dtype):
    with Key(0).fold("model").torch_scope():
        model = models.LSTM(VOCABULARY, embedding=3, hidden=5, layers=2)
    return Simulation(clients, Task(model.to(dtype)), engine=engine)


@pytest.mark.parametrize(
    ("dtype", "close", "engine"),
    crossed(
        [pytest.param(torch.float64, 1e-12, id="float64"), pytest.param(torch.float32, 1e-6, id="float32")],
        [Threads(2), Stacked()],
    ),
)
def test_engines_agree(clients, engine, dtype, close):
    loop, other = (simulation(clients, each, dtype) for each in (Loop(), engine))
    everybody, local = torch.arange(3), LocalSGD(steps=4, batch=7, lr=0.5)
    found = []
    for fed in (loop, other):
        trained = fed.train(everybody, fed.w0, local, Key(1), snapshot=2)
        gradients = fed.gradients(everybody, fed.w0, Key(2), batch=5)
        tested = fed.evaluate(trained.w[0])
        found.append((trained.w, trained.snapshot, gradients.values, gradients.losses, tested.loss))
    assert (found[0][0] - loop.w0).abs().max() > 0.01
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=close)


@pytest.mark.long
def test_single_client_stacks_without_vmap_agree_with_the_loop(clients, monkeypatch):
    """A GPU runs unstackable models in this way."""
    monkeypatch.setattr(stacked, "_gradient", lambda problem, clients: gradient_of_one(problem))
    feds = [simulation(clients, engine, torch.float64) for engine in (Loop(), Stacked(clients=1))]
    found = [fed.train(torch.arange(3), fed.w0, LocalSGD(steps=4, batch=7, lr=0.5), Key(1), snapshot=2) for fed in feds]
    gradients = [fed.gradients(torch.arange(3), fed.w0, Key(2), batch=5) for fed in feds]
    loop, one = ((f.w, f.snapshot, g.values, g.losses) for f, g in zip(found, gradients, strict=True))
    for mine, theirs in zip(one, loop, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_tokens_stay_integers_and_auto_stacks_a_small_network(clients):
    fed = simulation(clients, Auto(), torch.float32)
    assert fed._train.x.dtype == torch.int64
    assert choice(fed._train, 3, 7) == Stacked()
