"""Test local epochs, Adam and SAM against torch, in all engines."""

from __future__ import annotations

import pytest
import torch
from tests.support.marks import long_except
from tests.support.problems import SIZES, federation, group_norm_net, pools, task_of

from drfl.algorithms import FedNova
from drfl.core.key import Key
from drfl.engine import Loop, Stacked, Threads
from drfl.engine.batches import ClientRows, draw_epochs
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import SAM, Adam
from drfl.task import models
from drfl.training.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
SOLVERS = {
    "epochs": {"epochs": 3, "batch": 7},
    "epochs, all at once": {"epochs": 3, "batch": None},
    "epochs, batch larger than all": {"epochs": 2, "batch": 500, "momentum": 0.5},
    "epochs, momentum": {"epochs": 2, "batch": 32, "momentum": 0.8, "radius": 0.9, "weight_decay": 0.1},
    "adam": {"steps": 4, "optimizer": Adam(), "weight_decay": 0.1},
    "adam, epochs": {"epochs": 2, "batch": 16, "optimizer": Adam(0.5, 0.9, 0.1), "radius": 0.9},
    "sam": {"steps": 4, "optimizer": SAM(0.2), "momentum": 0.5},
    "sam, epochs": {"epochs": 2, "batch": 16, "optimizer": SAM(), "weight_decay": 0.1},
}
MODELS = {"linear": {}, "group_norm": {"model": group_norm_net, "shape": (1, 4, 4)}}


CASES = [(solver, model) for model in MODELS.values() for solver in SOLVERS.values()]
NAMES = [f"{model}, {solver}" for model in MODELS for solver in SOLVERS]
KEPT = ["linear, epochs, momentum", "linear, adam, epochs", "linear, sam", "linear, epochs, batch larger than all"]


@pytest.mark.parametrize(("solver", "model"), long_except(KEPT, CASES, NAMES))
def test_engines_agree(solver, model):
    sizes, local = (1, 20, 31, 33), LocalSGD(lr=0.1, **solver)
    replies, costs = [], []
    for engine in (Loop(), Stacked(), Stacked(0.002), Threads(2)):
        fed = federation(sizes, engine=engine, **model)
        shift = torch.linspace(-0.3, 0.3, 3 * len(fed.w0), dtype=torch.float64).view(3, -1)
        cohort = torch.tensor([3, 0, 1])
        replies.append(fed.train(cohort, fed.w0 + 0.1, local, Key(1), prox=0.4, shift=shift, average=True))
        costs.append(fed.ledger.gradient_evaluations)
    for other in replies[1:]:
        torch.testing.assert_close(other.w, replies[0].w, rtol=0, atol=1e-10)
        torch.testing.assert_close(other.average, replies[0].average, rtol=0, atol=1e-10)
    samples = local.epochs * (33 + 1 + 20) if local.epochs else 4 * (32 + 1 + 20)
    assert set(costs) == {samples * local.optimizer.gradients}


@pytest.mark.parametrize("epochs", [1, 3])
def test_epoch_takes_every_sample_once_in_the_clients_order(epochs):
    rows, clients = ClientRows.of([torch.arange(n) + 1000 * i for i, n in enumerate(SIZES)]), torch.tensor([5, 2, 4])
    found = draw_epochs(rows, clients, epochs, 32, Key(4))
    taken = [[rows for rows, _ in found.of_client(j, 0)] for j in range(3)]
    for own, i in zip(taken, clients.tolist(), strict=True):
        per_epoch = -(-SIZES[i] // 32)
        assert len(own) == epochs * per_epoch
        orders = [torch.cat(own[e * per_epoch : (e + 1) * per_epoch]) for e in range(epochs)]
        assert all(torch.equal(order.sort().values, rows.of_client(i)) for order in orders)
        assert len({tuple(order.tolist()) for order in orders}) == (epochs if per_epoch > 1 else 1)
    assert torch.equal(draw_epochs(rows, clients[2:], epochs, 32, Key(4)).samples[0], found.samples[2, : 2 * epochs])
    alone = draw_epochs(rows, clients[1:2], epochs, 32, Key(4))
    assert all(torch.equal(a, b) for a, (b, _) in zip(taken[1], alone.of_client(0, epochs), strict=True))
    assert LocalSGD(epochs=epochs).steps_of(rows.sizes, clients).tolist() == [len(own) for own in taken]


def gradient(task, data, w):
    w = w.clone().requires_grad_()
    outputs = task.outputs(task.layout.views(w), data.inputs[data.train[4]])
    return torch.autograd.grad(task.sample_losses(outputs, data.targets[data.train[4]]).mean(), w)[0]


def test_adam_matches_torch():
    data, task, fed = pools(), task_of(models.linear), federation()
    local = LocalSGD(steps=5, lr=0.05, batch=None, weight_decay=0.3, optimizer=Adam(0.8, 0.95, 1e-4))
    found = fed.train(torch.tensor([4]), fed.w0, local, Key(0)).w[0]
    w = fed.w0.clone().requires_grad_()
    optimizer = torch.optim.Adam([w], lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3)
    for _ in range(5):
        w.grad = gradient(task, data, w.detach())
        optimizer.step()
    torch.testing.assert_close(found, w.detach(), rtol=0, atol=1e-12)


def test_sam_matches_the_paper():
    data, task, fed = pools(), task_of(models.linear), federation()
    found = fed.train(torch.tensor([4]), fed.w0, LocalSGD(3, 0.1, None, optimizer=SAM(0.3)), Key(0)).w[0]
    w = fed.w0
    for _ in range(3):
        g = gradient(task, data, w)
        w = w - 0.1 * gradient(task, data, w + 0.3 * g / g.norm())
    torch.testing.assert_close(found, w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", [Stacked(), Threads(2)], ids=repr)
def test_snapshot_with_epochs_is_refused(engine):
    fed = federation(engine=engine)
    with pytest.raises(ValueError, match="snapshot=1"):
        fed.train(torch.arange(2), fed.w0, LocalSGD(epochs=1, lr=0.1), Key(0), snapshot=1)


@pytest.mark.long
def test_whole_runs_agree():
    algorithm = FedNova(m=4, local=LocalSGD(epochs=2, lr=0.1, momentum=0.5))
    a, b, c = (run(algorithm, federation(engine=e), rounds=3).state.w for e in (Loop(), Stacked(), Threads(2)))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    torch.testing.assert_close(a, c, rtol=0, atol=1e-10)
