"""Whole runs against an independent NumPy implementation: full batches, so that only D, t' and U are random."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support import golden
from tests.support.federations import Partial
from tests.support.golden import Setting
from tests.support.problems import federation, pools
from tests.support.reference import Softmax

from drfl import sampling
from drfl.algorithms import DRDM, DRFA, FedAvg
from drfl.ambiguity import Simplex
from drfl.local import LocalSGD
from drfl.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
SIZES = (1, 2, 31, 33, 7, 50)
REFERENCES = {"FedAvg": golden.fedavg, "DRFA": golden.drfa, "DRDM": golden.drdm}
SAMPLINGS = {
    "with_replacement": sampling.with_replacement,
    "without_replacement": sampling.without_replacement,
    "everybody": sampling.everybody,
}


def algorithm_of(name, s):
    local = LocalSGD(steps=s.tau, lr=s.lr, batch=None)
    if name == "FedAvg":
        return FedAvg(m=s.m, local=local)
    common = {
        "m": s.m,
        "gamma": s.gamma,
        "local": local,
        "dual_batch": None,
        "ambiguity": Simplex(s.floor),
        "sampling": SAMPLINGS[s.sampling],
    }
    return DRFA(**common) if name == "DRFA" else DRDM(mu=s.mu, **common)


def both(name, s, engine=None):
    """The steps that drfl goes through, and the reference's."""
    data, fed = pools(SIZES), federation(SIZES, engine=engine)
    lam = np.array(SIZES) / sum(SIZES) if name == "FedAvg" else np.full(fed.n, 1 / fed.n)
    expected = REFERENCES[name](Softmax(data, 3), s, fed.w0.numpy(), lam)
    steps = []
    lossy = Partial(fed, lost_train=s.lost_train, lost_losses=s.lost_losses)
    run(algorithm_of(name, s), lossy, rounds=s.rounds, seed=s.seed, averaged=True, callbacks=[steps.append])
    return steps[1:], expected


def check(steps, expected):
    for step, want in zip(steps, expected, strict=True):
        state = step.state
        close(state.w, want.w)
        close(step.row.lam, want.lam)
        close(step.average.w, want.w_hat)
        close(step.average.lam, want.lam_hat)
        if hasattr(state, "h"):
            close(state.h.dense(), want.h)
            close(state.c, want.h.mean(axis=0))
            close(state.c, state.h.dense().mean(0).numpy())
        assert sorted(step.info.answered.tolist()) == sorted(want.answered)
        assert step.info.cohort.clients.tolist() == sorted(set(want.drawn))


def close(tensor, array):
    np.testing.assert_allclose(tensor.numpy(), array, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", REFERENCES)
def test_rounds_are_the_papers(name, engine):
    steps, expected = both(name, Setting(), engine)
    check(steps, expected)
    assert float(abs(steps[-1].state.w - steps[0].state.w).max()) > 0.05


@pytest.mark.parametrize("name", ["DRFA", "DRDM"])
def test_the_golden_runs_exercise_what_they_are_for(name):
    """Clients drawn twice, several snapshot steps, a λ with zeros and one that stays inside."""
    _, expected = both(name, Setting())
    assert any(len(set(e.drawn)) < len(e.drawn) for e in expected)
    assert len({e.t for e in expected}) > 1
    assert any((e.lam > 0).all() for e in expected)
    _, expected = both(name, Setting(gamma=0.2))
    assert any((e.lam == 0).any() for e in expected)


@pytest.mark.parametrize("name", ["DRFA", "DRDM"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_sampling(name, sampling, seed):
    gamma = 0.002 if sampling == "without_replacement" else 0.2
    check(*both(name, Setting(sampling=sampling, seed=seed, gamma=gamma)))


@pytest.mark.parametrize("name", ["DRFA", "DRDM"])
def test_floor(name):
    steps, expected = both(name, Setting(gamma=0.2, floor=0.05))
    check(steps, expected)
    assert float(steps[-1].state.lam.min()) == pytest.approx(0.05)


@pytest.mark.parametrize("name", ["DRFA", "DRDM"])
@pytest.mark.parametrize("tau", [1, 2])
def test_few_local_steps(name, tau):
    check(*both(name, Setting(tau=tau, rounds=3)))


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("lost", [((3,), ()), ((), (2, 4)), ((0, 5), (1,)), ((0, 1, 2, 3), (0, 1, 3))], ids=str)
def test_some_do_not_answer(name, sampling, lost):
    s = Setting(sampling=sampling, gamma=0.002 if sampling == "without_replacement" else 0.02, rounds=5)
    steps, expected = both(name, s._replace(lost_train=lost[0], lost_losses=lost[1]))
    check(steps, expected)
    if lost[0]:
        assert any(len(set(e.answered)) < len(set(e.drawn)) for e in expected)


@pytest.mark.parametrize("name", REFERENCES)
def test_nobody_answers(name):
    s = Setting(lost_train=tuple(range(len(SIZES))))
    algorithm, lossy = algorithm_of(name, s), Partial(federation(SIZES), lost_train=s.lost_train)
    steps = []
    result = run(algorithm, lossy, rounds=3, seed=0, averaged=True, callbacks=[steps.append])
    assert all(step.info.empty for step in steps[1:])
    assert all(step.state is steps[0].state for step in steps)
    assert result.skipped == 3
    assert int(result.average.rounds) == 0
    assert torch.equal(result.average.w, steps[0].state.w)
    assert torch.equal(result.average.lam, steps[0].row.lam)
    assert lossy.ledger.loss_evaluations == 0


@pytest.mark.parametrize("name", ["DRFA", "DRDM"])
def test_no_loss_report(name):
    """λ stays, the model moves."""
    steps, expected = both(name, Setting(lost_losses=tuple(range(len(SIZES)))))
    check(steps, expected)
    assert all(torch.equal(s.state.lam, steps[0].state.lam) for s in steps)
    assert not torch.equal(steps[0].state.w, steps[1].state.w)
    assert not any(step.info.empty for step in steps)


@pytest.mark.parametrize("by_samples", [True, False])
def test_fedavg_weights(by_samples):
    fed = federation(SIZES)
    algorithm = FedAvg(local=LocalSGD(steps=2, batch=None), by_samples=by_samples)
    expected = np.array(SIZES) / sum(SIZES) if by_samples else np.full(6, 1 / 6)
    close(algorithm.weights(fed), expected)
    steps = []
    run(algorithm, fed, rounds=1, callbacks=[steps.append])
    s = Setting(m=6, tau=2, lr=0.1, rounds=1)
    close(steps[1].state.w, golden.fedavg(Softmax(pools(SIZES), 3), s, fed.w0.numpy(), expected)[0].w)
    close(steps[1].row.lam, expected)
    assert steps[1].average is None
