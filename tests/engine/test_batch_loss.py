"""Test losses of a whole batch against plain torch loops, in every engine."""

from __future__ import annotations

import functools
import logging

import pytest
import torch
from tests.support.engines import ALL_ENGINES, same
from tests.support.marks import crossed
from tests.support.objectives import LR, same_as_plain_loops
from tests.support.refusals import refused
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import drfl
from drfl.engine.batches import draw
from drfl.federation.requests import TrainRequest
from drfl.optim.local import LocalSGD
from drfl.task.losses import Loss

pytestmark = pytest.mark.usefixtures("ray", "global_generator_untouched")

SIZES = {"a": 9, "b": 33, "c": 12, "d": 33}
STARTS = [0, 9, 42, 54]


def dice(outputs, targets):
    p = outputs.sigmoid()
    return 1 - 2 * (p * targets).sum() / (p.sum() + targets.sum() + 1e-9)


def contrastive(features, targets):
    """Compute the supervised contrastive loss of Khosla et al. (2020), equation 2."""
    labels = targets[:, 0]
    z = functional.normalize(features, dim=1)
    others = ~torch.eye(len(z), dtype=torch.bool)
    logs = (z @ z.T / 0.5).masked_fill(~others, -torch.inf).log_softmax(1)
    same_label = (labels[:, None] == labels) & others
    return -(logs.masked_fill(~same_label, 0).sum(1) / same_label.sum(1).clamp(min=1)).mean()


def unvectorised(outputs, targets):
    """Compute the Dice loss in a way that vmap cannot handle."""
    return dice(outputs, targets) if float(outputs.detach().sum()) > -1e9 else outputs.sum()


class Weighted(nn.Module):
    """A module with a tensor, and an option ``reduction`` that must stay as it is."""

    def __init__(self):
        super().__init__()
        self.reduction = "mean"
        self.register_buffer("weight", torch.tensor([1.0, 2.0], dtype=torch.float64))

    def forward(self, outputs, targets):
        assert self.reduction == "mean"
        return dice(outputs * self.weight, targets)


LOSSES = {"dice": dice, "contrastive": contrastive, "unvectorised": unvectorised, "module": Weighted()}
every_loss = pytest.mark.parametrize("name", LOSSES)


def clients(sizes=SIZES, seed=0):
    generator, made = torch.Generator().manual_seed(seed), {}
    for i, (name, n) in enumerate(sizes.items()):
        x = torch.randn(n, 4, generator=generator, dtype=torch.float64) + i / 3
        made[name] = x, (x[:, :2] > 0.3).double()
    return made


def setting(name, between=nn.Tanh):
    train, test = clients(), clients(dict.fromkeys(SIZES, 10), 1)
    with drfl.Key(0).torch_scope():
        model = nn.Sequential(nn.Linear(4, 5), between(), nn.Linear(5, 2)).double()
    task = drfl.Task(model, loss=drfl.BatchLoss(LOSSES[name]), score="auc")
    return train, test, drfl.ClientData.from_arrays(train, test, dtype=None), task


def loss_on(task, name, pair, rows=slice(None)):
    x, y = (each[rows] for each in pair)
    return lambda w: LOSSES[name](functional_call(task.model, task.layout.views(w), (x,)), y)


@pytest.mark.parametrize(("engine", "name"), crossed(list(ALL_ENGINES), list(LOSSES)))
def test_rounds_match_plain_torch_loops(name, engine):
    train, test, data, task = setting(name)
    fed = drfl.Simulation(data, task, engine=ALL_ENGINES[engine])
    w = same_as_plain_loops(fed, [loss_on(task, name, pair) for pair in train.values()])
    own = torch.stack([loss_on(task, name, pair)(w) for pair in test.values()])
    same(fed.evaluate(w).loss, own)
    outputs = functional_call(task.model, task.layout.views(w), (torch.cat([x for x, _ in test.values()]),))
    evaluation, _ = fed.tested_outputs(outputs)
    same(evaluation.loss, own)
    same(evaluation.score, fed.evaluate(w).score)


@pytest.mark.parametrize(("engine", "name"), crossed(list(ALL_ENGINES), list(LOSSES)))
@pytest.mark.parametrize("epochs", [pytest.param(None, marks=pytest.mark.long), 1])
def test_batches_are_never_padded(name, engine, epochs):
    train, _, data, task = setting(name)
    fed, key, cohort = drfl.Simulation(data, task, engine=ALL_ENGINES[engine]), drfl.Key(3), torch.arange(4)
    local = LocalSGD(steps=3 if epochs is None else None, epochs=epochs, lr=LR, batch=10)
    replies, reports = fed.train(cohort, task.w0, local, key), fed.losses(cohort, task.w0, key, batch=10)
    gradients = fed.gradients(cohort, task.w0, key, batch=10)
    for i, pair in enumerate(train.values()):
        u = task.w0
        alone, steps = fed._drawn(TrainRequest(cohort[i : i + 1], u, key, local))
        for rows, _ in alone.of_client(0, steps):
            v = u.clone().requires_grad_()
            u = u - LR * torch.autograd.grad(loss_on(task, name, pair, rows - STARTS[i])(v), v)[0]
        same(replies.w[i], u)
        ((rows, _),) = draw(fed._rows, cohort[i : i + 1], 1, 10, key).of_client(0, 1)
        v = task.w0.requires_grad_()
        value = loss_on(task, name, pair, rows - STARTS[i])(v)
        same(reports.values[i], value.detach())
        same(gradients.losses[i], value.detach())
        same(gradients.values[i], torch.autograd.grad(value, v)[0])


def test_sequential_computation_is_logged_once(caplog):
    caplog.set_level(logging.INFO, "drfl.engine")
    for name, lines in (("dice", 1), ("unvectorised", 2)):
        caplog.clear()
        *_, data, task = setting(name)
        drfl.run(drfl.FedAvg(m=4), drfl.Simulation(data, task, engine=ALL_ENGINES["stacked"]), rounds=3)
        assert len([record for record in caplog.records if record.name == "drfl.engine"]) == lines


@pytest.mark.long
def test_mean_over_rows_equals_a_batch_loss():
    *_, data, task = setting("dice")
    plain = drfl.Task(task.model, loss=nn.BCEWithLogitsLoss(), score="auc")
    whole = drfl.Task(task.model, loss=drfl.BatchLoss(nn.BCEWithLogitsLoss()), score="auc")
    algorithm = drfl.DRFA(m=3, local=LocalSGD(steps=3, lr=0.1, batch=8))
    first, second = (drfl.run(algorithm, drfl.Simulation(data, one), rounds=3) for one in (plain, whole))
    same(first.model, second.model)
    same(first.evaluation.loss, second.evaluation.loss)


@pytest.mark.long
def test_dropout_and_client_side_methods_are_supported():
    *_, data, task = setting("dice", functools.partial(nn.Dropout, 0.3))
    for algorithm in (drfl.Ditto(), drfl.MOON(), drfl.MIME()):
        models = [
            drfl.run(algorithm, drfl.Simulation(data, task, engine=e), rounds=2).model for e in ALL_ENGINES.values()
        ]
        for model in models[1:]:
            same(model, models[0], 1e-10)


@pytest.mark.long
def test_batch_loss_runs_resumes_and_compares_in_two_processes(tmp_path):
    *_, data, task = setting("module")
    pair = {"FedAvg": drfl.FedAvg(m=2), "DualDRDM": drfl.DualDRDM(m=2)}
    options = {"data": data.with_validation(0.3), "task": task, "rounds": 3, "seeds": 1, "progress": None}
    for folder, more in (("one", {}), ("two", {"jobs": 2})):
        drfl.compare(pair, **options, **more, out=tmp_path / folder)
    for name in pair:
        files = [tmp_path / f"{folder}/{name}-seed0/model.safetensors" for folder in ("one", "two")]
        assert files[0].read_bytes() == files[1].read_bytes()
    fed, checkpoints = drfl.Simulation(data, task), drfl.Checkpoints(tmp_path / "run", every=1)
    drfl.run(pair["DualDRDM"], fed, rounds=2, checkpoints=checkpoints)
    resumed = drfl.run(pair["DualDRDM"], drfl.Simulation(data, task), rounds=4, checkpoints=checkpoints)
    assert torch.equal(resumed.model, drfl.run(pair["DualDRDM"], fed, rounds=4).model)


def test_error_for_each_kind_of_loss_names_the_other():
    *_, data, task = setting("dice")
    model = task.model
    with refused("wrong-shape", "the loss", "drfl.BatchLoss"):
        drfl.Simulation(data, drfl.Task(model, loss=dice, score="auc"))
    with refused("unsupported-model", "loss", "drfl.BatchLoss"):
        drfl.Simulation(data, drfl.Task(model, loss=lambda o, y: dice(o, y).expand(len(y)), score="auc"))
    with refused("wrong-shape", "the loss", "BatchLoss"):
        drfl.Simulation(data, drfl.Task(model, loss=drfl.BatchLoss(lambda o, y: (o - y).square().mean(1)), score="auc"))


def test_tensors_of_the_loss_move_with_it():
    moved = drfl.BatchLoss(Weighted()).to("cpu", torch.float32)
    assert isinstance(moved, drfl.BatchLoss)
    assert moved.given.weight.dtype == torch.float32
    assert isinstance(Loss.of(moved), drfl.BatchLoss)
