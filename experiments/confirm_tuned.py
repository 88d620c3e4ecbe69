"""The chosen trials of a search in multiples of each run's own step size, run again: does the multiple hold?

A run halves a step size that it found itself where the loss rises, and its model begins anew. A search that scores such
a run by what it ends with may choose a multiple that never ran. This goes down the trials of a stored search, the best
first, and chooses the first whose runs halve nothing at any tuning seed: the best of the search under the rule that
``drfl tune --relative-step-size`` has. It writes ``confirmed.csv`` and the hyperparameter file beside ``trials.csv``,
and the file that ``drfl reproduce`` reads.

    python experiments/confirm_tuned.py kmnist-cnn --data-dir DIR
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

import tomli_w

from drfl.experiments.training_cells import run_cell
from drfl.history import DIGITS, csv_text
from drfl.papers.tuning_jobs import resolve
from drfl.tuning.configured import prepare
from drfl.tuning.job import changes_of
from drfl.tuning.search import Search

ROOT = Path(__file__).parents[1]
STORED = ROOT / "experiments" / "results" / "tuning"
SHIPPED = ROOT / "src" / "drfl" / "papers" / "tuned"

Table = dict[str, int | float | str]


class Confirmed(NamedTuple):
    """A trial that was run again: by seed how it ended and its score, and the score stored before."""

    method: str
    trial: int
    ends: tuple[str, ...]
    scores: tuple[float, ...]
    stored: float

    @property
    def holds(self) -> bool:
        """Whether every run came to its end with the step size that it had begun with."""
        return all(end == "rounds" for end in self.ends)


def stored_trials(job: str) -> dict[str, list[tuple[float, int, Table]]]:
    """By method its trials, the best first, of equal ones the earliest: score, number, parameters."""
    found: dict[str, list[tuple[float, int, Table]]] = {}
    with (STORED / job / "trials.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            named = {k: v for k, v in row.items() if v and k not in ("algorithm", "trial", "score") and k[:4] != "seed"}
            table = {name: _value(text) for name, text in named.items()}
            found.setdefault(row["algorithm"], []).append((float(row["score"]), int(row["trial"]), table))
    return {name: sorted(own, key=lambda t: (-t[0], t[1])) for name, own in found.items()}


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def search_of(job: str, data_dir: Path | None) -> Search:
    """The search as its file of hyperparameters says that it was."""
    told = tomllib.loads((STORED / job / f"{job}.toml").read_text(encoding="utf-8"))["provenance"]
    words = shlex.split(told["command"])
    changes = changes_of([words[k + 1] for k, word in enumerate(words) if word == "--set"])
    return prepare(
        resolve(job, changes, stand_in=told["stand_in"]),
        list(stored_trials(job)),
        trials=told["trials"],
        repeats=len(told["seeds"]),
        criterion=words[words.index("--criterion") + 1],
        data_dir=data_dir,
        relative=True,
    )


def confirm(job: str, data_dir: Path | None, method: str) -> list[Confirmed]:
    """Run the method's trials again, the best first, up to the first that holds."""
    search, tried = search_of(job, data_dir), list[Confirmed]()
    for score, number, table in stored_trials(job)[method]:
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


def write(job: str, found: list[list[Confirmed]], command: str) -> None:
    """``confirmed.csv``, and both files of hyperparameters."""
    rows = [
        [c.method, c.trial, f"{c.stored:.{DIGITS}f}", " ".join(c.ends), " ".join(f"{x:.{DIGITS}f}" for x in c.scores)]
        for own in found
        for c in own
    ]
    header = ("algorithm", "trial", "score", "confirmed_ends", "confirmed_scores")
    (STORED / job / "confirmed.csv").write_text(csv_text(header, rows), encoding="utf-8")
    path = STORED / job / f"{job}.toml"
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    trials = stored_trials(job)
    told["provenance"]["confirmed"] = command
    for own in found:
        method, last = own[0].method, own[-1]
        if last.holds:
            told["algorithms"][method] = next(table for _, number, table in trials[method] if number == last.trial)
            told["scores"][method] |= {"score": last.stored, "trial": last.trial}
        told["scores"][method]["diverged"] = sum(not c.holds for c in own)
    for place in (path, SHIPPED / path.name):
        place.write_text(tomli_w.dumps(told), encoding="utf-8")


def _told(trials: Path) -> str:
    return trials.with_name(f"{trials.parent.name}.toml").read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    searched = sorted(path.parent.name for path in STORED.glob("*/trials.csv") if "relative_step_size" in _told(path))
    parser.add_argument("job", choices=searched)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    methods = list(stored_trials(options.job))
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        work = [(options.job, options.data_dir, method) for method in methods]
        found = pool.starmap(confirm, work, chunksize=1)
    write(options.job, found, f"python experiments/confirm_tuned.py {options.job}")


if __name__ == "__main__":
    main()
