"""Test problems with known optima: the federation computes the formulas, and the optima are optimal."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.refusals import refused

from drfl import FedAvg, Key, LocalSGD, run
from drfl.ambiguity import Simplex
from drfl.data import IID, Natural, load
from drfl.engine import Loop, Stacked
from drfl.testing.problems import curved_quadratics, logistic, quadratics, robust_regression

PROBLEMS = {
    "quadratics": quadratics(),
    "curved_quadratics": curved_quadratics(),
    "robust_regression": robust_regression(),
    "hospitals": logistic(),
    "digits": logistic("digits"),
}


@pytest.fixture(params=PROBLEMS.values(), ids=PROBLEMS)
def problem(request):
    return request.param


def point(problem, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=problem.d) / problem.d**0.5)


@pytest.mark.parametrize("engine", [Loop(), Stacked()], ids=["loop", "stacked"])
def test_losses_and_gradients_of_the_federation_are_exact(problem, engine):
    fed, w, everybody = problem.federation(engine), point(problem), torch.arange(problem.N)
    assert (fed.n, fed.w0.numel(), fed.w0.dtype) == (problem.N, problem.d, torch.float64)
    assert not fed.w0.any()
    replies = fed.gradients(everybody, w, Key(0), batch=None)
    torch.testing.assert_close(replies.values, problem.gradients(w), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(replies.losses, problem.losses(w), rtol=1e-12, atol=0)
    torch.testing.assert_close(fed.losses(everybody, w, Key(0)).values, problem.losses(w), rtol=1e-12, atol=0)
    scores = fed.evaluate(w).score
    assert ((scores >= 0) & (scores <= 1)).all()


def test_federation_can_compute_in_single_precision(problem):
    w = point(problem)
    replies = problem.federation(dtype=torch.float32).gradients(torch.arange(problem.N), w.float(), Key(0), batch=None)
    assert replies.values.dtype == torch.float32
    torch.testing.assert_close(replies.values.double(), problem.gradients(w), rtol=1e-3, atol=1e-3)


def hessians(problem, w):
    """Compute the Hessians (N, d, d) by automatic differentiation of the task."""
    task, data = problem.task(), problem.data

    def loss(v, rows):
        return task.sample_losses(task.outputs(task.layout.views(v), data.inputs[rows]), data.targets[rows]).mean()

    return torch.stack([torch.autograd.functional.hessian(lambda v, r=rows: loss(v, r), w) for rows in data.train])


@pytest.mark.long
def test_smoothness_and_strong_convexity_bound_the_hessians(problem):
    tight = "quadratic" in problem.name or "regression" in problem.name
    for w in (torch.zeros(problem.d, dtype=torch.float64), 3 * point(problem)):
        H = hessians(problem, w)
        lam = torch.linspace(1, 2, problem.N, dtype=torch.float64)
        torch.testing.assert_close(
            problem.functions.hessian(w, lam), torch.einsum("n,nij->ij", lam, H), atol=1e-12, rtol=1e-10
        )
        eigenvalues = torch.linalg.eigvalsh(H)
        assert eigenvalues.max() <= problem.smoothness * (1 + 1e-12)
        assert eigenvalues.min() >= problem.strong_convexity * (1 - 1e-12)
        if tight:
            assert eigenvalues.max() == pytest.approx(problem.smoothness, rel=1e-12)
            assert eigenvalues.min() == pytest.approx(problem.strong_convexity, rel=1e-12)


def test_weighted_optima_have_zero_gradient(problem):
    rng = np.random.default_rng(1)
    uniform = torch.full((problem.N,), 1 / problem.N, dtype=torch.float64)
    corner = torch.eye(problem.N, dtype=torch.float64)[1]
    for lam in (uniform, corner, torch.from_numpy(rng.dirichlet(np.ones(problem.N)))):
        w = problem.weighted_optimum(lam)
        assert (lam @ problem.gradients(w)).norm() < 1e-14 * problem.smoothness * (1 + w.norm())
    assert problem.average_optimum is problem.average_optimum
    assert torch.equal(problem.average_optimum, problem.weighted_optimum(uniform))


@pytest.mark.parametrize("lam", [[0.5, 0.5], [-0.1] + [0.2] * 7, [0.0] * 8, [float("nan")] + [0.1] * 7])
def test_invalid_client_weights_are_refused(lam):
    with refused("invalid-value", "lam", "8"):
        PROBLEMS["quadratics"].weighted_optimum(torch.tensor(lam))
    with refused("invalid-value", "weights", "8"):
        PROBLEMS["quadratics"].fedavg_fixed_point(LocalSGD(batch=None), torch.tensor(lam))


@pytest.mark.parametrize("name", PROBLEMS)
def test_invalid_models_are_refused(name):
    problem = PROBLEMS[name]
    for function in (problem.losses, problem.gradients):
        with refused("wrong-shape", "w", str(problem.d)):
            function(torch.zeros(problem.d + 1, dtype=torch.float64))


def centres(problem):
    return problem.data.inputs[:, :, -1]  # R = I


def enclosing_ball(points):
    """Return centre and radius of the smallest ball by trying every support, independently of the tested solver."""
    best = (np.inf, None)
    for size in range(1, min(len(points), points.shape[1] + 1) + 1):
        for support in itertools.combinations(range(len(points)), size):
            P = points[list(support)]
            offsets = P[1:] - P[0]
            centre = P[0]
            if size > 1:  # equally far from all, in their affine hull
                centre = P[0] + offsets.T @ np.linalg.solve(offsets @ offsets.T, (offsets**2).sum(1) / 2)
            radius = np.linalg.norm(points - centre, axis=1).max()
            if radius < best[0] and np.linalg.norm(P[0] - centre) > radius - 1e-9:
                best = (radius, centre)
    return best


@pytest.mark.parametrize(("n", "d", "seed"), [(8, 4, 0), (6, 2, 1), (5, 3, 2), (7, 1, 3), (2, 6, 4)])
def test_quadratic_optima_are_the_mean_and_the_smallest_ball(n, d, seed):
    problem = quadratics(n, d, seed)
    a = centres(problem)
    torch.testing.assert_close(problem.average_optimum, a.mean(0), rtol=0, atol=1e-15)
    w, lam, value = problem.saddle(Simplex())
    radius, centre = enclosing_ball(a.numpy())
    np.testing.assert_allclose(w, centre, atol=1e-13)
    assert value == pytest.approx(radius**2 / 2, abs=1e-13)
    torch.testing.assert_close(lam @ a, w, rtol=0, atol=1e-14)
    supported = lam > 0
    torch.testing.assert_close((a - w).norm(dim=1)[supported], torch.full((int(supported.sum()),), radius).double())


LOCAL = LocalSGD(steps=4, lr=0.15, batch=None)


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(curved_quadratics(), marks=pytest.mark.long),
        pytest.param(quadratics(), marks=pytest.mark.long),
        robust_regression(),
    ],
    ids=lambda p: p.name,
)
def test_fedavg_ends_at_its_fixed_point(problem):
    drifted = problem.fedavg_fixed_point(LOCAL)
    result = run(FedAvg(problem.N, local=LOCAL), problem.federation(), rounds=55, evaluate_every=55)
    torch.testing.assert_close(result.state.w, drifted, rtol=0, atol=1e-13)
    drift = float((drifted - problem.average_optimum).norm())
    assert drift < 1e-14 if problem.name == "quadratics" else drift > 1e-2


def test_fixed_point_for_one_step_is_a_weighted_optimum():
    problem = PROBLEMS["curved_quadratics"]
    p = torch.tensor([0.3, 0.1, 0.1, 0.2, 0.2, 0.1])
    fixed = problem.fedavg_fixed_point(LocalSGD(steps=1, lr=0.05, batch=None), p)
    torch.testing.assert_close(fixed, problem.weighted_optimum(p), rtol=0, atol=1e-14)


@pytest.mark.parametrize("local", [LocalSGD(), LocalSGD(batch=None, momentum=0.9), LocalSGD(batch=None, radius=1.0)])
def test_other_local_solvers_have_no_known_fixed_point(local):
    with refused("unsupported-combination", "local"):
        PROBLEMS["quadratics"].fedavg_fixed_point(local)


@pytest.mark.parametrize("seed", range(5))
def test_average_optimum_of_robust_regression_is_not_the_saddle_point(seed):
    problem = robust_regression(seed=seed)
    worst = float(problem.losses(problem.average_optimum).max())
    assert worst > 1.2 * problem.saddle(Simplex()).value


def test_robust_regression_follows_the_paper():
    problem = robust_regression(sigma=0.3, seed=4, n=3, d=2, samples=5, c=2.0, mu=0.7)
    data, w = problem.data, torch.tensor([0.4, -1.1], dtype=torch.float64)
    assert [len(rows) for rows in data.train] == [5, 5, 5]
    for i, rows in enumerate(data.train):
        residuals = data.inputs[rows] @ w - data.targets[rows]
        expected = float(residuals.square().mean()) + 0.35 * float(w @ w)
        assert float(problem.losses(w)[i]) == pytest.approx(expected, rel=1e-14)
        truth = torch.linalg.lstsq(data.inputs[rows], data.targets[rows]).solution  # there is no additional noise
        torch.testing.assert_close(data.inputs[rows] @ truth, data.targets[rows])
    assert torch.equal(
        robust_regression(sigma=0.0, seed=9).data.inputs, robust_regression(sigma=2.0, seed=9).data.inputs
    )


def test_clients_with_equal_parameters_agree():
    problem = robust_regression(sigma=0.0, mu=1e-9)
    assert problem.losses(problem.average_optimum).max() < 1e-8


def test_condition_number_is_as_requested():
    for ratio in (2.0, 1e4):
        problem = curved_quadratics(5, 3, seed=2, ratio=ratio)
        assert (problem.smoothness, problem.strong_convexity) == (ratio, 1.0)
    assert curved_quadratics(2, 1, ratio=3.0).d == 1


PAGE = (Path(__file__).parents[2] / "docs" / "problems.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_example_in_the_docs_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(code, {})
    drift, left, worst, value = map(float, capsys.readouterr().out.split())
    assert left < 1e-12 < 0.1 < drift
    assert worst > value


def test_table_in_the_docs_is_correct():
    rows = re.findall(r"^\| `(.+?\))` \| (.+) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == len(PROBLEMS)
    for (_, cells), problem in zip(rows, PROBLEMS.values(), strict=True):
        worst, value = problem.losses(problem.average_optimum).max(), problem.saddle(Simplex()).value
        constants = f"{problem.smoothness:.2f} | {problem.strong_convexity:.2f}"
        assert cells == f"{problem.N} | {problem.d} | {constants} | {worst:.3f} | {value:.3f}"


def test_logistic_problems_use_the_real_clients():
    hospitals, digits = PROBLEMS["hospitals"], PROBLEMS["digits"]
    assert hospitals.data.names == ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
    assert (hospitals.N, hospitals.d) == (4, 2 * 14)
    assert (digits.N, digits.d) == (6, 10 * 17)
    assert digits.data.sizes.tolist() == [50] * 6
    for problem in (hospitals, digits):
        assert (problem.data.inputs[:, -1] == 1).all()
        trained = problem.federation().evaluate(problem.average_optimum)
        assert trained.score.mean() > 0.7
        assert set(trained.samples.tolist()) == {len(rows) for rows in problem.data.test}


def test_real_data_can_be_reduced_and_repartitioned():
    few = logistic(samples=200)
    assert few.N == 4
    assert sum(len(rows) for rows in few.data.train + few.data.test) == len(few.data.inputs) == 200
    assert few.data.test_inputs is few.data.inputs
    dealt = logistic("digits", method=IID(3), samples=90)
    assert dealt.data.sizes.tolist() == [30] * 3
    assert len(dealt.data.test_inputs) == 599


def test_samples_of_data_with_groups_and_a_test_part_are_repartitioned(monkeypatch):
    plain = load("digits")
    names, tests = (tuple(str(i % 4) for i in range(len(rows))) for rows in (plain.targets, plain.test_targets))
    grouped = replace(plain, groups=names, test_groups=tests)
    monkeypatch.setattr("drfl.testing.problems.zoo.load", lambda name: grouped)
    assert logistic("digits", samples=90).N == 6


def test_seed_determines_the_problem():
    for make in (quadratics, curved_quadratics, robust_regression, logistic):
        first, again, other = make(seed=3), make(seed=3), make(seed=4)
        assert torch.equal(first.average_optimum, again.average_optimum)
        assert not torch.equal(first.average_optimum, other.average_optimum)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: quadratics(0), ("out-of-range", "n", "1")),
        (lambda: quadratics(d=0), ("out-of-range", "d")),
        (lambda: curved_quadratics(1, 1), ("out-of-range", "d", "2")),
        (lambda: curved_quadratics(ratio=1.0), ("out-of-range", "ratio", "1.0")),
        (lambda: robust_regression(sigma=-1.0), ("out-of-range", "sigma")),
        (lambda: robust_regression(mu=0.0), ("out-of-range", "mu")),
        (lambda: robust_regression(samples=0), ("out-of-range", "samples")),
        (lambda: logistic(mu=-1.0), ("out-of-range", "mu")),
        (lambda: logistic("digits", samples=10_000), ("out-of-range", "samples", "10000", "1198")),
        (lambda: logistic("digits", samples=0), ("out-of-range", "samples")),
        (lambda: logistic("digits", method=Natural()), ("missing-groups", "partition")),
        (lambda: logistic("digitz"), ("unknown-name", "dataset", "'digits'")),
    ],
)
def test_impossible_parameters_are_refused(make, error):
    with refused(*error):
        make()
