"""Test schedules of step sizes: values, effects, mistakes, and resuming."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from tests.support.problems import federation
from tests.support.refusals import refused

from drfl.algorithms import AFL, DRFA, DRFAGA, FedAvg, FedDyn, ScaffPD
from drfl.cli.app import call
from drfl.optim import schedules
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import Adam
from drfl.optim.schedules import Constant, Cosine, Exponential, InverseSqrt, Schedule, StepDecay
from drfl.resilience import FailureModel, Faulty, Protected
from drfl.testing import Recording
from drfl.testing.state import leaves
from drfl.training.loop import run
from drfl.training.step_size import in_round

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
LOCAL = LocalSGD(steps=2, lr=0.1, batch=8)
TORCH = {
    "step:every=3,factor=0.5": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
    "exponential:factor=0.9": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "cosine:rounds=12": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12),
    "cosine:rounds=12,final=0.25": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12, 0.25),
    "inverse-sqrt": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / math.sqrt(t + 1)),
    "constant": lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1.0),
    "constant:factor=0.3": lambda o: torch.optim.lr_scheduler.ConstantLR(o, 0.3, total_iters=100),
}


@pytest.mark.parametrize("text", TORCH)
def test_schedules_match_torch(text):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs, schedule = TORCH[text](optimizer), schedules.parse(text)
    for r in range(1, 13):
        assert schedule.multiplier(r) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        theirs.step()
    assert schedules.parse(str(schedule)) == schedule


def test_round_sets_step_sizes_inside_all_wrappers():
    inner = DRFA(m=3, gamma=0.4, gamma_schedule=StepDecay(1, 0.5), local=replace(LOCAL, lr_schedule=Exponential(0.1)))
    third = in_round(Faulty(Protected(inner), FailureModel(drop=0.1)), 3).algorithm.algorithm
    assert (third.gamma, third.local.lr) == (0.1, pytest.approx(1e-3))
    assert third.gamma_schedule == third.local.lr_schedule == Constant()
    plain = Protected(DRFA(m=3))
    assert in_round(plain, 9) is plain


def test_constant_factor_multiplies_the_determined_step_size():
    found = FedAvg(m=3, local=replace(LOCAL, lr=None, lr_schedule=Constant(0.5)))
    first = run(found, federation(), rounds=2)
    assert first.step_size is not None
    given = replace(found, local=replace(LOCAL, lr=0.5 * float(first.step_size.eta)))
    torch.testing.assert_close(first.state.w, run(given, federation(), rounds=2).state.w)


@dataclass(frozen=True)
class Own(FedAvg):
    """A custom parameter with a schedule."""

    mu: float = 2.0
    mu_schedule: Schedule = field(default_factory=InverseSqrt)


def test_schedule_of_a_custom_parameter():
    assert in_round(Own(), 4).mu == 1.0


@pytest.mark.parametrize("lr", [0.1, None])
def test_clients_receive_the_rounds_step_size(lr):
    fed = Recording(federation())
    result = run(FedAvg(m=3, local=LocalSGD(2, lr, 8, lr_schedule=Cosine(4))), fed, rounds=4, evaluate_every=4)
    base = lr or float(result.step_size.eta)
    sent = [call.local for call in fed.take() if call.kind == "train"]
    assert [local.lr for local in sent] == pytest.approx([base * Cosine(4).multiplier(r) for r in (1, 2, 3, 4)])
    assert all(local.lr_schedule == Constant() for local in sent)


def test_resumed_run_has_the_same_bits():
    local = LocalSGD(steps=2, batch=8, lr_schedule=Cosine(6))
    algorithm, kept = DRFA(m=4, gamma=0.02, gamma_schedule=Exponential(), local=local), []
    whole = run(algorithm, federation(), rounds=6, keep=lambda progress, stopping: kept.append(progress))
    again = run(algorithm, federation(), rounds=6, start=kept[2])
    for name, value in leaves(whole.state).items():
        assert torch.equal(value, leaves(again.state)[name])
    other = run(replace(algorithm, gamma_schedule=Constant()), federation(), rounds=6)
    assert not torch.equal(whole.lam, other.lam)


MISTAKES = {
    "gamma_schedule needs gamma": (lambda: DRFA(gamma_schedule=Exponential()), ("needs-option", "gamma_schedule")),
    "gamma_schedule needs gamma: ": (lambda: AFL(gamma_schedule=Exponential()), ("needs-option", "gamma_schedule")),
    "gamma_schedule needs gamma:": (lambda: DRFAGA(gamma_schedule=Exponential()), ("needs-option", "gamma_schedule")),
    "sigma_schedule needs sigma": (lambda: ScaffPD(sigma_schedule=Exponential()), ("needs-option", "sigma_schedule")),
    "mu has a schedule of its own": (
        lambda: ScaffPD(mu=0.1, local=LocalSGD(lr_schedule=Cosine(3))),
        ("conflicting-options", "mu"),
    ),
    "lr_schedule=0.9 must be an object": (lambda: LocalSGD(lr_schedule=0.9), ("wrong-type", "lr_schedule")),
    "every must be an integer": (lambda: StepDecay(0), ("out-of-range", "every")),
    "'cosine:rounds=2' is 0 in round 3": (
        lambda: run(FedAvg(local=replace(LOCAL, lr_schedule=Cosine(2))), federation(), rounds=3),
        ("invalid-value", "lr_schedule", "'cosine:rounds=2'", "round 3"),
    ),
    "steps=3 and epochs=2 both": (
        lambda: LocalSGD(steps=3, epochs=2),
        ("conflicting-options", "epochs", "steps=3", "epochs=2"),
    ),
    "adam needs lr": (lambda: LocalSGD(optimizer=Adam()), ("needs-option", "optimizer", "adam", "lr")),
    "momentum has no effect on optimizer adam": (
        lambda: LocalSGD(lr=0.1, optimizer=Adam(), momentum=0.5),
        ("unused-option", "momentum", "adam"),
    ),
    "optimizer='adam' must be an object": (lambda: LocalSGD(lr=0.1, optimizer="adam"), ("wrong-type", "optimizer")),
    "DRFA cannot take epochs": (lambda: DRFA(local=LocalSGD(epochs=1)), ("unsupported-combination", "epochs", "DRFA")),
    "AFL cannot take epochs": (lambda: AFL(local=LocalSGD(epochs=1)), ("unsupported-combination", "epochs", "AFL")),
    "ScaffPD cannot take epochs": (
        lambda: ScaffPD(local=LocalSGD(epochs=1)),
        ("unsupported-combination", "epochs", "ScaffPD"),
    ),
    "so give mu": (lambda: FedDyn(local=LocalSGD(epochs=1)), ("unsupported-combination", "epochs", "mu")),
}


@pytest.mark.parametrize(("make", "error"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line_errors(make, error):
    with refused(*error) as caught:
        make()
    assert "\n" not in str(caught.value)


SMALL = ["--clients", "3", "--rounds", "2", "--engine", "loop", "--out", "a"]
COMMANDS = {
    ("DRFA", "gamma_schedule=exponential:factor=0.9", "gamma=0.1", "lr_schedule=cosine:rounds=9"): "",
    ("FedNova", "epochs=1", "server=fedadam:lr=0.1", "lr=0.1"): "",
    ("FedAvg", "optimizer=sam:rho=0.1", "lr=0.1"): "",
    ("FedAvg", "lr_schedule=cosin:rounds=9"): "unknown schedule 'cosin'",
    ("FedAvg", "lr_schedule=cosine"): "rounds is missing",
    ("FedAvg", "optimizer=adam"): "optimizer adam needs lr",
    ("FedAvg", "server=adam"): "unknown server optimizer 'adam'",
    ("FedAvg", "epochs=2", "steps=3"): "steps=3 and epochs=2",
    ("SCAFFOLD", "optimizer=sam", "lr=0.1"): "optimizer 'sam'",
}


@pytest.mark.parametrize("given", COMMANDS, ids=" ".join)
def test_schedules_in_the_command(given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name, *parameters = given
    options = [part for parameter in parameters for part in ("--param", parameter)]
    code, said = call(["run", "--algorithm", name, *SMALL, *options]), COMMANDS[given]
    if said:
        assert code == 2
        assert said in capsys.readouterr().err.splitlines()[-1]
        assert list(tmp_path.iterdir()) == []
    else:
        assert code == 0
        # The finished run's file is complete, so it repeats the run.
        assert call(["run", "a/config.toml", "--out", "b"]) == 0
        one, two = (json.loads((tmp_path / out / "summary.json").read_text()) for out in "ab")
        assert one["final"] == two["final"]
