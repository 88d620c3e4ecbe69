"""Clients with f_i(w) = ½·Σ_k a_ik (w_k − b_ik)², whose optima are known in closed form."""

from __future__ import annotations

import numpy as np
import torch

from drfl.testing.quadratic_federation import QuadraticFederation


class Quadratics:
    """N clients with curvatures a and optima b, both (N, d), and a number of samples each (one by default)."""

    def __init__(self, a, b, samples=None) -> None:
        self.a, self.b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
        self.n, self.d = self.a.shape
        sizes = np.ones(self.n) if samples is None else np.asarray(samples, dtype=float)
        self.shares = sizes / sizes.sum()

    @classmethod
    def random(cls, n=5, d=3, seed=0, samples=None) -> Quadratics:
        """Draw curvatures between 0.3 and 3, and optima a few units apart."""
        rng = np.random.default_rng(seed)
        return cls(rng.uniform(0.3, 3.0, (n, d)), 2 * rng.normal(size=(n, d)), samples)

    def federation(self, start=1.0) -> QuadraticFederation:
        """Return clients with exact gradients."""
        a, b = torch.from_numpy(self.a), torch.from_numpy(self.b)
        constant, first = (a * b * b).sum(1) / 2, torch.full((self.d,), start, dtype=torch.float64)
        return QuadraticFederation(torch.diag_embed(a), a * b, constant, shares=torch.from_numpy(self.shares), w0=first)

    def losses(self, w) -> np.ndarray:
        """Return all f_i(w), (N,)."""
        return 0.5 * (self.a * (w - self.b) ** 2).sum(axis=1)

    def gradients(self, w) -> np.ndarray:
        """Return all ∇f_i(w), (N, d)."""
        return self.a * (w - self.b)

    def optimum(self, weights, weight_decay=0.0) -> np.ndarray:
        """Return argmin Σ_i weights_i f_i + (weight_decay/2)·‖w‖² for weights (N,) or (N, d) that sum to 1."""
        weights = np.broadcast_to(np.reshape(weights, (self.n, -1)), self.a.shape)
        return (weights * self.a * self.b).sum(axis=0) / ((weights * self.a).sum(axis=0) + weight_decay)

    def fixed_point(self, weights, lr, tau, mu=0.0) -> np.ndarray:
        """Return the fixed point of the weighted mean after τ local steps along a(u − b) + μ(u − w).

        From w a client moves to u* + (1 − η(a + μ))^τ (w − u*) with u* = (ab + μw)/(a + μ). This is the fraction
        (1 − (1 − η(a + μ))^τ)·a/(a + μ) of the way to b. So the fixed point is the optimum for weights times this
        fraction divided by a.
        """
        share = (1 - (1 - lr * (self.a + mu)) ** tau) / (self.a + mu)
        return self.optimum(np.reshape(weights, (self.n, 1)) * share)

    def constrained(self, radius) -> np.ndarray:
        """Return argmin of the mean of all f_i over ‖w‖ ≤ radius, by bisection on the multiplier."""
        low, high = 0.0, 1e3
        for _ in range(200):
            middle = (low + high) / 2
            outside = np.linalg.norm(self.optimum(np.full(self.n, 1 / self.n), middle)) > radius
            low, high = (middle, high) if outside else (low, middle)
        return self.optimum(np.full(self.n, 1 / self.n), high)
