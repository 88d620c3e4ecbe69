"""Test FGDRO-KL-Adam beyond its conformance row:

weights, objective, extreme temperatures, and the hook that it uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tests.support import hidden
from tests.support.refusals import refused

import drfl
from drfl.algorithms import FGDROKLAdam
from drfl.cli import app
from drfl.engine import Loop, Simulation, Stacked
from drfl.federation.local_method import StepContext
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import Adam
from drfl.task.task import Task

LOCAL = LocalSGD(steps=5, lr=0.02, batch=None)


def simulation(dtype=torch.float64, engine=None):
    return Simulation(hidden.data(dtype), Task(hidden.model().to(dtype)), engine=engine or Loop())


def context_of(fed, u, log_v):
    one, zeros = torch.ones(()).double(), torch.zeros_like(fed.w0)
    state = {"u": torch.tensor(u).double(), "u_known": one}
    shared = {"log_v": torch.tensor(log_v).double(), "v_known": one, "m": zeros, "q": zeros}
    return StepContext(fed.model, state, shared)


def test_client_with_a_larger_loss_has_a_larger_weight():
    fed, algorithm = simulation(), FGDROKLAdam(temperature=0.5, beta1=1.0, beta3=1.0)
    gradient, weights = torch.ones_like(fed.w0), []
    for loss in (1.0, 2.0):
        _, new = algorithm.direction(gradient, torch.tensor(loss).double(), context_of(fed, 0.0, 3.0))
        weights.append(float(new["m"][0]))
    v = [0.9 * torch.e**3 + 0.1 * torch.e ** (loss / 0.5) for loss in (1.0, 2.0)]
    assert weights == pytest.approx([torch.e**2 / v[0], torch.e**4 / v[1]])


@pytest.mark.parametrize("temperature", [pytest.param(1e-4, marks=pytest.mark.long), 1e6])
def test_extreme_temperatures_do_not_overflow(temperature):
    end = drfl.run(FGDROKLAdam(m=5, local=LOCAL, temperature=temperature), simulation(torch.float32), rounds=5)
    assert end.state.w.isfinite().all()
    assert end.state.shared.isfinite().all()


@pytest.mark.long
def test_small_temperature_lowers_its_objective():
    def objective(temperature):
        fed = simulation()
        algorithm = FGDROKLAdam(m=5, local=LOCAL, temperature=temperature)
        w = drfl.run(algorithm, fed, rounds=60, returned="last").state.w
        losses = fed.losses(torch.arange(5), w, drfl.Key(0)).values
        return float(0.1 * torch.logsumexp(losses / 0.1, 0)), float(losses.mean())

    (robust, mean_of_robust), (plain, mean_of_plain) = objective(0.1), objective(1e6)
    assert robust < plain - 0.01
    assert mean_of_robust > mean_of_plain


def test_unsupported_local_solvers_are_refused():
    with refused("needs-option", "lr"):
        FGDROKLAdam(local=LocalSGD())
    with refused("unused-option", "momentum"):
        FGDROKLAdam(local=LocalSGD(lr=0.1, momentum=0.9))
    with refused("unsupported-combination", "optimizer"):
        FGDROKLAdam(local=LocalSGD(lr=0.1, optimizer=Adam()))


@pytest.mark.long
def test_command_tunes_it_over_its_own_step_sizes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text('dataset = "digits"\nclients = 4\nrounds = 2\n')
    tune = ["tune", "job.toml", "--algorithms", "FedAvg,FGDROKLAdam", "--trials", "3", "--seeds", "1"]
    assert app.call([*tune, "--confirm-seeds", "0", "--out", "tuned"]) == 0
    rows = (tmp_path / "tuned" / "trials.csv").read_text().splitlines()
    assert sum("FGDROKLAdam" in row for row in rows) == 3


@dataclass(frozen=True)
class Momentum(drfl.ClientSide):
    """Momentum that lasts over rounds at each client; ``wrong`` gives a direction of another shape."""

    wrong: bool = False

    def state(self, model):
        return {"velocity": torch.zeros_like(model.vector)}

    def direction(self, gradient, loss, context):
        velocity = 0.5 * context.state["velocity"] + gradient
        return (velocity[:1] if self.wrong else velocity), {"velocity": velocity}


@pytest.mark.parametrize("engine", [Loop(), Stacked()])
def test_direction_of_a_custom_method(engine):
    algorithm = Momentum(m=5, local=replace(LOCAL, steps=3))
    fed = simulation(engine=engine)
    state = algorithm.init(fed)
    w, velocities = fed.w0.clone(), torch.zeros(5, len(fed.w0)).double()
    for r in (1, 2):
        state, _ = algorithm.round(state, fed, drfl.Key(0).fold("round", r))
        models = []
        for i in range(5):
            u = w
            for _ in range(3):
                velocities[i] = 0.5 * velocities[i] + hidden.gradient(lambda v, i=i: hidden.cross_entropy(v, i), u)
                u = u - LOCAL.lr * velocities[i]
            models.append(u)
        w = fed.shares @ torch.stack(models)
    torch.testing.assert_close(state.w, w, rtol=0, atol=1e-12)
    torch.testing.assert_close(state.store.dense()[:, 1:], velocities, rtol=0, atol=1e-12)
    with refused("wrong-shape", "direction"):
        drfl.run(replace(algorithm, wrong=True), simulation(engine=engine), rounds=1)
