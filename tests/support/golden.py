"""FedAvg, DRFA and DRDM once more, in plain NumPy with full batches, straight from the papers' pseudocode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from tests.support.reference import bisection, local_steps

from drfl.key import Key


class Setting(NamedTuple):
    """Hyperparameters, and who never answers."""

    m: int = 4
    tau: int = 5
    lr: float = 0.2
    gamma: float = 0.01
    mu: float = 0.7
    seed: int = 3
    rounds: int = 4
    sampling: str = "with_replacement"
    lost_train: tuple[int, ...] = ()
    lost_losses: tuple[int, ...] = ()
    floor: float = 0.0


class Trace(NamedTuple):
    """After a round: state, averaged solution, and what was drawn."""

    w: np.ndarray
    lam: np.ndarray
    h: np.ndarray
    w_hat: np.ndarray
    lam_hat: np.ndarray
    drawn: list[int]
    t: int
    answered: list[int]


def draws(s, lam, key) -> list[tuple[int, float]]:
    """The cohort as (client, weight) pairs; a client drawn twice stands in it twice."""
    n, rng = len(lam), key.fold("D").generator()
    if s.sampling == "everybody":
        return list(enumerate(lam))
    replace = s.sampling == "with_replacement"
    return [(int(i), 1.0) for i in rng.choice(n, size=s.m, replace=replace, p=lam / lam.sum())]


def dual_step(problem, s, key, w_t, lam) -> np.ndarray:
    """Project λ + τγv, v_i = (N / number of answers) · loss."""
    U = key.fold("U").generator().choice(problem.n, size=s.m, replace=False)
    answered = [i for i in U if i not in s.lost_losses]
    if not answered:
        return lam
    v = np.zeros(problem.n)
    for i in answered:
        v[i] = problem.n / len(answered) * problem.loss(w_t, problem.rows[i])
    moved = lam + s.tau * s.gamma * v
    return s.floor + bisection(moved, 1 - s.floor * problem.n)


def weighted_mean(pairs, of) -> np.ndarray:
    """Mean of ``of(client)`` over (client, weight) pairs."""
    total = sum(weight for _, weight in pairs)
    return sum(weight * of(i) for i, weight in pairs) / total


def fedavg(problem, s, w, lam) -> list[Trace]:
    """Uniform cohort, mean weighted by the fixed λ."""
    traces, virtual, h = [], [], np.zeros((problem.n, len(w)))
    for r in range(1, s.rounds + 1):
        D = Key(s.seed).fold("round", r, "D").generator().choice(problem.n, size=s.m, replace=False)
        pairs = [(i, lam[i]) for i in D if i not in s.lost_train]
        if pairs:
            path = {i: local_steps(problem, [problem.rows[i]] * s.tau, w, lr=s.lr) for i, _ in pairs}
            models = [weighted_mean(pairs, lambda i, t=t: path[i][t]) for t in range(s.tau)]  # noqa: B023
            virtual, w = virtual + models, models[-1]
        w_hat = np.mean(virtual, axis=0) if virtual else w
        traces.append(Trace(w, lam, h, w_hat, lam, list(D), 0, [i for i, _ in pairs]))
    return traces


def drfa(problem, s, w, lam) -> list[Trace]:
    """001, Algorithm 1."""
    return _primal_dual(problem, s, w, lam, mu=None)


def drdm(problem, s, w, lam) -> list[Trace]:
    """000, Algorithms 1–3; c is the mean of all h_i."""
    return _primal_dual(problem, s, w, lam, mu=s.mu)


def _primal_dual(problem, s, w, lam, mu) -> list[Trace]:
    h, traces, virtual, mixtures = np.zeros((problem.n, len(w))), [], [], []
    for r in range(1, s.rounds + 1):
        key = Key(s.seed).fold("round", r)
        drawn = draws(s, lam, key)
        t = int(key.fold("t").generator().integers(1, s.tau + 1))
        pairs = [(i, weight) for i, weight in drawn if i not in s.lost_train]
        if pairs:
            models, h_next = _local_part(problem, s, w, h, pairs, mu)
            mixtures.append(lam)
            lam = dual_step(problem, s, key, models[t - 1], lam)
            virtual, w, h = virtual + models, models[-1], h_next
        w_hat, lam_hat = (np.mean(virtual, axis=0), np.mean(mixtures, axis=0)) if virtual else (w, lam)
        answered = sorted({i for i, _ in pairs})
        traces.append(Trace(w, lam, h, w_hat, lam_hat, [i for i, _ in drawn], t, answered))
    return traces


def _local_part(problem, s, w, h, pairs, mu) -> tuple[list[np.ndarray], np.ndarray]:
    """The (virtual) global model after each local step, and the drift terms after the last."""
    path = {
        i: local_steps(problem, [problem.rows[i]] * s.tau, w, lr=s.lr, prox=mu or 0.0, shift=-h[i]) for i, _ in pairs
    }
    models, h_t = [], h
    for t in range(s.tau):
        model = weighted_mean(pairs, lambda i, t=t: path[i][t])
        if mu is not None:
            h_t = h.copy()
            for i in path:  # distinct clients
                h_t[i] = h[i] - mu * (path[i][t] - w)
            model = model - h_t.mean(axis=0) / mu
        models.append(model)
    return models, h_t
