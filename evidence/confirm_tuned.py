"""Repeat the best trials of a search in which step sizes are multiples of each run's own step size, and choose one.

    python evidence/confirm_tuned.py kmnist-cnn --data-dir DIR
    python evidence/confirm_tuned.py kmnist-cnn-sizes --trials-of kmnist-cnn --data-dir DIR
    python evidence/confirm_tuned.py --smoke

If the loss rises, a run halves a step size that it found itself, and its model starts again. A search that scores such
a run by its final model may choose a multiple that was never used. This script repeats the trials of a stored search,
the best first, and chooses the first whose runs halve no step size at any tuning seed. ``drfl tune`` would choose the
same trial. With ``--trials-of``, the trials are those of another job's search, beginning with the trial chosen there.

The script writes ``confirmed.csv`` and the hyperparameter file beside ``trials.csv``. It also writes the hyperparameter
file that ``drfl reproduce`` reads, unless ``--out`` names another folder.
"""

from __future__ import annotations

import csv
import multiprocessing
import shlex
import tomllib
from collections.abc import Mapping
from itertools import dropwhile
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import tomli_w

import script
from drfl.core.csv_cells import csv_text
from drfl.experiments.execution.training_cells import run_cell
from drfl.experiments.tuning.configured import prepare
from drfl.experiments.tuning.job import changes_of, resolve
from drfl.experiments.tuning.search import Search
from drfl.training.history import DIGITS
from drfl_papers.specification import PAPERS

ROOT = Path(__file__).parents[1]
STORED = ROOT / "evidence" / "results" / "tuning"
SHIPPED = PAPERS / "tuned"
CHANGES = script.sized({}, {"model": "linear", "rounds": 1, "steps": 1})
"""Settings that differ from the search."""
METHODS = script.sized(None, 2)
"""Number of methods to confirm; None = all."""

Table = dict[str, int | float | str]


class Confirmed(NamedTuple):
    """A repeated trial: how it ended and its score for each seed, and the stored score."""

    method: str
    trial: int
    ends: tuple[str, ...]
    scores: tuple[float, ...]
    stored: float

    @property
    def holds(self) -> bool:
        """Whether every run finished with its initial step size."""
        return all(end == "rounds" for end in self.ends)


def stored_trials(job: str) -> dict[str, list[tuple[float, int, Table]]]:
    """The trials of each method (score, number, parameters), the best first; ties by number."""
    found: dict[str, list[tuple[float, int, Table]]] = {}
    with (STORED / job / "trials.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            named = {k: v for k, v in row.items() if v and k not in ("algorithm", "trial", "score") and k[:4] != "seed"}
            table = {name: _value(text) for name, text in named.items()}
            found.setdefault(row["algorithm"], []).append((float(row["score"]), int(row["trial"]), table))
    return {name: sorted(own, key=lambda t: (-t[0], t[1])) for name, own in found.items()}


def told_by(job: str) -> dict[str, Any]:
    """Read the stored file of a job's hyperparameters."""
    return tomllib.loads((STORED / job / f"{job}.toml").read_text(encoding="utf-8"))


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def search_of(job: str, trials_of: str, data_dir: Path | None) -> Search:
    """Recreate a search from its file of hyperparameters, for a job."""
    told = told_by(trials_of)["provenance"]
    words = shlex.split(told["command"])
    changes = changes_of([words[k + 1] for k, word in enumerate(words) if word == "--set"])
    return prepare(
        resolve(job, {**changes, **CHANGES}, stand_in=told["stand_in"]),
        list(stored_trials(trials_of)),
        trials=told["trials"],
        repeats=len(told["seeds"]),
        criterion=words[words.index("--criterion") + 1],
        data_dir=data_dir,
        relative=True,
    )


def confirm(job: str, trials_of: str, data_dir: Path | None, method: str) -> list[Confirmed]:
    """Run the method's trials on the job, the best first, until one is confirmed.

    If the job is not that of the search, begin with the trial chosen in the search.
    """
    search, tried = search_of(job, trials_of, data_dir), list[Confirmed]()
    trials = stored_trials(trials_of)[method]
    if job != trials_of:
        chosen = told_by(trials_of)["scores"][method]["trial"]
        trials = list(dropwhile(lambda trial: trial[1] != chosen, trials))
    for score, number, table in trials:
        ends, scores = list[str](), list[float]()
        for cell in search.cells(method, table):
            record = run_cell(cell, data_dir)
            ends.append(search.criterion.end(record))
            scores.append(search.criterion.of(record))
            if ends[-1] != "rounds":
                break
        tried.append(Confirmed(method, number, tuple(ends), tuple(scores), score))
        print(tried[-1], flush=True)
        if tried[-1].holds:
            break
    return tried


def write(
    out: Path, job: str, trials_of: str, about: Mapping[str, Any], found: list[list[Confirmed]], command: str
) -> None:
    """Write ``confirmed.csv`` and both files of hyperparameters."""
    rows = [
        [c.method, c.trial, f"{c.stored:.{DIGITS}f}", " ".join(c.ends), " ".join(f"{x:.{DIGITS}f}" for x in c.scores)]
        for own in found
        for c in own
    ]
    header = ("algorithm", "trial", "score", "confirmed_ends", "confirmed_scores")
    told, trials = told_by(trials_of), stored_trials(trials_of)
    told["provenance"] |= {**about, "confirmed": command}
    if job != trials_of:
        told["provenance"]["trials_of"] = trials_of
    for own in found:
        method, last = own[0].method, own[-1]
        if last.holds:
            told["algorithms"][method] = next(table for _, number, table in trials[method] if number == last.trial)
            told["scores"][method] |= {"score": round(fmean(last.scores), DIGITS), "trial": last.trial}
            if job != trials_of:
                told["scores"][method].pop("default", None)
        told["scores"][method]["diverged"] = sum(not c.holds for c in own)
    text = tomli_w.dumps(told)
    script.store(out / job, {"confirmed.csv": csv_text(header, rows), f"{job}.toml": text})
    if out == STORED:
        script.store(SHIPPED, {f"{job}.toml": text})


def main() -> None:
    parser = script.parser(__doc__, STORED, data=True)
    found = (path.parent.name for path in STORED.glob("*/trials.csv"))
    searched = sorted(job for job in found if told_by(job)["provenance"].get("relative_step_size"))
    jobs = sorted({*searched, *(path.stem for path in (PAPERS / "jobs").glob("*.toml"))})
    parser.add_argument("job", choices=jobs, nargs=script.sized(None, "?"), default="kmnist-cnn")
    parser.add_argument("--trials-of", choices=searched, help="job whose search has the trials (default: the same job)")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    of = options.trials_of or options.job
    if of not in searched:
        parser.error(f"{of} was not searched in multiples of each run's step size: name another by --trials-of")
    work = [(options.job, of, options.data_dir, method) for method in list(stored_trials(of))[:METHODS]]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        confirmed = pool.starmap(confirm, work, chunksize=1)
    command = f"python evidence/confirm_tuned.py {options.job}" + (f" --trials-of {of}" if of != options.job else "")
    write(options.out, options.job, of, search_of(options.job, of, options.data_dir).about, confirmed, command)


if __name__ == "__main__":
    main()
