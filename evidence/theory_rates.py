"""Measure the rates in SCAFF-PD's theorems, with the step sizes that they prescribe.

    python evidence/theory_rates.py [--smoke]

The problem is the synthetic one of C.1 in Yu et al. 2023 (drfl.testing.problems.robust_regression, σ = 0.5), with five
local steps, full participation and float64. For Theorem 3.1 there is no penalty, and the accelerated schedule
(Condition 3.1) is used with exact gradients for O(1/R²) and noisy ones for O(1/R). For Theorem 3.5 there is a χ²
penalty with noisy gradients and the constant schedule (Condition 3.2), in which the requested accuracy determines θ.
The tables show the measured numbers beside the bounds, with the constants derived in docs/theory.md. Losses are exact,
as in the paper; noise is Gaussian. The script writes results/theory_rates/.
"""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

import script
from drfl.algorithms import ScaffPD, theory
from drfl.ambiguity import ChiSquare, Simplex
from drfl.experiments.run.artifacts import versions
from drfl.federation.requests import Gradients, LossRequest, R, Replies, Request, TrainRequest
from drfl.optim.local import LocalSGD
from drfl.testing import QuadraticFederation
from drfl.testing.problems import Problem, robust_regression
from drfl.training.averages import Average
from drfl.training.loop import run
from drfl.training.run_state import RunState

RESULTS = Path(__file__).parent / "results" / "theory_rates"
J, VARIANCE, STREAMS, RHO = 5, 4.0, script.sized(5, 2), 0.5
AT = script.sized((10, 30, 100, 300, 1000, 3000, 10_000), (2, 5, 10))
"""Rounds shown in the tables."""
FIT = script.sized(1000, 2)
"""The round from which exponents are fitted."""
ACCURACIES = script.sized((0.4, 0.2, 0.1), (10.0,))


class Noisy(QuadraticFederation):
    """Quadratic losses with gradients ∇f_i + N(0, (ζ²/d)·I), drawn at every local step; losses are exact."""

    def __init__(self, problem: Problem, variance: float) -> None:
        f = problem.functions
        super().__init__(f.hessians, f.linear, f.losses(torch.zeros(f.d, dtype=torch.float64)))
        self.scale = (variance / f.d) ** 0.5

    def ask(self, request: Request[R]) -> R:
        """See :class:`drfl.federation.federation.Federation`."""
        if isinstance(request, LossRequest) or not self.scale:
            return super().ask(request)
        normal = request.key.generator().standard_normal
        if isinstance(request, TrainRequest):
            return cast("R", self._noisy_steps(request, self.scale * torch.from_numpy(normal((J, *self.b.shape)))))
        exact = cast("Gradients", super().ask(request))
        return cast("R", exact._replace(values=exact.values + self.scale * torch.from_numpy(normal(self.b.shape))))

    def _noisy_steps(self, request: TrainRequest, noise: Tensor) -> Replies:
        """Local steps of all clients; `noise` is (J, N, d)."""
        u, shift = request.w.repeat(self.n, 1), cast("Tensor", request.shift)
        for drawn in noise:
            gradients = torch.bmm(self.A, u[:, :, None])[:, :, 0] - self.b + drawn
            u = u - request.local.eta * (gradients + shift)
        return Replies(request.cohort, u, None, u if request.average else None)


class Setting:
    """The problem, its constants and its saddle point; ψ is χ² with weight ρ, or none if ρ = 0."""

    def __init__(self, rho: float) -> None:
        self.problem = robust_regression(sigma=0.5)
        self.ambiguity = ChiSquare(rho) if rho else Simplex()
        self.saddle = self.problem.saddle(self.ambiguity)
        self.L, self.mu, N = self.problem.smoothness, self.problem.strong_convexity, self.problem.N
        self.coupling = max(self.jacobian(s * self.saddle.w) for s in np.linspace(0, 1.5, 16))
        self.x_0 = float(self.saddle.w.square().sum())  # ‖x⁰ − x*‖²; x⁰ = 0
        self.lam_0 = float((self.saddle.lam - 1 / N).square().sum())

    def jacobian(self, w: Tensor) -> float:
        """The norm that L_λx bounds; squared losses have no global bound."""
        return float(torch.linalg.matrix_norm(self.problem.gradients(w), 2))

    def off(self, w: Tensor) -> float:
        """‖x − x*‖²."""
        return float((w - self.saddle.w).square().sum())

    def gap(self, w: Tensor, lam: Tensor) -> float:
        """The duality gap without penalty."""
        return float(self.problem.losses(w).max() - lam @ self.problem.losses(self.problem.weighted_optimum(lam)))


def accelerated(at: Setting) -> tuple[ScaffPD, list[theory.PrimalDualSteps]]:
    """SCAFF-PD with the step sizes of Condition 3.1, and these step sizes by round."""
    steps = list(islice(theory.scaffpd_accelerated(at.L, at.coupling, at.mu), AT[-1]))
    rates = theory.scaffpd_local(steps[0].tau, at.L, J)
    local = LocalSGD(steps=J, lr=rates.lr, batch=None)
    return ScaffPD(sigma=steps[0].sigma, mu=at.mu / 4, server_lr=rates.server_lr, local=local), steps


def exact(at: Setting) -> tuple[list[list[float]], float]:
    """Rows of R, distance, its bound, gaps of last, plain mean and E.40, its bound; and the largest Jacobian."""
    algorithm, steps = accelerated(at)
    zero = torch.zeros(at.problem.d, dtype=torch.float64)
    plain, rows, jacobian = Average.start(zero, at.saddle.lam), [], 0.0

    def watch(progress: RunState) -> None:
        nonlocal plain, jacobian
        if not progress.round:
            return
        plain = plain.add(progress.state.w, progress.state.lam)
        if progress.round in AT:
            R, mean = progress.round, cast("Average", progress.average)
            jacobian = max(jacobian, at.jacobian(progress.state.w))
            to = at.problem.weighted_optimum(mean.lam)
            start = float(to.square().sum()) / (2 * steps[0].tau) + (1 - 1 / at.problem.N) / (2 * steps[0].sigma)
            gaps = [at.gap(one.w, one.lam) for one in (progress.state, plain, mean)]
            rows.append([R, at.off(progress.state.w), bound(at, steps, R, 0.0), *gaps, start / float(mean.weight)])

    run(algorithm, Noisy(at.problem, 0.0), rounds=AT[-1], evaluate_every=AT[-1], averaged=True, callbacks=[watch])
    return rows, jacobian


def bound(at: Setting, steps: list[theory.PrimalDualSteps], rounds: int, variance: float) -> float:
    """(γ_0‖x⁰ − x*‖² + ‖λ⁰ − λ*‖² + 2Cσ_0τ_0ζ²R)/γ_{R−1}, (E.39) without its first term."""
    (tau, sigma, _), last = steps[0], steps[rounds - 1]
    C = theory.GradientNoise(variance, 1.0, J).constant
    start = sigma / tau * at.x_0 + at.lam_0 + 2 * C * sigma * tau * variance * rounds
    return start * last.tau / last.sigma


def noisy(at: Setting) -> list[list[float]]:
    """Rows of R, mean squared distance over the streams, and its bound."""
    algorithm, steps = accelerated(at)
    found: dict[int, list[float]] = {R: [] for R in AT}

    def watch(progress: RunState) -> None:
        if progress.round in AT:
            found[progress.round].append(at.off(progress.state.w))

    for seed in range(STREAMS):
        fed = Noisy(at.problem, VARIANCE)
        run(algorithm, fed, rounds=AT[-1], seed=seed, evaluate_every=AT[-1], callbacks=[watch])
    return [[R, float(np.mean(values)), bound(at, steps, R, VARIANCE)] for R, values in found.items()]


def constant(at: Setting, accuracy: float) -> list[float]:
    """ε, ω of exact gradients and with noise, R of the theorem, and μ_x·mean ‖x^r − x*‖² over r = R…2R."""
    mu_lam = at.ambiguity.strong_convexity(at.problem.N)
    noise = theory.GradientNoise(VARIANCE, accuracy, J)
    without = theory.scaffpd_constant(at.L, at.coupling, at.mu, mu_lam)
    tau, sigma, theta = theory.scaffpd_constant(at.L, at.coupling, at.mu, mu_lam, noise=noise)
    rates = theory.scaffpd_local(tau, at.L, J)
    local = LocalSGD(steps=J, lr=rates.lr, batch=None)
    algorithm = ScaffPD(sigma=sigma, theta=theta, server_lr=rates.server_lr, local=local, ambiguity=at.ambiguity)
    start = at.mu * at.x_0 + 4 * mu_lam * at.lam_0
    rounds, found = math.ceil(math.log(2 * start / accuracy) / -math.log(theta)), []

    def watch(progress: RunState) -> None:
        if progress.round >= rounds:
            found.append(at.mu * at.off(progress.state.w))

    run(algorithm, Noisy(at.problem, VARIANCE), rounds=2 * rounds, evaluate_every=2 * rounds, callbacks=[watch])
    return [accuracy, 1 / (1 - without.theta), 1 / (1 - theta), rounds, float(np.mean(found))]


def exponent(rows: list[list[float]], column: int) -> float:
    """p of the fit ∝ R^−p from R = `FIT` on."""
    R, values = np.array([(row[0], row[column]) for row in rows if row[0] >= FIT]).T
    return float(-np.polyfit(np.log(R), np.log(values), 1)[0])


def table(title: str, head: list[str], rows: list[list[float]]) -> str:
    lines = [
        head,
        ["---:"] * len(head),
        *([f"{value:.3g}" if value < 1e3 else f"{value:.0f}" for value in row] for row in rows),
    ]
    return f"{title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    torch.set_num_threads(1)
    free, penalised = Setting(0.0), Setting(RHO)
    without, jacobian = exact(free)
    print(*without, sep="\n", flush=True)
    noise = noisy(free)
    print(*noise, sep="\n", flush=True)
    asked = [constant(penalised, accuracy) for accuracy in ACCURACIES]
    print(*asked, sep="\n", flush=True)
    gaps = ["gap, last", "gap, plain mean", "gap, E.40", "bound"]
    tables = [
        table("Theorem 3.1, exact gradients", ["R", "‖x − x*‖²", "bound", *gaps], without),
        table(f"Theorem 3.1, ζ² = {VARIANCE:g}", ["R", "mean ‖x − x*‖²", "bound"], noise),
        table(f"Theorem 3.5, ζ² = {VARIANCE:g}", ["ε", "ω, exact", "ω", "R", "μ_x·mean ‖x − x*‖²"], asked),
    ]
    about = {"exponent_exact_bound": exponent(without, 2)}
    about |= {"exponent_gap_plain": exponent(without, 4), "exponent_gap_weighted": exponent(without, 5)}
    about |= {"exponent_gap_weighted_bound": exponent(without, 6)}
    about |= {"exponent_noisy": exponent(noise, 1), "exponent_noisy_bound": exponent(noise, 2)}
    about |= {"L_xx": free.L, "mu_x": free.mu, "L_lx": free.coupling, "largest_jacobian_met": jacobian}
    about |= {"J": J, "variance": VARIANCE, "streams": STREAMS, "rho": RHO, "problem_seed": 0, "dtype": "float64"}
    about = {name: round(value, 4) if isinstance(value, float) else value for name, value in about.items()}
    script.store(options.out, {"table.md": "\n".join(tables), "summary.json": about | {"versions": versions()}})
    print(about)


if __name__ == "__main__":
    main()
