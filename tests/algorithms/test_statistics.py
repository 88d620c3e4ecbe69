"""The random parts of DRFA and DRDM have the laws that the papers' proofs rest on, within four standard errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.federations import Still
from tests.support.problems import federation

from drfl import sampling
from drfl.algorithms import DRDM, DRFA
from drfl.key import Key
from drfl.local import LocalSGD

LOSSES = torch.tensor([0.1, 2.0, 0.7, 1.3, 0.4, 3.1, 0.9])


def within_four_errors(samples, expected):
    samples, expected = np.asarray(samples), np.asarray(expected)
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    assert (error > 0).all()
    assert (np.abs(samples.mean(axis=0) - expected) <= 4 * error).all()


def rounds_of(algorithm, fed, keys):
    """What a federation was asked, and what came out, in rounds that all start from the same state."""
    state = algorithm.init(fed)
    return [algorithm.round(state, fed, Key(5).fold("round", r)) for r in range(keys)]


@pytest.mark.parametrize("m", [1, 3])
def test_dual_gradient_is_unbiased(m):
    """E_U[v] is the vector of all losses: without a projection in the way, λ moves by τγ·E[v]."""

    class Everything:
        penalised = False

        def project(self, v):
            return v

        def prox(self, v, step):
            return v

        worst_case = None

    algorithm = DRFA(m=m, gamma=0.5, local=LocalSGD(steps=4), ambiguity=Everything())
    moved = [state.lam - 1 / 7 for state, _ in rounds_of(algorithm, Still(LOSSES), 1500)]
    within_four_errors(torch.stack(moved).numpy(), 4 * 0.5 * LOSSES)


@pytest.mark.parametrize("make", [lambda **o: DRFA(**o), lambda **o: DRDM(mu=1.0, **o)], ids=["DRFA", "DRDM"])
def test_snapshot_step(make):
    """t' is uniform on {1, …, τ}, both ends included, and one for the whole cohort."""
    tau, fed = 4, Still(LOSSES)
    rounds_of(make(m=3, local=LocalSGD(steps=tau)), fed, 1200)
    steps = [call["snapshot"] for call in fed.trained]
    assert len(steps) == 1200
    assert all(isinstance(t, int) for t in steps)
    share = np.bincount(steps, minlength=tau + 1) / len(steps)
    assert share[0] == 0
    assert len(share) == tau + 1
    assert (np.abs(share[1:] - 1 / tau) <= 4 * np.sqrt((1 / tau) * (1 - 1 / tau) / len(steps))).all()


def test_one_draw_of_the_snapshot_step_only_tau_1():
    fed = Still(LOSSES)
    rounds_of(DRFA(m=3, local=LocalSGD(steps=1)), fed, 20)
    assert {call["snapshot"] for call in fed.trained} == {1}


def test_mean_over_the_cohort_is_unbiased():
    """E_D[a·x] = Σ_i λ_i x_i when D is drawn with replacement."""
    lam = torch.tensor([0.4, 0.0, 0.05, 0.25, 0.1, 0.15, 0.05], dtype=torch.float64)
    x = torch.arange(21, dtype=torch.float64).reshape(7, 3) ** 1.5
    means = []
    for r in range(3000):
        D = sampling.with_replacement(lam, 4, Key(1).fold(r))
        means.append((D.weights_of(D.clients) @ x[D.clients]).numpy())
    within_four_errors(means, lam @ x)


def test_loss_cohort_is_uniform_whatever_lambda():
    """U is uniform without replacement also when λ sits on one client."""
    fed = Still(LOSSES)
    algorithm = DRFA(m=3, gamma=0.0)
    state = algorithm.init(fed)._replace(lam=torch.eye(7, dtype=torch.float64)[2])
    for r in range(1200):
        algorithm.round(state, fed, Key(5).fold("round", r))
    assert {tuple(call["cohort"].tolist()) for call in fed.trained} == {(2,)}
    assert {len(set(U.tolist())) for U in fed.asked} == {3}
    share = np.bincount(torch.cat(fed.asked).numpy(), minlength=7) / 1200
    assert (np.abs(share - 3 / 7) <= 4 * np.sqrt(3 / 7 * 4 / 7 / 1200)).all()


def test_minibatch_gradients_and_losses_are_unbiased():
    fed = federation((9, 40, 25))
    everybody = torch.arange(3)
    w = fed.w0 + 0.3
    gradients, losses, fresh = [], [], []
    for r in range(300):
        reply = fed.gradients(everybody, w, Key(2).fold(r), batch=4)
        gradients.append(reply.values.flatten().numpy())
        losses.append(reply.losses.numpy())
        fresh.append(fed.losses(everybody, w, Key(3).fold(r), batch=4).values.numpy())
    full = fed.gradients(everybody, w, Key(0))
    within_four_errors(gradients, full.values.flatten())
    within_four_errors(losses, full.losses)
    within_four_errors(fresh, fed.losses(everybody, w, Key(0)).values)


def test_what_is_sent_to_clients():
    """DRFA sends no correction; DRDM sends −h_i and pulls with μ."""
    fed = Still(LOSSES)
    rounds_of(DRFA(m=3), fed, 1)
    assert fed.trained[0]["prox"] == 0
    assert fed.trained[0]["shift"] is None
    algorithm = DRDM(m=3, mu=0.25)
    state = algorithm.init(fed)
    state, info = algorithm.round(state, fed, Key(0).fold("round", 1))
    assert torch.equal(state.h[info.answered], -0.25 * info.answered[:, None].double().expand(-1, 2))
    algorithm.round(state, fed, Key(0).fold("round", 2))
    call = fed.trained[-1]
    assert call["prox"] == 0.25
    assert torch.equal(call["shift"], -state.h[call["cohort"]])
    assert float(call["shift"].abs().max()) > 0


@pytest.mark.parametrize("make", [lambda **o: DRFA(**o), lambda **o: DRDM(mu=1.0, **o)], ids=["DRFA", "DRDM"])
def test_losses_come_from_fresh_samples(make):
    """The loss reports draw their minibatches apart from those that the model was trained on."""
    fed = Still(LOSSES)
    rounds_of(make(m=3, dual_batch=11), fed, 2)
    rounds = [Key(5).fold("round", r) for r in range(2)]
    assert [call["key"] for call in fed.trained] == [key.fold("sgd") for key in rounds]
    assert [call["key"] for call in fed.reports] == [key.fold("xi") for key in rounds]
    assert [call["batch"] for call in fed.reports] == [11, 11]
