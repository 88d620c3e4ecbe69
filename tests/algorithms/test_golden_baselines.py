"""Whole runs of the averaging methods against an independent NumPy implementation, with full batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tests.support import golden_baselines as golden
from tests.support.federations import Partial
from tests.support.golden_baselines import Setting
from tests.support.problems import federation, pools
from tests.support.reference import Softmax

from drfl.algorithms import SCAFFOLD, DeltaFL, FedDyn, FedProx, QFedAvg
from drfl.algorithms.drift import penalty
from drfl.local import LocalSGD
from drfl.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
SIZES = (1, 2, 31, 33, 7, 50)
LOST = [((3,), ()), ((), (2, 4)), ((0, 5), (1,)), ((0, 1, 2, 3), (0, 1, 3))]
REFERENCES = {
    "FedProx": golden.fedprox,
    "SCAFFOLD": golden.scaffold,
    "FedDyn": golden.feddyn,
    "QFedAvg": golden.qfedavg,
    "DeltaFL": golden.deltafl,
}
every_name = pytest.mark.parametrize("name", REFERENCES)


def algorithm_of(name, s):
    local = LocalSGD(steps=s.tau, lr=s.lr, batch=None, momentum=s.momentum, weight_decay=s.weight_decay)
    common = {"m": s.m, "local": local}
    return {
        "FedProx": lambda: FedProx(mu=s.mu, by_samples=s.by_samples, **common),
        "SCAFFOLD": lambda: SCAFFOLD(server_lr=s.server_lr, **common),
        "FedDyn": lambda: FedDyn(mu=s.mu, **common),
        "QFedAvg": lambda: QFedAvg(q=s.q, **common),
        "DeltaFL": lambda: DeltaFL(theta=s.theta, by_samples=s.by_samples, **common),
    }[name]()


def has_average(name):
    return name != "QFedAvg"


def both(name, s, engine=None):
    """The steps that drfl goes through, and the reference's."""
    fed = federation(SIZES, engine=engine)
    expected = REFERENCES[name](Softmax(pools(SIZES), 3), s, fed.w0.numpy())
    steps, lossy = [], Partial(fed, lost_train=s.lost_train, lost_losses=s.lost_losses)
    averaged = has_average(name)
    run(algorithm_of(name, s), lossy, rounds=s.rounds, seed=s.seed, averaged=averaged, callbacks=[steps.append])
    return steps[1:], expected


def check(steps, expected, *, trained_only=False):
    for step, want in zip(steps, expected, strict=True):
        state, table = step.state, getattr(step.state, "h", getattr(step.state, "c_i", None))
        close(state.w, want.w)
        if step.average is not None:
            close(step.average.w, want.w_hat)
            assert int(step.average.rounds) == sum(bool(e.answered) for e in expected[: step.round])
        if table is not None:
            close(table.dense(), want.table)
            close(state.c, want.table.mean(axis=0))
        assert sorted(step.info.answered.tolist()) == want.answered
        assert step.info.empty == (not want.answered)
        asked = want.trained if trained_only and want.trained else want.drawn
        assert step.info.cohort.clients.tolist() == asked


def close(tensor, array):
    np.testing.assert_allclose(tensor.numpy(), array, rtol=0, atol=1e-10)


@every_name
def test_rounds_are_the_papers(name, engine):
    steps, expected = both(name, Setting(), engine)
    check(steps, expected, trained_only=name == "DeltaFL")
    assert (steps[-1].average is not None) == has_average(name)
    assert float((steps[-1].state.w - steps[0].state.w).abs().max()) > 0.02


@every_name
@pytest.mark.parametrize(
    "change",
    [{"tau": 1}, {"momentum": 0.8}, {"weight_decay": 0.3}, {"momentum": 0.5, "weight_decay": 0.2, "tau": 2}, {"m": 6}],
    ids=str,
)
def test_other_local_solvers_and_everybody(name, change):
    check(*both(name, Setting()._replace(**change)), trained_only=name == "DeltaFL")


@every_name
@pytest.mark.parametrize("lost", LOST, ids=str)
def test_some_do_not_answer(name, lost):
    s = Setting(rounds=6, lost_train=lost[0], lost_losses=lost[1])
    steps, expected = both(name, s)
    check(steps, expected, trained_only=name == "DeltaFL")
    assert all(step.state is before.state for before, step in itertools.pairwise(steps) if step.info.empty)
    if lost[0] or (lost[1] and name in ("QFedAvg", "DeltaFL")):
        assert any(set(e.answered) < set(e.drawn) for e in expected)


@every_name
def test_nobody_answers(name):
    s = Setting(lost_train=tuple(range(len(SIZES))))
    steps, lossy = [], Partial(federation(SIZES), lost_train=s.lost_train)
    result = run(algorithm_of(name, s), lossy, rounds=3, callbacks=[steps.append])
    assert all(step.info.empty for step in steps[1:])
    assert all(step.state is steps[0].state for step in steps)
    assert result.skipped == 3


@pytest.mark.parametrize("name", ["QFedAvg", "DeltaFL"])
def test_nobody_reports_a_loss(name):
    """Then nobody is asked to train."""
    steps, lossy = [], Partial(federation(SIZES), lost_losses=tuple(range(len(SIZES))))
    run(algorithm_of(name, Setting()), lossy, rounds=2, callbacks=[steps.append])
    assert all(step.state is steps[0].state and step.info.empty for step in steps[1:])
    assert lossy.ledger.gradient_evaluations == 0


@pytest.mark.parametrize("by_samples", [True, False])
@pytest.mark.parametrize("theta", [0.0, 0.25, 0.5, 0.75, 0.95])
def test_every_tail(by_samples, theta):
    """m = 4 and θ a multiple of 1/4: the tail ends exactly between two clients where all weigh alike."""
    steps, expected = both("DeltaFL", Setting(theta=theta, by_samples=by_samples, rounds=6))
    check(steps, expected, trained_only=True)
    if not by_samples:
        assert {len(e.trained) for e in expected} == {max(1, round(4 * (1 - theta)))}


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 2.0, 5.0])
def test_every_power(q):
    check(*both("QFedAvg", Setting(q=q)))


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_the_rule_for_mu(momentum):
    s, fed, steps = Setting(momentum=momentum), federation(SIZES), []
    local = LocalSGD(steps=s.tau, lr=s.lr, batch=None, momentum=momentum)
    expected = golden.feddyn(Softmax(pools(SIZES), 3), s._replace(mu=penalty(None, local)), fed.w0.numpy())
    run(FedDyn(m=s.m, local=local), fed, rounds=s.rounds, seed=s.seed, averaged=True, callbacks=[steps.append])
    check(steps[1:], expected)


@pytest.mark.parametrize("name", ["FedProx", "DeltaFL"])
@pytest.mark.parametrize("by_samples", [True, False])
def test_weights(name, by_samples):
    s = Setting(by_samples=by_samples)
    steps, expected = both(name, s)
    check(steps, expected, trained_only=name == "DeltaFL")
    close(steps[-1].row.lam, golden.shares(Softmax(pools(SIZES), 3), s))


def test_the_golden_runs_exercise_what_they_are_for():
    """Tails of several sizes, and clients whose table row never changed beside those whose did."""
    _, tails = both("DeltaFL", Setting(rounds=6))
    assert len({len(e.trained) for e in tails}) > 1
    for name in ("SCAFFOLD", "FedDyn"):
        _, expected = both(name, Setting(rounds=2, lost_train=(3,)))
        touched = expected[-1].table.any(axis=1)
        assert not touched[3]
        assert touched.any()
        assert torch.tensor(touched).sum() < len(SIZES)
