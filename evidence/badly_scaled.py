"""Run ten jobs whose inputs, initial models or parametrisations make a step size hard to find.

    python evidence/badly_scaled.py [--smoke]

FedAvg and dual DRDM run on every job with the step size that drfl determines, with ``safeguard="start"`` (the curvature
of the initial model alone, and a comparison of losses with the start) and with ``safeguard="best"`` (the default).
Inputs are not standardised. For comparison, the runs of seed 0 are repeated with constant step sizes, two per decade.

results/badly_scaled/runs.csv has a row per run: the step size at the start and at the end, how often it was halved, the
largest training loss of a client at the start and at the end, the worst client's test accuracy, and the codes of the
run's warnings. The rows with safeguard "hindsight" are those of the constant step size with the smallest largest
training loss at the end. results/badly_scaled/table.md shows the largest training losses of both safeguards and of
"hindsight".
"""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import kept
import script
from drfl import ClientData, DualDRDM, FedAvg, Key, LocalSGD, Simulation, Task, run
from drfl.core.errors import DrflError, RunWarning
from drfl.data import load, make_partition
from drfl.data.partition.partitioners import Natural, ZipfDirichlet
from drfl.experiments.run.artifacts import versions

RESULTS = Path(__file__).parent / "results" / "badly_scaled"
ROUNDS, SEEDS = script.sized((60, 3), (2, 1))
GRID = script.sized([10 ** (k / 2) for k in range(-18, 3)], [1e-1])
"""Constant step sizes from 1e-9 to 10."""
ALGORITHMS = {"FedAvg": FedAvg, "DualDRDM": DualDRDM}
MODES = ("start", "best")
HINDSIGHT = "hindsight"
KEYS = ("job", "algorithm", "safeguard", "seed")
COLUMNS = (
    *KEYS, "first_eta", "eta", "halved", "rollbacks", "returned", "start_loss", "end_loss", "worst_percent", "warnings",
)  # fmt: skip


class LowRank(nn.Module):
    """A frozen linear layer with a trained product B·A of rank 4, in which B starts at 0."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("base", 0.1 * torch.randn(classes, inputs))
        self.A = nn.Parameter(torch.randn(4, inputs) / inputs**0.5)
        self.B = nn.Parameter(torch.zeros(classes, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, classes)."""
        return x.flatten(1) @ (self.base + self.B @ self.A).T


def linear(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def large_linear(inputs: int, classes: int) -> nn.Module:
    """A linear model with initial logits in the tens, so that the softmax is saturated."""
    model = linear(inputs, classes)
    with torch.no_grad():
        model[1].weight *= 100
    return model


def saturated(unit: type[nn.Module], scale: float) -> Callable[[int, int], nn.Module]:
    """A network of one hidden layer whose units start in a flat region."""

    def make(inputs: int, classes: int) -> nn.Module:
        hidden = nn.Linear(inputs, 32)
        with torch.no_grad():
            hidden.weight *= scale
        return nn.Sequential(nn.Flatten(), hidden, unit(), nn.Linear(32, classes))

    return make


def same(x: Tensor) -> Tensor:
    return x


def shifted(x: Tensor) -> Tensor:
    return x + 100


def spread(x: Tensor) -> Tensor:
    """Columns whose scales span a factor of 10³."""
    return x * torch.logspace(-1.5, 1.5, x.shape[1])


def one_large(x: Tensor) -> Tensor:
    return torch.cat([x[:, :1] * 1e5, x[:, 1:]], 1)


def tiny(x: Tensor) -> Tensor:
    return x * 1e-3


JOBS: dict[str, tuple[str, Callable[[Tensor], Tensor], Callable[[int, int], nn.Module]]] = {
    "shift-100": ("digits", shifted, linear),
    "shift-100-table": ("heart-disease", shifted, linear),
    "spread-1000": ("digits", spread, linear),
    "spread-1000-table": ("heart-disease", spread, linear),
    "one-column-1e5": ("heart-disease", one_large, linear),
    "inputs-1e-3": ("digits", tiny, linear),
    "low-rank": ("digits", same, LowRank),
    "large-weights": ("digits", same, large_linear),
    "saturated-sigmoid": ("digits", same, saturated(nn.Sigmoid, 100.0)),
    "saturated-tanh": ("digits", same, saturated(nn.Tanh, 30.0)),
}


def federation(job: str, seed: int) -> Simulation:
    """The clients of a job at a seed."""
    dataset, change, model = JOBS[job]
    pool = load(dataset).pooled()
    method = Natural() if dataset == "heart-disease" else ZipfDirichlet(10, 0.3)
    data = ClientData.from_dataset(pool, make_partition(pool, method, Key(seed).fold("partition")))
    # Tables are standardised before they are changed; the data checks must accept the result.
    data = dataclasses.replace(
        data, inputs=change(data.inputs.flatten(1)), test_inputs=change(data.test_inputs.flatten(1)),
        standardisation=None,
    )  # fmt: skip
    with Key(seed).fold("model").torch_scope():
        return Simulation(data, Task(model(data.inputs.shape[1], 1 + int(data.targets.max()))))


def largest_loss(fed: Simulation, w: Tensor) -> float:
    return float(fed.losses(torch.arange(fed.n), w, Key(0)).values.max())


def measured(cell: tuple[str, str, str, int]) -> list[str]:
    """The columns after the keys."""
    job, algorithm, mode, seed = cell
    fed = federation(job, seed)
    start = largest_loss(fed, fed.w0)
    if mode == HINDSIGHT:
        tries = [one_run(fed, algorithm, "best", seed, lr) for lr in GRID]
        return min(tries, key=lambda row: float(row[6] or "inf"))
    return one_run(fed, algorithm, mode, seed, None, start)


def one_run(fed: Simulation, name: str, mode: str, seed: int, lr: float | None, start: float = 0.0) -> list[str]:
    algorithm = ALGORITHMS[name](m=min(10, fed.n), local=LocalSGD(steps=10, batch=32, lr=lr))
    firsts: list[float] = []

    def first_eta(progress: object) -> None:
        size = getattr(progress, "step_size", None)
        if size is not None:
            firsts.append(float(size.eta))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = run(
                algorithm, fed, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS, safeguard=mode, callbacks=[first_eta]
            )  # fmt: skip
        except DrflError as error:
            return [*["" if lr is None else f"{lr:.3g}"] * 2, "", "", "", f"{start:.4g}", "", "", error.code]
    codes = sorted({w.message.code for w in caught if isinstance(w.message, RunWarning)})
    size = result.step_size
    etas = [f"{lr:.3g}"] * 2 if size is None else [f"{firsts[0]:.3g}", f"{float(size.eta):.3g}"]
    counts = ["", ""] if size is None else [str(int(size.lowered)), str(int(size.rollbacks))]
    return [
        *etas, *counts, result.returned, f"{start or largest_loss(fed, fed.w0):.4g}",
        f"{largest_loss(fed, result.model):.4g}", f"{100 * float(result.evaluation.score.min()):.1f}", " ".join(codes),
    ]  # fmt: skip


def table(rows: kept.Rows) -> str:
    """Largest training losses, as means over seeds (hindsight: seed 0), and in brackets the runs with warnings."""
    lines = [
        "| job | algorithm | start | before | now | seed 0, now | seed 0, best constant η |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for job in JOBS:
        for algorithm in ALGORITHMS:
            cells = []
            for mode in MODES:
                found = [row for key, row in rows.items() if key[:3] == (job, algorithm, mode)]
                ends = [float(row[6] or "inf") for row in found]
                warned = sum(bool(row[8]) for row in found)
                cells.append(f"{sum(ends) / len(ends):.3g} ({warned})")
            start = sum(float(rows[job, algorithm, "best", str(seed)][5]) for seed in range(SEEDS)) / SEEDS
            cells += [f"{float(rows[job, algorithm, mode, '0'][6] or 'inf'):.3g}" for mode in ("best", HINDSIGHT)]
            lines.append(f"| {job} | {algorithm} | {start:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def quiet() -> None:
    logging.getLogger("drfl").setLevel(logging.ERROR)


def main() -> None:
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--modes", default=",".join((*MODES, HINDSIGHT)))
    options = parser.parse_args()
    cells = {
        (job, algorithm, mode, str(seed)): (job, algorithm, mode, seed)
        for job in options.jobs.split(",") for algorithm in ALGORITHMS
        for mode in options.modes.split(",") for seed in range(1 if mode == HINDSIGHT else SEEDS)
    }  # fmt: skip
    rows = kept.fill(options.out / "runs.csv", COLUMNS, cells, measured, kept.Workers(2, quiet, ()))
    if options.jobs == ",".join(JOBS) and options.modes == ",".join((*MODES, HINDSIGHT)):
        about = {
            "command": "python evidence/badly_scaled.py", "rounds": ROUNDS, "seeds": SEEDS, "device": "cpu",
            "dtype": "float32", "versions": versions(),
        }  # fmt: skip
        script.store(options.out, {"table.md": table(rows), "summary.json": about})


if __name__ == "__main__":
    main()
