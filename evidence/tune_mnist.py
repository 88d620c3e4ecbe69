"""Choose the step sizes of the MNIST table, with the same number of trials for every algorithm and without test data.

    python evidence/tune_mnist.py --data-dir DIR [--algorithms A,B] [--processes 2] [--smoke]

Each of an algorithm's twelve settings runs on five partitions of 50,000 of MNIST's training images; the clients are
tested on the other 10,000. The setting with the best mean worst-client accuracy is written to mnist_linear.toml, beside
this file unless --out names another folder, and every trial to results/mnist_linear/tuning.csv. Trials that this file
already contains are skipped.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import tomli_w

import kept
import script
from drfl.core.errors import DivergedError
from drfl.core.key import Key
from drfl.data import Dataset, load
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.training.loop import run

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "mnist_linear"
SEEDS = range(1000, script.sized(1005, 1001))  # partitions other than those of the table's seeds 0 to 4
HELD_OUT = script.sized(10_000, 300)
COLUMNS = ("algorithm", "setting", *(f"worst_accuracy_seed{seed}" for seed in SEEDS))
JOB = {
    "dataset": "mnist",
    "model": "linear",
    "partition": "zipf-dirichlet",
    "clients": 30,
    "alpha": 0.1,
    "zipf": 0.0,
    "cohort": 20,
    "steps": 10,
    "batch": 32,
    "rounds": script.sized(100, 1),
}
Setting = dict[str, float | int | str]


def grid(**values: list) -> list[Setting]:
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


RATES = [0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0]
PENALTIES = [f"chi-square:rho={rho}" for rho in (0.1, 0.3, 1.0)]
EVERYBODY: Setting = {"m": 30, "dual_batch": 320}
GRIDS = {
    "FedAvg": grid(lr=RATES),
    "FedProx": grid(lr=[0.1, 0.2, 0.3, 0.5], mu=[0.01, 0.1, 1.0]),
    "SCAFFOLD": grid(lr=[0.03, 0.05, 0.1, 0.2, 0.3, 0.5]) + grid(lr=[0.1, 0.3], server_lr=[0.5, 1.5, 2.0]),
    "FedDyn": grid(lr=[0.03, 0.1, 0.3], mu=[0.03, 0.1, 0.3, 1.0]),
    "QFedAvg": grid(lr=[0.1, 0.3, 1.0], q=[0.2, 0.5, 1.0, 2.0]),
    "DeltaFL": grid(lr=[0.1, 0.2, 0.3, 0.5], theta=[0.2, 0.5, 0.8]),
    "AFL": grid(lr=[0.1, 0.3, 0.5], gamma=[0.0005, 0.002, 0.008, 0.03]),
    "DRFA": grid(lr=[0.1, 0.3, 1.0], gamma=[0.0005, 0.002, 0.008, 0.03]),
    "DRFAProx": grid(lr=[0.1, 0.3], gamma=[0.0005, 0.002], ambiguity=PENALTIES),
    "DRFAGA": grid(lr=[0.1, 0.3, 0.5], gamma=[0.005, 0.02, 0.08, 0.3]),
    "ScaffPD": [{**EVERYBODY, **s} for s in grid(lr=[0.1, 0.3, 0.5], sigma=[0.001, 0.003, 0.01, 0.03])],
    "DRDM": grid(lr=[0.1, 0.3], mu=[0.03, 0.1, 0.3], gamma=[0.0001, 0.0005]),
    "DualDRDM": grid(lr=[0.1, 0.3], mu=[0.3], gamma=[0.0003, 0.001, 0.003])
    + grid(lr=[0.03], mu=[0.3, 1.0], gamma=[0.0001, 0.0003])
    + grid(lr=[0.1], mu=[0.1, 0.3], gamma=[0.0001]),
}
GRIDS = {algorithm: settings[: script.sized(None, 2)] for algorithm, settings in GRIDS.items()}


def validation(dataset: Dataset) -> Dataset:
    """The training images, `HELD_OUT` of them held out for testing."""
    order = Key(0).fold("validation").generator().permutation(len(dataset.targets))
    held, kept = order[:HELD_OUT], order[HELD_OUT:]
    x, y = dataset.inputs, dataset.targets
    return dataclasses.replace(dataset, inputs=x[kept], targets=y[kept], test_inputs=x[held], test_targets=y[held])


def text(setting: Setting) -> str:
    return " ".join(f"{name}={value}" for name, value in setting.items())


_data: list[Dataset] = []  # one per process


def start(data_dir: Path | None) -> None:
    _data[:] = [validation(load("mnist", data_dir=data_dir))]


def worst(cell: tuple[str, Setting, int]) -> float:
    algorithm, setting, seed = cell
    config = load_config(None, {**JOB, "algorithm": algorithm, "seed": seed, "algorithms": {algorithm: setting}})
    job = build(config, _data[0])
    try:
        result = run(job.algorithm, job.fed, rounds=config.rounds, seed=seed, evaluate_every=config.rounds)
    except DivergedError:
        return 0.0
    return result.history.last.metrics.worst_score


def choose(trials: kept.Rows) -> dict[str, Setting]:
    """The setting with the best mean for every algorithm whose trials are complete."""
    chosen = {}
    for algorithm, settings in GRIDS.items():
        if all((algorithm, text(s)) in trials for s in settings):
            means = [statistics.fmean(map(float, trials[algorithm, text(s)])) for s in settings]
            chosen[algorithm] = settings[means.index(max(means))]
    return chosen


def main() -> None:
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--algorithms", default=",".join(GRIDS))
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    path = options.out / "tuning.csv"
    trials = kept.known(path, 2)
    todo = [(a, s) for a in options.algorithms.split(",") for s in GRIDS[a] if (a, text(s)) not in trials]
    cells = [(a, s, seed) for a, s in todo for seed in SEEDS]
    workers = kept.Workers(options.processes, start, (options.data_dir,))
    with ProcessPoolExecutor(workers.processes, initializer=workers.ready) as pool:
        scores = pool.map(worst, cells)
        for algorithm, setting in todo:
            found = [next(scores) for _ in SEEDS]
            trials[algorithm, text(setting)] = [f"{x:.4f}" for x in found]
            print(algorithm, text(setting), f"{statistics.fmean(found):.4f}", flush=True)
            kept.save(path, COLUMNS, trials)
    job = tomli_w.dumps({**JOB, "algorithms": choose(trials)})
    script.store(HERE if options.out == RESULTS else options.out, {"mnist_linear.toml": job})


if __name__ == "__main__":
    main()
