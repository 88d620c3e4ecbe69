"""Test FedAvg and FedProx: their rounds, their fixed points, and values that they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.conformance import references
from tests.support.marks import crossed
from tests.support.problems import federation
from tests.support.quadratics import Quadratics
from tests.support.refusals import refused
from tests.support.rounds import costs, last, near, same_as, second_round, states

from drfl.algorithms import FedAvg, FedProx
from drfl.optim.local import LocalSGD

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
FEW = LocalSGD(steps=3, lr=0.1)


@pytest.mark.parametrize(
    ("solver", "by_samples"), crossed([{}, {"momentum": 0.8, "weight_decay": 0.3}, {"steps": 1}], [True, False])
)
def test_rounds_match_the_paper(by_samples, solver):
    local = LocalSGD(**({"steps": 3, "lr": 0.1} | solver))
    same_as(references.fedavg, FedAvg(by_samples=by_samples, local=local))
    same_as(references.fedprox, FedProx(mu=0.7, by_samples=by_samples, local=local))


def test_fedprox_with_mu_0_equals_fedavg_bit_for_bit(engine):
    local = LocalSGD(steps=4, lr=0.1, batch=8, momentum=0.3)
    ours, theirs = (
        states(algorithm, federation(engine=engine), 3)
        for algorithm in (FedProx(mu=0.0, m=3, local=local), FedAvg(m=3, local=local))
    )
    assert all(torch.equal(a.w, b.w) for a, b in zip(ours, theirs, strict=True))


def test_client_weights_of_the_objective():
    fed = federation((1, 2, 31))
    near(FedAvg().weights(fed).numpy(), np.array([1, 2, 31]) / 34)
    near(FedAvg(by_samples=False).weights(fed).numpy(), [1 / 3] * 3)


@pytest.mark.parametrize(
    ("algorithm", "prox"), [(FedAvg(m=3, local=FEW), 0.0), (FedProx(m=3, mu=0.3, local=FEW), 0.3)], ids=str
)
def test_clients_receive_no_shift(algorithm, prox):
    _, (call,) = second_round(algorithm)
    assert (call.kind, call.prox, call.shift, len(call.cohort)) == ("train", prox, None, 3)
    assert costs(algorithm.__class__(m=4, local=FEW), federation()) == (1, 1, 0, 2)


@pytest.mark.parametrize(("samples", "tau"), crossed([None, [1, 2, 3, 4, 10]], [1, 5]))
def test_fixed_points_with_one_and_several_local_steps(samples, tau):
    """One local step gives the weighted optimum; more steps give a known distance from it, which μ reduces."""
    problem, local = Quadratics.random(samples=samples), LocalSGD(steps=tau, lr=0.2, batch=None)
    lam = problem.shares
    drift = {}
    for mu in (0.0, 2.0):
        w = last(FedProx(mu=mu, local=local), problem.federation(), 150)
        near(w, problem.fixed_point(lam, 0.2, tau, mu))
        drift[mu] = np.abs(w - problem.optimum(lam)).max()
    near(last(FedAvg(local=local), problem.federation(), 150), problem.fixed_point(lam, 0.2, tau))
    assert drift[0.0] < 1e-10 if tau == 1 else drift[0.0] > drift[2.0] > 1e-2


@pytest.mark.parametrize("mu", [-0.1, math.nan, math.inf])
def test_impossible_values_are_refused(mu):
    with refused("out-of-range", "mu"):
        FedProx(mu=mu)
