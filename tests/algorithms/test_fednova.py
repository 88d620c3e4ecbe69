"""Test FedNova, and SCAFFOLD with epochs, against a literal loop over clients and steps."""

from __future__ import annotations

import pytest
import torch
from tests.support.problems import SIZES, federation, pools, task_of
from tests.support.refusals import refused

from drfl.algorithms import SCAFFOLD, FedAvg, FedNova
from drfl.core.key import Key
from drfl.engine.batches import ClientRows, draw_epochs
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import SAM
from drfl.testing import ConstantFederation

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
N = len(SIZES)


def gradient(w, rows, data, task):
    w = w.clone().requires_grad_()
    loss = task.sample_losses(task.outputs(task.layout.views(w), data.inputs[rows]), data.targets[rows]).mean()
    return torch.autograd.grad(loss, w)[0]


def gradients_on_the_way(x, i, key, beta):
    """Return client i's gradients g_i, (τ_i, d), along two epochs of steps of 0.1 from x."""
    data, task, found = pools(), task_of(), []
    drawn = draw_epochs(ClientRows.of(data.train), torch.arange(N), 2, 8, key.fold("sgd"))
    u, velocity = x, torch.zeros_like(x)
    for rows, _ in drawn.of_client(i, 2):
        found.append(gradient(u, rows, data, task))
        velocity = beta * velocity + found[-1]
        u = u - 0.1 * velocity
    return torch.stack(found)


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_round_matches_the_paper(beta):
    """x ← x − τ_eff·η·Σ_i p_i·G_i a_i/‖a_i‖₁, with a_i from the paper's formula for momentum."""
    fed, key = federation(), Key(2).fold("round", 1)
    algorithm = FedNova(m=N, local=LocalSGD(epochs=2, lr=0.1, batch=8, momentum=beta))
    state, info = algorithm.round(algorithm.init(fed), fed, key)
    p, move, effective = torch.tensor(SIZES) / sum(SIZES), torch.zeros_like(fed.w0), 0.0
    for i in range(N):
        G = gradients_on_the_way(fed.w0, i, key, beta)
        tau_i = len(G)
        a = torch.tensor([(1 - beta ** (tau_i - k)) / (1 - beta) for k in range(tau_i)], dtype=torch.float64)
        norm = (tau_i - beta * (1 - beta**tau_i) / (1 - beta)) / (1 - beta)
        assert float(a.sum()) == pytest.approx(norm)
        move, effective = move + p[i] * (a @ G) / norm, effective + p[i] * norm
    torch.testing.assert_close(state.w, fed.w0 - effective * 0.1 * move, rtol=0, atol=1e-7)
    assert info.answered.numel() == N


def test_fednova_differs_from_fedavg_with_epochs_and_equals_it_with_steps():
    for local, same in ((LocalSGD(epochs=1, lr=0.1, batch=8), False), (LocalSGD(steps=3, lr=0.1), True)):
        fed = federation()
        a, b = (make(m=N, local=local).round(make().init(fed), fed, Key(0))[0].w for make in (FedNova, FedAvg))
        assert torch.allclose(a, b, rtol=0, atol=1e-14) == same


def test_scaffold_divides_by_the_number_of_steps_of_each_client():
    fed, key = federation(), Key(2).fold("round", 1)
    algorithm = SCAFFOLD(m=N, local=LocalSGD(epochs=2, lr=0.1, batch=8))
    state, _ = algorithm.round(algorithm.init(fed), fed, key)
    # Controls are initially 0, so option II gives each client the mean of its gradients.
    expected = torch.stack([gradients_on_the_way(fed.w0, i, key, 0.0).mean(0) for i in range(N)])
    torch.testing.assert_close(state.c_i[torch.arange(N)], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(state.c, expected.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("solver", [{"radius": 1.0}, {"optimizer": SAM()}], ids=str)
def test_unsupported_local_solvers_are_refused(solver):
    with refused("unsupported-combination", next(iter(solver)), "FedNova"):
        FedNova(local=LocalSGD(lr=0.1, **solver))


@pytest.mark.parametrize("make", [FedNova, FedAvg, SCAFFOLD])
def test_epochs_require_known_client_sizes(make):
    with refused("unsupported-combination", "epochs"):
        make(local=LocalSGD(epochs=1, lr=0.1)).init(ConstantFederation([1.0, 2.0, 3.0]))
