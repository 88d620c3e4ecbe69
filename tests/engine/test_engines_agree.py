"""Test that all engines agree with Loop to 1e-10 in float64, for all client sizes, solvers and models."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from tests.support.engines import ENGINES
from tests.support.marks import crossed, long_beyond, long_except
from tests.support.problems import SIZES, federation, group_norm_net, pools

from drfl.algorithms import DRDM, DRFA, FedAvg
from drfl.core.key import Key
from drfl.engine import Loop, Simulation, Stacked, Threads
from drfl.optim.local import LocalSGD
from drfl.task import models
from drfl.task.losses import Loss
from drfl.task.task import Task
from drfl.testing.state import leaves
from drfl.training.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
MANY = (1, 2, 31, 32, 33, 400, 2100)
IMAGES = {"shape": (1, 8, 8)}


class Unused(torch.nn.Module):
    """A linear model with a parameter that the outputs do not depend on."""

    def __init__(self, shape, classes) -> None:
        super().__init__()
        self.unused, self.used = torch.nn.Linear(2, 2), models.linear(shape, classes)

    def forward(self, x):
        return self.used(x)


MODELS = {
    "linear": {"model": models.linear},
    "mlp": {"model": models.mlp},
    "unused": {"model": Unused},
    "deep": {"model": lambda shape, classes: models.mlp(shape, classes, (7, 5))},
    "cnn": {"model": models.cnn, **IMAGES},
    "group_norm": {"model": group_norm_net, **IMAGES},
}
SOLVERS = {
    "plain": {},
    "larger_than_the_data": {"batch": 5000},
    "full": {"batch": None},
    "one_sample": {"batch": 1},
    "momentum": {"momentum": 0.8},
    "weight_decay": {"weight_decay": 0.3},
    "radius": {"radius": 0.9},
    "all": {"momentum": 0.5, "weight_decay": 0.1, "radius": 0.9, "batch": 7},
}


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def pair(sizes, engine, **options):
    return federation(sizes, engine=Loop(), **options), federation(sizes, engine=engine, **options)


def train_both(pair_of_federations, local, cohort=None):
    """Return both engines' replies with prox, shift, snapshot and average at once."""
    n, d = pair_of_federations[0].n, len(pair_of_federations[0].w0)
    cohort = torch.arange(n) if cohort is None else cohort
    rng = torch.Generator().manual_seed(0)
    shift = torch.randn(len(cohort), d, generator=rng, dtype=torch.float64) / 10
    w = pair_of_federations[0].w0 + torch.randn(d, generator=rng, dtype=torch.float64) / 10
    options = {"prox": 0.6, "shift": shift, "snapshot": 2, "average": True}
    return [fed.train(cohort, w, local, Key(1), **options) for fed in pair_of_federations]


@pytest.mark.parametrize(("solver", "engine"), crossed(SOLVERS, [Stacked(), Stacked(0.002), Threads(3)]))
def test_training_agrees_with_the_loop(solver, engine):
    replies = train_both(pair(MANY, engine), LocalSGD(**{"steps": 4, "lr": 0.1, **solver}))
    for a, b in zip(*replies, strict=True):
        same(a, b)
    assert replies[0].snapshot.shape == replies[0].average.shape == replies[0].w.shape == (len(MANY), 15)


@pytest.mark.parametrize("bad", [{"lr": 1e300}, {"weight_decay": 1e300}], ids=str)
def test_overflow_of_the_model_type_diverges(bad, engine):
    fed = federation(SIZES, engine=engine, dtype=torch.float32)
    assert not fed.train(torch.arange(3), fed.w0 + 1, LocalSGD(**{"lr": 0.1, **bad}), Key(1)).w.isfinite().all()
    assert not fed.train(torch.arange(3), fed.w0 + 1, LocalSGD(lr=0.1), Key(1), prox=1e300).w.isfinite().all()


def test_projection_spreads_nan_to_the_whole_model(engine):
    fed = federation(SIZES, engine=engine, model=Unused)
    w = fed.w0.clone()
    w[0] = torch.nan  # of the layer that the outputs do not depend on
    reply = fed.train(torch.arange(3), w, LocalSGD(lr=0.1, radius=0.9), Key(1))
    assert reply.w.isnan().all()


@pytest.mark.parametrize(
    ("model", "batch"), crossed(long_except(["linear", "group_norm"], MODELS.values(), MODELS), [8, None])
)
def test_all_models_agree_with_the_loop(model, batch):
    sizes = (1, 2, 9, 20)
    for engine in (Stacked(), Stacked(0.005), Threads(2)):
        for a, b in zip(*train_both(pair(sizes, engine, **model), LocalSGD(steps=3, lr=0.1, batch=batch)), strict=True):
            same(a, b)


@pytest.mark.parametrize("model", long_except(["linear", "group_norm"], MODELS.values(), MODELS))
def test_losses_gradients_and_evaluation_agree(model):
    for engine in (Stacked(), Stacked(0.005), Threads(2)):
        loop, other = pair((1, 2, 9, 40), engine, **model)
        cohort = torch.tensor([3, 0, 2])
        for batch in (4, None):
            ask = {"cohort": cohort, "w": loop.w0, "key": Key(3), "batch": batch}
            same(loop.losses(**ask).values, other.losses(**ask).values)
            for a, b in zip(loop.gradients(**ask), other.gradients(**ask), strict=True):
                same(a, b)
            same(loop.gradients(**ask).losses, loop.losses(**ask).values)
        for a, b in zip(loop.evaluate(loop.w0), other.evaluate(loop.w0), strict=True):
            same(a, b)


@pytest.mark.parametrize(("engine", "snapshot", "average"), crossed(ENGINES, [None, 1, 3], [False, True]))
def test_only_requested_parts_are_returned(engine, snapshot, average):
    fed = federation((3, 50), engine=engine)
    replies = fed.train(torch.arange(2), fed.w0, LocalSGD(steps=3, lr=0.1), Key(0), snapshot=snapshot, average=average)
    for asked, part in ((snapshot is not None, replies.snapshot), (average, replies.average)):
        assert part.shape == (2, len(fed.w0)) if asked else part is None
    if snapshot == 3:
        assert torch.equal(replies.snapshot, replies.w)


def algorithms():
    for batch, solver in itertools.product((16, None), ({}, {"momentum": 0.5, "weight_decay": 0.01})):
        local = LocalSGD(steps=3, lr=0.1, batch=batch, **solver)
        yield FedAvg(m=4, local=local)
        yield DRFA(m=4, gamma=0.02, local=local, dual_batch=batch)
        yield DRDM(m=4, mu=0.5, gamma=0.01, local=local, dual_batch=batch)


@pytest.mark.parametrize(
    "algorithm", long_beyond(1, algorithms(), [f"{type(a).__name__}-{k}" for k, a in enumerate(algorithms())])
)
@pytest.mark.parametrize("engine", [Stacked(), Threads(2)], ids=repr)
def test_whole_runs_agree(algorithm, engine):
    results = [run(algorithm, fed, rounds=6, seed=7, averaged=True) for fed in pair((*SIZES, 700), engine)]
    for part in ("state", "average"):
        a, b = (leaves(getattr(result, part)) for result in results)
        assert a.keys() == b.keys()
        for path, left in a.items():
            same(left, b[path])


def test_requests_do_not_carry_over_state(engine):
    """Momentum starts from zero in every round, so the same request gets the same reply."""
    fed, local = federation(engine=engine), LocalSGD(steps=3, lr=0.1, momentum=0.9)
    first = fed.train(torch.arange(6), fed.w0, local, Key(0)).w
    fed.train(torch.arange(6), first.mean(0), local, Key(1))
    assert torch.equal(first, fed.train(torch.arange(6), fed.w0, local, Key(0)).w)


def test_given_model_is_never_modified(engine):
    fed = federation(engine=engine)
    before, w = fed.w0.clone(), fed.w0 + 1
    fed.train(torch.arange(6), w, LocalSGD(steps=2, lr=0.1), Key(0), snapshot=1, average=True)
    fed.gradients(torch.arange(6), w, Key(0))
    fed.evaluate(w)
    assert torch.equal(fed.w0, before)
    assert torch.equal(w, before + 1)


def test_targets_with_several_positions(engine):
    """Each row has a class for each of several positions, over which losses and scores are averaged."""
    data = pools((3, 20, 5), shape=(1, 6))
    labels = [t[:, None].repeat(1, 6) for t in (data.targets, data.test_targets)]
    labels[1][:, ::2] = (labels[1][:, ::2] + 1) % 3
    data = dataclasses.replace(data, targets=labels[0], test_targets=labels[1])
    with Key(0).torch_scope():
        task = Task(torch.nn.Conv1d(1, 3, 3, padding=1).double())
    fed = Simulation(data, task, engine=engine)
    loss, accuracy = [], []
    with torch.no_grad():
        outputs = task.model(data.test_inputs)
    for rows in data.test:
        loss.append(torch.nn.functional.cross_entropy(outputs[rows], labels[1][rows]))
        accuracy.append((outputs[rows].argmax(1) == labels[1][rows]).double().mean())
    evaluation = fed.evaluate(fed.w0)
    same(evaluation.loss, torch.stack(loss))
    same(evaluation.score, torch.stack(accuracy))


@pytest.mark.parametrize(("engine", "prox"), crossed(ENGINES, [0.1, 0.7, 3.0]))
def test_model_with_zero_gradient_stays_bitwise_unchanged(engine, prox):
    """The proximal term is 0 at w, so its rounding must not move float32 models."""
    fed = federation(engine=engine, dtype=torch.float32)
    object.__setattr__(fed._train.task, "loss", Loss(lambda outputs, y: 0 * outputs.sum(1)))
    w = fed.w0 + torch.linspace(-2, 2, len(fed.w0))
    up = fed.train(torch.arange(6), w, LocalSGD(steps=60, lr=0.1, batch=4), Key(0), prox=prox)
    moved = (up.w - w).abs() / w.abs()
    assert float(moved.max()) < 3e-7
    assert abs(float(((up.w - w) / w).mean())) < 1e-8
