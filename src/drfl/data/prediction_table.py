"""Predictions for the rows of a table, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from drfl.core.csv_cells import escape_formula
from drfl.core.errors import InputError, unknown
from drfl.data.model import Model
from drfl.data.tables.conform import level_text
from drfl.data.tables.table import Table
from drfl.data.tables.text_form import DETECT, ReadOptions


def predictions_csv(model: Model, path: Path, keep: Sequence[str] = (), reading: ReadOptions = DETECT) -> str:
    """Predict each row of a table.

    Columns are the number of the ``row`` from 1, the kept columns, the ``prediction``, and ``probability_CLASS`` for
    each class. A multi-label task has ``prediction_LABEL`` and ``probability_LABEL`` for each label.
    """
    if not hasattr(model, "feature_names_in_"):
        raise InputError(
            "the model's inputs have no column names, so it cannot predict from a table: use drfl.load_model in Python",
            code="unsupported-data",
            field=str(path),
        )
    schema = model.schema
    table = Table.whole(path, schema, keep, reading)
    known = [str(name) for name in table.frame.columns]
    for name in keep:
        if name not in known:
            raise unknown(f"column to keep in {path}", name, known, field="keep")
    columns = () if schema is None else schema.columns
    ids = [column.name for column in columns if column.type == "id" or column.role in ("client", "patient")]
    kept = [name for name in known if name in keep or name in ids]
    outputs = model.outputs(table, table.row_names(), str(path))
    found = dict(_columns(model, outputs))
    for name in kept:
        if name in found or name == "row":
            raise InputError(f"{path}: rename the column '{name}'", code="duplicate-name", field=name)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(escape_formula, ("row", *kept, *found)))
    cells = [[level_text(value) for value in table.frame[name].astype(object).where(table.frame[name].notna(), "")]
             for name in kept]  # fmt: skip
    for row, values in enumerate(zip(*cells, *found.values(), strict=True), start=1):
        writer.writerow((row, *map(escape_formula, values)))
    return text.getvalue()


def _columns(model: Model, outputs: np.ndarray) -> Iterator[tuple[str, list[object]]]:
    """Yield names and values of the columns of predictions and probabilities."""
    answers = model.answers(outputs)
    if answers.ndim == 1:
        suffixes = [""]
        probabilities = [] if model.kind == "regression" else [f"_{name}" for name in model.classes_]
    else:
        targets = [] if model.schema is None else [column.name for column in model.schema.targets]
        width = answers.shape[1]
        suffixes = [f"_{name}" for name in (targets if len(targets) == width else range(1, width + 1))]
        probabilities = [] if model.kind == "regression" else suffixes
    columns = answers.reshape(len(answers), -1).T.tolist()
    yield from ((f"prediction{suffix}", values) for suffix, values in zip(suffixes, columns, strict=True))
    if probabilities:
        columns = model.probabilities(outputs).T.tolist()
        yield from ((f"probability{suffix}", values) for suffix, values in zip(probabilities, columns, strict=True))
