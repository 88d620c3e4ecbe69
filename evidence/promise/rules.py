"""Measure alternatives to the default dual step, κ and averaging window on the jobs used to choose defaults.

    python evidence/promise/rules.py --data-dir DIR --adult FILE [--smoke]

The runs are dual DRDM, DRFA and SCAFF-PD under six rules for the dual step, and FedDyn, DRDM and dual DRDM with four
values of κ in μ = κ/(ητ), with the step size that drfl finds and two seeds. The last iterate and five polynomial-decay
averages of the same run are tested. The script writes results/promise/rules.csv.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import jobs as suite

import kept
import script
from drfl import LocalSGD, Simulation, run
from drfl.algorithms import ALGORITHMS, afl, drfa, drift, dual, scaffpd
from drfl.algorithms.sparse_vector import SparseVector
from drfl.core.errors import DivergedError
from drfl.training.history import Metrics

RESULTS = Path(__file__).parents[1] / "results" / "promise"
DECAYS = (1, 3, 8, 15, 30)
COLUMNS = ("job", "algorithm", "rule", "rate", "centred", "kappa", "seed", "last", *(f"s{s}" for s in DECAYS))
RULES = (("size", 0.03), ("spread", 0.1), ("free", 0.03), ("free", 0.1), ("free", 0.3), ("relative", 0.3))
NAMES = ("DualDRDM", "DRFA", "ScaffPD")
PENALISED = ("FedDyn", "DRDM", "DualDRDM")
KAPPAS = script.sized((0.1, 0.2, 0.5, 1.0), (0.1,))
SEEDS = range(script.sized(2, 1))
JOBS = script.sized([job for job in suite.JOBS.values() if job.chosen and job.convex], [suite.JOBS["hospitals"]])


class Cell(NamedTuple):
    """A rule on a job; ``centred`` says whether the mean of the reports is subtracted."""

    job: str
    algorithm: str
    rule: str
    rate: float
    centred: bool
    kappa: float
    seed: int

    def key(self) -> tuple[str, ...]:
        """The first columns of the run's row."""
        return tuple(map(str, self))


def step_size(rule: str, rate: float):
    """The dual step of a rule that replaces drfl's; ``squares`` is the rule's state.

    The rules are size, rate/(N·largest mean report), which drfl used before; spread, rate/(N·largest standard deviation
    of reports); free, rate/√(Σ‖v − v̄‖²), which drfl uses; and relative, √N times smaller, so that λ_i moves like 1/N.
    """

    def found(gamma: float | None, v: torch.Tensor | SparseVector, squares: torch.Tensor) -> tuple[float, torch.Tensor]:
        v = v.dense() if isinstance(v, SparseVector) else v
        n, told = len(v), v[v != 0]
        if rule in ("free", "relative"):
            squares = squares + (v - v.mean()).square().sum()
            scale = float(squares) ** 0.5 * (n**0.5 if rule == "relative" else 1)
        else:
            reports = told * len(told) / n
            level = reports.abs().mean() if rule == "size" else reports.std(correction=0)
            squares = torch.maximum(squares, level.nan_to_num())
            scale = n * float(squares)
        return (rate / scale if scale > 0 else 0.0), squares

    return found


_folders: list[suite.Folders] = []
_data: dict[str, object] = {}


def start(folders: suite.Folders) -> None:
    _folders[:] = [folders]


def measured(cell: Cell) -> list[str]:
    job = suite.JOBS[cell.job]
    if cell.job not in _data:
        _data.clear()
        _data[cell.job] = job.clients(_folders[0])
    data = _data[cell.job]
    for module in (dual, drfa, afl, scaffpd):
        module.step_size = step_size(cell.rule, cell.rate)
    drift.KAPPA = cell.kappa
    fed = Simulation(data, job.task(data, cell.seed))
    averages = {s: fed.w0.clone() for s in DECAYS}

    def follow(step) -> None:
        for s in DECAYS if step.round else ():
            averages[s] += (s + 1) / (step.round + s) * (step.state.w - averages[s])

    known = {field.name for field in dataclasses.fields(ALGORITHMS[cell.algorithm])}
    values: dict[str, object] = {"local": LocalSGD(steps=10, batch=50, weight_decay=job.decay)}
    if cell.algorithm == "ScaffPD":
        values["dual_batch"] = 500
    else:
        values |= {"m": job.m} | ({"centred": cell.centred} if "centred" in known else {})
    try:
        algorithm = ALGORITHMS[cell.algorithm](**values)
        result = run(
            algorithm, fed, rounds=job.rounds, seed=cell.seed, evaluate_every=job.rounds, callbacks=[follow],
        )  # fmt: skip
    except DivergedError:
        return ["" for _ in (0, *DECAYS)]
    models = [result.state.w, *averages.values()]
    return [f"{100 * Metrics.of(fed.evaluate(w)).worst_score:.2f}" for w in models]


def main() -> None:
    parser = script.parser(__doc__, RESULTS, data=True)
    script.add_adult(parser)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    cells = [
        Cell(job.name, name, *rule, centred, drift.KAPPA, seed)
        for job in JOBS for name in NAMES for rule in RULES for seed in SEEDS
        # if all clients report, centring has no effect on the simplex
        for centred in ((True, False) if name == "DualDRDM" and job.m is None else (name == "DualDRDM",))
    ]  # fmt: skip
    cells += [
        Cell(job.name, name, "free", 0.1, name == "DualDRDM", kappa, seed)
        for job in JOBS for name in PENALISED for kappa in KAPPAS for seed in SEEDS
    ]  # fmt: skip
    folders = suite.Folders(options.data_dir, options.adult)
    workers = kept.Workers(options.processes, start, (folders,))
    kept.fill(options.out / "rules.csv", COLUMNS, {c.key(): c for c in cells}, measured, workers)


if __name__ == "__main__":
    main()
