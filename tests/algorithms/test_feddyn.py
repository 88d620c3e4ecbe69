"""Test FedDyn: its rounds, its limit, the default μ, and values that it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.conformance import references
from tests.support.marks import long_beyond
from tests.support.problems import federation
from tests.support.quadratics import Quadratics
from tests.support.refusals import refused
from tests.support.rounds import costs, last, near, same_as, second_round

from drfl.algorithms import FedDyn
from drfl.optim.local import LocalSGD
from drfl.testing import DropoutFederation

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
FULL = LocalSGD(steps=6, lr=0.1, batch=None)


@pytest.mark.parametrize("solver", [{}, {"momentum": 0.8}, {"momentum": 0.5, "weight_decay": 0.2, "steps": 2}], ids=str)
def test_rounds_match_the_paper(solver):
    same_as(references.feddyn, FedDyn(mu=0.7, local=LocalSGD(**({"steps": 3, "lr": 0.1} | solver))))


def test_clients_receive_shift_and_proximal_weight():
    """The shift is −h_i, and the proximal weight is μ."""
    state, (call,) = second_round(FedDyn(m=3, mu=0.25, local=LocalSGD(lr=0.1)))
    assert call.prox == 0.25
    assert torch.equal(call.shift, -state.h[call.cohort])
    assert float(call.shift.abs().max()) > 0
    assert costs(FedDyn(m=4, local=LocalSGD(lr=0.1)), federation()) == (2, 1, 0, 2)


@pytest.mark.parametrize(
    ("solver", "options"),
    long_beyond(1, [({}, {}), ({"momentum": 0.6}, {"m": 2, "mu": 3.0}), ({"weight_decay": 0.5}, {"m": 2})]),
)
def test_feddyn_reaches_the_average_optimum(solver, options):
    """This is the optimum of the mean of all f_i with weight decay, for any local steps and participation."""
    problem = Quadratics.random()
    algorithm = FedDyn(local=LocalSGD(steps=6, lr=0.1, batch=None, **solver), **options)
    near(
        last(algorithm, problem.federation(), 600), problem.optimum([1 / 5] * 5, solver.get("weight_decay", 0.0)), 1e-8
    )


@pytest.mark.long
def test_client_that_never_answers_keeps_a_zero_drift_term():
    """The others reach the optimum of their own mean."""
    problem = Quadratics.random()
    w = last(FedDyn(m=3, local=FULL), DropoutFederation(problem.federation(), train=(4,)), 600)
    near(w, problem.optimum([1 / 4] * 4 + [0]), 1e-8)


@pytest.mark.long
def test_smaller_mu_converges_more_slowly_with_long_local_training():
    """τηa is up to 12, so clients nearly reach their own minimisers: μ = 1/(ητ) is compared with a fifth of it."""
    problem, local = Quadratics.random(), LocalSGD(steps=20, lr=0.2, batch=None)
    optimum = problem.optimum(problem.shares)
    larger, smaller = (last(FedDyn(m=3, mu=mu, local=local), problem.federation(), 400) for mu in (1 / 4, 1 / 20))
    assert np.abs(larger - optimum).max() < 1e-6
    assert np.abs(smaller - optimum).max() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("m", long_beyond(1, [None, 3]))
def test_feddyn_with_a_radius_reaches_the_constrained_optimum(m):
    problem = Quadratics.random()
    radius = 0.5 * float(np.linalg.norm(problem.optimum(problem.shares)))
    local = LocalSGD(steps=10, lr=0.1, batch=None, radius=radius)
    near(last(FedDyn(m=m, mu=1.0, local=local), problem.federation(), 400), problem.constrained(radius), 1e-8)


@pytest.mark.parametrize("mu", [0, -1, 1e300, math.nan, math.inf])
def test_impossible_values_are_refused(mu):
    with refused("out-of-range", "mu"):
        FedDyn(mu=mu)
