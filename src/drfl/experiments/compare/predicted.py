"""Predictions of other tools as additional rows of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from drfl.core.atomic_files import is_file
from drfl.core.errors import InputError, Notice
from drfl.core.files import TEXT_LIMIT, reading
from drfl.core.user_code import label_of
from drfl.experiments.assess.predicted_records import predicted_record
from drfl.experiments.assess.predictions import (
    CLIENT,
    PREDICTION,
    PROBABILITY,
    ROW,
    SEED,
    predictions_at,
    read_predictions,
    tested_predictions,
)
from drfl.experiments.compare.comparison import PreparedComparison
from drfl.experiments.compare.comparison_results import Comparison, Predicted
from drfl.experiments.compare.stored_runs import predicted_row
from drfl.experiments.execution import records
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.run.manifest import CHECKPOINT, GIVEN_PREDICTIONS
from drfl.experiments.run.run_directory import ClaimedFolder

if TYPE_CHECKING:
    import pandas as pd

Predictions = Mapping[str, "pd.DataFrame"]
"""Predictions by their names in tables."""


def read_all(paths: Iterable[Path]) -> Predictions:
    """Read files of predictions, which tables name after the files."""
    frames: dict[str, pd.DataFrame] = {}
    for path in paths:
        if path.stem in frames:
            raise InputError(
                f"two files of predictions are called '{path.stem}', the name of their rows in tables: rename one",
                code="duplicate-name",
                field="predictions",
            )
        frames[path.stem] = read_predictions(path)
    return frames


def check_names(predictions: Predictions, algorithms: Collection[str]) -> None:
    """Check that no predictions have the name of an algorithm."""
    for name in predictions:
        if name in algorithms:
            raise InputError(
                f"an algorithm and predictions are both called '{name}': rename the predictions",
                code="duplicate-name",
                field="predictions",
            )


def check_predictions(predictions: Predictions, ready: PreparedComparison) -> None:
    """Check predictions at every seed before the first run."""
    design = ready.design
    check_names(predictions, [*map(label_of, design.algorithms)])
    first = design.algorithms[0]
    for i, seed in enumerate(design.seeds if predictions else ()):
        fed = (ready.build(first, seed) if i else ready.jobs[first]).fed
        for name, frame in predictions.items():
            try:
                tested_predictions(predictions_at(frame, seed), fed)
            except InputError as error:  # name the file, because there may be several
                raise InputError(f"predictions '{name}': {error}", code=error.code, field=error.field) from None


def store_predictions(claim: ClaimedFolder, predictions: Predictions) -> None:
    """Store predictions in the folder of unfinished work, so that a comparison resumes with them."""
    if not predictions:
        return
    tables: dict[str, dict[str, list[object]] | None] = {}
    for name, frame in predictions.items():
        tables[name] = {
            # Values that JSON does not have, such as pandas' dates, become text.
            str(column): [v if isinstance(v, int | float | str) else str(v) for v in frame[column].tolist()]
            for column in frame.columns
            if str(column) in (ROW, CLIENT, SEED) or str(column).startswith((PREDICTION, PROBABILITY))
        }
    if len(json_text(tables)) > TEXT_LIMIT:  # too large to be read again
        tables = dict.fromkeys(tables)
    records.write(claim.checkpoints, Path(GIVEN_PREDICTIONS).stem, {"predictions": tables}, claim.key)


def with_stored(predictions: Predictions, directory: Path, key: bytes | None) -> Predictions:
    """Return predictions together with those that the interrupted comparison in a folder started with.

    The passed ``predictions`` replace stored ones of the same name.

    Raises:
        InputError: If predictions that were not stored, or whose file is damaged, are not given again.
    """
    import pandas as pd

    path = directory / CHECKPOINT / GIVEN_PREDICTIONS
    if not is_file(path):
        return predictions
    # A damaged record counts as none, so that new predictions can replace it.
    tables = (records.read(path.parent, path.stem, key) or {}).get("predictions")
    lost = [name for name, table in tables.items() if table is None] if isinstance(tables, dict) else []
    if not isinstance(tables, dict) or set(lost) - set(predictions):
        if predictions and not lost:
            return predictions
        raise InputError(
            f"the predictions {', '.join(lost) or 'of the comparison'} are not stored in {directory}: "
            "pass them again with `predictions`",
            code="missing-option",
            field="predictions",
        )
    with reading(path, "is damaged", "pass the predictions again with `predictions`"):
        frames = {name: pd.DataFrame(table) for name, table in tables.items() if name not in predictions}
    return frames | dict(predictions)  # checked again, because the data may have changed


def predicted_rows(
    predictions: Predictions, ready: PreparedComparison, comparison: Comparison, warn: Callable[[str], None]
) -> tuple[Predicted, ...]:
    """Test predictions at each seed at which a run did not fail."""
    from drfl.report import load_run

    first = {o.seed: o for o in reversed(comparison.outcomes) if not o.failed} if predictions else {}
    rows: dict[str, list[Predicted]] = {name: [] for name in predictions}
    for seed in sorted(first):
        run, fed = load_run(comparison.folder_of(first[seed])), ready.build(ready.design.algorithms[0], seed).fed
        for name, frame in predictions.items():
            rows[name].append(predicted_row(predicted_record(run, frame, name, fed)))
    redrawn = len({outcome.test_rows for outcome in first.values()}) > 1
    for name, frame in predictions.items():
        if redrawn and SEED not in frame.columns:
            text = (
                f"{name}: the seeds have different test rows, so a model that was trained for one seed "
                "has seen test rows of the others: pass the predictions of one model per seed, with a "
                f"column '{SEED}'"
            )
            warn(Notice(text, "redrawn-test-rows", "predictions"))
    return tuple(row for of_name in rows.values() for row in of_name)
