"""The files of a search: the hyperparameters and the table of all trials."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import tomli_w

from drfl.core.atomic_files import atomic_write
from drfl.core.csv_cells import csv_text
from drfl.core.errors import InputError
from drfl.core.output_files import writing_into
from drfl.core.run_end import FAILURES
from drfl.experiments.run.artifacts import versions
from drfl.experiments.run.manifest import Manifest, read_manifest
from drfl.experiments.run.run_directory import check_manifest
from drfl.experiments.tuning.confirmation import Confirmation, headline
from drfl.experiments.tuning.run_searches import FILE
from drfl.experiments.tuning.search import Search
from drfl.experiments.tuning.suggestion import Trial, import_optuna
from drfl.task.measure import undefined_share
from drfl.training.history import DIGITS

TRIALS = "trials.csv"


def check_place(folder: Path, name: str) -> None:
    """Check that a folder is new, empty, or holds a search, which is then continued."""
    if os.path.exists(folder) and not folder.is_dir():  # unlike pathlib's, False for a name that is too long
        raise InputError(f"{folder} is a file: pass another `out`", code="not-a-folder", field=str(folder))
    with writing_into(folder):
        manifest = check_manifest(folder, "search", may_exist=True)
    path = folder / f"{name}.toml"
    if os.path.lexists(path) and (manifest is None or path.name not in manifest.files):
        raise InputError(
            f"{path} exists and was not written by drfl tune: pass another `out`",
            code="foreign-file",
            field=str(path),
        )


def make_place(folder: Path, name: str) -> None:
    """Make the folder with its manifest."""
    with writing_into(folder):
        folder.mkdir(parents=True, exist_ok=True)
        before = read_manifest(folder)
        files = {FILE, TRIALS, f"{name}.toml", *(() if before is None else before.files)}
        Manifest.new("search", tuple(files)).write(folder)


def write(
    search: Search,
    trials: Mapping[str, Sequence[Trial]],
    folder: Path,
    command: str,
    confirmations: Mapping[str, Confirmation] = MappingProxyType({}),
) -> Path:
    """Write both files, and return the path of the hyperparameters.

    The same search gives the same bytes, however often it was interrupted.
    """
    path = folder / f"{search.name}.toml"
    # There are no timestamps, so that the same search writes the same bytes.
    texts = {
        folder / TRIALS: trials_csv(search, trials),
        path: tomli_w.dumps(content(search, trials, command, confirmations)),
    }
    with writing_into(folder, "fix this and run the command again"):
        for place, text in texts.items():
            with atomic_write(place) as file:
                file.write(text.encode())
    return path


def content(
    search: Search,
    trials: Mapping[str, Sequence[Trial]],
    command: str,
    confirmations: Mapping[str, Confirmation] = MappingProxyType({}),
) -> dict[str, object]:
    """Return the content of the hyperparameter file as plain values."""
    all_versions = {**versions(), "optuna": import_optuna().__version__}
    algorithms: dict[str, object] = {}
    scores: dict[str, object] = {}
    for name, of_algorithm in trials.items():
        chosen, defaults = search.best(of_algorithm), search.subjects[name].defaults() is not None
        # TOML has no null.
        algorithms[name] = {key: "none" if value is None else value for key, value in chosen.table.items()}
        ends = [stopped for trial in of_algorithm for stopped in trial.stopped]
        scores[name] = {
            "score": chosen.score,
            "trial": chosen.number,
            **({"default": of_algorithm[0].score} if defaults else {}),
            "trials": len(of_algorithm),
            **{how: ends.count(how) for how in FAILURES},
            **({"set_back": list(chosen.set_back)} if chosen.set_back else {}),
            **({"undefined": share} if (share := undefined_share(chosen.undefined, chosen.clients)) else {}),
        }
    words = headline(confirmations, search.criterion.shown)
    return {
        **({"headline": words} if words else {}),
        "provenance": {
            "command": command,
            "criterion": search.criterion.sentence(),
            "metric": search.criterion.metric,
            "trials": search.trials,
            "seeds": list(search.seeds),
            **search.about,
            "versions": {
                name: all_versions[name] for name in ("python", "platform", "drfl", "torch", "numpy", "optuna")
            },
        },
        "algorithms": algorithms,
        "scores": scores,
        **({"confirmation": {name: c.to_plain() for name, c in confirmations.items()}} if confirmations else {}),
    }


def trials_csv(search: Search, trials: Mapping[str, Sequence[Trial]]) -> str:
    """Return a row per trial: its parameters, its score, and the score or the failure at each seed."""
    names = list(
        dict.fromkeys(name for of_algorithm in trials.values() for trial in of_algorithm for name in trial.table)
    )
    header = ["algorithm", "trial", *names, "score", *(f"seed{seed}" for seed in search.seeds)]
    rows = [
        [
            name,
            trial.number,
            *(trial.table.get(column, "") for column in names),
            f"{trial.score:.{DIGITS}f}",
            *(
                how if how in FAILURES else f"{score:.{DIGITS}f}"
                for score, how in zip(trial.scores, trial.stopped, strict=True)
            ),
        ]
        for name, of_algorithm in trials.items()
        for trial in of_algorithm
    ]
    return csv_text(header, rows)
