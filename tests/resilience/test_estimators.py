"""Test the expectation of the dual update and the model average under client dropout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from drfl.algorithms import DRFA
from drfl.core.key import Key
from drfl.optim.local import LocalSGD
from drfl.resilience import FailureModel, Faulty
from drfl.testing import ConstantFederation

pytestmark = pytest.mark.long

LOSSES = torch.tensor([0.1, 2.0, 0.7, 1.3, 0.4, 3.1, 0.9], dtype=torch.float64)
N, M, ROUNDS = 7, 3, 2000
AFTER_LOSS = tuple(float(0.2 + 0.6 * loss / LOSSES.max()) for loss in LOSSES)
UNEVEN = torch.tensor([0.1] * 6 + [0.4], dtype=torch.float64)


class Everything:
    """An ambiguity set in which λ can be any vector."""

    __module__ = "drfl.ambiguity"  # drfl checks that users' sets return mixtures
    penalised = False

    def project(self, v):
        return v

    def prox(self, v, step):
        return v


def estimates(faults, lam=None, count=ROUNDS):
    """Return v (R, N) and the mean index of the models (R,) over many rounds from one state, if any client answered."""
    fed = ConstantFederation(LOSSES)
    faulty = Faulty(DRFA(m=M, gamma=1.0, local=LocalSGD(steps=1, lr=0.1), ambiguity=Everything()), faults)
    state = faulty.init(fed)
    state = state if lam is None else state._replace(inner=state.inner._replace(lam=lam))
    v, mean = [], []
    for r in range(count):
        after, info = faulty.round(state, fed, Key(7).fold("round", r))
        if info.losses is not None and info.losses.clients.numel():
            v.append((after.lam - state.lam).numpy())
        if not info.is_empty:
            mean.append(float(after.w[0]))
    return np.array(v), np.array(mean)


def z(samples, expected):
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    return np.abs(samples.mean(axis=0) - np.asarray(expected)) / error


@pytest.fixture(scope="module")
def independent():
    return estimates(FailureModel(drop=0.4))


def test_reports_are_unbiased_under_independent_dropout(independent):
    v, _ = independent
    assert len(v) < ROUNDS
    assert z(v, LOSSES).max() < 4


def test_model_average_is_unbiased_for_uniform_weights(independent):
    _, mean = independent
    assert z(mean, 3.0) < 4


def test_both_are_biased_if_large_losses_drop_out():
    v, _ = estimates(FailureModel(drop=AFTER_LOSS), count=500)
    assert z(v, LOSSES).max() > 8
    assert v.mean(0)[5] < 0.6 * LOSSES[5]
    _, mean = estimates(FailureModel(drop=tuple(i / 8 for i in range(N))), count=500)
    assert z(mean, 3.0) > 8


def expected_weights(lam, drop, m):
    """Return E[a] (N,) of the mean over answering clients, by summing over all dropouts with at least one draw."""
    total, weights = 0.0, np.zeros(len(lam))
    for there in itertools.product([False, True], repeat=len(lam)):
        there = np.array(there)
        inside = lam[there].sum()
        chance = np.prod(np.where(there, 1 - drop, drop)) * (1 - (1 - inside) ** m)
        weights += chance * np.where(there, lam, 0) / max(inside, 1e-300)
        total += chance
    return weights / total


def test_average_for_other_weights_is_over_answering_clients():
    """Clients drawn despite dropout follow λ among the present ones, which shrinks a large λ_i."""
    lam, clients = UNEVEN.numpy(), np.arange(N)
    a = expected_weights(lam, 0.6, M)
    assert a[6] < 0.35 < lam[6]
    np.testing.assert_allclose(expected_weights(np.full(N, 1 / N), 0.6, M), 1 / N)
    _, mean = estimates(FailureModel(drop=0.6), UNEVEN, count=1500)
    assert z(mean, a @ clients) < 2 < z(mean, lam @ clients)
