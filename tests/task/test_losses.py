"""Test losses by name, alone and in every engine."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as functional
from tests.support.engines import ENGINES
from tests.support.marks import crossed
from tests.support.problems import pools

from drfl.algorithms import DRDM, ScaffPD
from drfl.core.key import Key
from drfl.core.vmap import values_and_gradients, vmap
from drfl.engine import Loop, Simulation, Threads
from drfl.experiments.config.own_data import LOSSES_OF
from drfl.optim.local import LocalSGD
from drfl.task.losses import Loss
from drfl.task.models import LOSSES, half_squared_error, linear
from drfl.task.task import Task
from drfl.training.loop import run

OUTPUTS = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.tensor([0, 3, 1, 1, 2, 0, 3])


def test_squared_loss_is_half_the_squared_distance():
    assert half_squared_error(torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([0, 0])).tolist() == [2.5, 0.0]
    expected = functional.mse_loss(OUTPUTS, functional.one_hot(LABELS, 4).double(), reduction="none").sum(1) / 2
    torch.testing.assert_close(half_squared_error(OUTPUTS, LABELS), expected)


def test_gradient_of_the_squared_loss():
    outputs = OUTPUTS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(half_squared_error(outputs, LABELS).sum(), outputs)
    torch.testing.assert_close(gradient, OUTPUTS - functional.one_hot(LABELS, 4))


def test_squared_loss_can_be_vmapped():
    mapped = torch.vmap(lambda o, y: half_squared_error(o[None], y[None])[0])(OUTPUTS, LABELS)
    torch.testing.assert_close(mapped, half_squared_error(OUTPUTS, LABELS))


@pytest.mark.parametrize(
    ("algorithm", "loss", "engine"),
    crossed({"DRDM": DRDM(m=3, local=LocalSGD(steps=3, lr=0.1)), "ScaffPD": ScaffPD()}, list(LOSSES), ENGINES),
)
def test_every_engine_trains_with_the_squared_loss(algorithm, loss, engine):
    of_labels, data = loss in LOSSES_OF["classification"], pools()
    if not of_labels:
        data = replace(data, targets=(data.targets > 0).double(), test_targets=(data.test_targets > 0).double())
    with Key(0).torch_scope():
        task = Task(linear((4,), 3 if of_labels else 1).double(), LOSSES[loss])
    w = [run(algorithm, Simulation(data, task, engine=e), rounds=2).state.w for e in (Loop(), engine)]
    torch.testing.assert_close(w[1], w[0], rtol=0, atol=1e-10)
    assert not torch.allclose(w[0], task.w0)


def test_training_finds_the_least_squares_solution():
    data = pools((60,))
    with Key(0).torch_scope():
        task = Task(linear((4,), 3).double(), half_squared_error)
    fed = Simulation(data, task, engine=Threads(1))
    rows = data.train[0]
    design = torch.cat([data.inputs[rows], torch.ones(60, 1, dtype=torch.float64)], 1)
    best = torch.linalg.lstsq(design, functional.one_hot(data.targets[rows], 3).double()).solution
    w = torch.cat([best[:4].T.reshape(-1), best[4]])
    gradient = fed.gradients(torch.tensor([0]), w, Key(0)).values[0]
    assert gradient.abs().max() < 1e-12
    assert fed.gradients(torch.tensor([0]), w + 1, Key(0)).values[0].abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_vectorised_cross_entropy_has_the_bits_of_torch(dtype, ignored):
    x, parameters = torch.randn(4, 9, 5, dtype=dtype), torch.randn(4, 5, 3, dtype=dtype)
    y, weights = torch.randint(3, (4, 9)), torch.rand(4, 9, dtype=dtype)
    y[:, 1] = ignored

    def step(x, y, weights, w, loss):
        return values_and_gradients(lambda w: (loss(x @ w, y), ()), [w], weights)[:2]

    def of(loss):
        values, (gradients,) = vmap(functools.partial(step, loss=loss))(x, y, weights, parameters)
        return values, gradients

    torchs = functools.partial(functional.cross_entropy, ignore_index=ignored, reduction="none")
    ours = Loss(torch.nn.CrossEntropyLoss(ignore_index=ignored))
    assert ours.is_plain
    for found, known in zip(of(ours), of(torchs), strict=True):
        assert torch.equal(found, known)


@pytest.mark.parametrize(
    ("loss", "plain"),
    [
        (functional.cross_entropy, True), (functools.partial(functional.cross_entropy, ignore_index=3), True),
        (torch.nn.CrossEntropyLoss(weight=torch.ones(2)), False),
        (torch.nn.CrossEntropyLoss(label_smoothing=0.1), False),
        (functools.partial(functional.cross_entropy, label_smoothing=0.1), False),
        (functools.partial(functional.cross_entropy, weight=torch.ones(2)), False), (torch.nn.NLLLoss(), False),
        (functional.nll_loss, False), (type("Own", (torch.nn.CrossEntropyLoss,), {})(), False),
    ],
)  # fmt: skip
def test_only_cross_entropy_without_options_is_plain(loss, plain):
    assert Loss(loss).is_plain == plain
