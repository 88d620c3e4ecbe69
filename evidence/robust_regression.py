"""Measure which methods reach the saddle point of SCAFF-PD's synthetic problem (C.1), and how fast.

    python evidence/robust_regression.py [--smoke]

Gradients are exact. Part 1 follows the paper's Figure 2: a χ² penalty with weight ρ, and clients that differ by σ.
ScaffPD with the constant schedule is compared with DRFAProx (the paper's DRFA, with all clients weighted by λ). Each
has the best of six step sizes by its error after 60 rounds. Part 2 has no penalty: ScaffPD with the accelerated
schedule, DualDRDM, DRDM, DRFA and SCAFFOLD. There are ten local steps. The optima come from drfl.testing.problems, with
an error of about 1e-13. The script writes results/robust_regression/.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor

import script
from drfl.algorithms import DRDM, DRFA, SCAFFOLD, DRFAProx, DualDRDM, ScaffPD
from drfl.ambiguity import ChiSquare, Simplex
from drfl.core.csv_cells import csv_text
from drfl.core.key import Key
from drfl.experiments.run.artifacts import versions
from drfl.federation import sampling
from drfl.federation.algorithm import Algorithm
from drfl.optim.local import LocalSGD
from drfl.testing.problems import Problem, robust_regression

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results" / "robust_regression"
SIGMAS, RHOS = (0.01, 0.1, 0.5), script.sized((0.01, 0.05, 0.1), (0.1,))
STEPS, (ROUNDS, TRIAL) = 10, script.sized((400, 60), (12, 1))


def local(problem: Problem, reach: float) -> LocalSGD:
    """A local solver of ten exact steps with a total length of `reach`/L."""
    return LocalSGD(steps=STEPS, lr=reach / STEPS / problem.smoothness, batch=None)


def errors(problem: Problem, algorithm: Algorithm, optimum: Tensor, rounds: int) -> list[float]:
    """‖w − w*‖² after each round; stops early if it cannot fall further or diverges."""
    fed = problem.federation()
    state, found = algorithm.init(fed), []
    for r in range(1, rounds + 1):
        state, _ = algorithm.round(state, fed, Key(0).fold("round", r))
        found.append(float((state.w - optimum).square().sum()))
        if not 1e-26 < found[-1] < 1e6:
            break
    return found


def best(problem: Problem, candidates: Iterable[tuple[str, Algorithm]], optimum: Tensor) -> tuple[str, list[float]]:
    """Continue the candidate with the smallest error after the trial rounds."""
    scores = {}
    for name, algorithm in candidates:
        found = errors(problem, algorithm, optimum, TRIAL)
        scores[name] = (found[-1] if np.isfinite(found[-1]) else np.inf, algorithm)
    name = min(scores, key=lambda k: scores[k][0])
    return name, errors(problem, scores[name][1], optimum, ROUNDS)


def slope(found: list[float], low: float = 1e-20, high: float = 1e-3) -> tuple[float, float]:
    """Least-squares slope of log10 ‖w − w*‖² per round between two errors, and its R²."""
    at = [(r, np.log10(e)) for r, e in enumerate(found, 1) if low < e < high]
    if len(at) < 3:
        return float("nan"), float("nan")
    x, y = np.array(at).T
    k, b = np.polyfit(x, y, 1)
    return float(k), float(1 - ((y - k * x - b) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def exponent(found: list[float], start: int = 10) -> float:
    """p of the fit ‖w − w*‖² ∝ R^−p from round `start` on."""
    r = np.arange(1, len(found) + 1)[start - 1 :]
    return float(-np.polyfit(np.log(r), np.log(found[start - 1 :]), 1)[0])


def first(found: list[float], level: float = 1e-12) -> str:
    return next((str(r) for r, e in enumerate(found, 1) if e <= level), "–")


def penalised() -> tuple[list[list[object]], dict[str, list[float]]]:
    rows, curves = [], {}
    for sigma, rho in itertools.product(SIGMAS, RHOS):
        problem, penalty = robust_regression(sigma=sigma), ChiSquare(rho)
        optimum = problem.saddle(penalty).w
        candidates = {
            "ScaffPD": [
                (f"reach={a} sigma={s}", ScaffPD(local=local(problem, a), sigma=s, ambiguity=penalty))
                for a, s in itertools.product((0.5, 1.0), (0.1, 1.0, 10.0))
            ],
            "DRFAProx": [
                (
                    f"reach={a} gamma={g}",
                    DRFAProx(m=5, local=local(problem, a), gamma=g, dual_batch=None, ambiguity=penalty,
                             sampling=sampling.all_clients),
                )
                for a, g in itertools.product((0.5, 1.0), (0.01, 0.1, 1.0))
            ],
        }  # fmt: skip
        for name, options in candidates.items():
            chosen, found = best(problem, options, optimum)
            k, r2 = slope(found)
            rows.append([name, sigma, rho, chosen, f"{k:.4f}", f"{r2:.4f}", first(found), f"{found[-1]:.1e}"])
            curves[f"{name} σ={sigma} ρ={rho}"] = found
            print(*rows[-1], flush=True)
    return rows, curves


def unpenalised() -> tuple[list[list[object]], dict[str, list[float]]]:
    problem = robust_regression(sigma=0.5)
    saddle, average = problem.saddle(Simplex()).w, problem.average_optimum
    steps, everybody = local(problem, 1.0), sampling.all_clients
    common = {"m": 5, "local": steps, "dual_batch": None, "sampling": everybody}
    runs: dict[str, Algorithm] = {
        "ScaffPD, accelerated": ScaffPD(local=steps, sigma=0.02, mu=problem.strong_convexity),
        "DualDRDM": DualDRDM(gamma=0.001, **common),
        "DRDM": DRDM(gamma=0.001, **common),
        "DRFA": DRFA(gamma=0.001, **common),
        "SCAFFOLD": SCAFFOLD(local=steps),
    }
    rows, curves = [], {}
    for name, algorithm in runs.items():
        found = errors(problem, algorithm, saddle, ROUNDS)
        to_average = errors(problem, algorithm, average, ROUNDS)
        p = f"{exponent(found):.1f}" if name.startswith("ScaffPD") else ""
        rows.append([name, f"{found[-1] ** 0.5:.1e}", f"{to_average[-1] ** 0.5:.1e}", first(found, 1e-8), p])
        curves[name] = found
        print(*rows[-1], flush=True)
    worst = [float(problem.losses(w).max()) for w in (saddle, average)]
    print("worst loss at the saddle point and at the average optimum:", worst)
    return [*rows, ["worst loss: saddle, average optimum", *(f"{x:.4f}" for x in worst), "", ""]], curves


def table(header: list[str], rows: list[list[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def plot(out: Path, penalised_curves: dict[str, list[float]], free: dict[str, list[float]]) -> None:
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.4), sharey=True)
    for axis, sigma in zip(axes, SIGMAS, strict=False):
        for name, curve in penalised_curves.items():
            if f"σ={sigma} " in name:
                style = "-" if name.startswith("ScaffPD") else "--"
                axis.semilogy(curve, style, color=f"C{RHOS.index(float(name.split('ρ=')[1]))}", label=name)
        axis.set(title=f"σ = {sigma}, χ² penalty", xlabel="round")
        axis.legend(fontsize=6)
    for name, curve in free.items():
        axes[3].semilogy(curve, label=name)
    axes[3].set(title="σ = 0.5, no penalty", xlabel="round")
    axes[3].legend(fontsize=7)
    axes[0].set_ylabel("‖w − w*‖²")
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(out / f"curves.{kind}", dpi=110, metadata={"Date": None} if kind == "svg" else None)


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    torch.set_num_threads(1)
    with_penalty, curves = penalised()
    without, free = unpenalised()
    header = ["algorithm", "σ", "ρ", "best step sizes", "log10 slope per round", "R²", "round at 1e-12", "last error"]
    tables = [
        table(header, with_penalty),
        table(["algorithm", "‖w − w*‖", "‖w − w_average‖", "round at ‖w − w*‖ ≤ 1e-4", "exponent"], without),
    ]
    both = {**curves, **free}
    cells = ([name, r, f"{e:.6e}"] for name, curve in both.items() for r, e in enumerate(curve, 1))
    distances = csv_text(("run", "round", "squared_distance"), cells)
    about = {"versions": versions(), "device": "cpu", "dtype": "float64", "problem_seed": 0, "key_seed": 0}
    script.store(options.out, {"table.md": "\n".join(tables), "errors.csv": distances, "summary.json": about})
    plot(options.out, curves, free)


if __name__ == "__main__":
    main()
