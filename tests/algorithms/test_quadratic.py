"""Test the quadratic program over client weights against CVXPY and its optimality conditions."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from drfl.algorithms.quadratic import best_weights


def problem(n, rank, seed):
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((n, rank))
    return factor @ factor.T, rng.standard_normal(n)


def solved(P, q, low=0.0, high=1.0):
    return best_weights(torch.from_numpy(P), torch.from_numpy(q), low, high).numpy()


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.02, 0.3)])
@pytest.mark.parametrize("n", [4, 12])
def test_solution_matches_cvxpy_and_the_optimality_conditions(n, low, high):
    for seed in range(5):
        P, q = problem(n, n - 1, seed)
        x = solved(P, q, low, high)
        assert abs(x.sum() - 1) < 1e-12
        assert x.min() >= low - 1e-15
        assert x.max() <= high + 1e-15
        gradient = P @ x + q
        inside = (x > low + 1e-12) & (x < high - 1e-12)
        nu = gradient[inside].mean() if inside.any() else gradient[x >= high - 1e-12].max()
        assert np.abs(gradient[inside] - nu).max(initial=0) < 1e-9
        assert (gradient[x <= low + 1e-12] >= nu - 1e-9).all()
        assert (gradient[x >= high - 1e-12] <= nu + 1e-9).all()
        v = cp.Variable(n)
        cost = cp.Problem(
            cp.Minimize(0.5 * cp.quad_form(v, cp.psd_wrap(P)) + q @ v), [cp.sum(v) == 1, v >= low, v <= high]
        )
        assert 0.5 * x @ P @ x + q @ x <= cost.solve() + 1e-7


def test_equal_clients_get_equal_weights_and_vertices_are_reached():
    assert solved(np.ones((5, 5)), np.zeros(5)) == pytest.approx([0.2] * 5)
    assert solved(np.zeros((3, 3)), np.array([1.0, -2.0, 3.0])) == pytest.approx([0, 1, 0])
    assert solved(np.eye(1), np.ones(1)).tolist() == [1.0]
    assert solved(np.eye(4), np.arange(4.0), 0.25, 0.25).tolist() == [0.25] * 4


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_of_the_problem_does_not_matter(scale):
    P, q = problem(8, 5, 3)
    assert solved(scale * P, scale * q) == pytest.approx(solved(P, q), abs=1e-8)
