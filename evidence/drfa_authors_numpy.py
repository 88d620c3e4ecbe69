"""DRFA as in its authors' public code, in NumPy, for logistic regression with full participation.

This module was written from a description of that code (docs/algorithms/drfa.md) without drfl, as an independent check
of the results of evidence/drfa_authors_code.py. Clients and draws are separate. The initial model is zero, as in the
code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FLOOR = 1e-3
Models = np.ndarray  # (785, 10): weights, and the biases in the last row


class Round(NamedTuple):
    """Differences from the paper; the defaults are the paper's.

    Args:
        decay: factor by which γ is multiplied before every round.
        floor: whether λ is raised to at least 1e-3 after the projection and divided by its sum.
        drawn: whether the model is the mean over ten draws from λ with replacement instead of Σ_i λ_i w_i.
        early: whether the snapshot is taken after 0 to τ − 2 steps instead of 1 to τ.
        uniform: whether the snapshot is the uniform mean of the local models instead of weighted like the model.
        launcher: whether to use the launcher's settings: η divided by 1.01 per epoch, and weight decay 1e-4.
    """

    decay: float = 1.0
    floor: bool = False
    drawn: bool = False
    early: bool = False
    uniform: bool = False
    launcher: bool = False


def probabilities(w: Models, x: np.ndarray) -> np.ndarray:
    z = x @ w
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def projected(v: np.ndarray) -> np.ndarray:
    """Project onto the simplex."""
    u = np.sort(v)[::-1]
    theta = (np.cumsum(u) - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - theta[u > theta][-1], 0)


def minibatches(x, batch: int, rng) -> np.ndarray:
    """Rows (N, batch, 785) drawn for each client with replacement."""
    return np.stack([own[rng.integers(len(own), size=batch)] for own in x])


def local_models(x, y, w: Models, step: int, eta: float, decay: float, tau: int, batch: int, rng) -> list[np.ndarray]:
    """All clients' models (N, 785, 10) after ``step`` and after τ local steps; client i has rows x[i] of class y[i]."""
    path = [np.repeat(w[None], len(x), axis=0)]
    for _ in range(tau):
        rows, models = minibatches(x, batch, rng), path[-1]
        error = probabilities(models, rows)
        error[np.arange(len(x)), :, y] -= 1
        path.append(models - eta * (rows.transpose(0, 2, 1) @ error / batch + decay * models))
    return [path[step], path[tau]]


def run(x, y, how: Round, *, rounds: int, seed: int, eta=0.1, gamma=0.008, tau=10, batch=50):
    """Yield the model and λ after each round."""
    rng, n = np.random.default_rng(seed), len(x)
    w, lam = np.zeros((x[0].shape[1], 10), dtype=x[0].dtype), np.full(n, 1 / n)
    for r in range(1, rounds + 1):
        gamma *= how.decay
        epochs = (r - 1) * tau * batch // len(x[0])
        lr, shrink = (eta / 1.01**epochs, 1e-4) if how.launcher else (eta, 0.0)
        step = rng.integers(0, tau - 1) if how.early else rng.integers(1, tau + 1)
        at_step, at_end = local_models(x, y, w, step, lr, shrink, tau, batch, rng)
        weights = rng.multinomial(n, lam / lam.sum()) / n if how.drawn else lam
        w = np.tensordot(weights, at_end, 1).astype(w.dtype)
        at = np.tensordot(np.full(n, 1 / n) if how.uniform else weights, at_step, 1).astype(w.dtype)
        rows = minibatches(x, batch, rng)
        p = probabilities(at, rows)[np.arange(n), :, y]
        lam = projected(lam + tau * gamma * -np.log(np.maximum(p, 1e-30), dtype=np.float64).mean(axis=1))
        if how.floor:
            lam = np.maximum(lam, FLOOR)
            lam /= lam.sum()
        yield w, lam
