"""Measure the effect of false loss reports on the minimax methods, with and without defences, on MNIST.

    python evidence/abuse.py --data-dir DIR [--processes 2] [--smoke]

The job is a linear model on 30 clients, of which 1, 3 or 6 report 100 times their loss, or a loss of 1000. For
comparison there is an honest client with random labels on 60 % of its training rows, and a job in which all clients are
honest. The step sizes are those of papers/tuned/mnist-linear.toml; each cell has three seeds and 100 rounds. The script
appends to results/abuse/cells.csv and skips cells that it already contains. It then writes table.md and summary.json.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import kept
import script
from drfl.core.errors import DivergedError
from drfl.core.key import Key
from drfl.data import ClientData, Dataset, load
from drfl.engine import Simulation
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.run.artifacts import versions
from drfl.federation.algorithm import Algorithm, mixture_of
from drfl.federation.federation import Federation
from drfl.resilience import Audit, Clip, Guard, PeerAudit, Protected, RobustClip, ServerProbe, Trim
from drfl.task.task import Task
from drfl.testing.attacks import ConstantLosses, InflatedLosses, label_noise
from drfl.training.loop import run
from drfl.training.run_state import RunState

RESULTS = Path(__file__).parent / "results" / "abuse"
TUNED = script.tuned("mnist-linear")
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
ALGORITHMS = ("DRFA", "DRDM", "DualDRDM", "ScaffPD")
LIARS = script.sized((1, 3, 6), (3,))
SEEDS = range(script.sized(3, 1))
LAST = 20
"""Number of last rounds over which λ is averaged."""
HARD, NOISE = 0, 0.6
ALPHA, CAP = 0.3, 0.1
ATTACKS: dict[str, Callable[[Federation, Iterable[int]], Federation]] = {
    "100 times": lambda fed, liars: InflatedLosses(fed, liars, 100.0),
    "claim 1000": lambda fed, liars: ConstantLosses(fed, liars, 1000.0),
}


class Around(NamedTuple):
    """The context that a defence may use."""

    liars: int
    data: ClientData
    task: Task
    key: Key


GUARDS: dict[str, Callable[[Around], tuple[Guard, ...]]] = {
    "default": lambda a: (RobustClip(),),
    "RobustClip(3, 0.1)": lambda a: (RobustClip(3.0, 0.1),),
    "Clip(3)": lambda a: (Clip(3.0),),
    "Trim(f)": lambda a: (Trim(max(1, a.liars)),),
    "Audit(16 rows)": lambda a: (Audit(ServerProbe.of(a.data, a.task, key=a.key)),),
    "PeerAudit(5, 3, 0.1)": lambda a: (PeerAudit(5, 3.0, 0.1),),
}
SETS = {f"CVaR({ALPHA})": f"cvar:alpha={ALPHA}", f"Box({CAP})": f"box:cap={CAP}"}
DEFENCES = ("none", *GUARDS, *SETS)


class Cell(NamedTuple):
    """One run; the attack is "none", "hard client" or one of ATTACKS."""

    attack: str
    liars: int
    algorithm: str
    defence: str
    seed: int

    def key(self) -> tuple[str, ...]:
        """The first columns of the run's row."""
        return tuple(map(str, self))


class Found(NamedTuple):
    """The outcome, with accuracies and shares of λ in percent; all 0 if the run diverged.

    Args:
        worst: accuracy of the worst client among the honest ones (those with clean labels).
        average: their mean accuracy.
        mass: λ of the malicious clients, or of the hard client, averaged over the last rounds.
        other: accuracy of the hard client; 0 if there is none.
        changed: loss reports that guards changed or dropped.
        diverged: 1 or 0.
    """

    worst: float = 0.0
    average: float = 0.0
    mass: float = 0.0
    other: float = 0.0
    changed: float = 0.0
    diverged: float = 0.0


def cells() -> list[Cell]:
    situations = [("none", 0), ("hard client", 0), *((attack, f) for attack in ATTACKS for f in LIARS)]
    found = [(*situation, a, d) for situation in situations for a in ALGORITHMS for d in DEFENCES]
    found += [(attack, 0, "FedAvg", "none") for attack in ("none", "hard client")]
    return [Cell(*row, seed) for row in found for seed in SEEDS]


_data: list[Dataset] = []  # one per process


def start(dataset: str, data_dir: Path | None) -> None:
    logging.getLogger("drfl.resilience").setLevel(logging.ERROR)
    _data[:] = [load(dataset, data_dir=data_dir)]


def measure(cell: Cell) -> Found:
    values = dict(TUNED[cell.algorithm])
    if cell.defence in SETS:
        values["ambiguity"] = SETS[cell.defence]
    job = {**JOB, "algorithm": cell.algorithm, "seed": cell.seed, "algorithms": {cell.algorithm: values}}
    config, key = load_config(None, job), Key(cell.seed).fold("abuse")
    built = build(config, _data[0])
    data, fed = built.data, built.fed
    if cell.attack == "hard client":
        data = label_noise(data, HARD, NOISE, key.fold("noise"))
        fed = Simulation(data, built.task)
    if cell.liars:
        fed = ATTACKS[cell.attack](fed, range(cell.liars))
    algorithm: Algorithm = built.algorithm
    if cell.defence in GUARDS:
        around = Around(cell.liars, data, built.task, key.fold("probe"))
        algorithm = Protected(algorithm, guards=GUARDS[cell.defence](around))
    others = torch.zeros(fed.n, dtype=torch.bool)
    others[: cell.liars or cell.attack == "hard client"] = True
    return outcome(algorithm, fed, config.rounds, cell, others)


def row(cell: Cell) -> list[str]:
    """The columns after the key."""
    return [str(round(x, 3)) for x in measure(cell)]


def outcome(algorithm: Algorithm, fed: Federation, rounds: int, cell: Cell, others: Tensor) -> Found:
    """Run the algorithm; averages exclude the clients in ``others`` (N,) bool."""
    mixtures: list[Tensor] = []

    def note(progress: RunState) -> None:
        if progress.round > max(rounds - LAST, 0):
            mixtures.append(mixture_of(algorithm, progress.state, fed))

    try:
        result = run(algorithm, fed, rounds=rounds, seed=cell.seed, evaluate_every=rounds, callbacks=[note])
    except DivergedError:
        return Found(diverged=1)
    mass = torch.stack(mixtures)[:, others].sum(1)
    if cell.defence == f"CVaR({ALPHA})":
        bound = int(others.sum()) / (ALPHA * fed.n)
        assert float(mass.max()) <= bound + 1e-9, f"{cell}: {float(mass.max())} of λ, more than {bound}"
    accuracy = 100 * result.evaluation.score
    honest = accuracy[~others]
    changed = float(result.state.memory.clipped) if isinstance(algorithm, Protected) else 0.0
    other = float(accuracy[HARD]) if cell.attack == "hard client" else 0.0
    return Found(float(honest.min()), float(honest.mean()), 100 * float(mass.mean()), other, changed)


def row_of(found: list[Found], names: Iterable[str]) -> list[str]:
    """Means over the seeds; a star marks runs that diverged, which count as 0."""
    star = "*" if any(one.diverged for one in found) else ""
    return [f"{statistics.fmean(getattr(one, name) for one in found):.1f}{star}" for name in names]


def rows(head: list[str], body: Iterable[list[str]]) -> list[str]:
    return ["", *("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)), ""]


def table(done: dict[Cell, Found]) -> str:
    """Three kinds of tables: attacks, the hard client, no attack."""
    groups: dict[tuple[str, int, str, str], list[Found]] = {}
    for cell, found in done.items():
        groups.setdefault(cell[:4], []).append(found)
    counts = sorted({cell.liars for cell in done} - {0})
    pairs = list(dict.fromkeys(cell[2:4] for cell in done))
    lines = ["Means over seeds, in percent; * a run diverged and counts 0. λ: share of the mixture, last rounds."]
    for attack in ATTACKS:
        head = ["algorithm", "defence", *(f"{name}, {f} liars" for f in counts for name in ("worst", "avg", "λ"))]
        body = [
            [a, d, *(x for f in counts for x in row_of(groups[attack, f, a, d], ("worst", "average", "mass")))]
            for a, d in pairs
            if (attack, counts[0], a, d) in groups
        ]
        lines += ["", f"## Malicious clients: {attack}; worst and average over honest clients", *rows(head, body)]
    hard = ("mass", "other", "worst", "average", "changed")
    head = ["algorithm", "defence", "λ of the hard client", "its accuracy", "worst of the others", "avg", "changed"]
    body = [[a, d, *row_of(groups["hard client", 0, a, d], hard)] for a, d in pairs]
    lines += ["", "## One honest client with hard data, no malicious client", *rows(head, body)]
    clean = ("worst", "average", "changed")
    body = [[a, d, *row_of(groups["none", 0, a, d], clean)] for a, d in pairs]
    lines += ["", "## No malicious client", *rows(["algorithm", "defence", "worst", "avg", "reports changed"], body)]
    return "\n".join(lines)


def summary(done: dict[Cell, Found]) -> dict[str, object]:
    """The settings, and the number of honest reports that the default guard changed (which must be 0)."""
    false_alarms = sum(
        found.changed for cell, found in done.items() if cell[:2] == ("none", 0) and cell[3] == "default"
    )
    about = {"command": "python evidence/abuse.py --data-dir DIR", "versions": versions(), "device": "cpu"}
    about |= {"dtype": "float32", "job": JOB, "seeds": len(SEEDS)}
    return {**about, "reports_changed_by_the_default_guard_in_clean_runs": int(false_alarms)}


def main() -> None:
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    columns, todo = (*Cell._fields, *Found._fields), cells()
    workers = kept.Workers(options.processes, start, (JOB["dataset"], options.data_dir))
    rows = kept.fill(options.out / "cells.csv", columns, {cell.key(): cell for cell in todo}, row, workers)
    done = {cell: Found(*map(float, rows[cell.key()])) for cell in todo}
    about = summary(done)
    script.store(options.out, {"table.md": table(done), "summary.json": about})
    assert not about["reports_changed_by_the_default_guard_in_clean_runs"], "the default guard acted in a clean run"


if __name__ == "__main__":
    main()
