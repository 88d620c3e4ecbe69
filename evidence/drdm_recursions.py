"""Compare the sequences in DRDM's proof with those of its Algorithm 1: what does each converge to?

    python evidence/drdm_recursions.py [--smoke]

There are three ways to compute the next global model w and c from the local models of a round (Krouka et al. 2025); the
rest follows Algorithms 1 and 2. "published" is lines 18 and 20; "virtual" are the sequences defined before Lemma 1,
whose c and w change after every local step; "one step" is the update (37)-(39) used to prove Lemma 6. Six clients have
quadratic losses, λ stays uniform, gradients are exact, numbers are float64, and there are two initial models. The
script writes results/drdm_recursions/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import script
from drfl.core.key import Key
from drfl.experiments.run.artifacts import versions
from drfl.federation import sampling
from drfl.testing.problems import Problem, curved_quadratics

RESULTS = Path(__file__).parent / "results" / "drdm_recursions"
ROUNDS, TAU, ETA, MU = script.sized(2000, 5), 5, 0.05, 2.0

Recursion = Callable[[Tensor, Tensor, Sequence[Tensor], float], tuple[Tensor, Tensor]]
"""Maps w (d,), c (d,), the mean local models M_k (d,) after each local step, and a = m/N to the next w and c."""


def published(w: Tensor, c: Tensor, means: Sequence[Tensor], a: float) -> tuple[Tensor, Tensor]:
    """Lines 18 and 20, which use only the last local models."""
    c = c - MU * a * (means[-1] - w)
    return means[-1] - c / MU, c


def virtual(w: Tensor, c: Tensor, means: Sequence[Tensor], a: float) -> tuple[Tensor, Tensor]:
    """c^t = c^{t−1} − (μ/N) Σ_i (w_i^t − w^{t−1}) and w^t = M_t − c^t/μ."""
    for M in means:
        c = c - MU * a * (M - w)
        w = M - c / MU
    return w, c


def one_step(w: Tensor, c: Tensor, means: Sequence[Tensor], a: float) -> tuple[Tensor, Tensor]:
    """w^{t+1} = w^t + M_{t+1} − M_t + (1/N) Σ_i (w_i^{t+1} − w^t), (39), which does not contain c."""
    before = w
    for M in means:
        c, w, before = c - MU * a * (M - w), w + (M - before) + a * (M - w), M
    return w, c


RECURSIONS: dict[str, Recursion] = {"published": published, "virtual": virtual, "one step": one_step}


class End(NamedTuple):
    """The final state of a run: w (d,), c (d,) and h (N, d)."""

    w: Tensor
    c: Tensor
    h: Tensor


def play(problem: Problem, recursion: Recursion, start: Tensor, m: int, tau: int) -> End:
    """Run Algorithm 1 with a given recursion for w and c, and cohorts of m distinct clients, drawn uniformly."""
    f, w = problem.functions, start
    c, h = torch.zeros_like(w), torch.zeros(problem.N, problem.d, dtype=w.dtype)
    for s in range(ROUNDS):
        D = sampling.uniform(problem.N, m, Key(0).fold("round", s)).clients
        A, b, u, means = f.hessians[D], f.linear[D], w.repeat(m, 1), []
        for _ in range(tau):
            u = u - ETA * (torch.einsum("ide,ie->id", A, u) - b - h[D] + MU * (u - w))
            means.append(u.mean(0))
        h[D] = h[D] - MU * (u - w)
        w, c = recursion(w, c, means, m / problem.N)
    return End(w, c, h)


def row(problem: Problem, name: str, m: int, tau: int) -> list[str]:
    ends = [play(problem, RECURSIONS[name], s * torch.ones_like(problem.average_optimum), m, tau) for s in (0.0, 1.0)]
    off = [float((end.w - problem.average_optimum).norm()) for end in ends]
    apart = float((ends[0].w - ends[1].w).norm())
    wrong_c = max(float((end.c - end.h.mean(0)).norm()) for end in ends)
    moving = max(float((problem.gradients(end.w) - end.h).norm()) for end in ends)
    numbers = (*off, apart, wrong_c, moving)
    return [name, str(m), str(tau), *(f"{value:.1e}" for value in numbers)]


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    torch.set_num_threads(1)
    problem = curved_quadratics()
    head = ["recursion", "cohort", "local steps", "from 0: distance to the average optimum", "from 1: the same"]
    head += ["between the two ends", "c off mean h_i", "h_i off ∇f_i(w)"]
    rows = []
    for m, tau in ((problem.N, TAU), (problem.N // 2, TAU), (problem.N, 1)):
        for name in RECURSIONS:
            rows.append(row(problem, name, m, tau))
            print(*rows[-1], sep=" | ", flush=True)
    lines = [head, ["---"] * 3 + ["---:"] * 5, *rows]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    about = {"rounds": ROUNDS, "eta": ETA, "mu": MU, "problem": problem.name, "clients": problem.N, "d": problem.d}
    about |= {"dtype": "float64", "problem_seed": 0, "key_seed": 0, "versions": versions()}
    script.store(options.out, {"table.md": table, "summary.json": about})


if __name__ == "__main__":
    main()
