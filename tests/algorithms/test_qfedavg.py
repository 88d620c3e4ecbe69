"""Test q-FedAvg: its rounds, its limit, and losses that are zero, huge or negative."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
import torch
from tests.conformance import references
from tests.support.marks import crossed
from tests.support.problems import federation
from tests.support.quadratics import Quadratics
from tests.support.refusals import refused
from tests.support.rounds import costs, last, near, same_as, second_round, states

from drfl.algorithms import FedAvg, QFedAvg
from drfl.algorithms.qfedavg import powers
from drfl.core.errors import DivergedError
from drfl.core.key import Key
from drfl.optim.local import LocalSGD
from drfl.testing import ConstantFederation, Recording
from drfl.training.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(("q", "solver"), crossed([0.0, 0.1, 1.0, 5.0], [{}, {"momentum": 0.5, "weight_decay": 0.2}]))
def test_rounds_match_the_paper(q, solver):
    same_as(references.qfedavg, QFedAvg(q=q, local=LocalSGD(steps=3, lr=0.1, **solver)))


@pytest.mark.parametrize("m", [None, 3])
def test_q_0_equals_the_uniform_mean(m):
    local = LocalSGD(steps=4, lr=0.1, batch=8)
    uniform = states(FedAvg(m=m, local=local, by_samples=False), federation(), 3)
    for a, b in zip(states(QFedAvg(q=0, m=m, local=local), federation(), 3), uniform, strict=True):
        torch.testing.assert_close(a.w, b.w, rtol=0, atol=1e-14)


def test_requests_are_losses_then_models():
    """The cohort reports losses at the model before training, on all data by default;

    then these clients send models.
    """
    state, (losses, train) = second_round(QFedAvg(m=3, local=LocalSGD(lr=0.1)))
    assert torch.equal(losses.w, state.w)
    assert (losses.kind, losses.batch, losses.key) == ("losses", None, Key(0).fold("round", 2, "xi"))
    assert (train.kind, train.shift, train.prox) == ("train", None, 0.0)
    _, (losses, _) = second_round(QFedAvg(m=3, loss_batch=7, local=LocalSGD(lr=0.1)))
    assert losses.batch == 7
    assert costs(QFedAvg(m=4, local=LocalSGD(lr=0.1)), federation()) == (2, 1, 1, 4)


@pytest.mark.long
@pytest.mark.parametrize("q", [0.5, 3.0])
def test_limit_is_stationary_for_the_objective(q):
    """With one local step, Σ_k F_k^q ∇F_k = 0, and the worst loss is lower than at the average optimum."""
    problem = Quadratics.random(seed=3)
    w = last(QFedAvg(q=q, local=LocalSGD(steps=1, lr=0.2, batch=None)), problem.federation(), 1000)
    weights = problem.losses(w) ** q
    near(weights / weights.sum() @ problem.gradients(w), 0, 1e-8)
    assert problem.losses(w).max() < problem.losses(problem.optimum(problem.shares)).max() - 0.1


@pytest.mark.parametrize("q", [0.3, 1.0, 2.5])
def test_powers_match_the_paper_up_to_a_factor(q):
    F = torch.tensor([0.2, 3.0, 0.01], dtype=torch.float64)
    F_q, slope = powers(F, q)
    torch.testing.assert_close(F_q * 3.0**q, F**q, rtol=1e-12, atol=0)
    torch.testing.assert_close(slope * 3.0**q, q * F ** (q - 1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 2.0, 300.0])
@pytest.mark.parametrize("values", [[0.0, 1e-200, 3.0], [0.0, 1e200, 1e180], [2.0, 3.0, 5.0], [0.0, 0.0, 0.0]], ids=str)
def test_zero_and_huge_losses(q, values):
    """The reference uses decimal numbers of a huge range; 0·∞ counts as 0, and without any loss the model stays."""
    fed, algorithm = ConstantFederation(values), QFedAvg(q=q, local=LocalSGD(lr=0.1))
    state, info = algorithm.round(algorithm.init(fed), fed, Key(0))
    one, power, Delta, h = Decimal(1), Decimal(q), Decimal(0), Decimal(0)
    for i, F in enumerate(map(Decimal, values)):  # client i moves to w + i in both coordinates
        F_q = F**power if F or q else one
        slope = power * (one if q == 1 else F ** (power - 1)) if F or q >= 1 else Decimal(0)
        Delta, h = Delta - F_q * 10 * i, h + slope * 2 * (10 * i) ** 2 + 10 * F_q
    expected = float(-Delta / h) if h else 0.0
    assert state.w.tolist() == pytest.approx([expected] * 2, rel=1e-12)
    assert not info.is_empty


def test_client_with_zero_loss_does_not_move_the_model():
    """Client i moves to w + i, and only client 1 has a loss: w + F·L·1 / (q·L²·d·1² / F^{1−q} + L·F^q) with d = 2."""
    algorithm, fed = QFedAvg(q=0.5, local=LocalSGD(lr=0.1)), ConstantFederation([0.0, 4.0, 0.0])
    state, _ = algorithm.round(algorithm.init(fed), fed, Key(0))
    Delta, h = 2 * 10 * 1.0, 0.5 / 2 * (10**2 * 2) + 10 * 2
    assert state.w.tolist() == pytest.approx([Delta / h] * 2, rel=1e-12)


@pytest.mark.parametrize("bad", [{"q": -0.5}, {"q": NAN}, {"q": INF}, {"loss_batch": 0}, {"loss_batch": 1.5}], ids=str)
def test_impossible_values_are_refused(bad):
    with refused("out-of-range", next(iter(bad))):
        QFedAvg(**bad)


def test_negative_losses_are_refused():
    fed = Recording(ConstantFederation([1.0, -0.25, 2.0]))
    with refused("out-of-range", "losses", "1", "-0.25"):
        run(QFedAvg(local=LocalSGD(lr=0.1)), fed, rounds=1)
    assert not fed.of("train")


@pytest.mark.parametrize("bad", [NAN, INF])
def test_non_finite_losses_are_refused(bad):
    fed = Recording(ConstantFederation([1.0, 2.0, bad]))
    with refused("diverged", None, "QFedAvg", "1", "client 2", kind=DivergedError):
        run(QFedAvg(local=LocalSGD(lr=0.1)), fed, rounds=1)
    assert not fed.of("train")
