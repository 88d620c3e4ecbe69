"""Test SCAFFOLD: its rounds, its limit, and values that it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from tests.conformance import references
from tests.support.marks import long_except
from tests.support.problems import federation
from tests.support.quadratics import Quadratics
from tests.support.refusals import refused
from tests.support.rounds import costs, last, near, same_as, second_round, states

from drfl.algorithms import SCAFFOLD, FedAvg
from drfl.optim.local import LocalSGD
from drfl.testing import DropoutFederation

pytestmark = pytest.mark.usefixtures("global_generator_untouched")


@pytest.mark.parametrize("server_lr", [1.0, 0.8])
@pytest.mark.parametrize("solver", [{}, {"momentum": 0.8}, {"momentum": 0.5, "weight_decay": 0.2, "steps": 2}], ids=str)
def test_rounds_match_the_paper(server_lr, solver):
    same_as(references.scaffold, SCAFFOLD(server_lr=server_lr, local=LocalSGD(**({"steps": 3, "lr": 0.1} | solver))))


def test_first_round_equals_fedavg():
    """The control variates are 0, and η_g scales the update."""
    local = LocalSGD(steps=4, lr=0.1, batch=8)
    start, mean = states(FedAvg(m=3, local=local, by_samples=False), federation(), 1)
    for server_lr in (1.0, 0.4):
        first = states(SCAFFOLD(m=3, local=local, server_lr=server_lr), federation(), 1)[-1]
        torch.testing.assert_close(first.w, start.w + server_lr * (mean.w - start.w), rtol=0, atol=1e-14)


def test_clients_receive_control_variates():
    """The shift is c − c_i."""
    state, (call,) = second_round(SCAFFOLD(m=3, local=LocalSGD(lr=0.1)))
    assert torch.equal(call.shift, state.c - state.c_i[call.cohort])
    assert float(call.shift.abs().max()) > 0
    assert costs(SCAFFOLD(m=4, local=LocalSGD(lr=0.1)), federation()) == (2, 1, 0, 2)


@pytest.mark.parametrize(
    ("solver", "options"),
    long_except(
        ["decay"],
        [({}, {}), ({"momentum": 0.6}, {"m": 2}), ({"weight_decay": 0.5}, {"m": 2, "server_lr": 0.5})],
        ["plain", "momentum", "decay"],
    ),
)
def test_scaffold_reaches_the_average_optimum(solver, options):
    """This is the optimum of the mean of all f_i with weight decay, for any local steps and participation."""
    problem = Quadratics.random()
    algorithm = SCAFFOLD(local=LocalSGD(steps=6, lr=0.1, batch=None, **solver), **options)
    near(
        last(algorithm, problem.federation(), 600), problem.optimum([1 / 5] * 5, solver.get("weight_decay", 0.0)), 1e-8
    )


@pytest.mark.long
def test_client_that_never_answers_keeps_a_zero_control_variate():
    """The others reach the optimum of their own mean."""
    problem = Quadratics.random()
    fed = DropoutFederation(problem.federation(), train=(4,))
    w = last(SCAFFOLD(m=3, local=LocalSGD(steps=6, lr=0.1, batch=None)), fed, 600)
    near(w, problem.optimum([1 / 4] * 4 + [0]), 1e-8)


@pytest.mark.parametrize("server_lr", [0, -1, math.nan, math.inf])
def test_impossible_values_are_refused(server_lr):
    with refused("out-of-range", "server_lr"):
        SCAFFOLD(server_lr=server_lr)


def test_radius_is_refused():
    with refused("unsupported-combination", "radius"):
        SCAFFOLD(local=LocalSGD(radius=1.0))
