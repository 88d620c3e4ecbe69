"""Softmax regression by hand, local steps and projection by bisection, in plain NumPy without drfl."""

from __future__ import annotations

import numpy as np


class Softmax:
    """Multinomial logistic regression; w is the weights (C, p) row by row, then the biases (C,)."""

    def __init__(self, data, classes) -> None:
        self.x, self.y = data.inputs.double().numpy().reshape(len(data.targets), -1), data.targets.numpy()
        self.rows = [r.numpy() for r in data.train]
        self.n, self.classes = len(self.rows), classes

    def _probabilities(self, w, rows):
        p = self.x.shape[1]
        z = self.x[rows] @ w[: self.classes * p].reshape(self.classes, p).T + w[self.classes * p :]
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def loss(self, w, rows):
        p = self._probabilities(w, rows)
        return -np.log(p[np.arange(len(rows)), self.y[rows]]).mean()

    def gradient(self, w, rows):
        error = self._probabilities(w, rows)
        error[np.arange(len(rows)), self.y[rows]] -= 1
        error /= len(rows)
        return np.concatenate([(error.T @ self.x[rows]).ravel(), error.sum(axis=0)])


def local_steps(
    problem, rows, w, *, lr, prox=0.0, shift=0.0, momentum=0.0, weight_decay=0.0, radius=np.inf
) -> list[np.ndarray]:
    """Return the models after each step; ``rows[t]`` are the samples of step t."""
    u, velocity, models = w.copy(), np.zeros_like(w), []
    for samples in rows:
        direction = problem.gradient(u, samples) + weight_decay * u + shift + prox * (u - w)
        velocity = momentum * velocity + direction
        u = u - lr * velocity
        u = u * min(1.0, radius / max(np.sqrt((u**2).sum()), 1e-300))
        models.append(u)
    return models


def bisection(v, room=1.0) -> np.ndarray:
    """Return the point nearest to v with entries ≥ 0 and sum ``room``: max(v − θ, 0), with θ by bisection."""
    v = np.asarray(v, dtype=np.float64) - np.max(v)
    low, high = -room, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if np.maximum(v - middle, 0).sum() > room:
            low = middle
        else:
            high = middle
    return np.maximum(v - (low + high) / 2, 0)
