"""Run `drfl fit` on jobs of the default benchmark, and compare its choice with every member in hindsight.

    python evidence/fit_jobs.py --data-dir DIR --adult FILE [--jobs NAME,…] [--seeds N] [--smoke]

At each seed the fit chooses a member from validation rows. Then every member is trained on all training rows, from the
same initial model, and tested on the test rows. results/fit_jobs/runs.csv has a row per job, seed and model: the
members ("chosen" is 1 for the choice), "personal" (the choice with personal models), "local only" and "pooled". The
columns behind are the worst validation loss in the selection stage, the p-value of the choice and the test results.

results/fit_jobs/table.md has the means over the seeds: the worst client of FedAvg, of the choice, of the member that is
the best in hindsight and of the others, and in how many seeds the choice had a lower worst accuracy than FedAvg. FILE
is adult.csv of the PyPI package ``fairness`` 0.1.8. The script appends rows and skips the seeds that it has.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "promise"))

import jobs as suite
import numpy as np
import torch

import kept
import script
from drfl.core.errors import DivergedError
from drfl.experiments.fit.fitted import Fitted
from drfl.experiments.fit.members import PORTFOLIO, REFERENCES, FitJobs
from drfl.experiments.fit.run_fit import evaluate_every, jobs_of_objects, run_fit
from drfl.experiments.run.artifacts import versions
from drfl.experiments.run.runner import StopSignal, execute
from drfl.federation.federation import Evaluation
from drfl.training.history import Metrics

RESULTS = Path(__file__).parent / "results" / "fit_jobs"
JOBS = (
    "hospitals", "adult-doctorate", "adult-education", "adult-hours", "digits-dirichlet", "mnist-two-classes",
    "mnist-swapped-labels",
)  # fmt: skip
COLUMNS = (
    "job", "seed", "model", "chosen", "validation_loss", "p", "worst_percent", "avg_percent", "worst_loss", "avg_loss",
)  # fmt: skip
WORST, LOSS = 3, 5
"""Places of two measures behind the key."""
PERSONAL = "personal"


def tested(evaluation: Evaluation) -> list[str]:
    """The columns of a test."""
    m = Metrics.of(evaluation)
    percents = [f"{100 * x:.2f}" for x in (m.worst_score, m.avg_score)]
    return [*percents, f"{m.worst_loss:.6f}", f"{m.avg_loss:.6f}"]


def fitted(jobs: FitJobs) -> Fitted:
    return run_fit(
        jobs, None, personal=True, watch=StopSignal(), show=lambda label: nullcontext(()), log=lambda line: None,
        warn=lambda line: None,
    )  # fmt: skip


def in_hindsight(jobs: FitJobs, k: int) -> list[str]:
    """The test of a member that trains on all training rows."""
    try:
        return tested(execute(jobs.whole(PORTFOLIO[k])).result.evaluation)
    except DivergedError:
        return [""] * 4


def measured(name: str, seed: int, folders: suite.Folders) -> dict[str, list[str]]:
    """The columns behind the key, by model."""
    job = suite.JOBS[name]
    data = job.clients(folders)
    settings = {"rounds": job.rounds, "evaluate_every": evaluate_every(job.rounds), "seed": seed, "threads": 1}
    jobs = jobs_of_objects(data, job.task(data, seed), settings, {"cohort": job.m, "batch": 50})
    found = fitted(jobs)
    rows = {}
    for k, row in enumerate(found.members):
        p = "" if row["p"] is None else str(row["p"])
        choice = [str(int(k == found.choice.chosen)), str(row["worst_validation_loss"]), p]
        rows[str(row["name"])] = [*choice, *in_hindsight(jobs, k)]
    rows[PERSONAL] = ["", "", "", *tested(found.result.evaluation)]
    for key, (label, _) in REFERENCES.items():
        test = found.references[key]
        rows[label] = ["", "", "", *([""] * 4 if test is None else tested(test))]
    return rows


def table(rows: kept.Rows) -> str:
    """Means over the seeds, with the accuracy of the worst client in percent and its loss."""
    names = [member.name for member in PORTFOLIO]
    shown = ("FedAvg", "fit", "best member", PERSONAL, "local only", "pooled")
    lines = [
        f"| {' | '.join(('job', 'seeds', 'choices', *shown, 'worse than FedAvg'))} |",
        "| --- | ---: | --- |" + " ---: |" * 7,
    ]
    for job in dict.fromkeys(key[0] for key in rows):
        seeds = list(dict.fromkeys(key[1] for key in rows if key[0] == job))
        chosen = {seed: next(n for n in names if rows[job, seed, n][0] == "1") for seed in seeds}

        def column(place: int, model: str, job: str = job, chosen: dict[str, str] = chosen) -> np.ndarray:
            """A measure of a model at each seed."""
            found = (rows[job, seed, chosen[seed] if model == "fit" else model][place] for seed in chosen)
            return np.array([float(text or "nan") for text in found])

        worst = {name: column(WORST, name) for name in (*names, "fit", *shown[3:])}
        best = max(names, key=lambda name, worst=worst: np.nan_to_num(worst[name], nan=-1).mean())
        cells = [
            f"{worst[model].mean():.1f} ({column(LOSS, model).mean():.3f})"
            for model in (best if name == "best member" else name for name in shown)
        ]
        cells[2] += f", {best}"
        counts = ", ".join(f"{list(chosen.values()).count(name)} × {name}" for name in names if name in chosen.values())
        worse = int((worst["fit"] < worst["FedAvg"]).sum())
        lines.append(f"| {job} | {len(seeds)} | {counts} | {' | '.join(cells)} | {worse} of {len(seeds)} |")
    note = "Accuracy of the worst client in %, and in brackets the loss of the worst client; means over the seeds."
    return f"{note}\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = script.parser(__doc__, RESULTS, data=True)
    script.add_adult(parser)
    parser.add_argument("--jobs", default=",".join(script.sized(JOBS, ("hospitals",))))
    parser.add_argument("--seeds", type=int, default=script.sized(5, 1))
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders, path = suite.Folders(options.data_dir, options.adult), options.out / "runs.csv"
    rows = kept.known(path, 3)
    for job in options.jobs.split(","):
        for seed in map(str, range(options.seeds)):
            if (job, seed, PERSONAL) not in rows:
                found = measured(job, int(seed), folders)
                rows |= {(job, seed, model): row for model, row in found.items()}
                kept.save(path, COLUMNS, rows)
                print(job, seed, next(model for model, row in found.items() if row[0] == "1"), flush=True)
    about = {"versions": versions(), "device": "cpu", "command": "python evidence/fit_jobs.py"}
    script.store(options.out, {"table.md": table(rows), "summary.json": about})


if __name__ == "__main__":
    main()
