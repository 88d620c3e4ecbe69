"""Runs side by side give what each gives alone, up to rounding, and the same bits every time."""

from __future__ import annotations

import random
import signal
import threading
import time

import pytest
import torch
from tests.support.marks import long_beyond
from tests.support.stacked_calls import counted_calls
from torch import nn

from drfl import AFL, DRFA, ClientData, DualDRDM, FedAvg, FedProx, Key, LocalSGD, ScaffPD, Simulation, Task, run
from drfl.core.errors import DivergedError
from drfl.engine import Loop, Stacked, lockstep
from drfl.engine.lockstep import Abandoned, own_seconds, run_in_lockstep, shared
from drfl.engine.same_model import structure_of
from drfl.optim.local_optimizers import SAM, Adam

SIZES = (5, 40, 33, 64, 12, 90)
ROUNDS = 3


def clients(seed):
    noise = torch.Generator().manual_seed(seed)
    pairs = []
    for n in SIZES:
        x = torch.randn(n, 6, generator=noise)
        pairs.append((x, (x[:, 0] + 0.5 * torch.randn(n, generator=noise) > 0).long() + (x[:, 1] > 1).long()))
    return ClientData.from_arrays(pairs)


def net(hidden=nn.Tanh):
    return nn.Sequential(nn.Linear(6, 5), hidden(), nn.Dropout(0.2), nn.Linear(5, 3))


def known(model):
    """A task that simulations take as it is, so that they share what is traced of it."""
    data = clients(0)
    return Task(model).resolved(data.inputs, data.targets)


with Key(0).torch_scope():
    LINEAR, TANH, RELU = (known(model) for model in (nn.Linear(6, 3), net(), net(nn.ReLU)))


def maker(algorithm, seed, *, task=LINEAR, rounds=ROUNDS, callbacks=()):
    """A function that makes a run and plays it."""

    def made():
        fed = Simulation(clients(seed), task)
        fed.engine = shared(fed.engine)
        return run(algorithm, fed, rounds=rounds, seed=seed, callbacks=callbacks, check_data=False)

    return made


@pytest.fixture
def sizes(monkeypatch):
    return counted_calls(monkeypatch)


def close(one, other):
    torch.testing.assert_close(one.model, other.model, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(one.lam, other.lam, rtol=1e-4, atol=1e-6)


LOCAL = {"steps": 3, "batch": 16}
ALGORITHMS = {
    "fedavg": FedAvg(m=4, local=LocalSGD(**LOCAL)),
    "prox": FedProx(m=4, mu=0.3, local=LocalSGD(weight_decay=0.1, momentum=0.5, **LOCAL)),
    "drfa": DRFA(m=4, local=LocalSGD(radius=0.7, **LOCAL)),
    "dual": DualDRDM(m=4, local=LocalSGD(**LOCAL)),
    "scaffpd": ScaffPD(local=LocalSGD(**LOCAL)),
    "afl": AFL(local=LocalSGD(steps=1, batch=16)),
    "epochs": FedAvg(m=6, local=LocalSGD(epochs=2, batch=16)),
    "full": FedAvg(m=6, local=LocalSGD(steps=3, batch=None)),
    "sam": FedAvg(m=4, local=LocalSGD(optimizer=SAM(0.05), **LOCAL)),
    "adam": FedAvg(m=4, local=LocalSGD(lr=0.01, optimizer=Adam(), **LOCAL)),
}


@pytest.mark.parametrize("name", long_beyond(3, ALGORITHMS))
def test_each_run_is_what_it_is_alone(name, sizes):
    together = run_in_lockstep([maker(ALGORITHMS[name], seed) for seed in range(3)])
    for seed, future in enumerate(together):
        close(future.result(), maker(ALGORITHMS[name], seed)())
    # Once for local steps or gradients, in every round.
    assert sizes.count(3) >= ROUNDS


@pytest.mark.long
def test_a_model_with_dropout(sizes):
    algorithm = DRFA(m=4, local=LocalSGD(lr=0.1, **LOCAL))
    for seed, future in enumerate(run_in_lockstep([maker(algorithm, seed, task=TANH) for seed in range(3)])):
        close(future.result(), maker(algorithm, seed, task=TANH)())
    assert sizes == [3] * 2 * ROUNDS


def test_settings_of_the_runs_may_differ(sizes):
    algorithms = [
        DRFA(m=m, gamma=gamma, local=LocalSGD(lr=lr, weight_decay=decay, **LOCAL))
        for m, gamma, lr, decay in ((3, 0.1, 0.3, 0.1), (5, 0.01, 0.05, 0.2), (4, 0.02, 0.1, 0.3))
    ]
    together = run_in_lockstep([maker(algorithm, 7) for algorithm in algorithms])
    for algorithm, future in zip(algorithms, together, strict=True):
        close(future.result(), maker(algorithm, 7)())
    assert sizes == [3] * 2 * ROUNDS


def test_the_same_bits_whatever_the_threads_take():
    def slow(step):
        time.sleep(random.random() / 200)

    def bits(callbacks):
        found = run_in_lockstep([maker(ALGORITHMS["dual"], seed, callbacks=callbacks) for seed in range(4)])
        return [future.result() for future in found]

    for one, other in zip(bits(()), bits((slow,)), strict=True):
        assert torch.equal(one.model, other.model)
        assert torch.equal(one.lam, other.lam)


def test_the_rows_of_a_stack_depend_on_their_own_run_alone():
    wild = FedAvg(m=5, local=LocalSGD(lr=1e30, **LOCAL))
    calm = FedAvg(m=4, local=LocalSGD(lr=0.1, **LOCAL))
    beside = run_in_lockstep([maker(wild, 1, rounds=1), maker(calm, 2, rounds=1), maker(calm, 3, rounds=1)])
    alone = maker(calm, 2, rounds=1)()
    torch.testing.assert_close(beside[1].result().model, alone.model, rtol=1e-6, atol=1e-7)


def test_a_run_that_fails_leaves_the_others(sizes):
    def broken(step):
        if step.round == 2:
            raise RuntimeError("mine")

    calm, wild = (FedAvg(m=4, local=LocalSGD(lr=lr, **LOCAL)) for lr in (0.1, 3e38))
    found = run_in_lockstep([maker(calm, 0), maker(wild, 1), maker(calm, 2, callbacks=(broken,)), maker(calm, 3)])
    assert isinstance(found[1].exception(), DivergedError)
    assert str(found[2].exception()) == "mine"
    for seed in (0, 3):
        close(found[seed].result(), maker(calm, seed)())
    assert sizes[0] == 4
    assert sizes[-1] == 2


def test_runs_of_unequal_length(sizes):
    algorithm = FedAvg(m=4, local=LocalSGD(lr=0.1, **LOCAL))
    found = run_in_lockstep([maker(algorithm, seed, rounds=rounds) for seed, rounds in enumerate((1, 3, 2))])
    assert [future.result().rounds for future in found] == [1, 3, 2]
    assert sizes == [3, 2, 1]
    close(found[1].result(), maker(algorithm, 1, rounds=3)())


def test_runs_fall_into_step_where_one_is_ahead(sizes):
    """Step sizes are found in different numbers of calls; from the first local steps on all are together."""
    found = run_in_lockstep([maker(ALGORITHMS["fedavg"], 0), maker(FedAvg(m=4, local=LocalSGD(lr=0.1, **LOCAL)), 1)])
    assert all(future.result().rounds == ROUNDS for future in found)
    assert sizes.count(2) == ROUNDS


def test_what_cannot_be_computed_together_is_computed_alone(monkeypatch):
    def broken(calls, pools):
        raise MemoryError

    algorithm = FedAvg(m=4, local=LocalSGD(lr=0.1, **LOCAL))
    monkeypatch.setattr(lockstep, "results_of", broken)
    for seed, future in enumerate(run_in_lockstep([maker(algorithm, seed) for seed in range(2)])):
        assert torch.equal(future.result().model, maker(algorithm, seed)().model)


def test_large_calls_do_not_wait(monkeypatch, sizes):
    monkeypatch.setattr(lockstep, "SMALL", 4 * 16 * 21 - 1)
    algorithm = FedAvg(m=4, local=LocalSGD(lr=0.1, **LOCAL))
    for seed, future in enumerate(run_in_lockstep([maker(algorithm, seed) for seed in range(2)])):
        assert torch.equal(future.result().model, maker(algorithm, seed)().model)
    assert not sizes


def test_samples_that_are_too_many_are_not_copied(monkeypatch):
    monkeypatch.setattr("drfl.engine.joint.LARGEST", 1000)
    algorithm = FedAvg(m=4, local=LocalSGD(lr=0.1, **LOCAL))
    for seed, future in enumerate(run_in_lockstep([maker(algorithm, seed) for seed in range(2)])):
        assert torch.equal(future.result().model, maker(algorithm, seed)().model)


def test_another_model_is_another_stack(sizes):
    algorithm = FedAvg(m=4, local=LocalSGD(lr=0.1, **LOCAL))
    tasks = [TANH, RELU, known(net())]
    for seed, future in enumerate(
        run_in_lockstep([maker(algorithm, seed, task=task) for seed, task in enumerate(tasks)])
    ):
        close(future.result(), maker(algorithm, seed, task=tasks[seed])())
    assert sorted(set(sizes)) == [1, 2]


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.linear, self.factor = nn.Linear(6, 3), factor

    def forward(self, x):
        return self.factor * self.linear(x)


def test_what_makes_a_model_another_one():
    linear, weight = nn.Linear(6, 3), torch.ones(3)
    assert structure_of(Task(linear)) == structure_of(Task(nn.Linear(6, 3)))
    frozen = [nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3)) for _ in range(2)]
    for model in frozen:
        model[1].requires_grad_(False)
    tied = [nn.Sequential(*(nn.Linear(3, 3) for _ in range(3))) for _ in range(2)]
    for shared_with, model in enumerate(tied):
        model[2].weight = model[shared_with].weight
    different = [
        *map(Task, tied),
        Task(linear),
        Task(nn.Linear(6, 3, bias=False)),
        Task(nn.Linear(6, 3), nn.CrossEntropyLoss(label_smoothing=0.1)),
        Task(nn.Linear(6, 3), nn.CrossEntropyLoss(weight)),
        Task(nn.Linear(6, 3), nn.CrossEntropyLoss(2 * weight)),
        Task(nn.Linear(6, 3), augment=lambda x, uniform: x),
        Task(Scaled(1.0)),
        Task(Scaled(2.0)),
        *map(Task, frozen),
        Task(Scaled(threading.Lock())),  # which cannot be pickled
        Task(Scaled(threading.Lock())),
    ]
    assert len({structure_of(task).known_by for task in different}) == len(different)


def test_an_engine_elsewhere_is_itself():
    engine = Stacked()
    assert shared(engine) is engine
    (inside,) = run_in_lockstep([lambda: (shared(engine), shared(Loop()))])
    assert isinstance(inside.result()[0], lockstep.Shared)
    assert isinstance(inside.result()[1], Loop)


def test_an_interruption_ends_all_runs():
    ended = []

    def interrupt(step):
        if step.round == 2:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def tidied(seed):
        try:
            algorithm = FedAvg(m=4, local=LocalSGD(lr=0.1, **LOCAL))
            return maker(algorithm, seed, rounds=1000, callbacks=(interrupt,))()
        except Abandoned:
            ended.append(seed)
            raise

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run_in_lockstep([lambda seed=seed: tidied(seed) for seed in range(3)])
    assert sorted(ended) == [0, 1, 2]
    assert threading.active_count() == before


def test_the_time_of_a_run_is_its_own():
    def seconds(step):
        if step.round == 0:
            began.append(own_seconds())
        if step.round == ROUNDS:
            took.append(own_seconds() - began[len(took)])

    def slow(step):
        time.sleep(0.1)

    began, took = [], []
    algorithm = FedAvg(m=4, local=LocalSGD(lr=0.1, **LOCAL))
    maker(algorithm, 0)()  # so that what is traced is known
    run_in_lockstep([maker(algorithm, 0, callbacks=(seconds,)), maker(algorithm, 1, callbacks=(seconds, slow))])
    assert took[0] < 0.1 * ROUNDS <= took[1]


def test_every_run_has_its_own_number_of_threads():
    before = torch.get_num_threads()
    seen = []

    def counting(threads):
        def callback(step):
            if step.round == 0:
                torch.set_num_threads(threads)
            seen.append((threads, torch.get_num_threads()))

        return callback

    algorithm = FedAvg(m=4, local=LocalSGD(lr=0.1, **LOCAL))
    run_in_lockstep([maker(algorithm, seed, callbacks=(counting(seed + 1),)) for seed in range(2)])
    assert torch.get_num_threads() == before
    assert len(seen) == 2 * (ROUNDS + 1)
    assert all(asked == found for asked, found in seen)
