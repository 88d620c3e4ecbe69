"""Test saddle points by the duality gap, which needs no other solver, and against CVXPY."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from tests.support.marks import crossed, long_beyond
from tests.support.refusals import refused

from drfl.ambiguity import KL, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex
from drfl.testing.problems import LeastSquares, curved_quadratics, logistic, quadratics, robust_regression
from drfl.testing.problems.problem import solve
from drfl.testing.problems.solvers import Point, minimise, mixtures_of

SETS = [
    Simplex(), Simplex(0.02), CVaR(0.3), CVaR(0.5), CVaR(1.0), Box(0.4), Box(1.0), ChiSquare(0.0), ChiSquare(0.01),
    ChiSquare(0.1), ChiSquare(50.0), KL(0.0), KL(0.05), KL(1.0), ChiSquareBall(0.1), ChiSquareBall(9.0), KLBall(0.0),
    KLBall(0.05),
]  # fmt: skip
PROBLEMS = {
    "quadratics": quadratics(),
    "curved_quadratics": curved_quadratics(),
    "robust_regression": robust_regression(),
    "hospitals": logistic(),
    "digits": logistic("digits"),
}
FEW = [Simplex(), CVaR(0.5), ChiSquare(0.1), KL(0.05)]  # others are slow: a ball takes 40 s, these take 0.5 s
CASES = [
    *crossed(["quadratics", "curved_quadratics", "robust_regression"], SETS),
    *long_beyond(1, [(name, s) for name in ("hospitals", "digits") for s in FEW]),
]


def gap(functions, optimum, ambiguity, saddle):
    """Return the maximum over λ at w minus the minimum over w at λ, which is 0 only at a saddle point."""
    w = optimum(saddle.lam)
    lowest = float(saddle.lam @ functions.losses(w)) - ambiguity.penalty(saddle.lam)
    return ambiguity.worst_case(functions.losses(saddle.w)).value - lowest


@pytest.mark.parametrize(("name", "ambiguity"), CASES)
def test_saddle_points_have_no_duality_gap(name, ambiguity):
    problem = PROBLEMS[name]
    saddle = problem.saddle(ambiguity)
    assert ambiguity.contains(saddle.lam, 1e-13)
    assert abs(gap(problem.functions, problem.weighted_optimum, ambiguity, saddle)) < 1e-13 * (1 + saddle.value)
    gradient = saddle.lam @ problem.gradients(saddle.w)
    assert gradient.norm() < 1e-12
    value = float(saddle.lam @ problem.losses(saddle.w)) - ambiguity.penalty(saddle.lam)
    assert saddle.value == pytest.approx(value, rel=1e-14)
    torch.testing.assert_close(saddle.w, problem.weighted_optimum(saddle.lam), rtol=0, atol=1e-12)


@pytest.mark.long
def test_random_problems_of_any_size_and_condition_are_solved():
    for seed in range(6):
        n, d = 3 + seed, 1 + seed % 4
        for problem in (quadratics(n, d, seed), curved_quadratics(n, d, seed, 10.0 ** (1 + seed))):
            for ambiguity in (Simplex(), CVaR(0.37), ChiSquare(1e-3)):
                saddle = problem.saddle(ambiguity)
                found = gap(problem.functions, problem.weighted_optimum, ambiguity, saddle)
                assert abs(found) < 1e-13 * (1 + saddle.value), (problem.name, seed, ambiguity)


SQUARE = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]


@pytest.mark.parametrize(
    ("points", "centre", "value"),
    [
        (SQUARE, [0.0, 0.0], 1.0),
        ([[0.0, 0.0]] * 3, [0.0, 0.0], 0.0),
        ([[0.0], [1.0], [2.0], [2.0]], [1.0], 0.5),
        ([[3.0, -4.0]], [3.0, -4.0], 0.0),
    ],
)
def test_non_unique_client_weights_are_found(points, centre, value):
    b = torch.tensor(points, dtype=torch.float64)
    functions = LeastSquares(torch.eye(b.shape[1], dtype=torch.float64).expand(len(b), -1, -1), b)
    w, lam, found = solve(functions, mixtures_of(Simplex(), len(b)))
    np.testing.assert_allclose(w, centre, atol=1e-14)
    assert found == pytest.approx(value, abs=1e-14)
    torch.testing.assert_close(lam @ b, w, rtol=0, atol=1e-14)
    assert float(lam.sum()) == pytest.approx(1, abs=1e-15)


def by_cvxpy(problem, ambiguity):
    """Return the robust regression as a conic problem, from its data alone."""
    data, N, w = problem.data, problem.N, cp.Variable(problem.d)
    f = []
    for rows in data.train:  # a triangular factor instead of all rows gives Clarabel more digits
        table = torch.cat([data.inputs[rows], data.targets[rows, None]], dim=1).numpy() / len(rows) ** 0.5
        triangle = np.linalg.qr(table).R
        f.append(cp.sum_squares(triangle[:, :-1] @ w - triangle[:, -1]) + 0.01 / 2 * cp.sum_squares(w))
    t, above = cp.Variable(), cp.Variable(N)
    constraints = []
    match ambiguity:
        case Simplex():
            worst = cp.maximum(*f)
        case CVaR(alpha=alpha):
            worst = t + sum(cp.pos(f_i - t) for f_i in f) / (alpha * N)
        case ChiSquare(rho=rho):  # the dual of the maximum over λ: v ≥ f − t, and λ = 1/N + v/(ρN)
            worst = t + cp.sum(above) / N + cp.sum_squares(above) / (2 * rho * N)
            constraints = [f_i <= above[i] + t for i, f_i in enumerate(f)]
    program = cp.Problem(cp.Minimize(worst), constraints)
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return w.value, program.value


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # the accuracy is tested
@pytest.mark.parametrize("ambiguity", [Simplex(), CVaR(0.5), CVaR(0.7), ChiSquare(0.1), ChiSquare(1.0)], ids=str)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_cvxpy_agrees_on_robust_regression(seed, ambiguity):
    problem = robust_regression(seed=seed)
    w, value = by_cvxpy(problem, ambiguity)
    saddle = problem.saddle(ambiguity)
    np.testing.assert_allclose(w, saddle.w, rtol=0, atol=1e-5)
    assert value == pytest.approx(saddle.value, abs=1e-8)


def test_other_sets_lie_between_worst_and_mean():
    problem = PROBLEMS["curved_quadratics"]
    average, worst = problem.average_optimum, problem.saddle(Simplex())
    near = [problem.saddle(s) for s in (ChiSquare(1e5), KL(1e5), CVaR(1.0), KLBall(0.0), ChiSquareBall(0.0))]
    far = [problem.saddle(s) for s in (ChiSquare(1e-9), KL(1e-4), CVaR(0.01), KLBall(10.0), ChiSquareBall(10.0))]
    assert all((saddle.w - average).norm() < 1e-3 for saddle in near)
    assert all((saddle.w - worst.w).norm() < 1e-3 for saddle in far)
    values = [problem.saddle(ChiSquare(rho)).value for rho in (0.0, 0.1, 1.0, 10.0)]
    assert values == sorted(values, reverse=True)


def test_prior_affects_the_saddle_point():
    problem, prior = quadratics(4, 2), (0.1, 0.2, 0.3, 0.4)
    for ambiguity in (KL(1e4, prior), KLBall(1e-9, prior)):
        np.testing.assert_allclose(problem.saddle(ambiguity).lam, prior, atol=1e-4)


def test_saddle_point_is_computed_once():
    problem = PROBLEMS["quadratics"]
    assert problem.saddle(CVaR(0.5)) is problem.saddle(Box(0.25))
    assert problem.saddle(Simplex()) is not problem.saddle(Simplex(0.01))


def test_unsuitable_or_unknown_sets_are_refused():
    class Own(Simplex):
        pass

    class Unknown:
        def worst_case(self, losses):
            return None

    problem = PROBLEMS["hospitals"]
    assert problem.saddle(Own()) is problem.saddle(Simplex())
    with refused("unsupported-combination", "ambiguity", "Unknown"):
        problem.saddle(Unknown())  # pyright: ignore
    for ambiguity, code, field in (
        (Box(0.2), "out-of-range", "cap"),
        (Simplex(0.3), "out-of-range", "floor"),
        (KL(1.0, (0.5, 0.5)), "count-mismatch", "prior"),
    ):
        with refused(code, field):
            problem.saddle(ambiguity)


def test_failure_of_newtons_method_is_reported():
    def kink(w):
        return Point(w.abs().sum(), w.sign(), torch.eye(1, dtype=torch.float64))

    with pytest.raises(ArithmeticError, match=r"1\.0e\+00"):
        minimise(kink, torch.full((1,), 0.4, dtype=torch.float64))
