"""Test Δ-FL: its rounds, its tail, and values that it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.conformance import references
from tests.support.marks import long_except
from tests.support.problems import federation
from tests.support.quadratics import Quadratics
from tests.support.refusals import refused
from tests.support.rounds import costs, last, near, same_as, second_round, states

from drfl.algorithms import DeltaFL, FedAvg
from drfl.algorithms.deltafl import tail
from drfl.core.errors import DivergedError
from drfl.core.key import Key
from drfl.optim.local import LocalSGD
from drfl.testing import ConstantFederation, Recording
from drfl.training.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("by_samples", [True, False])
@pytest.mark.parametrize("theta", long_except(["0.0", "0.5"], [0.0, 0.25, 0.5, 0.95]))
def test_rounds_match_the_paper(by_samples, theta):
    """With a cohort of four and θ a multiple of 1/4, the tail ends exactly between two equally weighted clients."""
    same_as(references.deltafl, DeltaFL(theta=theta, by_samples=by_samples, local=LocalSGD(steps=3, lr=0.1)))


@pytest.mark.parametrize("m", [None, 3])
def test_whole_tail_equals_fedavg_bit_for_bit(m):
    local = LocalSGD(steps=4, lr=0.1, batch=8, momentum=0.3)
    ours, theirs = (
        states(algorithm, federation(), 3)
        for algorithm in (DeltaFL(theta=0.0, m=m, local=local), FedAvg(m=m, local=local))
    )
    assert all(torch.equal(a.w, b.w) for a, b in zip(ours, theirs, strict=True))


def test_requests_are_losses_then_models_of_the_tail():
    """The cohort reports losses at the model before training; then the tail sends models."""
    state, (losses, train) = second_round(DeltaFL(theta=0.5, m=4, local=LocalSGD(lr=0.1)))
    assert torch.equal(losses.w, state.w)
    assert (losses.kind, losses.batch, losses.key) == ("losses", None, Key(0).fold("round", 2, "xi"))
    assert (train.kind, train.shift, train.prox, len(train.cohort)) == ("train", None, 0.0, 2)
    _, (losses, _) = second_round(DeltaFL(loss_batch=7, local=LocalSGD(lr=0.1)))
    assert losses.batch == 7
    assert costs(DeltaFL(m=4, by_samples=False, local=LocalSGD(lr=0.1)), federation()) == (1.5, 0.5, 1, 3)


def test_only_the_tail_trains():
    fed = Recording(ConstantFederation([0.5, 3.0, 1.0, 2.0]))
    algorithm = DeltaFL(theta=0.5)
    state, info = algorithm.round(algorithm.init(fed), fed, Key(0))
    assert fed.of("losses")[0].cohort.tolist() == [0, 1, 2, 3]
    assert fed.of("train")[0].cohort.tolist() == [1, 3] == info.cohort.clients.tolist()
    assert torch.equal(state.w, torch.full((2,), 2.0, dtype=torch.float64))  # (1 + 3) / 2
    assert info.losses.values.tolist() == [0.5, 3.0, 1.0, 2.0]


def test_limit_minimises_the_mean_over_the_tail():
    """For four clients on a line and θ = ½, the tail is the outer two, wherever the inner two are."""
    problem = Quadratics([[1.0], [1.0], [1.0], [2.0]], [[-8.0], [0.2], [0.5], [6.0]])
    w = last(DeltaFL(theta=0.5, local=LocalSGD(steps=1, lr=0.2, batch=None)), problem.federation(), 200)
    near(w, problem.optimum([0.5, 0, 0, 0.5]))
    assert set(np.argsort(problem.losses(w))[:2]) == {1, 2}


TAILS = {
    "theta 0": ([1, 2, 3], [1, 1, 1], 0.0, [1, 1, 1]),
    "exactly half": ([4, 1, 3, 2], [1, 1, 1, 1], 0.5, [1, 0, 1, 0]),
    "a little more than half": ([4, 1, 3, 2], [1, 1, 1, 1], 0.49, [1, 0, 1, 1]),
    "one": ([4, 1, 3, 2], [1, 1, 1, 1], 0.99, [1, 0, 0, 0]),
    "the worst-off is heavy": ([4, 1, 3], [8, 1, 1], 0.5, [1, 0, 0]),
    "the worst-off is light": ([4, 1, 3], [1, 8, 1], 0.5, [1, 1, 1]),
    "ties": ([2, 1, 2, 2], [1, 1, 1, 1], 0.75, [1, 0, 1, 1]),
    "all alike": ([2, 2, 2], [1, 1, 1], 0.9, [1, 1, 1]),
    "alone": ([5], [1], 0.9, [1]),
    "sums that round": ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [0.1] * 10, 0.7, [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]),
}


@pytest.mark.parametrize("case", TAILS.values(), ids=TAILS)
@pytest.mark.parametrize("scale", [1.0, 3.7])
def test_tail_of_known_losses(case, scale):
    losses, weights, theta, expected = case
    found = tail(torch.tensor(losses).double(), scale * torch.tensor(weights).double(), theta)
    assert found.int().tolist() == expected
    order = torch.arange(len(losses)).flip(0)
    again = tail(torch.tensor(losses).double()[order], scale * torch.tensor(weights).double()[order], theta)
    assert torch.equal(again, found[order])


@pytest.mark.parametrize(
    "bad", [*({"theta": value} for value in (-0.1, 1, 1.5, NAN, "half", None)), {"loss_batch": 0}], ids=str
)
def test_impossible_values_are_refused(bad):
    with refused("out-of-range", next(iter(bad))):
        DeltaFL(**bad)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_non_finite_losses_are_refused(bad):
    fed = Recording(ConstantFederation([1.0, 2.0, bad]))
    with refused("diverged", None, "DeltaFL", "1", "client 2", kind=DivergedError):
        run(DeltaFL(local=LocalSGD(lr=0.1)), fed, rounds=1)
    assert not fed.of("train")
