"""Run `drfl fit` on jobs of the default benchmark, and compare its choice with every member in hindsight.

    python evidence/fit_jobs.py --data-dir DIR --adult FILE [--jobs NAME,…] [--first SEED] [--seeds N] [--smoke]

Jobs whose names begin with "bench " are those of `drfl bench`, with its 50 rounds: a seed redraws their partition and
test rows as well. In those that begin with "redrawn " a seed redraws which rows of a client are test rows. In the
others a seed redraws only the initial model, the cohorts and the minibatches, so chance in the test rows never averages
out.

At each seed the fit chooses a member from validation rows. Then every member is trained on all training rows, from the
same initial model, and tested on the test rows. results/fit_jobs/runs.csv has a row per job, seed and model: the
members ("chosen" is 1 for the choice), "personal" (the choice with personal models), "local only", "pooled" and
"initial" (the initial model). The last columns are the worst and the average validation loss in the selection stage,
the p-value of the choice and the test results.

results/fit_jobs/table.md has the means over the seeds, and paired 95 % t-intervals of differences between the choice
and the member that is the best in hindsight (by its mean over the seeds), FedAvg, the initial model and local training,
and between the choice with personal models and local training. A difference is marked if it is significant after Holm's
correction over all jobs and all comparisons but the first. The first pair of these tables has new test rows at each
seed, and later seeds than those on which the rule was chosen. The last pair has the same test rows at each seed. The
tables between them compare other rules of the choice, from the stored validation losses and p-values.

Jobs of JOBS have the seeds 0 to 9; from fashion-one-class on they were added later and have the seeds 5 to 9
(``--first 5 --seeds 5``). Redrawn jobs have the seeds 10 to 14 (``--jobs "redrawn hospitals,…"
--first 10 --seeds 5``).

FILE is adult.csv of the PyPI package ``fairness`` 0.1.8. The script appends rows and skips the seeds that it has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "promise"))

import jobs as suite
import numpy as np
import torch
from scipy import stats

import kept
import script
from drfl.assessment.seeds import holm
from drfl.core.errors import DivergedError
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.experiments.fit.fitted import Fitted
from drfl.experiments.fit.members import PORTFOLIO, REFERENCES, FitJobs
from drfl.experiments.fit.run_fit import evaluate_every, jobs_of_objects, run_fit
from drfl.experiments.run.artifacts import versions
from drfl.experiments.run.runner import StopSignal, execute
from drfl.federation.federation import Evaluation
from drfl.task.task import Task
from drfl.training.history import Metrics
from drfl_papers.bench import suite as bench
from promise_tables import SAME_ROWS, interval

RESULTS = Path(__file__).parent / "results" / "fit_jobs"
JOBS = (
    "hospitals", "adult-doctorate", "adult-education", "adult-hours", "digits-dirichlet", "mnist-two-classes",
    "mnist-swapped-labels", *(f"bench {job.name}" for job in bench.SUITE),
    "fashion-one-class", "fashion-upside-down", "fashion-label-noise", "mnist-dirichlet", "mnist-sizes-100",
)  # fmt: skip
REDRAWN = tuple(f"redrawn {name}" for name in suite.JOBS)
BENCH_ROUNDS = script.sized(50, 1)
COLUMNS = (
    "job", "seed", "model", "chosen", "validation_loss", "average_validation_loss", "p", "worst_percent", "avg_percent",
    "worst_loss", "avg_loss",
)  # fmt: skip
WORST, LOSS = 4, 6
"""Positions of two measures after the key."""
PERSONAL, LOCAL, INITIAL = "personal", "local only", "initial"


class Prepared(NamedTuple):
    """A job at a seed.

    Args:
        data: the clients.
        task: the task.
        rounds: rounds of communication.
        m: cohort size; None = the algorithm's default.
    """

    data: ClientData
    task: Task
    rounds: int
    m: int | None


def prepared(name: str, seed: int, folders: suite.Folders) -> Prepared:
    if name.startswith("bench "):
        job = next(job for job in bench.SUITE if f"bench {job.name}" == name)
        data = job.clients(seed)
        return Prepared(data, bench.task(data, seed), BENCH_ROUNDS, None)
    job = suite.JOBS[name.removeprefix("redrawn ")]
    data = job.clients(folders)
    if name in REDRAWN:
        data = with_other_test_rows(data, seed)
    return Prepared(data, job.task(data, seed), job.rounds, job.m)


def with_other_test_rows(data: ClientData, seed: int) -> ClientData:
    """Redraw which rows of each client are its test rows. Their number stays, and so does the standardisation."""
    inputs, targets = torch.cat([data.inputs, data.test_inputs]), torch.cat([data.targets, data.test_targets])
    train, test = list[torch.Tensor](), list[torch.Tensor]()
    for i in range(data.n):
        rows = torch.cat([data.train[i], len(data.inputs) + data.test[i]])
        order = Key(seed).fold("test rows", i).generator().permutation(len(rows))
        shuffled = rows[torch.from_numpy(order)]
        train.append(shuffled[: len(data.train[i])])
        test.append(shuffled[len(data.train[i]) :])
    return ClientData(inputs, targets, tuple(train), inputs, targets, tuple(test), data.names)


def tested(evaluation: Evaluation) -> list[str]:
    """The columns with test results."""
    m = Metrics.of(evaluation)
    percents = [f"{100 * x:.2f}" for x in (m.worst_score, m.avg_score)]
    return [*percents, f"{m.worst_loss:.6f}", f"{m.avg_loss:.6f}"]


def fitted(jobs: FitJobs) -> Fitted:
    return run_fit(
        jobs, None, personal=True, watch=StopSignal(), show=lambda label: nullcontext(()), log=lambda line: None,
        warn=lambda line: None,
    )  # fmt: skip


def in_hindsight(jobs: FitJobs, k: int) -> list[str]:
    """Train a member on all training rows and test it."""
    try:
        return tested(execute(jobs.whole(PORTFOLIO[k])).result.evaluation)
    except DivergedError:
        return [""] * 4


def measured(name: str, seed: int, folders: suite.Folders) -> dict[str, list[str]]:
    """The columns after the key, by model."""
    data, task, rounds, m = prepared(name, seed, folders)
    settings = {"rounds": rounds, "evaluate_every": evaluate_every(rounds), "seed": seed, "threads": 1}
    jobs = jobs_of_objects(data, task, settings, {"cohort": m, "batch": 50})
    found = fitted(jobs)
    rows = {}
    for k, row in enumerate(found.members):
        p = "" if row["p"] is None else str(row["p"])
        validated = [str(row[f"{which}_validation_loss"]) for which in ("worst", "average")]
        choice = [str(int(k == found.choice.chosen)), *validated, p]
        rows[str(row["name"])] = [*choice, *in_hindsight(jobs, k)]
    rows[PERSONAL] = ["", "", "", "", *tested(found.result.evaluation)]
    for key, (label, _) in REFERENCES.items():
        test = found.references[key]
        rows[label] = ["", "", "", "", *([""] * 4 if test is None else tested(test))]
    final = jobs.final.fed
    rows[INITIAL] = ["", "", "", "", *tested(final.evaluate(final.w0))]
    return rows


MEMBERS = [member.name for member in PORTFOLIO]


def smallest_loss(rows: kept.Rows, job: str, seed: str, level: float = 1.0) -> str:
    """The member with the smallest worst validation loss among FedAvg and those with a p-value of at most ``level``."""
    found = {name: rows[job, seed, name][:4] for name in MEMBERS}
    allowed = [name for name, (*_, p) in found.items() if name == MEMBERS[0] or (p and float(p) <= level)]
    return min(allowed, key=lambda name: float(found[name][1] or "inf"))


RULES: dict[str, Callable[[kept.Rows, str, str], str]] = {
    "of `drfl fit`": lambda rows, job, seed: next(name for name in MEMBERS if rows[job, seed, name][0] == "1"),
    **{f"smallest loss with p ≤ {level}": partial(smallest_loss, level=level) for level in (0.05, 0.2, 0.5, 0.9)},
    "smallest loss": smallest_loss,
    "always FedAvg": lambda rows, job, seed: MEMBERS[0],
}
"""Rules that choose a member from validation rows. A p-value tests whether a member's worst client is better than
FedAvg's."""


class Measured:
    """The stored test results of a job, one value per seed.

    Args:
        rows: All stored rows.
        job: The name of the job.
        rule: The rule of the choice.
        seeds: The seeds that count; None = all.
    """

    def __init__(
        self, rows: kept.Rows, job: str, rule: str = next(iter(RULES)), seeds: Container[int] | None = None
    ) -> None:
        self.job, self._rows = job, rows
        known = dict.fromkeys(key[1] for key in rows if key[0] == job)
        self.chosen = {seed: RULES[rule](rows, job, seed) for seed in known if seeds is None or int(seed) in seeds}

    def column(self, place: int, model: str) -> np.ndarray:
        """A measure of a model at each seed; "fit" is the choice."""
        names = {seed: chosen if model == "fit" else model for seed, chosen in self.chosen.items()}
        return np.array([float(self._rows[self.job, seed, name][place] or "nan") for seed, name in names.items()])

    def best(self, place: int) -> str:
        """The member that is the best in hindsight, by its mean over the seeds."""
        sign = 1 if place == WORST else -1
        return max(MEMBERS, key=lambda name: np.nan_to_num(sign * self.column(place, name), nan=-np.inf).mean())


def means(jobs: list[Measured]) -> str:
    """Means over the seeds, with the accuracy of the worst client in percent and its loss."""
    shown = ("FedAvg", "fit", "best member", PERSONAL, LOCAL, "pooled")
    lines = [f"| {' | '.join(('job', 'choices', *shown))} |", "| --- | --- |" + " ---: |" * 6]
    for job in jobs:
        best = job.best(WORST)
        cells = [
            f"{job.column(WORST, model).mean():.1f} ({job.column(LOSS, model).mean():.3f})"
            for model in (best if name == "best member" else name for name in shown)
        ]
        cells[2] += f", {best}"
        chosen = list(job.chosen.values())
        counts = ", ".join(f"{chosen.count(name)} × {name}" for name in MEMBERS if name in chosen)
        lines.append(f"| {job.job} | {counts} | {' | '.join(cells)} |")
    return "\n".join(lines)


PARTS = {
    "Seeds 0 to 4, on which the rule was chosen": range(5), "Seeds 5 to 9": range(5, 10),
    "Redrawn test rows": range(10, 20),
}  # fmt: skip
"""Seeds for which rules are compared."""

COMPARED = {
    "− best member": ("fit", "best"), "− FedAvg": ("fit", "FedAvg"), "− initial": ("fit", INITIAL),
    "− local only": ("fit", LOCAL), "personalised − local only": (PERSONAL, LOCAL),
}  # fmt: skip
"""Columns of the tables of differences: which model minus which."""
FIRST = next(iter(COMPARED))


def differences(jobs: list[Measured], place: int) -> tuple[str, int]:
    """Differences between models, and the number of jobs without one between the choice and the best in hindsight."""
    digits, sign = (1, 1) if place == WORST else (3, -1)
    found: dict[tuple[str, str], np.ndarray] = {}
    for job in jobs:
        for title, (model, other) in COMPARED.items():
            other = job.best(place) if other == "best" else other
            found[job.job, title] = job.column(place, model) - job.column(place, other)
    tested = [key for key, values in found.items() if key[1] != FIRST and values.any()]
    adjusted = dict(zip(tested, holm([_p(found[key]) for key in tested]), strict=True))
    level = 0
    lines = [f"| job | {' | '.join(COMPARED)} |", "| --- |" + " ---: |" * len(COMPARED)]
    for job in jobs:
        cells = []
        for title in COMPARED:
            values = found[job.job, title]
            mean, half = interval(list(values)) if values.any() else (0.0, 0.0)
            level += title == FIRST and abs(mean) <= half
            mark = ""
            if adjusted.get((job.job, title), 1.0) < 0.05:
                mark = " better" if sign * mean > 0 else " worse"
            cells.append(f"{round(mean, digits) + 0.0:+.{digits}f} ± {half:.{digits}f}{mark}")
        lines.append(f"| {job.job} | {' | '.join(cells)} |")
    return "\n".join(lines), level


def _p(values: np.ndarray) -> float:
    return float(stats.ttest_1samp(values, 0).pvalue) if values.std() else 0.0


def rules(rows: kept.Rows, names: list[str], seeds: Container[int]) -> str:
    """Count, for each rule, the jobs with a choice level with the best member, and name those worse than FedAvg."""
    lines = [
        "| rule | accuracy: level with the best | worse than FedAvg | loss: level with the best | worse than FedAvg |"
    ]
    lines.append("| --- |" + " ---: |" * 4)
    for rule in RULES:
        jobs, cells = [Measured(rows, name, rule, seeds) for name in names], list[str]()
        for place, sign in ((WORST, 1), (LOSS, -1)):
            level, worse = 0, list[str]()
            for job in jobs:
                chosen = job.column(place, "fit")
                to_best, to_fedavg = (chosen - job.column(place, other) for other in (job.best(place), MEMBERS[0]))
                mean, half = interval(list(to_best)) if to_best.any() else (0.0, 0.0)
                level += abs(mean) <= half
                mean, half = interval(list(to_fedavg)) if to_fedavg.any() else (0.0, 0.0)
                if sign * mean < -half:
                    worse.append(job.job)
            cells += [f"{level} of {len(jobs)}", ", ".join(worse) or "none"]
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def all_differences(jobs: list[Measured]) -> list[str]:
    """The tables of differences by accuracy and by loss, with their titles."""
    parts = list[str]()
    for place, title in ((WORST, "Accuracy of the worst client, points"), (LOSS, "Loss of the worst client")):
        lines, level = differences(jobs, place)
        note = f"The first interval contains 0 on {level} of {len(jobs)} jobs."
        parts += [f"{title}: the choice minus another model, with the 95 % t-interval. {note}", lines]
    return parts


def table(rows: kept.Rows) -> str:
    """The contents of table.md."""
    names = list(dict.fromkeys(key[0] for key in rows))
    parts = ["Accuracy of the worst client in %, and in brackets its loss; means over the seeds."]
    parts.append(means([Measured(rows, name) for name in names]))
    later = [Measured(rows, name, seeds=range(5, 20)) for name in names if name.startswith(("bench ", "redrawn "))]
    if later := [job for job in later if len(job.chosen) > 1]:
        parts += all_differences(later)
    counted = {
        title: [name for name in names if len(Measured(rows, name, seeds=seeds).chosen) > 1]
        for title, seeds in PARTS.items()
    }
    if any(counted.values()):
        parts.append(
            "Other rules. Level with the best: the 95 % t-interval of the difference to the best member contains 0. "
            "Worse than FedAvg: that of the difference to FedAvg excludes 0, without correction."
        )
    for title, compared in counted.items():
        if compared:
            parts += [f"{title}:", rules(rows, compared, PARTS[title])]
    same = [Measured(rows, name) for name in names if not name.startswith(("bench ", "redrawn "))]
    if same := [job for job in same if len(job.chosen) > 1]:
        parts += [SAME_ROWS, *all_differences(same)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = script.parser(__doc__, RESULTS, data=True)
    script.add_adult(parser)
    parser.add_argument("--jobs", default=",".join(script.sized(JOBS, ("hospitals",))))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=script.sized(10, 1), help="number of seeds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders, path = suite.Folders(options.data_dir, options.adult), options.out / "runs.csv"
    rows = kept.known(path, 3)
    for job in options.jobs.split(","):
        for seed in map(str, range(options.first, options.first + options.seeds)):
            if (job, seed, INITIAL) not in rows:
                found = measured(job, int(seed), folders)
                rows |= {(job, seed, model): row for model, row in found.items()}
                kept.save(path, COLUMNS, rows)
                print(job, seed, next(model for model, row in found.items() if row[0] == "1"), flush=True)
    about = {"versions": versions(), "device": "cpu", "command": "python evidence/fit_jobs.py"}
    script.store(options.out, {"table.md": table(rows), "summary.json": about})


if __name__ == "__main__":
    main()
