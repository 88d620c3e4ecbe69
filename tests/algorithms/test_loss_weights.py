"""Test properties of TERM, PropFair, FedMGDA+ and AAggFF-S that the conformance rows do not cover."""

from __future__ import annotations

import pytest
import torch
from tests.conformance import references
from tests.support.problems import federation
from tests.support.refusals import refused
from tests.support.rounds import same_as

from drfl.algorithms import TERM, AAggFFS, FedAvg, FedMGDAPlus, PropFair
from drfl.algorithms.aaggffs import RESPONSES
from drfl.core.key import Key
from drfl.optim.local import LocalSGD
from drfl.testing import ConstantFederation, Recording
from drfl.training.loop import run

ONE = LocalSGD(steps=1, lr=0.1, batch=None)
KEY = Key(1).fold("round", 1)


def after(algorithm, fed):
    return algorithm.round(algorithm.init(fed), fed, KEY)[0]


def test_term_with_huge_losses_does_not_overflow():
    state = after(TERM(tilt=3.0, local=ONE), ConstantFederation([1e4, 2.0, 1e4 + 1]))
    assert torch.isfinite(state.w).all()


@pytest.mark.parametrize("bad", [{"tilt": -1.0}, {"tilt": float("inf")}, {"loss_batch": 0}])
def test_impossible_hyperparameters_of_term_are_refused(bad):
    with refused("out-of-range", next(iter(bad))):
        TERM(**bad)


@pytest.mark.parametrize("bad", [{"baseline": 0.0}, {"epsilon": 0.0}, {"baseline": 0.1, "epsilon": 0.2}])
def test_impossible_hyperparameters_of_propfair_are_refused(bad):
    with refused("out-of-range", list(bad)[-1]):
        PropFair(**bad)


def test_propfair_is_linear_for_losses_above_its_threshold():
    """Above M − ε every client has the factor 1/ε, so the update is 1/ε times FedAvg's."""
    fed, base = federation(), FedAvg(local=ONE)
    step = after(base, fed).w - fed.w0
    own = after(PropFair(local=ONE, baseline=0.01, epsilon=0.01), fed).w - fed.w0
    torch.testing.assert_close(own, step / 0.01, rtol=1e-9, atol=0)


def test_fedmgda_plus_step_lowers_the_loss_of_every_client():
    fed = federation()
    everyone = torch.arange(fed.n)
    before = fed.losses(everyone, fed.w0, KEY).values
    w = after(FedMGDAPlus(m=fed.n, local=ONE, server_lr=1e-3), fed).w
    assert (fed.losses(everyone, w, KEY).values <= before + 1e-9).all()


@pytest.mark.long
@pytest.mark.parametrize(
    ("reference", "algorithm"),
    [
        (references.term, TERM(tilt=1.5, local=LocalSGD(steps=3, lr=0.1))),
        (references.propfair, PropFair(baseline=9.0, local=LocalSGD(steps=1, lr=0.1))),
        (references.fedmgda_plus, FedMGDAPlus(epsilon=0.2, local=LocalSGD(steps=3, lr=0.1))),
        (references.fedmgda_plus, FedMGDAPlus(server_lr=0.3, local=LocalSGD(steps=3, lr=0.1))),
        *((references.aaggff_s, AAggFFS(response=name, local=LocalSGD(steps=3, lr=0.1))) for name in RESPONSES),
    ],
)
def test_rounds_match_the_source(reference, algorithm):
    same_as(reference, algorithm)


def test_fedmgda_plus_with_epsilon_0_averages_normalised_updates():
    fed = federation()
    up = fed.train(torch.arange(fed.n), fed.w0, ONE, KEY.fold("sgd"))
    g = (fed.w0 - up.w) / (fed.w0 - up.w).norm(dim=1)[:, None]
    w = after(FedMGDAPlus(m=fed.n, local=ONE, epsilon=0.0, server_lr=0.5), fed).w
    torch.testing.assert_close(w, fed.w0 - 0.5 * g.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("response", RESPONSES)
def test_aaggff_coefficients_increase_with_the_losses(response):
    state = run(AAggFFS(local=ONE, response=response), ConstantFederation([1.0, 2.0, 4.0]), rounds=20).state
    assert state.lam.argsort().tolist() == [0, 1, 2]
    assert float(state.lam.sum()) == pytest.approx(1)


def test_equal_or_zero_losses_leave_the_coefficients_uniform():
    for losses in ([3.0] * 4, [0.0] * 4):
        state = run(AAggFFS(local=ONE), ConstantFederation(losses), rounds=5).state
        assert state.lam.tolist() == pytest.approx([0.25] * 4)


def test_aaggff_uses_all_clients_by_default():
    for m, expected in ((None, 5), (2, 2)):
        fed = Recording(ConstantFederation([1.0, 2.0, 3.0, 4.0, 5.0]))
        run(AAggFFS(m=m, local=ONE), fed, rounds=1)
        assert [len(request.cohort) for request in fed.of("losses")] == [expected]
    with refused("unknown-name", "response", "normall", "normal"):
        AAggFFS(response="normall")
