"""Test the papers' parameters: their formulas by hand, and the conditions that the proofs require."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.support.marks import long_except
from tests.support.problems import pools, task_of
from tests.support.refusals import refused

from drfl.algorithms import ScaffPD, theory
from drfl.ambiguity import ChiSquare
from drfl.core.key import Key
from drfl.engine import Loop, Simulation
from drfl.optim.local import LocalSGD
from drfl.testing.problems import robust_regression
from drfl.training.certificate import Certifier

NAN = math.nan


def noisy(L=1.0, L_lx=1.0, mu=0.1, mu_lam=0.1, *, variance=1.0, accuracy=1.0, steps=1, chi=1.0):
    noise = theory.GradientNoise(variance, accuracy, steps, chi)
    return theory.scaffpd_constant(L, L_lx, mu, mu_lam, noise=noise)


def test_drfa_parameters_by_hand():
    assert theory.drfa(T=10_000, m=4, L=0.5) == pytest.approx((5, 1 / 200, 10_000**-0.625, 2000))


def test_drfa_nonconvex_parameters_by_hand():
    assert theory.drfa_nonconvex(T=10_000, L=0.5) == pytest.approx((10, 1 / 2000, 1 / 100, 1000))


def test_drdm_parameters_by_hand():
    assert theory.drdm(T=10_000, m=4, n=16, L=0.5) == pytest.approx((5, 1 / 200, 10_000**-0.625, 2.0, 2000))


@pytest.mark.parametrize(
    ("T", "m", "tau"), [(1, 1, 1), (16, 1, 2), (80, 1, 2), (81, 1, 3), (10**8, 25, 20), (1000, 20, 1), (400, 20, 1)]
)
def test_local_steps_are_rounded_down_but_at_least_one(T, m, tau):
    steps = theory.drfa(T, m, 1.0)
    assert steps.tau == tau
    assert (steps.rounds - 1) * tau < T <= steps.rounds * tau


@pytest.mark.parametrize(("tau", "m"), [(3, 2), (6, 2), (7, 2), (10, 1), (99, 1), (14, 2), (5, 7)])
def test_integer_prescriptions_are_not_rounded_down(tau, m):
    """In floating point, some of these are slightly below an integer."""
    assert theory.drfa(tau**4 * m**2, m, 1.0).tau == tau


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: theory.drfa(0, 1, 1.0), ("out-of-range", "T")),
        (lambda: theory.drfa(10.5, 1, 1.0), ("out-of-range", "T")),
        (lambda: theory.drfa(10, 0, 1.0), ("out-of-range", "m")),
        (lambda: theory.drfa(10, 1, 0.0), ("out-of-range", "L")),
        (lambda: theory.drfa_nonconvex(10, NAN), ("out-of-range", "L")),
        (lambda: theory.drdm(10, 5, 4, 1.0), ("out-of-range", "m", "m=5", "n=4")),
        (lambda: theory.drdm(10, 5, 0, 1.0), ("out-of-range", "n")),
        (lambda: theory.drfa(10**400, 4, 1.0), ("out-of-range", "T")),
        (lambda: theory.drfa(10, 4, 1e-320), ("out-of-range", "L", "1e-60", "1e+60")),
        (lambda: theory.drfa(10, 4, "1"), ("out-of-range", "L", "0", "1")),
        (lambda: theory.scaffpd_accelerated(1e300, 1e300, 1.0), ("out-of-range", "L_xx")),
        (lambda: theory.scaffpd_accelerated(1.0, 1e300, 1.0), ("out-of-range", "L_lx")),
        (lambda: theory.scaffpd_constant(1.0, 1.0, 0.0, 1.0), ("out-of-range", "mu_x")),
        (lambda: theory.scaffpd_constant(1.0, 1.0, 2.0, 1.0), ("out-of-range", "mu_x", "mu_x=2.0", "L_xx")),
        (lambda: theory.scaffpd_accelerated(0.0, 1.0, 0.1), ("out-of-range", "L_xx")),
        (lambda: theory.scaffpd_accelerated(1.0, -1.0, 0.1), ("out-of-range", "L_lx")),
        (lambda: theory.scaffpd_accelerated(1.0, 1.0, 0.0), ("out-of-range", "mu")),
        (lambda: theory.scaffpd_accelerated(1.0, 1.0, 2.0), ("out-of-range", "mu", "mu=2.0", "L_xx=1.0")),
        (lambda: theory.scaffpd_accelerated(1.0, 1.0, 0.1, gamma_0=0), ("out-of-range", "gamma_0")),
        (lambda: theory.scaffpd_accelerated(1.0, 1.0, 0.1, growth=2.0), ("out-of-range", "growth")),
        (lambda: theory.scaffpd_accelerated(1.0, 1.0, 0.1, c=0.0), ("out-of-range", "c")),
        (lambda: theory.scaffpd_constant(1.0, 1.0, 0.1, 0.0), ("out-of-range", "mu_lam")),
        (lambda: theory.scaffpd_constant(1.0, 1.0, 0.1, 0.1, c_omega=0.5), ("out-of-range", "c_omega")),
        (lambda: noisy(variance=-1.0), ("out-of-range", "variance")),
        (lambda: noisy(accuracy=0.0), ("out-of-range", "accuracy")),
        (lambda: noisy(steps=0), ("out-of-range", "steps")),
        (lambda: noisy(chi=0.0), ("out-of-range", "chi")),
        (lambda: noisy(chi=1.5), ("out-of-range", "chi")),
        (lambda: theory.scaffpd_local(0.0, 1.0, 2), ("out-of-range", "tau")),
        (lambda: theory.scaffpd_local(0.1, 1.0, 0), ("out-of-range", "steps")),
        (lambda: theory.linear_smoothness(torch.ones(3), 1.0), ("wrong-shape", "inputs")),
        (lambda: theory.linear_smoothness(torch.ones(0, 3), 1.0), ("wrong-shape", "inputs")),
        (lambda: theory.linear_smoothness(torch.full((2, 2), NAN), 1.0), ("not-finite", "inputs")),
        (lambda: theory.linear_smoothness(torch.ones(2, 2), 0.0), ("out-of-range", "curvature")),
        (lambda: theory.linear_coupling([], 1.0), ("empty", "clients")),
        (lambda: theory.linear_coupling([torch.ones(2, 2)], -1.0), ("out-of-range", "slope")),
    ],
)
def test_impossible_numbers_are_refused(call, error):
    with refused(*error):
        call()


def test_largest_accepted_constants_give_finite_steps():
    least, most = 1 / theory.EXTREME, theory.EXTREME
    for L, L_lx, mu in itertools.product((least, most), (0.0, least, most), (least, most)):
        if mu <= L:
            steps = [*itertools.islice(theory.scaffpd_accelerated(L, L_lx, mu, gamma_0=most), 3)]
            steps += [theory.scaffpd_constant(L, L_lx, mu, least), theory.scaffpd_constant(L, L_lx, mu, most)]
            assert all(math.isfinite(value) and value > 0 for step in steps for value in (step.tau, step.sigma))


def test_clients_can_be_one_tensor():
    x = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0))
    assert theory.linear_coupling(x, 1.0) == theory.linear_coupling(list(x), 1.0)


CONSTANTS = list(itertools.product((0.3, 1.0, 20.0), (0.0, 0.1, 5.0), (0.01, 0.3)))


@pytest.mark.parametrize("gamma_0", long_except(["1.0"], [0.01, 1.0, 30.0]))
@pytest.mark.parametrize(("L", "L_lx", "mu"), CONSTANTS)
def test_accelerated_schedule_meets_its_conditions(L, L_lx, mu, gamma_0):
    """These are the recursions of Condition 3.1, (E.22) with μ/4, (E.25), and (E.35) with equality at r = 0."""
    rounds = list(itertools.islice(theory.scaffpd_accelerated(L, L_lx, mu, gamma_0=gamma_0), 200))
    assert rounds[0].theta == 1
    tau_0, sigma_0, _ = rounds[0]
    assert 1 / tau_0 == pytest.approx(12 * L + 2 * L_lx**2 * sigma_0)
    assert sigma_0 / tau_0 == pytest.approx(gamma_0)
    for old, new in itertools.pairwise(rounds):
        gamma, gamma_next = old.sigma / old.tau, new.sigma / new.tau
        assert gamma_next == pytest.approx(gamma * (1 + mu / 4 * old.tau))
        assert new.tau == pytest.approx(old.tau * math.sqrt(gamma / gamma_next))
        assert new.theta == pytest.approx(old.sigma / new.sigma)
        assert new.tau * new.sigma == pytest.approx(tau_0 * sigma_0)
        assert 1 / new.tau >= (12 * L + 2 * L_lx**2 * new.sigma) * (1 - 1e-12)
        assert old.sigma * (1 / old.tau + mu / 4) >= new.sigma / new.tau * (1 - 1e-12)  # t_r = σ_r/σ_0


def test_accelerated_schedule_matches_the_printed_formula():
    first, second, *_ = itertools.islice(theory.scaffpd_accelerated(1.0, 1.0, 0.5, growth=1.0), 3)
    assert second.theta == pytest.approx(1 / math.sqrt(1 + 0.5 * first.tau))


def test_dual_step_grows_linearly_and_primal_step_falls():
    """(E.27): γ_r ≥ (μ'τ_0)²γ_0·r²/9 for r ≥ 1."""
    mu = 0.25
    rounds = list(itertools.islice(theory.scaffpd_accelerated(1.0, 1.0, mu, growth=1.0), 2000))
    tau_0, gamma_0 = rounds[0].tau, rounds[0].sigma / rounds[0].tau
    for r, (tau, sigma, _) in enumerate(rounds[1:], start=1):
        assert sigma / tau >= (mu * tau_0 * r / 3) ** 2 * gamma_0
    assert rounds[-1].sigma / rounds[999].sigma == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("c_omega", [1.0, 3.0])
@pytest.mark.parametrize("mu_lam", [0.05, 2.0])
@pytest.mark.parametrize(("L", "L_lx", "mu"), CONSTANTS)
def test_constant_schedule_meets_its_conditions(L, L_lx, mu, mu_lam, c_omega):
    """These are the four conditions of (E.49), with the π of (E.51)."""
    tau, sigma, theta = theory.scaffpd_constant(L, L_lx, mu, mu_lam, c_omega=c_omega)
    slack, pi = 1 - 1e-12, theta * sigma * L_lx
    assert 0 < theta < 1
    assert 1 / (2 * tau) + mu / 8 >= slack / (2 * tau * theta)
    assert 1 / (2 * sigma) + mu_lam / 2 >= slack / (2 * sigma * theta)
    assert 1 / tau >= slack * (12 * L + 2 * pi * theta * L_lx)
    if L_lx:
        assert 1 / sigma >= slack * theta * L_lx / pi
    if c_omega == 1:  # ω is a root of (E.54)'s quadratic: (E.52) holds with equality
        left, right = mu * theta / (4 * (1 - theta)) - 12 * L, (1 - theta) * 2 * L_lx**2 / mu_lam
        assert left == pytest.approx(right, rel=1e-6, abs=1e-9 * L)


def test_noise_constants_by_hand():
    """With ζ² = 2, ε = 0.5, J = 4 and χ = 0.5: C = 1.5/16 + (1/64 + 1)/4, and ω = 1 + 64C·2/(0.1·0.5)."""
    C = theory.GradientNoise(2.0, 0.5, 4, 0.5).constant
    assert pytest.approx(0.09375 + 0.25390625) == C
    tau, sigma, theta = noisy(variance=2.0, accuracy=0.5, steps=4, chi=0.5)
    omega = 1 + 64 * C * 40
    assert (tau, sigma, theta) == pytest.approx((40 / (omega - 1), 10 / (omega - 1), 1 - 1 / omega))


@pytest.mark.parametrize("accuracy", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize(("L", "L_lx", "mu"), CONSTANTS)
def test_noise_uses_half_of_the_accuracy(L, L_lx, mu, accuracy):
    """(E.58) with the weights of E.45: 2·C·τ²θ/(1−θ)·ζ²·μ_x ≤ ε/2, with equality if this branch decides."""
    exact = theory.scaffpd_constant(L, L_lx, mu, 0.2)
    steps = noisy(L, L_lx, mu, 0.2, variance=3.0, accuracy=accuracy, steps=5)
    left = (
        2 * theory.GradientNoise(3.0, accuracy, 5).constant * steps.tau**2 * steps.theta / (1 - steps.theta) * 3.0 * mu
    )
    if steps == exact:
        assert left <= accuracy / 2 * (1 + 1e-9)
    else:
        assert steps.theta > exact.theta
        assert left == pytest.approx(accuracy / 2)
    assert 1 / steps.tau >= (1 - 1e-12) * (12 * L + 2 * steps.theta * steps.sigma * L_lx**2)  # E.50, π of E.51
    assert noisy(L, L_lx, mu, 0.2, variance=0.0) == exact


@pytest.mark.parametrize("chi", [0.1, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 10, 1000])
@pytest.mark.parametrize("tau", [1e-6, 1e-4, 1 / 600, 1 / 12])
def test_noise_constant_meets_its_conditions(tau, steps, chi):
    """These are (E.18) with the 12 of Lemma D.2, and (D.19). For tiny τ, where η_g is 1, the condition is active."""
    L = 1.0
    server_lr = theory.scaffpd_local(tau, L, steps).server_lr
    drift = (3 * tau * L + (tau * L) ** 2 / 8) * (12 * (1 + chi) + 3 / steps) / server_lr**2
    C = theory.GradientNoise(1.0, 1.0, steps, chi).constant
    assert drift + 2 * chi / steps <= C * (1 + 1e-12)
    if tau == 1 / 600:
        assert drift + 2 * chi / steps > 0.9 * C


@pytest.mark.parametrize("steps", [1, 2, 10, 1000])
@pytest.mark.parametrize("tau", [1e-4, 1 / 12, 1.0, 50.0])
def test_local_step_size_meets_its_conditions(tau, steps):
    L = 1.5
    lr, server_lr = theory.scaffpd_local(tau, L, steps)
    assert lr * server_lr * steps == pytest.approx(tau)
    assert server_lr >= 1
    assert 36 * tau**2 * L / server_lr**2 + 2 * tau**3 * L**2 / server_lr**2 <= tau / 16 * (1 + 1e-12)
    if steps > 1:
        assert 4 * tau**2 * L**2 / (server_lr**2 * steps) <= (1 + 1e-12) / (steps - 1)
    if server_lr > 1:
        assert 36 * tau + 2 * tau**2 * L == pytest.approx(server_lr**2 / (16 * L))


@pytest.mark.long
def test_scaffpd_converges_with_the_prescribed_constants():
    """By Theorem 3.5 on SCAFF-PD's own problem, the distance falls at least as fast as the rate θ."""
    problem = robust_regression(mu=1.0)
    ambiguity = ChiSquare(0.5)
    target = problem.saddle(ambiguity)
    jacobian = max(float(torch.linalg.matrix_norm(problem.gradients(s * target.w), 2)) for s in (0, 0.5, 1, 1.5))
    mu_lam = ambiguity.strong_convexity(problem.N)
    tau, sigma, theta = theory.scaffpd_constant(problem.smoothness, jacobian, problem.strong_convexity, mu_lam)
    lr, server_lr = theory.scaffpd_local(tau, problem.smoothness, 3)
    algorithm = ScaffPD(
        sigma=sigma, theta=theta, server_lr=server_lr, ambiguity=ambiguity, local=LocalSGD(steps=3, lr=lr, batch=None)
    )
    fed, certifier = (
        problem.federation(Loop()),
        Certifier(problem.task(), mu=problem.strong_convexity, assume_convex=True),
    )
    state, start, gaps = algorithm.init(fed), float(target.w.norm()), []
    for r in range(101):
        if r % 50 == 0:
            assert float((state.w - target.w).norm()) <= start * theta ** (r / 2)
            gaps.append(certifier(fed, state.w, state.lam, local=LocalSGD(), ambiguity=ambiguity)[0].gap)
        state, _ = algorithm.round(state, fed, Key(0).fold("round", r + 1))
    assert 0 < gaps[2] < gaps[1] / 2 < gaps[0] / 50


@pytest.mark.parametrize("bias", [True, False])
def test_smoothness_bounds_the_hessians(bias):
    data = pools(classes=3)
    task = task_of(lambda shape, classes: torch.nn.Linear(4, 3, bias=bias))
    for rows in data.train:
        x, y = data.inputs[rows], data.targets[rows]

        def loss(w):
            return task.sample_losses(task.outputs(task.layout.views(w), x), y).mean()  # noqa: B023

        L = theory.linear_smoothness(x, theory.CROSS_ENTROPY, bias=bias)
        for scale in (0.0, 0.3, 1.0):
            w = scale * torch.randn(task.layout.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            largest = float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, w))[-1])
            assert largest <= L * (1 + 1e-9)
            assert scale or largest > L / 2  # at 0 the bound is at most twice the curvature


def test_smoothness_of_squared_loss_is_exact():
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = 2 * float(torch.linalg.matrix_norm(x, 2)) ** 2 / 30
    assert theory.linear_smoothness(x, theory.SQUARED, bias=False) == pytest.approx(expected)
    assert theory.linear_smoothness(x.numpy(), theory.SQUARED, bias=False) == pytest.approx(expected)
    wide = x.T.contiguous()
    assert theory.linear_smoothness(wide, theory.SQUARED, bias=False) == pytest.approx(expected * 30 / 5)


def test_coupling_bounds_the_jacobian():
    data, task = pools(classes=3), task_of()
    fed = Simulation(data, task)
    bound = theory.linear_coupling([data.inputs[rows] for rows in data.train], theory.CROSS_ENTROPY_SLOPE)
    for scale in (0.0, 1.0, 10.0):
        w = scale * torch.randn(15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        jacobian = fed.gradients(torch.arange(6), w, Key(0)).values
        assert float(torch.linalg.matrix_norm(jacobian, 2)) <= bound


@pytest.mark.parametrize("T", [10**4, 10**8, 10**12])
def test_drdm_bound_does_not_vanish_with_more_rounds(T):
    """For unrounded τ, 144·ητ² of (51) is 36/(Lm) for any T, so the last term of (52) does not fall."""
    m, L = 4, 0.5
    steps = theory.drdm(T, m, 16, L)
    assert 144 * steps.eta * (T**0.25 / math.sqrt(m)) ** 2 == pytest.approx(36 / (L * m))
    assert 144 * steps.eta * steps.tau**2 == pytest.approx(36 / (L * m), rel=2 / steps.tau)


def test_only_one_of_two_printed_primal_steps_meets_its_condition():
    """E.60 has half of the τ of E.51, so the first condition of E.49 fails."""
    mu, theta = 0.1, 0.9
    for factor, meets in ((4, True), (2, False)):
        tau = factor * (1 - theta) / (theta * mu)
        assert (1 / (2 * tau) + mu / 8 >= (1 - 1e-12) / (2 * tau * theta)) == meets


def test_only_the_smaller_of_two_printed_roots_is_a_root():
    """The fourth line of (E.54) has 16 where the second has 8, and meets (E.52) with slack."""
    L, L_lx, mu, mu_lam = 1.0, 3.0, 0.1, 0.2
    half = 0.5 + 24 * L / mu
    for factor, rest in ((8, pytest.approx(0, abs=1e-6)), (16, None)):
        omega = half + math.sqrt(half**2 + factor * L_lx**2 / (mu * mu_lam))
        quadratic = mu * mu_lam * omega**2 - (mu * mu_lam + 48 * mu_lam * L) * omega - 8 * L_lx**2
        assert quadratic == rest if rest is not None else quadratic > 1
    theta = theory.scaffpd_constant(L, L_lx, mu, mu_lam).theta
    assert 1 / (1 - theta) == pytest.approx(half + math.sqrt(half**2 + 8 * L_lx**2 / (mu * mu_lam)))
