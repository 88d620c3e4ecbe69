"""Test drfl's rule for the dual step, D/√(Σ‖v − v̄‖²), and the centred estimate of the losses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from tests.conformance import references
from tests.support.marks import crossed, long_except
from tests.support.reference import bisection
from tests.support.refusals import refused
from tests.support.rounds import same_as

from drfl.algorithms import AFL, DRDM, DRFA, DRFAGA, DRFAProx, DualDRDM, ScaffPD
from drfl.algorithms.dual import RATE, SnapshotMethod, no_squares, step_size
from drfl.ambiguity import KL, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.requests import Losses
from drfl.optim.local import LocalSGD
from drfl.testing import DropoutFederation, Hyperplane, QuadraticFederation

LOSSES = (0.8, 1.0, 1.1, 0.7, 1.4)
EVERYBODY = {"m": 5, "sampling": sampling.all_clients}
METHODS = {
    AFL: {},
    DRFA: EVERYBODY,
    DRFAProx: EVERYBODY,
    DRFAGA: EVERYBODY,
    ScaffPD: {},
    DRDM: EVERYBODY,
    DualDRDM: EVERYBODY,
}
every_method = pytest.mark.parametrize("make", METHODS, ids=lambda make: make.__name__)


def still(losses):
    """Make clients with these losses at every model."""
    s = torch.tensor(losses, dtype=torch.float64)
    return QuadraticFederation(torch.zeros(len(s), 1, 1), torch.zeros(len(s), 1), s)


def mixtures(make, paths, rounds=None, **options):
    """Return λ after each round with the losses of a path; a single path applies to all rounds."""
    paths = [paths] * (rounds or 1) if np.ndim(paths) == 1 else paths
    options = METHODS[make] | {"local": LocalSGD(steps=2, lr=0.1)} | options
    algorithm = make(**options)
    state, lams = algorithm.init(still(paths[0])), []
    for r, losses in enumerate(paths):
        state, _ = algorithm.round(state, still(losses), Key(0).fold("round", r))
        lams.append(state.lam)
    return lams


def paths(rounds=6, seed=0, n=5):
    """Return losses that change from round to round."""
    return np.random.default_rng(seed).uniform(0.2, 2.0, (rounds, n)).tolist()


# ------------------------------------------------------------------------------------------------- initial λ


def sized(shares):
    """Make clients with these shares of the samples."""
    n = len(shares)
    return QuadraticFederation(torch.zeros(n, 1, 1), torch.zeros(n, 1), torch.zeros(n), shares=torch.tensor(shares))


@every_method
def test_initial_lambda_is_the_given_point_or_the_nearest_in_the_set(make):
    """If the shares are not in Λ, λ starts at the nearest point of Λ."""
    fed = sized([0.5, 0.2, 0.0, 0.2, 0.1])
    options = {"gamma": 0.1} if "gamma" in make.__dataclass_fields__ else {"sigma": 0.1}
    firsts = {
        lam0: make(lam0=lam0, **METHODS[make], **options).init(fed).lam.tolist() for lam0 in ("uniform", "shares")
    }
    assert firsts == {"uniform": pytest.approx([0.2] * 5), "shares": pytest.approx([0.5, 0.2, 0.0, 0.2, 0.1])}
    floored = make(lam0="shares", ambiguity=Simplex(0.1), **METHODS[make], **options).init(fed).lam
    assert floored.tolist() == pytest.approx([7 / 15, 1 / 6, 0.1, 1 / 6, 0.1])
    with refused("unknown-name", "lam0", "lam0 'share'", "'shares'"):
        make(lam0="share", **METHODS[make], **options).init(fed)


REFERENCES = {
    AFL: references.afl,
    DRFA: references.drfa,
    DRFAProx: references.drfa,
    DRFAGA: references.drfaga,
    ScaffPD: references.scaffpd,
    DRDM: references.drdm,
    DualDRDM: references.dual_drdm,
}


@pytest.mark.parametrize("make", long_except(["DRFA", "ScaffPD"], METHODS, [make.__name__ for make in METHODS]))
def test_rounds_with_lam0_shares_match_the_reference(make):
    """Some clients do not answer."""
    options = {"mu": 0.7} if make in (DRDM, DualDRDM) else {}
    options |= {"sigma": 0.05} if make is ScaffPD else {"gamma": 0.05}
    same_as(REFERENCES[make], make(lam0="shares", local=LocalSGD(steps=3, lr=0.1), **options))


# ------------------------------------------------------------------------------------------------- the rule


@every_method
@pytest.mark.parametrize("tau", [1, 7])
def test_first_dual_step_has_length_d_for_any_losses(make, tau):
    """λ moves along the differences from the mean loss, and τ has no influence."""
    losses = torch.tensor(LOSSES, dtype=torch.float64)
    (lam,) = mixtures(make, LOSSES, local=LocalSGD(steps=tau, lr=0.1))
    centred = losses - losses.mean()
    torch.testing.assert_close(lam, 1 / 5 + RATE * centred / centred.norm(), rtol=0, atol=1e-15)
    assert float((lam - 1 / 5).norm()) == pytest.approx(0.1, abs=1e-15)


def rule(paths, theta):
    """Return λ after each round on the simplex, by the formula; θ extrapolates the direction, not its length."""
    lam, squares, before = np.full(len(paths[0]), 1 / len(paths[0])), 0.0, np.asarray(paths[0])
    for losses in map(np.asarray, paths):
        squares += ((losses - losses.mean()) ** 2).sum()
        lam = bisection(lam + 0.1 / math.sqrt(squares) * ((1 + theta) * losses - theta * before))
        before = losses
        yield lam


@every_method
def test_path_of_lambda_has_the_closed_form(make):
    """With all clients, v is the vector of losses, and SCAFF-PD moves along 2ℓ_r − ℓ_{r−1}."""
    expected = rule(paths(), theta=1.0 if make is ScaffPD else 0.0)
    for lam, by_formula in zip(mixtures(make, paths()), expected, strict=True):
        np.testing.assert_allclose(lam, by_formula, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("make", "unit"), crossed(list(METHODS), [1e-150, 1e-12, 1000.0, 1e12, 1e150, -1.0]))
def test_scale_and_sign_of_the_loss_do_not_matter(make, unit):
    """Negative losses give the same λ as positive ones."""
    ours = mixtures(make, (unit * np.array(paths())).tolist())
    theirs = mixtures(make, (math.copysign(1, unit) * np.array(paths())).tolist())
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert len({tuple(lam.tolist()) for lam in ours}) > 1


@every_method
@pytest.mark.parametrize("constant", [-3.0, 0.5, 1e3])
def test_constant_added_to_all_losses_does_not_matter(make, constant):
    """The constant may differ between rounds."""
    ours = mixtures(make, [[loss + (r + 1) * constant for loss in row] for r, row in enumerate(paths())])
    for a, b in zip(ours, mixtures(make, paths()), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@every_method
@pytest.mark.parametrize("value", [0.0, 2.5, -1.0])
def test_equal_losses_leave_lambda_unchanged(make, value):
    (first, last) = mixtures(make, [[value] * 5, [3 * value] * 5])
    for lam in (first, last):
        torch.testing.assert_close(lam, torch.full((5,), 0.2, dtype=torch.float64), rtol=0, atol=1e-15)


@every_method
def test_round_of_equal_losses_has_no_later_effect(make):
    """SCAFF-PD is an exception because of its extrapolation."""
    equal, unequal = mixtures(make, [[1.0] * 5, LOSSES], **({"theta": 0.0} if make is ScaffPD else {}))
    torch.testing.assert_close(equal, torch.full((5,), 0.2, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(unequal, mixtures(make, LOSSES)[0], rtol=0, atol=1e-12)


SETS = (Simplex(), CVaR(0.5), Box(0.3), ChiSquare(0.1), KL(0.1), ChiSquareBall(0.2), KLBall(0.2))


@every_method
@pytest.mark.parametrize("ambiguity", SETS, ids=repr)
@pytest.mark.parametrize("unit", long_except(["5e-324", "1e+200"], [1e-160, 1e-308, 5e-324, 1e153, 1e200]))
def test_losses_whose_squares_overflow_keep_lambda_in_its_set(make, ambiguity, unit):
    """Otherwise, the step would be infinite, or 0 times infinity."""
    if make is DRFA and ambiguity.penalised:
        make = DRFAProx
    (lam,) = mixtures(make, [loss * unit for loss in LOSSES], ambiguity=ambiguity)
    assert ambiguity.contains(lam)


def test_dual_step_size_never_grows():
    squares, steps = no_squares(), []
    for size in (2.0, 1.0, 5.0, 0.0, 3.0):
        step, squares = step_size(None, torch.tensor([size, -size, 0.0]).double(), squares)
        steps.append(step)
    assert steps == pytest.approx([0.1 / math.sqrt(total) for total in (8, 10, 60, 60, 78)])
    assert float(squares) == pytest.approx(78)


def test_given_gamma_is_the_dual_step_size():
    step, squares = step_size(0.7, torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor(5.0).double())
    assert (step, float(squares)) == (0.7, 7.0)
    assert step_size(None, torch.full((3,), 4.0).double(), no_squares())[0] == 0.0


@every_method
def test_sum_of_squares_accumulates_over_rounds(make):
    """A round without any report leaves the sum unchanged."""
    algorithm = make(**METHODS[make], local=LocalSGD(lr=0.1))
    small, large = still(LOSSES), still([2 * loss for loss in LOSSES])
    silent = DropoutFederation(small, losses=range(5), gradients=range(5))
    state, found = algorithm.init(small), []
    for r, fed in enumerate((silent, small, large, silent)):
        state, _ = algorithm.round(state, fed, Key(r))
        found.append(float(state.squares))
    one = float(np.var(LOSSES) * 5)
    assert found == pytest.approx([0.0, one, (1 + 4) * one, (1 + 4) * one], rel=1e-12)


# ------------------------------------------------------------------------------------------------- centred reports


def test_only_dual_drdm_centres_its_estimate():
    """The published algorithms keep their own estimate."""
    assert DualDRDM().centred
    assert not any(make().centred for make in (DRFA, DRFAProx, DRDM, SnapshotMethod))


def of(values, clients):
    clients = torch.tensor(clients, dtype=torch.int64)
    return Losses(clients, torch.as_tensor(values, dtype=torch.float64)[clients])


@pytest.mark.parametrize(("n", "k"), [(n, k) for n in (2, 3, 5, 6) for k in range(1, n + 1)])
@pytest.mark.parametrize("centred", [False, True])
def test_estimate_is_unbiased_over_all_cohorts(n, k, centred):
    """The centred estimate is in the plane of the simplex, so it is unbiased up to the mean."""
    losses = torch.from_numpy(np.random.default_rng(n).uniform(0.5, 3.0, n))
    drawn = [of(losses, cohort).unbiased(n, centred=centred) for cohort in itertools.combinations(range(n), k)]
    mean = torch.stack(drawn).mean(0)
    expected = losses - losses.mean() if centred and k > 1 else losses
    torch.testing.assert_close(mean, expected, rtol=0, atol=1e-13)
    for v in drawn:
        assert v.dtype == torch.float64
        assert int((v != 0).sum()) <= k
        if centred and k > 1:
            assert abs(float(v.sum())) < 1e-12


@pytest.mark.parametrize("n", [4, 7])
def test_centring_removes_the_noise_of_the_mean_loss(n):
    """If losses are far larger than their differences, the error of the plain estimate grows with the losses."""
    losses = 100 + torch.from_numpy(np.random.default_rng(0).uniform(0, 1, n))
    target = losses - losses.mean()

    def error(centred):
        cohorts = itertools.combinations(range(n), 2)
        vs = [of(losses, cohort).unbiased(n, centred=centred) for cohort in cohorts]
        return sum(float((v - v.mean() - target).square().sum()) for v in vs) / len(vs)

    assert error(True) < 1e-3 * error(False)


def test_centring_has_no_effect_with_all_clients_on_the_simplex():
    losses = torch.tensor(LOSSES).double()
    v, centred = (of(losses, range(5)).unbiased(5, centred=centred) for centred in (False, True))
    assert torch.equal(v, losses)
    torch.testing.assert_close(centred, losses - losses.mean(), rtol=0, atol=1e-15)


def test_estimate_from_one_report_and_from_none():
    """A single report cannot be centred, and counts as in the plain estimate."""
    for centred in (False, True):
        assert of([5.0, 2.0, 1.0], [1]).unbiased(3, centred=centred).tolist() == [0.0, 6.0, 0.0]
        assert of([5.0], [0]).unbiased(1, centred=centred).tolist() == [5.0]
        assert of([5.0, 2.0], []).unbiased(2, centred=centred).tolist() == [0.0, 0.0]


def test_estimate_with_two_clients():
    """For N = 2 the estimate has the whole difference at once."""
    assert of([3.0, 1.0], [0, 1]).unbiased(2, centred=True).tolist() == [1.0, -1.0]
    (lam,) = mixtures(DualDRDM, [3.0, 1.0], m=2)
    torch.testing.assert_close(lam, 0.5 + 0.1 * torch.tensor([1.0, -1.0]).double() / math.sqrt(2), rtol=0, atol=1e-15)
    (alone,) = mixtures(DualDRDM, [3.0], m=1)
    assert alone.tolist() == [1.0]


@pytest.mark.parametrize("k", [2, 3, 4])
def test_equal_reported_losses_leave_lambda_unchanged(k):
    """Plain estimates would raise the weights of the clients that report."""
    fed = still([2.0] * 5)
    for centred in (False, True):
        algorithm = DualDRDM(m=k, centred=centred, gamma=0.05, local=LocalSGD(steps=2, lr=0.1))
        state, _ = algorithm.round(algorithm.init(fed), fed, Key(3))
        moved = float((state.lam - 0.2).abs().max())
        assert (moved < 1e-15) == centred


CENTRED = [
    pytest.param(references.drfa, DRFA, id="DRFA"),
    pytest.param(references.drfa, DRFAProx, id="DRFAProx"),
    pytest.param(references.drdm, DRDM, id="DRDM"),
    pytest.param(references.dual_drdm, DualDRDM, id="DualDRDM"),
]


@pytest.mark.parametrize(("reference", "make", "centred"), crossed(CENTRED, [False, True]))
def test_rounds_with_and_without_centring_match_the_reference(reference, make, centred):
    """Some clients do not answer."""
    options = {} if make in (DRFA, DRFAProx) else {"mu": 0.7}
    same_as(reference, make(m=3, gamma=0.05, centred=centred, local=LocalSGD(steps=3, lr=0.1), **options))


def test_mean_step_over_all_cohorts_equals_the_step_with_all_clients():
    """γ is given and no boundary is near; each client's report is in equally many cohorts."""
    n, gamma, losses = 5, 0.01, list(LOSSES)
    cohorts, fed = list(itertools.combinations(range(n), 3)), still(losses)
    algorithm = DualDRDM(
        m=n, gamma=gamma, local=LocalSGD(steps=2, lr=0.1), ambiguity=Hyperplane(), sampling=sampling.all_clients
    )
    lams = []
    for answering in cohorts:
        silent = set(range(n)) - set(answering)
        state, _ = algorithm.round(algorithm.init(fed), DropoutFederation(fed, losses=silent), Key(0))
        lams.append(state.lam)
    whole, _ = algorithm.round(algorithm.init(fed), fed, Key(0))
    torch.testing.assert_close(torch.stack(lams).mean(0), whole.lam, rtol=0, atol=1e-14)
