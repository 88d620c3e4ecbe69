"""Measure the effect of malicious model updates on each algorithm, with and without defences.

    python evidence/false_models.py --data-dir DIR [--processes 2] [--only DATASET] [--smoke]

The job is a linear model on twenty clients with full participation and drfl's defaults; four clients attack. In the
setting with an honest outlier, the images of one of the other sixteen clients are upside down, for training and
testing. A defence is a Byzantine-robust rule together with CVaR(0.5) for λ; "default" is drfl's default without a set,
and "CVaR alone" has no rule. The data are digits and MNIST with five seeds. The script appends to
results/false_models/cells.csv and skips cells that it already contains. It then writes table.md and summary.json. With
--smoke each attack, defence and algorithm runs at least once, but not in all combinations.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.tables import markdown

import kept
import script
from drfl.assessment.seeds import seed_difference
from drfl.core.errors import DivergedError
from drfl.core.key import Key
from drfl.data import ClientData, Dataset, load
from drfl.engine import Simulation
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.config.hyperparameters import has_parameter
from drfl.experiments.config.wrap import wrap_algorithm
from drfl.experiments.run.artifacts import versions
from drfl.federation.algorithm import core_of, mixture_of
from drfl.federation.federation import Federation
from drfl.testing.attacks import (
    AdaptiveAttack,
    ALittleIsEnough,
    ConstantPush,
    InnerProductManipulation,
    PermanentDropout,
    ScaledUpdates,
    SignFlip,
    flip_labels,
)
from drfl.training.loop import run

RESULTS = Path(__file__).parent / "results" / "false_models"
CLIENTS, LIARS, OUTLIER = 20, 4, 19
JOB = {
    "model": "linear",
    "partition": "zipf-dirichlet",
    "clients": CLIENTS,
    "cohort": CLIENTS,
    "steps": 10,
    "batch": 32,
    "rounds": script.sized(60, 1),
}
DATASETS = {"digits": 1.0, "mnist": 0.1}
"""Data sets and the α of their partition."""
ALGORITHMS = ("FedAvg", "SCAFFOLD", "DRFA", "DRDM", "DualDRDM", "ScaffPD")
AMBIGUITY = "cvar:alpha=0.5"
WITH_LAMBDA = ALGORITHMS[2:]
SEEDS = range(script.sized(5, 1))
Attack = Callable[[Federation, Key], Federation]
ATTACKS: dict[str, Attack] = {
    "none": lambda fed, key: fed,
    "sign flip": lambda fed, key: SignFlip(fed, range(LIARS)),
    "ten times backwards": lambda fed, key: ScaledUpdates(fed, range(LIARS), -10.0),
    "constant push": lambda fed, key: ConstantPush(fed, range(LIARS), key),
    "ALIE": lambda fed, key: ALittleIsEnough(fed, range(LIARS)),
    "inner product": lambda fed, key: InnerProductManipulation(fed, range(LIARS)),
    "adaptive to probe": lambda fed, key: AdaptiveAttack(fed, range(LIARS)),
    "labels flipped": lambda fed, key: fed,  # in the data
    "vanish half way": lambda fed, key: PermanentDropout(fed, range(LIARS), after=30),
}
DEFENCES: dict[str, str | None] = {
    "default": None,
    "CVaR alone": None,
    "median length": "median-clip",
    "trimmed mean": f"trimmed-mean:f={LIARS}",
    "median": "median",
    "geometric median": "geometric-median",
    "multi-Krum": f"krum:f={LIARS}",
    "centred clipping": "centred-clip",
    "probe": "probe",
    "probe, no set": "probe",
}


WITHOUT_SET = ("default", "probe, no set")
"""Defences that do not restrict λ."""


class Cell(NamedTuple):
    """One run; the outlier is "no" or "yes"."""

    dataset: str
    outlier: str
    attack: str
    algorithm: str
    defence: str
    seed: int

    def key(self) -> tuple[str, ...]:
        """The first columns of the run's row."""
        return tuple(map(str, self))


class Found(NamedTuple):
    """The outcome, in percent; accuracies are 0 if the run diverged.

    Args:
        worst: accuracy of the worst honest client.
        average: mean accuracy of the honest ones.
        mass: λ of the attackers after the last round; without λ, their share of the clients.
        other: accuracy of the client that is the outlier in the setting with one.
        left_out: rounds in which the rule excluded that client.
        rejected: replies that the bound on updates rejected.
    """

    worst: float = 0.0
    average: float = 0.0
    mass: float = 0.0
    other: float = 0.0
    left_out: float = 0.0
    rejected: float = 0.0


def cells(datasets: Sequence[str] = tuple(DATASETS)) -> list[Cell]:
    """All cells, one seed after another, so that any beginning of them is a whole table with fewer seeds."""
    found = [
        Cell(dataset, outlier, attack, algorithm, defence, seed)
        for dataset in datasets
        for seed in SEEDS
        for outlier in ("no", "yes")
        for attack in ATTACKS
        for algorithm in ALGORITHMS
        for defence in DEFENCES
        if defence not in ("CVaR alone", "probe, no set") or algorithm in WITH_LAMBDA
    ]
    plain = ("no", "none", "ScaffPD", "default")
    return script.sized(
        found, [cell for cell in found if sum(a != b for a, b in zip(cell[1:5], plain, strict=True)) < 2]
    )


def upside_down(data: ClientData, client: int) -> ClientData:
    """Turn one client's images by 180°, including its test images."""

    def turned(inputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return inputs.index_put((rows,), inputs[rows].flatten(2).flip(2).view_as(inputs[rows]))

    return replace(
        data, inputs=turned(data.inputs, data.train[client]),
        test_inputs=turned(data.test_inputs, data.test[client]),
    )  # fmt: skip


@functools.cache
def dataset(name: str, data_dir: Path | None) -> Dataset:
    """Load a data set once per process."""
    return load(name, data_dir=None if name == "digits" else data_dir)


def quiet() -> None:
    logging.getLogger("drfl").setLevel(logging.ERROR)


def measure(cell: Cell, data_dir: Path | None) -> Found:
    values = {"sampling": "everybody"} if has_parameter(cell.algorithm, "sampling") else {}
    rule = DEFENCES[cell.defence]
    if cell.defence not in WITHOUT_SET and cell.algorithm in WITH_LAMBDA:
        values["ambiguity"] = AMBIGUITY
    job = {
        **JOB, "dataset": cell.dataset, "alpha": DATASETS[cell.dataset], "seed": cell.seed, "aggregator": rule,
        "algorithm": cell.algorithm, "algorithms": {cell.algorithm: values},
    }  # fmt: skip
    config, key = load_config(None, job), Key(cell.seed).fold("false models")
    built = build(config, dataset(cell.dataset, data_dir))
    data, task = built.data, built.task
    if cell.outlier == "yes":
        data = upside_down(data, OUTLIER)
    if cell.attack == "labels flipped":
        data = flip_labels(data, range(LIARS))
    algorithm = wrap_algorithm(config, core_of(built.algorithm), None, data, task)  # probes use rows of these data
    fed = ATTACKS[cell.attack](Simulation(data, task), key)
    try:
        result = run(algorithm, fed, rounds=config.rounds, seed=cell.seed, evaluate_every=config.rounds)
    except DivergedError:
        return Found()
    score, memory = 100 * result.evaluation.score, result.state.memory
    mass = 100 * float(mixture_of(algorithm, result.state, fed)[:LIARS].sum())
    honest = score[LIARS:]
    counts = float(memory.left_out[OUTLIER]), float(memory.rejected)
    return Found(float(honest.min()), float(honest.mean()), mass, float(score[OUTLIER]), *counts)


def row(cell: Cell, data_dir: Path | None) -> list[str]:
    """The columns after the key."""
    return [str(round(x, 3)) for x in measure(cell, data_dir)]


def mean(found: list[Found], name: str) -> str:
    """Format the mean over seeds with half the width of its 95 % t-interval."""
    seen = seed_difference([getattr(one, name) for one in found])
    return (
        f"{seen.mean:.1f}" if seen.n < 2 or seen.low != seen.low else f"{seen.mean:.1f} ± {seen.high - seen.mean:.1f}"
    )


def table(done: dict[Cell, Found]) -> str:
    """Tables with defences as rows and algorithms as columns, for each data set, outlier setting and attack."""
    groups: dict[tuple[str, ...], list[Found]] = {}
    for cell, found in done.items():
        groups.setdefault(cell[:5], []).append(found)
    seeds = len({cell.seed for cell in done})
    lines = [f"Worst honest client / average of the honest / λ on the four attackers, %, means over {seeds} seeds."]
    for dataset, outlier, attack in dict.fromkeys(key[:3] for key in groups):
        known = [key for key in groups if key[:3] == (dataset, outlier, attack)]
        algorithms, defences = (list(dict.fromkeys(key[k] for key in known)) for k in (3, 4))
        body = [
            [
                d,
                *(
                    " / ".join(mean(own, n) for n in Found._fields[:3])
                    if (own := groups.get((dataset, outlier, attack, a, d)))
                    else "–"  # without λ, there is no set
                    for a in algorithms
                ),
            ]
            for d in defences
        ]
        title = f"{dataset}, {'an honest outlier' if outlier == 'yes' else 'no outlier'}, {attack}"
        lines += ["", f"## {title}", "", markdown(["defence", *algorithms], body)]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=DATASETS, help="only the cells of one data set")
    options = parser.parse_args()
    path, todo = options.out / "cells.csv", cells([options.only] if options.only else tuple(DATASETS))
    workers = kept.Workers(options.processes, quiet, ())
    measured = partial(row, data_dir=options.data_dir)
    about = {"command": "python evidence/false_models.py --data-dir DIR", "versions": versions(), "device": "cpu"}
    about |= {"dtype": "float32", "job": JOB, "alpha": DATASETS, "ambiguity": AMBIGUITY, "seeds": len(SEEDS)}
    script.store(options.out, {"summary.json": about})
    rows = kept.fill(path, (*Cell._fields, *Found._fields), {cell.key(): cell for cell in todo}, measured, workers)
    if not options.only:
        done = {cell: Found(*map(float, rows[cell.key()])) for cell in todo}
        script.store(options.out, {"table.md": table(done)})


if __name__ == "__main__":
    main()
