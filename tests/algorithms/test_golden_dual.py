"""The dual algorithms against an independent NumPy implementation, round by round."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import golden_dual
from tests.support.federations import Partial
from tests.support.golden_dual import Setting
from tests.support.problems import federation, pools
from tests.support.reference import Softmax

from drfl import sampling
from drfl.algorithms import AFL, DRFA, DRFAGA, DRFAProx, DualDRDM, ScaffPD
from drfl.ambiguity import KL, ChiSquare, ChiSquareBall, Simplex
from drfl.errors import InputError
from drfl.local import LocalSGD
from drfl.loop import run

SIZES = (1, 2, 31, 33, 7, 50)
REFERENCES = {
    "AFL": golden_dual.afl,
    "DRFAProx": golden_dual.drfa_prox,
    "DRFAGA": golden_dual.drfa_ga,
    "ScaffPD": golden_dual.scaff_pd,
    "DualDRDM": golden_dual.dual_drdm,
}


def algorithm_of(name, s):
    local, drawn = LocalSGD(steps=s.tau, lr=s.lr, batch=None), getattr(sampling, s.sampling)
    common = {"local": local, "ambiguity": ChiSquare(s.rho) if s.rho else Simplex()}
    by_lambda = {**common, "m": s.m, "gamma": s.gamma, "sampling": drawn}
    return {
        "AFL": lambda: AFL(gamma=s.gamma, dual_batch=None, dual_after=s.after, **common),
        "DRFAProx": lambda: DRFAProx(dual_batch=None, **by_lambda),
        "DRFAGA": lambda: DRFAGA(**by_lambda),
        "ScaffPD": lambda: ScaffPD(
            m=s.m, sigma=s.gamma, theta=1.0 if s.strong else s.theta, mu=s.strong, server_lr=s.server_lr, **common
        ),
        "DualDRDM": lambda: DualDRDM(mu=s.mu, dual_batch=None, **by_lambda),
    }[name]()


def check(name, s, engine=None):
    fed = federation(SIZES, engine=engine)
    expected = REFERENCES[name](Softmax(pools(SIZES), 3), s, fed.w0.numpy(), np.full(fed.n, 1 / fed.n))
    steps = []
    lossy = Partial(fed, lost_train=s.lost_train, lost_losses=s.lost_losses)
    run(algorithm_of(name, s), lossy, rounds=s.rounds, seed=s.seed, callbacks=[steps.append])
    for step, (w, lam) in zip(steps[1:], expected, strict=True):
        np.testing.assert_allclose(step.state.w.numpy(), w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(step.state.lam.numpy(), lam, rtol=0, atol=1e-10)
    assert float(abs(steps[-1].state.lam - 1 / 6).max()) > 1e-3


@pytest.mark.parametrize("name", REFERENCES)
def test_rounds_are_the_papers(name, engine):
    check(name, Setting(), engine)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("rho", [0.05, 2.0])
def test_penalty(name, rho):
    check(name, Setting(rho=rho, gamma=0.05))


@pytest.mark.parametrize("name", REFERENCES)
def test_large_dual_steps_reach_the_boundary(name):
    check(name, Setting(gamma=0.3))


@pytest.mark.parametrize("name", ["DRFAProx", "DRFAGA", "DualDRDM"])
def test_everybody(name):
    check(name, Setting(sampling="everybody"))


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("lost", [((3,), ()), ((), (2, 4)), ((0, 5), (1,))], ids=str)
def test_some_do_not_answer(name, lost):
    check(name, Setting(lost_train=lost[0], lost_losses=lost[1]))


def test_afl_takes_the_losses_after_the_step_on_demand():
    check("AFL", Setting(after=True))
    check("AFL", Setting(after=True, tau=1))


@pytest.mark.parametrize("m", [6, 3])
def test_scaffpd_schedules(m):
    check("ScaffPD", Setting(m=m, strong=0.4))
    check("ScaffPD", Setting(m=m, theta=1.0, server_lr=0.6))


def test_scaffpd_with_one_exact_step_is_the_extrapolated_primal_dual_step():
    """With J = 1 and exact gradients the correction cancels: x moves along Σ λ_i ∇f_i(x)."""
    s, fed = Setting(m=6, tau=1), federation(SIZES)
    problem, w, lam = Softmax(pools(SIZES), 3), fed.w0.numpy(), np.full(6, 1 / 6)
    steps, before = [], None
    run(algorithm_of("ScaffPD", s), fed, rounds=6, seed=0, callbacks=[steps.append])
    for step in steps[1:]:
        losses = np.array([problem.loss(w, rows) for rows in problem.rows])
        lam = golden_dual.prox(
            lam + s.gamma * (losses + s.theta * (losses - (losses if before is None else before))), 1, 0
        )
        w = w - s.lr * sum(x * problem.gradient(w, rows) for x, rows in zip(lam, problem.rows, strict=True))
        before = losses
        np.testing.assert_allclose(step.state.w.numpy(), w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_scaffpd_with_weight_decay_ends_at_the_regularised_optimum(momentum):
    """λ held still by σ = 0: the λ-weighted gradient and the decay cancel, whoever was away."""
    local = LocalSGD(steps=4, lr=0.2, batch=None, momentum=momentum, weight_decay=0.5)
    fed, problem = federation(SIZES), Softmax(pools(SIZES), 3)
    result = run(ScaffPD(m=4, sigma=0.0, local=local), fed, rounds=150, seed=0)
    w = result.state.w.numpy()
    gradient = np.mean([problem.gradient(w, rows) for rows in problem.rows], axis=0)
    np.testing.assert_allclose(gradient + 0.5 * w, 0, atol=1e-8)


def test_what_cannot_be_is_refused_with_the_remedy():
    with pytest.raises(InputError, match="DRFAProx"):
        DRFA(m=2, ambiguity=ChiSquare(0.1))
    DRFA(m=2, ambiguity=ChiSquareBall(0.1))
    with pytest.raises(InputError, match="one of them"):
        ScaffPD(theta=0.5, mu=0.1)
    with pytest.raises(InputError, match="radius"):
        ScaffPD(local=LocalSGD(radius=1.0))
    for bad in ({"sigma": -1.0}, {"theta": 1.5}, {"mu": -0.1}, {"server_lr": 0.0}, {"dual_batch": 0}):
        with pytest.raises(InputError):
            ScaffPD(**bad)
    for bad in ({"gamma": -1.0}, {"dual_batch": 0}):
        with pytest.raises(InputError):
            AFL(**bad)
    with pytest.raises(InputError):
        DRFAGA(m=2, gamma=-1.0)
    with pytest.raises(InputError):
        DualDRDM(m=2, mu=0.0)


def test_kl_in_drfa_ga_names_algorithms_that_take_it():
    fed = federation(SIZES)
    algorithm = DRFAGA(m=6, gamma=50.0, ambiguity=KL(0.01), local=LocalSGD(batch=None))
    with pytest.raises(InputError, match="DRFAProx"):
        run(algorithm, fed, rounds=5, seed=0)
