"""Test engines against NumPy: local steps, losses, gradients, evaluation; and gradients against finite differences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tests.support.engines import ENGINES
from tests.support.marks import crossed
from tests.support.problems import SIZES, federation, group_norm_net, pools, task_of
from tests.support.reference import Softmax, local_steps

from drfl.core.key import Key
from drfl.engine import Simulation
from drfl.engine.batches import ClientRows, draw
from drfl.optim.local import LocalSGD
from drfl.task import models

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
SOLVERS = {
    "plain": {},
    "momentum": {"momentum": 0.8},
    "weight_decay": {"weight_decay": 0.3},
    "radius": {"radius": 0.8},
    "all": {"momentum": 0.5, "weight_decay": 0.1, "radius": 0.8},
}


def close(tensor, array):
    np.testing.assert_allclose(tensor.numpy(), array, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("engine", "solver", "prox", "batch"), crossed(ENGINES, SOLVERS, [0.0, 0.7], [None, 8, 32]))
def test_local_steps_match_numpy(engine, solver, prox, batch):
    """This covers every step, snapshot and mean, with a shift, and samples drawn from the documented keys."""
    data, fed, key = pools(), federation(engine=engine), Key(6)
    problem, w = Softmax(data, 3), fed.w0 + 0.1
    shift = torch.linspace(-0.3, 0.3, 6 * len(w), dtype=torch.float64).view(6, -1)
    local = LocalSGD(steps=4, lr=0.2, batch=batch, **solver)
    replies = fed.train(torch.arange(6), w, local, key, prox=prox, shift=shift, snapshot=2, average=True)
    for i, own in enumerate(data.train):
        drawn = draw(ClientRows.of([own] * (i + 1)), torch.tensor([i]), 4, batch, key)
        count = min(len(own), batch or len(own))
        rows = [drawn.step_rows(t)[0, :count].numpy() for t in range(4)]
        path = local_steps(problem, rows, w.numpy(), lr=0.2, prox=prox, shift=shift[i].numpy(), **solver)
        close(replies.w[i], path[-1])
        close(replies.snapshot[i], path[1])
        close(replies.average[i], np.mean(path, axis=0))
    if "radius" in solver:
        assert float(replies.w.norm(dim=1).max()) == pytest.approx(0.8)


@pytest.mark.parametrize("batch", [None, 8, 32])
def test_losses_and_gradients_match_numpy(engine, batch):
    data, fed, key = pools(), federation(engine=engine), Key(6)
    problem, w = Softmax(data, 3), fed.w0 - 0.2
    losses = fed.losses(torch.arange(6), w, key, batch=batch)
    gradients = fed.gradients(torch.arange(6), w, key, batch=batch)
    assert losses.values.dtype == gradients.losses.dtype == torch.float64
    for i, own in enumerate(data.train):
        rows = (
            draw(ClientRows.of([own] * (i + 1)), torch.tensor([i]), 1, batch, key)
            .step_rows(0)[0, : min(len(own), batch or len(own))]
            .numpy()
        )
        close(losses.values[i], problem.loss(w.numpy(), rows))
        close(gradients.losses[i], problem.loss(w.numpy(), rows))
        close(gradients.values[i], problem.gradient(w.numpy(), rows))


def test_evaluation_matches_numpy(engine):
    data, fed = pools(), federation(engine=engine)
    w = fed.w0 * 2
    evaluation = fed.evaluate(w)
    test = Softmax(dataclasses.replace(data, inputs=data.test_inputs, targets=data.test_targets, train=data.test), 3)
    x, y = data.test_inputs.numpy(), data.test_targets.numpy()
    guess = (x @ w[:12].numpy().reshape(3, 4).T + w[12:].numpy()).argmax(axis=1)
    for i, rows in enumerate(test.rows):
        close(evaluation.loss[i], test.loss(w.numpy(), rows))
        close(evaluation.score[i], (guess[rows] == y[rows]).mean())
    assert evaluation.samples.tolist() == [1, 2, 3, 4, 5, 1]


def test_rows_for_testing_can_be_shared(engine):
    """Clients can be tested on the same samples, in any order."""
    data = pools()
    test = (torch.tensor([3, 1, 2]), torch.tensor([2, 3, 1]), *data.test[2:])
    fed = Simulation(dataclasses.replace(data, test=test), task_of(), engine=engine)
    evaluation = fed.evaluate(fed.w0)
    close(evaluation.loss[0], evaluation.loss[1].numpy())
    assert evaluation.score[0] == evaluation.score[1]


@pytest.mark.parametrize("model", [models.linear, models.mlp, models.cnn, group_norm_net])
def test_gradients_match_finite_differences(engine, model):
    shape = (1, 4, 4)
    fed = federation((3, 7), engine=engine, model=model, shape=shape)
    direction = torch.randn(2, len(fed.w0), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = fed.gradients(torch.arange(2), fed.w0, Key(0)).values
    for v in direction:
        step = 1e-6 * v
        above, below = (fed.losses(torch.arange(2), fed.w0 + s, Key(0)).values for s in (step, -step))
        torch.testing.assert_close((above - below) / 2e-6, gradients @ v, rtol=1e-5, atol=1e-6)


def test_float32_is_close_to_float64(engine):
    single, double = federation(engine=engine, dtype=torch.float32), federation(engine=engine)
    ask = (torch.arange(len(SIZES)), LocalSGD(steps=5, lr=0.1), Key(0))
    a = single.train(ask[0], double.w0.float(), *ask[1:]).w
    b = double.train(ask[0], double.w0, *ask[1:]).w
    assert a.dtype == torch.float32
    torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-5)
    assert single.losses(ask[0], single.w0, Key(0)).values.dtype == torch.float64
