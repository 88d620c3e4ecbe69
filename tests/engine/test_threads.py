"""Test worker threads: their number does not matter, and torch's settings are restored."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.support.problems import federation
from tests.support.refusals import refused
from tests.support.replies import parts

from drfl.core.key import Key
from drfl.engine import Stacked, Threads
from drfl.engine.sgd import IMAGES
from drfl.engine.threads import Replica
from drfl.optim.local import LocalSGD
from drfl.task import models
from drfl.task.losses import Loss

LOCAL = LocalSGD(steps=3, lr=0.1, batch=8, momentum=0.5)
SIZES = (1, 2, 9, 20, 40)


def trained(engine, **options):
    fed = federation(SIZES, engine=engine, model=models.cnn, shape=(1, 8, 8), **options)
    return fed.train(torch.arange(5), fed.w0, LOCAL, Key(1), prox=0.3, snapshot=2, average=True)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.long)], ids=str)
def test_number_of_workers_does_not_change_a_bit(dtype):
    replies = [trained(Threads(workers), dtype=dtype) for workers in (1, 2, 5, 50)]
    for other in replies[1:]:
        for a, b in zip(parts(replies[0]), parts(other), strict=True):
            assert torch.equal(a, b)


def test_torch_threads_are_restored():
    before = torch.get_num_threads()
    trained(Threads(3))
    assert torch.get_num_threads() == before


def test_single_client_uses_all_threads(monkeypatch):
    before, seen = torch.get_num_threads(), []
    steps = Replica.local_steps

    def noted(self, *arguments):
        seen.append(torch.get_num_threads())
        return steps(self, *arguments)

    monkeypatch.setattr(Replica, "local_steps", noted)
    torch.set_num_threads(3)
    try:
        alone, shared = trained(Threads(1, intra_op=None)), trained(Threads(2))
    finally:
        torch.set_num_threads(before)
    assert seen == [3] * 5 + [1] * 5
    for a, b in zip(alone[1:], shared[1:], strict=True):
        torch.testing.assert_close(a, b)


class TwoBiases(torch.nn.Module):
    """Both gradients are the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x.flatten(1)[:, :3] + self.a + self.b


def test_gradients_that_share_memory():
    ends = []
    for engine in (Stacked(), Threads(2)):
        fed = federation((5, 9), engine=engine, model=lambda shape, classes: TwoBiases())
        ends.append(fed.train(torch.arange(2), fed.w0, LOCAL, Key(1), shift=torch.ones(2, 6).double()).w)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


@pytest.mark.parametrize("workers", [1, 3])
def test_error_in_a_worker_thread_is_raised(workers, monkeypatch):
    fed = federation(SIZES, engine=Threads(workers))
    before = torch.get_num_threads()

    def broken(outputs, y):
        raise IndexError("out of range")

    object.__setattr__(fed._train.task, "loss", Loss.of(broken))
    with pytest.raises(IndexError, match="out of range"):
        fed.train(torch.arange(5), fed.w0, LOCAL, Key(1))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("workers", [1, 3])
def test_one_model_copy_per_worker_thread(workers, monkeypatch):
    """This holds even if torch uses one intra-op thread in the meantime."""
    made = []
    original = Replica.__init__

    def counting(self, problem):
        made.append(threading.get_ident())
        original(self, problem)

    monkeypatch.setattr(Replica, "__init__", counting)
    fed = federation(SIZES, engine=Threads(workers))
    fed.train(torch.arange(5), fed.w0, LOCAL, Key(1))
    assert len(made) == workers


def test_default_number_of_threads_is_torchs(monkeypatch):
    submitted = []
    original = ThreadPoolExecutor.submit

    def counting(self, *arguments):
        submitted.append(self._max_workers)
        return original(self, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", counting)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        trained(Threads())
    finally:
        torch.set_num_threads(before)
    assert submitted == [3, 3, 3]


class Meeting(torch.nn.Module):
    """A convolution that waits for a second thread; the first thread to enter leaves first."""

    barrier, order = threading.Barrier(2, timeout=60), itertools.count()

    def __init__(self, shape, classes) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(shape[0], classes, shape[1])

    def forward(self, x):
        if threading.current_thread() is not threading.main_thread():
            late = next(self.order) % 2
            self.barrier.wait()
            time.sleep(0.05 * late)
        return self.layer(x).flatten(1)


@pytest.mark.parametrize("exchange", ["evaluate", "losses"])
def test_concurrent_passes_leave_the_model_unchanged(exchange):
    fed = federation((2 * IMAGES,), engine=Threads(2), model=Meeting, shape=(1, 3, 3), tested=2 * IMAGES)
    model = fed._train.task.model
    before = dict(model.named_parameters())
    fed.evaluate(fed.w0 + 1) if exchange == "evaluate" else fed.losses(torch.arange(1), fed.w0 + 1, Key(0))
    assert dict(model.named_parameters()) == before
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("value", ["2", -1, 0, True, 1.5])
@pytest.mark.parametrize(("engine", "field"), [(Threads, "workers"), (Threads, "intra_op"), (Stacked, "clients")])
def test_wrong_numbers_are_refused(engine, field, value):
    with refused("out-of-range", field, repr(value)):
        engine(**{field: value})
