"""Test server optimisers against torch's, and in a run."""

from __future__ import annotations

import pytest
import torch
from tests.support.problems import federation
from tests.support.refusals import refused

from drfl.algorithms import DeltaFL, FedAvg, FedNova, FedProx
from drfl.optim import server_optimizers
from drfl.optim.local import LocalSGD
from drfl.optim.server_optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi, ServerMoments
from drfl.testing.state import leaves
from drfl.training.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
LOCAL = LocalSGD(steps=2, lr=0.1, batch=8)
DELTAS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def path(server):
    w = torch.zeros(5, dtype=torch.float64)
    moments, models = server.init(w), []
    for delta in DELTAS:
        w, moments = server.step(w, delta, moments)
        models.append(w)
    return torch.stack(models)


def path_of_torch(optimizer_of, before=lambda optimizer, t: None):
    w = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer, models = optimizer_of([w]), []
    for t, delta in enumerate(DELTAS, start=1):
        w.grad = -delta
        before(optimizer, t)
        optimizer.step()
        models.append(w.detach().clone())
    return torch.stack(models)


def test_momentum_and_adagrad_match_torch():
    torch.testing.assert_close(
        path(FedAvgM(0.3, 0.8)), path_of_torch(lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.8))
    )
    theirs = path_of_torch(lambda p: torch.optim.Adagrad(p, lr=0.3, eps=0.01, initial_accumulator_value=1e-4))
    torch.testing.assert_close(path(FedAdagrad(lr=0.3, tau=0.01)), theirs)


def test_fedadam_matches_torch_without_bias_correction():
    """torch corrects the bias of m and v; another η and ε in each step reverse the correction."""
    lr, tau, (b1, b2) = 0.3, 0.01, (0.9, 0.99)

    def uncorrected(optimizer, t):
        (group,) = optimizer.param_groups
        group["lr"], group["eps"] = lr * (1 - b1**t) / (1 - b2**t) ** 0.5, tau / (1 - b2**t) ** 0.5
        if t == 1:
            (w,) = group["params"]
            zeros = torch.zeros_like(w)
            optimizer.state[w] = {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros + tau**2}

    theirs = path_of_torch(lambda p: torch.optim.Adam(p, lr=lr, betas=(b1, b2)), uncorrected)
    torch.testing.assert_close(path(FedAdam(lr, b1, b2, tau)), theirs)


def test_fedyogi_by_hand():
    server, w, m, v = FedYogi(0.2, 0.5, 0.9, 0.1), [0.0] * 5, [0.0] * 5, [0.01] * 5
    for delta in DELTAS.tolist():
        for j, d in enumerate(delta):
            m[j] = 0.5 * m[j] + 0.5 * d
            v[j] += 0.1 * d * d if v[j] < d * d else -0.1 * d * d
            w[j] += 0.2 * m[j] / (v[j] ** 0.5 + 0.1)
    torch.testing.assert_close(path(server)[-1], torch.tensor(w, dtype=torch.float64))


def test_plain_server_optimizer_equals_the_mean():
    servers = (None, FedAvgM(1.0, 0.0))
    a, b = (run(FedAvg(m=3, local=LOCAL, server=server), federation(), rounds=3).state for server in servers)
    torch.testing.assert_close(a.w, b.w, rtol=0, atol=1e-14)
    assert a.server is None
    assert isinstance(b.server, ServerMoments)


@pytest.mark.parametrize(
    "make",
    [FedAvg, pytest.param(FedProx, marks=pytest.mark.long), pytest.param(DeltaFL, marks=pytest.mark.long), FedNova],
)
def test_resumed_run_has_the_same_bits(make):
    algorithm, kept = make(m=3, local=LOCAL, server=FedAdam()), []
    whole = run(algorithm, federation(), rounds=4, keep=lambda progress, stopping: kept.append(progress))
    again = run(algorithm, federation(), rounds=4, start=kept[1])
    assert {"w", "server.m", "server.v"} <= {name.removeprefix(".") for name in leaves(whole.state)}
    for name, value in leaves(whole.state).items():
        assert torch.equal(value, leaves(again.state)[name])
    assert not torch.equal(whole.state.w, run(make(m=3, local=LOCAL), federation(), rounds=4).state.w)


def test_averaged_solution_is_not_available():
    with refused("no-average", "averaged"):
        run(FedAvg(local=LOCAL, server=FedAdam()), federation(), rounds=1, averaged=True)


@pytest.mark.parametrize("name", server_optimizers.SERVER_OPTIMIZERS)
def test_optimizers_are_selected_by_name(name):
    server = server_optimizers.parse(name)
    assert server_optimizers.parse(str(server)) == server
