"""Where DRDM and dual DRDM end: at the average optimum whatever λ is, and at the λ-weighted one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.quadratics import Quadratics

from drfl import sampling
from drfl.algorithms import DRDM, DualDRDM
from drfl.ambiguity import CVaR, KLBall, Simplex
from drfl.local import LocalSGD
from drfl.loop import run
from drfl.testing import QuadraticFederation
from drfl.testing.problems import curved_quadratics, quadratics

PROBLEM = Quadratics.random(seed=4)
MIXTURES = {
    "leaning": (0.5, 0.2, 0.1, 0.1, 0.1),
    "almost one client": (0.01, 0.01, 0.01, 0.01, 0.96),
}
SOLVERS = {
    "gradient steps": LocalSGD(steps=6, lr=0.1, batch=None),
    "with weight decay": LocalSGD(steps=6, lr=0.1, batch=None, weight_decay=0.3),
}
every_case = pytest.mark.parametrize(
    ("lam", "local"),
    [(lam, local) for lam in MIXTURES.values() for local in SOLVERS.values()],
    ids=[f"{lam}, {local}" for lam in MIXTURES for local in SOLVERS],
)


def ends(algorithm, lam, local, sampling):
    """The last model with λ held at lam: Λ is that point alone."""
    held = KLBall(0.0, prior=lam)
    method = algorithm(m=5, mu=3.0, gamma=0.1, local=local, dual_batch=None, ambiguity=held, sampling=sampling)
    result = run(method, PROBLEM.federation(), rounds=400, evaluate_every=400)
    torch.testing.assert_close(result.state.lam, torch.tensor(lam, dtype=torch.float64), rtol=0, atol=1e-12)
    return result.state.w.numpy()


def near(w, weights, local):
    np.testing.assert_allclose(w, PROBLEM.optimum(weights, local.weight_decay), rtol=0, atol=1e-8)


@every_case
def test_drdm_ends_at_the_average_optimum_whatever_the_mixture(lam, local):
    near(ends(DRDM, lam, local, sampling.everybody), [0.2] * 5, local)


@every_case
def test_dual_drdm_ends_at_the_weighted_optimum(lam, local):
    near(ends(DualDRDM, lam, local, sampling.everybody), lam, local)


def test_it_does_not_depend_on_who_is_drawn():
    """Cohorts drawn from λ."""
    lam, local = MIXTURES["leaning"], SOLVERS["gradient steps"]
    near(ends(DRDM, lam, local, sampling.with_replacement), [0.2] * 5, local)
    near(ends(DualDRDM, lam, local, sampling.with_replacement), lam, local)


@pytest.mark.parametrize("ambiguity", [Simplex(), CVaR(0.4)], ids=repr)
def test_with_the_dual_step_only_dual_drdm_reaches_the_saddle_point(ambiguity):
    """The centre of the smallest enclosing ball, for Λ the simplex; DRDM stays at the mean though λ has moved."""
    problem = quadratics()
    saddle, average = problem.saddle(ambiguity).w, problem.average_optimum
    f = problem.functions
    fed = QuadraticFederation(f.hessians, f.linear, f.losses(torch.zeros(f.d, dtype=torch.float64)))
    options = {"m": fed.n, "mu": 2.0, "gamma": 0.005, "ambiguity": ambiguity}
    options |= {"local": LocalSGD(steps=5, lr=0.1, batch=None), "dual_batch": None, "sampling": sampling.everybody}
    w, dual_w = (
        run(algorithm(**options), fed, rounds=1500, evaluate_every=1500).state.w for algorithm in (DRDM, DualDRDM)
    )
    assert (saddle - average).norm() > 0.1
    torch.testing.assert_close(w, average, rtol=0, atol=1e-8)
    torch.testing.assert_close(dual_w, saddle, rtol=0, atol=1e-6)


@pytest.mark.parametrize("problem", [quadratics(n=6), curved_quadratics(n=6)], ids=["bowls", "curved"])
def test_drdm_needs_every_client_to_be_drawn(problem):
    """Where λ_i is 0 client i is never drawn again, and its old h_i holds DRDM off either optimum: give λ a floor."""
    f = problem.functions
    fed = QuadraticFederation(f.hessians, f.linear, f.losses(torch.zeros(f.d, dtype=torch.float64)))
    local = LocalSGD(steps=5, lr=0.01, batch=None)
    options = {"m": 6, "mu": 20.0, "gamma": 0.01, "local": local, "dual_batch": None}

    def last(algorithm, floor, sampling=sampling.with_replacement):
        method = algorithm(ambiguity=Simplex(floor), sampling=sampling, **options)
        return run(method, fed, rounds=1500, evaluate_every=1500).state

    stuck, average, saddle = last(DRDM, 0.0), problem.average_optimum, problem.saddle(Simplex()).w
    assert sorted(stuck.lam.tolist()) == [0, 0, 0, 0, 0, 1]
    assert min((stuck.w - average).norm(), (stuck.w - saddle).norm()) > 0.5
    torch.testing.assert_close(last(DRDM, 0.01).w, average, rtol=0, atol=1e-8)
    torch.testing.assert_close(last(DRDM, 0.0, sampling.everybody).w, average, rtol=0, atol=1e-8)
    torch.testing.assert_close(last(DualDRDM, 0.0).w, saddle, rtol=0, atol=1e-6)
