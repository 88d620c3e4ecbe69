"""drfl's own rule for the dual step: λ moves by rate/(N·scale) along the reports, scale the largest mean one so far."""

from __future__ import annotations

import pytest
import torch

from drfl import sampling
from drfl.algorithms import AFL, DRDM, DRFA, DRFAGA, DRFAProx, DualDRDM, ScaffPD
from drfl.algorithms.dual import no_scale, step_size
from drfl.ambiguity import KL, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.testing import DropoutFederation, QuadraticFederation

LOSSES = (0.8, 1.0, 1.1, 0.7, 1.4)
EVERYBODY = {"m": 5, "sampling": sampling.everybody}
RATES = {
    AFL: (0.1, {}),
    DRFA: (0.1, EVERYBODY),
    DRFAProx: (0.1, EVERYBODY),
    DRFAGA: (0.1, EVERYBODY),
    ScaffPD: (0.03, {}),
    DRDM: (0.03, EVERYBODY),
    DualDRDM: (0.03, EVERYBODY),
}
every_method = pytest.mark.parametrize("make", RATES, ids=lambda make: make.__name__)


def still(losses):
    """Clients whose losses are these at every model."""
    s = torch.tensor(losses, dtype=torch.float64)
    return QuadraticFederation(torch.zeros(len(s), 1, 1), torch.zeros(len(s), 1), s)


def mixtures(make, losses, rounds=1, **options):
    """λ after each round."""
    algorithm, fed = make(**RATES[make][1], **options), still(losses)
    state, lams = algorithm.init(fed), []
    for r in range(rounds):
        state, _ = algorithm.round(state, fed, Key(0).fold("round", r))
        lams.append(state.lam)
    return lams


@every_method
@pytest.mark.parametrize("tau", [1, 7])
def test_a_loss_above_the_others_by_scale_gains_rate_over_n(make, tau):
    """τ does not come into it; the projection takes the mean away."""
    losses = torch.tensor(LOSSES, dtype=torch.float64)
    (lam,) = mixtures(make, LOSSES, local=LocalSGD(steps=tau, lr=0.1))
    expected = 1 / 5 + RATES[make][0] / 5 * (losses / losses.mean() - 1)
    torch.testing.assert_close(lam, expected, rtol=0, atol=1e-15)


@every_method
@pytest.mark.parametrize("unit", [1e-300, 1e-12, 1e12, 1e300, -1.0])
def test_the_unit_of_the_loss_does_not_matter(make, unit):
    """Nor does its sign: negative losses are as good as positive ones."""
    ours = mixtures(make, [unit * loss for loss in LOSSES], rounds=3)
    theirs = mixtures(make, [loss if unit > 0 else -loss for loss in LOSSES], rounds=3)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)
    assert (ours[-1][4] > ours[-1][0]) == (unit > 0)


@every_method
def test_without_any_loss_the_mixture_stays(make):
    (lam,) = mixtures(make, [0.0] * 5)
    assert torch.equal(lam, torch.full((5,), 0.2, dtype=torch.float64))


SETS = (Simplex(), CVaR(0.5), Box(0.3), ChiSquare(0.1), KL(0.1), ChiSquareBall(0.2), KLBall(0.2))


@every_method
@pytest.mark.parametrize("ambiguity", SETS, ids=repr)
@pytest.mark.parametrize("unit", [1e-308, 1e-315, 5e-324])
def test_losses_too_small_to_divide_by(make, ambiguity, unit):
    """rate/(N·scale) would be infinite."""
    if make is DRFA and ambiguity.penalised:
        make = DRFAProx
    (lam,) = mixtures(make, [loss * unit for loss in LOSSES], ambiguity=ambiguity)
    assert ambiguity.contains(lam)


def test_the_step_never_grows():
    scale, steps = no_scale(), []
    for mean in (2.0, 1.0, 5.0, 0.0, 3.0):
        step, scale = step_size(None, 0.1, torch.tensor([mean, -mean, mean]).double(), scale, 10)
        steps.append(step)
    assert steps == pytest.approx([0.1 / 20, 0.1 / 20, 0.1 / 50, 0.1 / 50, 0.1 / 50])
    assert float(scale) == 5.0
    assert step_size(0.7, 0.1, torch.ones(3).double(), scale, 10)[0] == 0.7


@every_method
def test_scale_is_the_largest_so_far(make):
    """Smaller reports leave it, and so does a round without any."""
    algorithm = make(**RATES[make][1])
    small = still([1.0] * 5)
    silent = DropoutFederation(small, losses=range(5), gradients=range(5))
    state, scales = algorithm.init(small), []
    for r, fed in enumerate((silent, still([2.0] * 5), small, silent)):
        state, _ = algorithm.round(state, fed, Key(r))
        scales.append(float(state.scale))
    assert scales == [0.0, 2.0, 2.0, 2.0]
