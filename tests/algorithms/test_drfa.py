"""Test DRFA, DRFA-Prox and DRFA-GA: their rounds, their random draws, and values that they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.conformance import references
from tests.support.marks import crossed
from tests.support.problems import federation
from tests.support.reference import bisection
from tests.support.refusals import refused
from tests.support.rounds import near, same_as, second_round, states

from drfl.algorithms import DRFA, DRFAGA, DRFAProx
from drfl.ambiguity import KL, ChiSquare, ChiSquareBall, Simplex
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.optim.local import LocalSGD
from drfl.optim.schedules import Exponential
from drfl.testing import DropoutFederation, QuadraticFederation, Recording
from drfl.training.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
EVERY_VARIANT = [
    pytest.param(references.drfa, DRFA, id="DRFA"),
    pytest.param(references.drfa, DRFAProx, id="DRFAProx"),
    pytest.param(references.drfaga, DRFAGA, id="DRFAGA"),
]


@pytest.mark.parametrize(
    ("reference", "make", "solver"), crossed(EVERY_VARIANT, [{}, {"steps": 1}, {"momentum": 0.5, "weight_decay": 0.2}])
)
def test_rounds_match_the_paper(reference, make, solver):
    same_as(reference, make(m=3, gamma=0.05, local=LocalSGD(**({"steps": 3, "lr": 0.1} | solver))))


@pytest.mark.parametrize(
    ("reference", "make", "draw"),
    crossed(EVERY_VARIANT, [sampling.without_replacement, sampling.all_clients, sampling.uniform_weighted]),
)
def test_rounds_with_every_sampling(reference, make, draw):
    # a floor, as there must be four clients to draw without replacement
    same_as(reference, make(m=3, gamma=0.05, sampling=draw, ambiguity=Simplex(0.05), local=LocalSGD(steps=3, lr=0.1)))


@pytest.mark.parametrize(("reference", "make"), EVERY_VARIANT[1:])
@pytest.mark.parametrize("rho", [0.05, pytest.param(2.0, marks=pytest.mark.long)])
def test_rounds_with_a_penalty(reference, make, rho):
    same_as(reference, make(m=3, gamma=0.05, ambiguity=ChiSquare(rho), local=LocalSGD(steps=3, lr=0.1)))


def test_requests_have_no_shift_and_fresh_loss_samples():
    """A separate cohort reports losses on fresh samples."""
    _, (train, losses) = second_round(DRFA(m=3, dual_batch=11))
    assert (train.kind, train.prox, train.shift) == ("train", 0.0, None)
    assert train.key == Key(0).fold("round", 2, "sgd")
    assert train.snapshot in range(1, LocalSGD().steps + 1)
    assert (losses.kind, losses.batch, losses.key) == ("losses", 11, Key(0).fold("round", 2, "xi"))


def test_impossible_values_are_refused_with_the_remedy():
    with refused("unsupported-combination", "ambiguity", "DRFAProx"):
        DRFA(m=2, ambiguity=ChiSquare(0.1))
    DRFA(m=2, ambiguity=ChiSquareBall(0.1))
    with refused("out-of-range", "gamma"):
        DRFAGA(m=2, gamma=-1.0)


def test_error_for_kl_in_drfa_ga_names_other_algorithms():
    algorithm = DRFAGA(m=6, gamma=50.0, ambiguity=KL(0.01), local=LocalSGD(batch=None))
    with refused("invalid-value", "lam", "DRFAProx"):
        run(algorithm, federation((1, 2, 31, 33, 7, 50)), rounds=5, seed=0)


# ------------------------------------------------------------------------------------------- the authors' code

N, TAU, ETA, FLOOR = 5, 4, 0.1, 1e-3


def unequal():
    """Make quadratics of clients with unequal shares."""
    rng = np.random.default_rng(7)
    root = rng.normal(size=(N, 3, 3))
    A, b = root @ root.transpose(0, 2, 1) / 3 + np.eye(3), rng.normal(size=(N, 3))
    s, shares = np.arange(N) / 5 + 1, np.array([0.3, 0.1, 0.25, 0.05, 0.3])
    return QuadraticFederation(*map(torch.from_numpy, (A, b, s)), shares=torch.from_numpy(shares))


def authors_rounds(fed, calls, gamma):
    """Return (w, λ) after each round, computed as in the authors' code.

    Before each round γ is multiplied by 0.9. Clients are drawn uniformly and weighted by λ, whose smaller entries are
    raised to 1e-3. Snapshot steps and answering clients come from ``calls``. The snapshot is the paper's.
    """
    A, b, s = (part.numpy() for part in (fed.A, fed.b, fed.s))
    w, lam, found = np.zeros(3), fed.shares.numpy(), []
    for train, losses in zip(calls[::2], calls[1::2], strict=True):
        gamma *= 0.9
        paths = {}
        for i in train.answered.tolist():
            u, paths[i] = w, []
            for _ in range(TAU):
                u = u - ETA * (A[i] @ u - b[i])
                paths[i].append(u)
        total = sum(lam[i] for i in paths)
        w, at = (sum(lam[i] / total * path[t - 1] for i, path in paths.items()) for t in (TAU, train.snapshot))
        v, reporters = np.zeros(N), losses.answered.tolist()
        for i in reporters:
            v[i] = N / len(reporters) * (at @ A[i] @ at / 2 - b[i] @ at + s[i])
        lam = bisection(lam + TAU * gamma * v)
        if (lam <= FLOOR).any():
            lam = np.maximum(lam, FLOOR)
            lam = lam / lam.sum()
        found.append((w, lam))
    return found


@pytest.mark.parametrize("silent", [(), (1, 3)])
@pytest.mark.parametrize("m", [3, 5])
@pytest.mark.parametrize(("gamma", "rounds", "apart"), [(0.001, 5, 1e-12), (0.3, 1, N * FLOOR)])
def test_rounds_match_the_authors_code(m, silent, gamma, rounds, apart):
    """The match is exact while no λ_i reaches the floor; then the code divides λ by its sum instead of projecting."""
    fed = unequal()
    algorithm = DRFA(
        m=m,
        gamma=0.9 * gamma,
        gamma_schedule=Exponential(0.9),
        lam0="shares",
        sampling=sampling.uniform_weighted,
        ambiguity=Simplex(FLOOR),
        dual_batch=None,
        local=LocalSGD(steps=TAU, lr=ETA, batch=None),
    )
    recording = Recording(DropoutFederation.without(fed, silent))
    found = states(algorithm, recording, rounds)[1:]
    expected = authors_rounds(fed, recording.take(), gamma)
    assert all((float(state.lam.min()) > 2 * FLOOR) == (apart < FLOOR) for state in found)
    for state, (w, lam) in zip(found, expected, strict=True):
        near(state.w, w, 1e-12)
        near(state.lam, lam, apart)
