"""Runs in folders of results: their settings and metrics in one data frame, and comparisons made of them."""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from pydantic import ValidationError

from drfl.assessment.equal_clients import EqualClients, equal_clients
from drfl.core.atomic_files import is_file, is_folder
from drfl.core.errors import InputError, unknown
from drfl.core.json_toml import read_toml
from drfl.core.user_code import label_of
from drfl.experiments.assess.predicted_records import predicted_in
from drfl.experiments.compare.comparison_results import Comparison, Predicted, cell_name
from drfl.experiments.compare.outcomes import Outcome, StoredOutcomes
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.run_settings import OBJECTS, RunSettings
from drfl.experiments.run.artifacts import LARGEST_PATIENT, round_metrics
from drfl.experiments.run.manifest import (
    CHECKPOINT,
    CONFIG,
    OUTCOMES,
    PREDICTIONS,
    WITH_CELLS,
    current_cells,
    is_finished,
    read_manifest,
)
from drfl.report.assessed import worst_interval
from drfl.report.groups import INCIDENTAL
from drfl.report.read_run import FailedRun, RunRecord, load_run, measures_of, nested_table, number, remark_lines
from drfl.task.metrics import ACCURACY
from drfl.training.certificate import Certificate
from drfl.training.history import LEDGER_COLUMNS, Metrics, other_columns

if TYPE_CHECKING:
    import pandas as pd

REMEDY = "pass the folder of a run, a comparison or a sweep"


class StoredRun(NamedTuple):
    """A run in a folder of results.

    Args:
        folder: Its folder; for a run that failed, the folder that would hold its results.
        config: The content of its ``config.toml``.
        outcome: How it ended.
        record: Its files, which may lack history and λ; None if it failed.
        name: The name of its algorithm, or the reference to the user's class.
    """

    folder: Path
    config: Mapping[str, object]
    outcome: Outcome
    record: RunRecord | None
    name: str

    @property
    def is_predicted(self) -> bool:
        """Whether it holds tested predictions of another tool instead of a run."""
        return self.record is not None and self.record.is_predicted

    @property
    def failed(self) -> FailedRun:
        """A run that failed, for reports."""
        return FailedRun(label_of(self.name), str(self.outcome.seed), self.outcome.stopped, self.config)

    @property
    def parameters(self) -> dict[str, object]:
        """The hyperparameters of its algorithm."""
        return nested_table(nested_table(self.config, "algorithms"), self.name)

    @property
    def settings(self) -> dict[str, object]:
        """Its settings, and the parameters of its algorithm, by name; a parameter with the name of a setting has a
        prefix.
        """
        plain = {k: v for k, v in self.config.items() if k not in ("algorithms", "algorithm", "seed", "files")}
        shared = {k: ", ".join(map(str, v)) if isinstance(v, list) else v for k, v in plain.items()}
        return shared | {f"parameter.{k}" if k in shared else k: v for k, v in self.parameters.items()}


def find_runs(*patterns: str | Path) -> list[StoredRun]:
    """Return the runs in folders of runs, comparisons and sweeps, none of them twice.

    They include failed runs, and tested predictions of other tools.

    Raises:
        InputError: If a pattern matches no run or is not a path, or a file is damaged.
    """
    found: dict[Path, StoredRun] = {}
    for pattern in patterns:
        if not isinstance(pattern, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            remedy = "." if not isinstance(pattern, Sequence) else ", such as load_runs('first', 'second')."
            raise InputError(
                f"expected folders or patterns, got a {type(pattern).__name__}. Pass each folder as a "
                f"separate argument{remedy}",
                code="wrong-type",
                field="patterns",
            )
        # Folders of results may be below the folder that the user names.
        if not (_find(str(pattern), found) or _find(f"{pattern}/**", found)):
            raise InputError(f"no finished run in {pattern}: {REMEDY}", code="not-a-run", field=str(pattern))
    return list(found.values())


def _find(pattern: str, found: dict[Path, StoredRun]) -> bool:
    """Add the runs in folders that match a pattern to those found before; return whether there are any."""
    has_runs, former = False, set[Path]()
    for folder in map(Path, sorted(glob.glob(pattern, recursive=True))):  # a sweep before its runs
        if folder in former:
            continue
        manifest = read_manifest(folder, REMEDY) if folder.is_dir() and CHECKPOINT not in folder.parts else None
        runs: list[tuple[Path, StoredRun | None]] = []  # the folders of runs, each with the run if it failed
        if manifest is not None and manifest.kind in WITH_CELLS:
            cells = current_cells(folder, manifest)
            former |= {folder / name for name in {*manifest.cells} - {*cells}}
            places = [folder / name for name in cells if (folder / name).is_dir() and is_finished(folder / name)]
            runs += [(place, None) for place in places] + [(run.folder, run) for run in failed_in(folder)]
            records = [load_run(place, curves=False) for place in places] if is_file(folder / PREDICTIONS) else []
            for record in predicted_in(folder, records):
                run = StoredRun(folder, record.config, outcome_of(record), record, record.algorithm)
                runs.append((folder / record.label, run))
        elif manifest is not None and manifest.kind == "run" and is_finished(folder):
            runs.append((folder, None))
        for place, run in runs:
            has_runs = True
            if place.resolve() not in found:
                if run is None:
                    record = load_run(place, curves=False)
                    name = str(record.config.get("algorithm"))
                    run = StoredRun(place, record.config, outcome_of(record), record, name)
                found[place.resolve()] = run
    return has_runs


def failed_in(folder: Path) -> list[StoredRun]:
    """Return the failed runs in the folder of a comparison or a sweep; none for other folders.

    Raises:
        InputError: If a file of the folder is damaged.
    """
    manifest = read_manifest(folder, REMEDY) if is_folder(folder) else None
    if manifest is None or manifest.kind not in WITH_CELLS or not is_file(folder / OUTCOMES):
        return []
    stored = StoredOutcomes.read(folder, REMEDY)
    outcomes = [outcome for outcome in stored.outcomes if outcome.failed]
    # Failed runs have no folder of their own, only an outcome and the settings in the shared configuration.
    shared = read_toml(folder / CONFIG, follow=False, remedy=REMEDY) if outcomes else {}
    tables, runs = nested_table(shared, "algorithms"), list[StoredRun]()
    for outcome in outcomes:
        name = next((name for name in tables if label_of(name) == outcome.algorithm), outcome.algorithm)
        place = folder / (outcome.run or cell_name(outcome.algorithm, outcome.seed))
        own = stored.failed.get(place.name) or {
            **shared, "algorithm": name, "seed": outcome.seed, "algorithms": {name: nested_table(tables, name)},
        }  # fmt: skip
        runs.append(StoredRun(place, own, outcome, None, str(own.get("algorithm", name))))
    return runs


def outcome_of(record: RunRecord) -> Outcome:
    """Return how the run of a folder ended, as a comparison would have recorded it, but without :func:`equal_of`."""
    summary = record.summary
    final = nested_table(summary, "final")
    metrics = Metrics(*(record.final(field) for field in Metrics._fields))
    columns = {m.name: record.column_of(m) for m in record.measures}
    missing = {n: record.clients["client"][record.clients[c].isna()] for n, c in columns.items() if c in record.clients}
    certificate = None
    if math.isfinite(number(final, "gap")):
        values = (number(final, name) for name in ("primal", "lower", "gradient_norm"))
        certificate = Certificate(*values, proven=record.is_proven)
    rows, model = record.draw_digests
    marks, failure = record.marks, summary.get("failure")
    return Outcome(
        algorithm=record.algorithm,
        seed=int(record.seed),
        stopped=str(summary.get("stopped")),
        rounds=marks.rounds,
        metrics=metrics,
        certificate=certificate,
        reason=failure if isinstance(failure, str) else "",
        others={name: number(final, name) for name in other_columns(record.measures)},
        worst_interval=None if record.stopped_on_test else worst_interval(record),
        undefined={name: tuple(clients) for name, clients in missing.items() if len(clients)},
        stopped_on="test" if record.stopped_on_test else str(summary.get("stopped_on") or ""),
        rollbacks=marks.rollbacks,
        lost_rounds=marks.rounds - marks.effective_rounds,
        last_rollback=marks.last_rollback,
        beside=tuple(remark_lines(summary)),
        test_rows=rows or "",
        initial_model=model or "",
        reference=record.is_reference,
        personal=record.is_personal,
        start={name: str(value) for name, value in nested_table(summary, "init_from").items()} or None,
    )


def equal_of(record: RunRecord) -> EqualClients | None:
    """Return what to expect if all clients of a run were equally good, which takes longer than reading its files."""
    known = record.clients.dropna(subset=["score"])
    if record.score.name != ACCURACY.name or not len(known) or LARGEST_PATIENT in record.clients:
        return None
    return equal_clients(record.final("avg_score"), known["samples"].to_numpy())


def predicted_row(record: RunRecord) -> Predicted:
    """Return a row of a comparison for predictions of another tool."""
    return Predicted(outcome_of(record)._replace(equal=equal_of(record)), record)


def frame_of(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """Return a row per run: folder, algorithm, seed, how it ended, metrics, costs and all settings.

    Predictions of other tools have no row, because they are not runs. The column ``eta`` is the local step size η that
    the run used, whether the user or drfl chose it. Columns without any value are omitted.
    """
    import pandas as pd

    rows = []
    for run in (run for run in runs if not run.is_predicted):
        outcome, summary = run.outcome, {} if run.record is None else run.record.summary
        row: dict[str, object] = {
            "run": str(run.folder), "algorithm": outcome.algorithm, "seed": outcome.seed, "stopped": outcome.stopped,
            "stopped_on": outcome.stopped_on, "reason": outcome.reason, "completed_rounds": outcome.rounds,
        }  # fmt: skip
        if outcome.metrics is not None and run.record is not None:
            score = run.record.score.name
            ends = outcome.worst_interval or (math.nan, math.nan)
            named = dict(zip((f"worst_{score}_low", f"worst_{score}_high"), ends, strict=True))
            # Round to the digits of files, so that a result has the same frame before and after it is read again.
            row |= round_metrics({**outcome.metrics.as_dict(score), **named, **outcome.others})
            row |= {name: run.record.ledger(name) for name in LEDGER_COLUMNS}
            row["wall_seconds"] = number(summary, "wall_seconds")
            row["own_models"] = outcome.personal
            # Without lr, drfl determined the step size.
            chosen = nested_table(summary, "step_size")
            row["eta"] = number(chosen if chosen else run.parameters, "lr")
        rows.append((row, run.settings))
    # Settings come last, because a table of results is read from the left.
    columns = dict.fromkeys(name for row, _ in rows for name in row) | dict.fromkeys(n for _, s in rows for n in s)
    frame = pd.DataFrame([{**settings, **row} for row, settings in rows], columns=list(columns))
    return frame.dropna(axis="columns", how="all")


def where(runs: Sequence[StoredRun], values: Mapping[str, object]) -> list[StoredRun]:
    """Return the runs with these settings, such as ``{"alpha": 0.1}``."""
    selected = list(runs)
    for name, value in values.items():
        known = {k for run in runs for k in ("algorithm", "seed", *run.settings)}
        if name not in known:
            raise unknown("setting", name, sorted(known))
        selected = [run for run in selected if _value(run, name) == value]
        if not selected:
            present = dict.fromkeys(str(_value(run, name)) for run in runs)
            raise InputError(
                f"no run has {name} = {value!r}: the runs have {', '.join(present)}", code="unknown-name", field=name
            )
    return selected


def _value(run: StoredRun, name: str) -> object:
    own = {"algorithm": run.outcome.algorithm, "seed": run.outcome.seed}
    return own[name] if name in own else run.settings.get(name)


def comparison_of(runs: Sequence[StoredRun]) -> Comparison:
    """Make a comparison of runs from any folders.

    Runs of one algorithm with different settings are different algorithms, named after the settings in which they
    differ, such as "DRFA (gamma=0.1)".

    Raises:
        InputError: If no run has results, two runs have the same settings, or runs at one seed have different test
            rows.
    """
    ended = [run for run in runs if run.record is not None]
    if all(run.is_predicted for run in ended):
        raise InputError("no run has results, so there is nothing to compare", code="no-results", field="runs")
    labels = []
    for run in runs:
        # Runs of one algorithm are named after the settings in which they differ. A failed run may lack those that
        # follow from others, such as the default of its partition.
        rivals = [
            (other.settings, other.record is None) for other in runs if other.outcome.algorithm == run.outcome.algorithm
        ]
        own = run.settings
        differ = [
            name
            for name in own
            if name not in INCIDENTAL
            and any(its.get(name) != own[name] for its, has_failed in rivals if name in its or not has_failed)
        ]
        more = ", ".join(f"{name}={own[name]}" for name in differ)
        labels.append(f"{run.outcome.algorithm} ({more})" if more else run.outcome.algorithm)
    # The differences between runs on different data would not be those of the algorithms.
    firsts: dict[int, StoredRun] = {}
    for run in ended:
        first = firsts.setdefault(run.outcome.seed, run)
        if first.outcome.test_rows != run.outcome.test_rows:
            before, own = first.settings, run.settings
            differ = next((k for k in own if k not in run.parameters and own[k] != before.get(k)), None)
            remedy = "" if differ is None else f", because {differ} is {before.get(differ)} and {own[differ]}"
            raise InputError(
                f"{first.folder} and {run.folder} have different test rows{remedy}: compare runs on the same data only",
                code="runs-differ",
                field=differ or "runs",
            )
    outcomes: dict[tuple[str, int], Outcome] = {}
    folders: dict[tuple[str, int], Path] = {}
    predicted: list[Predicted] = []
    for run, label in zip(runs, labels, strict=True):
        cell = label, run.outcome.seed
        if cell in folders:
            raise InputError(
                f"{folders[cell]} and {run.folder} are the same run, {label} at seed {run.outcome.seed}: pass only one",
                code="given-twice",
                field=str(run.folder),
            )
        equal = run.outcome.equal if run.record is None else run.outcome.equal or equal_of(run.record)
        outcome, folders[cell] = run.outcome._replace(algorithm=label, equal=equal), run.folder
        if run.is_predicted:
            predicted.append(Predicted(outcome, cast("RunRecord", run.record)))
        else:
            outcomes[cell] = outcome
    algorithms = tuple(dict.fromkeys(name for name, _ in outcomes))
    seeds = tuple(sorted({run.outcome.seed for run in runs}))
    about: list[AboutRun] = []
    for label in algorithms:
        run = next(run for run, own in zip(runs, labels, strict=True) if own == label)
        config = {k: v for k, v in run.config.items() if k not in ("algorithm", "algorithms", "files")}
        dataset = None if "data" in config or "dataset" not in config else str(config["dataset"])
        about.append(AboutRun(run.name, run.parameters, dataset, config))
    first = next(run for run in ended if not run.is_predicted)
    summary = cast("RunRecord", first.record).summary
    plain = {name: value for name, value in first.config.items() if name in RunSettings.model_fields}
    try:
        settings = RunSettings.model_validate(plain)
    except (ValidationError, InputError):  # the text of a user's object
        settings = RunSettings.model_validate({name: value for name, value in plain.items() if name not in OBJECTS})
    order = {name: place for place, name in enumerate(algorithms)}
    return Comparison(
        settings, algorithms, seeds, tuple(about), measures_of(summary), int(number(summary, "clients")),
        tuple(sorted(outcomes.values(), key=lambda o: (o.seed, order[o.algorithm]))), folders=folders,
        predicted=tuple(predicted),
    )  # fmt: skip
