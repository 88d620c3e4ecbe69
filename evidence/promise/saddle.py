"""Bracket the saddle value of a convex job between the worst client's loss of a model and a concave dual."""

from __future__ import annotations

import math
from pathlib import Path

import jobs as suite
import torch
from torch import Tensor

import kept
import script
from drfl import LocalSGD, Simulation, run
from drfl.algorithms import ScaffPD
from drfl.ambiguity import Simplex
from drfl.federation.algorithm import mixture_of
from drfl.federation.federation import Federation
from drfl.training.certificate import Objective, PooledSolver, SilentClientError
from drfl.training.run_state import RunState

COLUMNS = ("job", "lower", "upper", "rounds")
ROUNDS, ITERATIONS = script.sized((20, 300), (2, 5))
WARM_UP = script.sized(300, 2)
CLOSE = 0.02
"""The search ends when the bounds are this close, relative to the upper one."""


def worst(fed: Federation, w: Tensor, decay: float) -> float:
    """max_i F_i(w) on all training rows, weight decay included; infinite if a client's loss is not finite."""
    try:
        with fed.ledger.paused():
            return float(Objective(fed, decay, decay).losses(w).max())
    except SilentClientError:
        return math.inf


def approached(fed: Federation, decay: float) -> tuple[Tensor, Tensor]:
    """A model (d,) and a mixture (N,) near the saddle point: SCAFF-PD's, λ averaged over the last half of the run."""
    lam = torch.zeros(fed.n, dtype=torch.float64)

    def add(progress: RunState) -> None:
        if progress.round > progress.rounds // 2:
            lam.add_(mixture_of(algorithm, progress.state, fed))

    algorithm = ScaffPD(dual_batch=500, local=LocalSGD(steps=10, batch=50, weight_decay=decay))
    model = run(algorithm, fed, rounds=WARM_UP, evaluate_every=WARM_UP, callbacks=[add]).model
    # No λ_i may be 0, because a multiplicative step would never change it.
    lam = lam / lam.sum() + 1e-3 / fed.n
    return model, lam / lam.sum()


def bracket(fed: Federation, decay: float) -> tuple[float, float, int]:
    """Lower and upper bound of min_w max_λ F(w, λ), and the steps taken.

    Starting from SCAFF-PD's result, mirror ascent maximises g(λ) = min_w F(w, λ), whose gradient consists of the losses
    at the minimiser (L-BFGS on all rows). Each g(λ) is a lower bound. The largest loss of each model, and of the mean
    model, is an upper bound.
    """
    objective, method = Objective(fed, decay, decay), PooledSolver(tolerance=2e-3, iterations=ITERATIONS)
    w, lam = approached(fed, decay)
    lower, upper, mean = -torch.inf, worst(fed, w, decay), None
    squares = (upper / 10) ** 2  # so that the first step is no longer than the initial error
    for r in range(1, ROUNDS + 1):
        bound = method(objective, w, lam, None)
        w = bound.point
        losses = objective.losses(w)
        mean = w if mean is None else mean + 4 / (r + 3) * (w - mean)
        lower = max(lower, bound.lower)
        upper = min(upper, float(losses.max()), float(objective.losses(mean).max()))
        if upper - lower <= CLOSE * upper:
            break
        gradient = losses - lam @ losses
        squares += float(gradient.square().max())
        lam = lam * torch.exp(gradient / squares**0.5)
        lam = Simplex().project(lam / lam.sum())
    return lower, upper, r


def fill(path: Path, names: list[str], folders: suite.Folders) -> None:
    """Compute the bounds of the jobs that the file lacks."""
    rows = kept.known(path, 1)
    for name in names:
        if (name,) not in rows:
            job = suite.JOBS[name]
            data = job.clients(folders)
            lower, upper, rounds = bracket(Simulation(data, job.task(data, 0)), job.decay)
            rows[(name,)] = [f"{lower:.6f}", f"{upper:.6f}", str(rounds)]
            kept.save(path, COLUMNS, rows)
            print(name, *rows[(name,)], flush=True)
