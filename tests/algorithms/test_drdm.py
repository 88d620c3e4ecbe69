"""Test the rounds and limits of DRDM and dual DRDM.

DRDM ends at the average optimum for any λ, dual DRDM at the λ-weighted one.
"""

from __future__ import annotations

import pytest
import torch
from tests.conformance import references
from tests.support.marks import long_except
from tests.support.quadratics import Quadratics
from tests.support.refusals import refused
from tests.support.rounds import near, same_as, second_round

from drfl.algorithms import DRDM, DualDRDM
from drfl.ambiguity import ChiSquare, CVaR, KLBall, Simplex
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.optim.local import LocalSGD
from drfl.testing import QuadraticFederation
from drfl.testing.problems import quadratics
from drfl.training.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
BOTH = {"DRDM": (references.drdm, DRDM), "DualDRDM": (references.dual_drdm, DualDRDM)}
every_method = pytest.mark.parametrize(("reference", "make"), BOTH.values(), ids=BOTH)


@every_method
@pytest.mark.parametrize("solver", [{}, {"steps": 1}, {"momentum": 0.5, "weight_decay": 0.2}], ids=str)
def test_rounds_match_the_paper(reference, make, solver):
    same_as(reference, make(m=3, gamma=0.05, mu=0.7, local=LocalSGD(**({"steps": 3, "lr": 0.1} | solver))))


@every_method
@pytest.mark.parametrize("draw", [sampling.without_replacement, sampling.all_clients])
def test_rounds_with_every_sampling(reference, make, draw):
    # a floor, as there must be four clients to draw without replacement
    same_as(
        reference,
        make(m=3, gamma=0.05, mu=0.7, sampling=draw, ambiguity=Simplex(0.05), local=LocalSGD(steps=3, lr=0.1)),
    )


@every_method
def test_rounds_with_a_penalty(reference, make):
    same_as(reference, make(m=3, gamma=0.05, mu=0.7, ambiguity=ChiSquare(0.05), local=LocalSGD(steps=3, lr=0.1)))


@pytest.mark.parametrize("make", [DRDM, DualDRDM])
def test_clients_receive_shift_and_proximal_weight(make):
    """The shift is −h_i, and the proximal weight is μ."""
    state, (train, _) = second_round(make(m=3, mu=0.25))
    assert train.prox == 0.25
    assert torch.equal(train.shift, -state.h[train.cohort])
    assert float(train.shift.abs().max()) > 0


PROBLEM = Quadratics.random(seed=4)
LEANING, ALMOST_ONE = (0.5, 0.2, 0.1, 0.1, 0.1), (0.01, 0.01, 0.01, 0.01, 0.96)


@pytest.mark.parametrize(
    ("lam", "decay", "draw"),
    long_except(
        ["almost one, decay"],
        [
            (LEANING, 0.0, sampling.all_clients),
            (ALMOST_ONE, 0.3, sampling.all_clients),
            (LEANING, 0.0, sampling.with_replacement),
        ],
        ["leaning", "almost one, decay", "with replacement"],
    ),
)
@pytest.mark.parametrize("make", [pytest.param(DRDM, marks=pytest.mark.long), DualDRDM])
def test_limits_with_fixed_client_weights(make, lam, decay, draw):
    """If Λ is a single point, DRDM ends at the average optimum and dual DRDM at the weighted one, for any cohort."""
    local = LocalSGD(steps=6, lr=0.1, batch=None, weight_decay=decay)
    held = KLBall(0.0, prior=lam)
    method = make(m=5, mu=3.0, gamma=0.1, local=local, dual_batch=None, ambiguity=held, sampling=draw)
    state = run(method, PROBLEM.federation(), rounds=250, evaluate_every=250).state
    near(state.lam.numpy(), lam, 1e-12)
    near(state.w.numpy(), PROBLEM.optimum([0.2] * 5 if make is DRDM else lam, decay), 1e-8)


def exact(problem):
    f = problem.functions
    return QuadraticFederation(f.hessians, f.linear, f.losses(torch.zeros(f.d, dtype=torch.float64)))


@pytest.mark.long
@pytest.mark.parametrize("ambiguity", [Simplex(), CVaR(0.4)], ids=repr)
def test_only_dual_drdm_reaches_the_saddle_point_by_the_dual_update(ambiguity):
    """For the simplex this is the centre of the smallest enclosing ball. DRDM stays at the mean although λ moves."""
    problem = quadratics()
    saddle, average, fed = problem.saddle(ambiguity).w, problem.average_optimum, exact(problem)
    options = {"m": fed.n, "mu": 2.0, "gamma": 0.02, "ambiguity": ambiguity}
    options |= {"local": LocalSGD(steps=5, lr=0.1, batch=None), "dual_batch": None, "sampling": sampling.all_clients}
    w, dual_w = (run(make(**options), fed, rounds=400, evaluate_every=400).state.w for make in (DRDM, DualDRDM))
    assert (saddle - average).norm() > 0.1
    torch.testing.assert_close(w, average, rtol=0, atol=1e-8)
    torch.testing.assert_close(dual_w, saddle, rtol=0, atol=1e-6)


@pytest.mark.long
def test_drdm_misses_the_optimum_if_a_client_is_never_drawn():
    """A client with λ_i = 0 is never drawn again, and its old h_i keeps DRDM away from the optimum.

    A floor avoids this.
    """
    problem = quadratics(n=6)
    local = LocalSGD(steps=5, lr=0.02, batch=None)
    options = {"m": 6, "mu": 10.0, "gamma": 0.01, "local": local, "dual_batch": None}

    def last(algorithm, floor, sampling=sampling.with_replacement):
        method = algorithm(ambiguity=Simplex(floor), sampling=sampling, **options)
        return run(method, exact(problem), rounds=500, evaluate_every=500).state

    stuck, average, saddle = last(DRDM, 0.0), problem.average_optimum, problem.saddle(Simplex()).w
    assert sorted(stuck.lam.tolist()) == [0, 0, 0, 0, 0, 1]
    assert min((stuck.w - average).norm(), (stuck.w - saddle).norm()) > 0.5
    torch.testing.assert_close(last(DRDM, 0.01).w, average, rtol=0, atol=1e-6)
    torch.testing.assert_close(last(DRDM, 0.0, sampling.all_clients).w, average, rtol=0, atol=1e-8)
    torch.testing.assert_close(last(DualDRDM, 0.0).w, saddle, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [DRDM, DualDRDM])
@pytest.mark.parametrize("mu", [0.0, -1.0])
def test_impossible_values_are_refused(make, mu):
    with refused("out-of-range", "mu"):
        make(m=2, mu=mu)


@pytest.mark.parametrize("tau", [1, 4])
def test_recursion_of_the_proof_differs_from_the_algorithm(tau):
    """Before Lemma 1, c^t = c^{t−1} − (μ/N) Σ_i (w_i^t − w^{t−1}), which lacks (m/N) Σ_{t<τ} c^t of line 18.

    The recursion of (37)–(40), v here, also lacks c^(s).
    """
    fed, mu, m = exact(quadratics(n=6)), 3.0, 4
    method = DRDM(
        m=m, mu=mu, gamma=0.0, dual_batch=None, sampling=sampling.without_replacement,
        local=LocalSGD(steps=tau, lr=0.05, batch=None),
    )  # fmt: skip
    state = run(method, fed, rounds=3, evaluate_every=3).state
    after, info = method.round(state, fed, Key(7))
    shift = -state.h[info.answered]
    c, w, path, v, last, errors = state.c, state.w, [], state.w, state.w, []
    for k in range(1, tau + 1):
        shorter = LocalSGD(steps=k, lr=0.05, batch=None)
        M = fed.train(info.answered, state.w, shorter, Key(7), prox=mu, shift=shift).w.mean(0)
        c = c - mu * m / fed.n * (M - w)
        w = M - c / mu
        path.append(c)
        v, last = v + (M - last) + m / fed.n * (M - v), M
        errors.append(mu * (M - v))
    passed = sum(path[:-1], torch.zeros_like(c))
    near(after.c, c + m / fed.n * passed, 1e-12)
    near(after.w, w - m / fed.n * passed / mu, 1e-12)
    near(after.w, v - (state.c + m / fed.n * sum(errors[:-1], torch.zeros_like(c))) / mu, 1e-12)
    assert float((after.w - v).norm()) > 0.01
    assert (float((after.c - c).norm()) > 0.1) == (tau > 1)
