"""Rounds to a target, read from a file or from run folders."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from drfl.core.csv_cells import csv_text
from drfl.core.errors import InputError
from drfl.core.files import read_text
from drfl.report.read_run import RunRecord, load_run, nested_table
from drfl.task.measure import PLAIN, undefined_note
from drfl.training.model_selection import TEST
from drfl_papers.energy.planner import Measurement

COLUMNS = ("tau", "seed", "rounds")
DIGITS = 19
"""Maximum number of digits of an integer that is read, as in the largest 64-bit integer."""
FREE = ("seed", "algorithms", "rounds", "threads", "engine", "device", "data_dir")
"""Keys in which the configurations of runs of one job may differ; the algorithm's own table is compared separately."""
STOPPED = {
    "interrupted": "by Ctrl-C", "target": "at another target", "patience": "by `patience`", "callback": "by a callback",
}  # fmt: skip
"""Reasons why a run stopped before its last round, by the value of ``stopped`` in its summary."""


def to_csv(measurements: Sequence[Measurement]) -> str:
    """Format one row per run; an empty number of rounds means never. The outage is a column only if there was any."""
    faded = any(run.outage for run in measurements)
    rows = (
        [run.tau, run.seed, "" if run.rounds is None else run.rounds, *([f"{run.outage:.6f}"] if faded else [])]
        for run in measurements
    )
    return csv_text((*COLUMNS, "outage") if faded else COLUMNS, rows)


def read_csv(path: Path) -> list[Measurement]:
    """Read measurements from a CSV file with the columns tau, seed and rounds, and optionally outage.

    Args:
        path: The file; a row without a number of rounds is a run that never reached the target.

    Raises:
        InputError: If the file cannot be read, a column is missing or a value is invalid; names the file and the line.
    """
    text = read_text(path).removeprefix("\ufeff")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(
                f"{path}: the column '{missing[0]}' is missing. The first line must name {', '.join(COLUMNS)}.",
                code="missing-column",
                field=missing[0],
            )
        measured = []
        for line, row in enumerate(reader, start=2):
            where = f"{path}, line {line}"
            tau, seed = _whole(row, "tau", 1, where), _whole(row, "seed", 0, where)
            rounds = _whole(row, "rounds", 0, where) if (row["rounds"] or "").strip() else None
            text = (row.get("outage") or "0").strip()
            try:
                outage = float(text)
            except ValueError:
                outage = math.nan
            if not 0 <= outage <= 1:
                raise InputError(
                    f"{where}: outage must be between 0 and 1, got '{text}'", code="out-of-range", field="outage"
                )
            # The outage of a channel has six digits, and the planner compares for equality.
            measured.append(Measurement(tau, seed, rounds, round(outage, 6)))
    except csv.Error as error:
        raise InputError(
            f"cannot read the measurements {path}: {error}", code="file-unreadable", field=str(path)
        ) from None
    if not measured:
        raise InputError(
            f"{path} has no measurements. Add at least one row {','.join(COLUMNS)}.", code="no-rows", field=str(path)
        )
    return measured


def _whole(row: Mapping[str, str | None], name: str, low: int, where: str) -> int:
    text = (row[name] or "").strip()
    if not text.isascii() or not text.isdigit() or len(text) > DIGITS or int(text) < low:
        raise InputError(
            f"{where}: {name} must be an integer of at least {low}, got '{text}'", code="out-of-range", field=name
        )
    return int(text)


def from_runs(directories: Iterable[Path], target: float) -> tuple[list[Measurement], list[str]]:
    """Read measurements from run folders: the first evaluated round whose worst accuracy reaches the target.

    Args:
        directories: Folders written by ``drfl run``, or cells of ``drfl compare``; one job with several τ and seeds.
        target: The accuracy to reach, a fraction.

    Returns:
        The measurements, and notes on them.

    Raises:
        InputError: If a folder is not a run, the runs are not of one job, or a run ended early below the target.
    """
    runs = [(path, load_run(path)) for path in directories]
    for path, run in runs:
        if run.score.name != PLAIN.name:
            raise InputError(
                f"{path} has the score {run.score.words}, but the target is a worst accuracy. Run it with "
                "`score = 'accuracy'`.",
                code="unsupported-metric",
                field=str(path),
            )
    measured = []
    for path, run in runs:
        tau = _number(_algorithm_table(run).get("steps", run.config.get("steps")), 0)
        if tau < 1:
            raise InputError(
                f"{path / 'config.toml'} does not contain the number of local steps. Run it again.",
                code="damaged-run",
                field=str(path / "config.toml"),
            )
        seed = _number(run.summary.get("seed"), -1)
        if seed < 0:
            raise InputError(
                f"{path / 'summary.json'} does not contain the seed. Run it again.",
                code="damaged-run",
                field=str(path / "summary.json"),
            )
        reached = run.history[run.history["worst_score"] >= target - 1e-9]  # files have six decimals
        how = STOPPED.get(str(run.summary.get("stopped")))
        # With more rounds, such a run might have reached the target.
        if not len(reached) and how is not None:
            raise InputError(
                f"{path} was stopped {how}, below a worst accuracy of {target:g}. Run it to this accuracy, or remove "
                "it.",
                code="unfinished-run",
                field=str(path),
            )
        measured.append(Measurement(tau, seed, int(reached["round"].iloc[0]) if len(reached) else None))
    for path, run in runs[1:]:
        first, reference = runs[0]
        for mine, theirs, free in (
            (_job(reference), _job(run), FREE), (_algorithm_table(reference), _algorithm_table(run), ("steps",)),
        ):  # fmt: skip
            names = sorted({*mine, *theirs} - {*free})
            name = next((name for name in names if mine.get(name) != theirs.get(name)), None)
            if name is not None:
                raise InputError(
                    f"{first} and {path} differ in {name} ({mine.get(name)} and {theirs.get(name)}). Runs must be of "
                    "one job and may differ only in local steps and seed.",
                    code="runs-differ",
                    field=name,
                )
    every = max((_number(run.config.get("evaluate_every"), 1) for _, run in runs), default=1)
    notes = [f"the runs were evaluated every {every} rounds, so their rounds are rounded up"] if every > 1 else []
    for path, run in runs:
        note = undefined_note([run.undefined(run.score)], [len(run.clients)])
        if note:
            notes.append(f"{path}: the worst accuracy is that of the other clients{note}")
    return measured, notes


def _algorithm_table(run: RunRecord) -> dict[str, object]:
    # The configuration names the class of a user's algorithm with its file.
    return nested_table(nested_table(run.config, "algorithms"), str(run.config.get("algorithm", run.algorithm)))


def _job(run: RunRecord) -> dict[str, object]:
    """Return the configuration. A target matters only by its rows, because validation rows are not trained on."""
    until = run.config.get("until")
    on_validation = isinstance(until, str) and not until.startswith(TEST)
    return {**run.config, "until": "on validation rows" if on_validation else None}


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
