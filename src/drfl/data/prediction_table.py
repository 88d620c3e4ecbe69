"""Predictions for the rows of a table, as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from torch import Tensor

from drfl.core.csv_cells import csv_text
from drfl.core.errors import InputError, Notice, listing, unknown
from drfl.data.checks.raw_table import SEVERAL
from drfl.data.model import Model, personal_outputs
from drfl.data.tables.conform import level_text, other_cells, stripped
from drfl.data.tables.table import Table
from drfl.data.tables.table_files import client_of_rows
from drfl.data.tables.text_form import DETECT, ReadOptions

FAR = 10.0
"""Distance of a column's median from the mean of the training rows, in standard deviations, that gives a warning."""


def unit_notices(model: Model, tables: Sequence[Table], places: Sequence[str]) -> list[Notice]:
    """Warn of quantities that are far from the training rows, probably because of another unit.

    ``places`` (n,) says where each row of the tables is, such as "at north". The rows of each place are checked and, if
    none differs, because each has few rows, all rows together.
    """
    scaling = model.standardisation
    if scaling is None:
        return []
    names = [str(name) for name in model.feature_names_in_] if model.schema is None else model.schema.features
    values = np.concatenate([model.encode(table).double().numpy() for table in tables])
    different, rows, counts = np.unique(np.array(places, dtype=object), return_inverse=True, return_counts=True)
    parts = np.split(values[np.argsort(rows, kind="stable")], counts.cumsum()[:-1])
    notices = list[Notice]()

    def median_if_far(column: np.ndarray, mean: float, scale: float) -> float | None:
        known = column[~np.isnan(column)]
        if len(known) <= SEVERAL or abs((median := float(np.median(known))) - mean) <= FAR * scale:
            return None
        return median if len(np.unique(known)) > SEVERAL else None

    for k, name in enumerate(names):
        mean, scale = float(scaling.mean[k]), float(scaling.scale[k])
        medians = [median_if_far(own[:, k], mean, scale) for own in parts]
        cases = [f"{far:.4g} {place}" for place, far in zip(different, medians, strict=True) if far is not None]
        if not cases and (median := median_if_far(values[:, k], mean, scale)) is not None:
            cases = [f"{median:.4g} in all rows"]
        if cases:
            text = (
                f"column '{name}': the median is {listing(cases, 'client')}, but the training rows have the mean "
                f"{mean:.4g} and the standard deviation {scale:.4g}: check the unit"
            )
            notices.append(Notice(text, "unit-mismatch", name))
    return notices


def _clients_of(table: Table, column: str | None) -> Sequence[str]:
    """Return the client of each row."""
    clients = client_of_rows([table], column)
    if clients is None:
        missing = "a column" if column is None else f"the column '{column}'"
        raise InputError(
            f"{table.place} lacks {missing} with the clients' names: predict the rows of one client, with `client`",
            code="missing-column",
            field="personal",
        )
    return clients


def predictions_csv(
    model: Model,
    path: Path,
    keep: Sequence[str] = (),
    reading: ReadOptions = DETECT,
    warn: Callable[[Notice], None] | None = None,
    own: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({}),
) -> str:
    """Predict each row of a table, with its client's personal model if ``own`` has the weights of one.

    Columns are the number of the ``row`` from 1, the kept columns, the ``prediction``, and ``probability_CLASS`` for
    each class. A multi-label task has ``prediction_LABEL`` and ``probability_LABEL`` for each label. ``warn`` gets a
    notice if cells count as other, or if a column is far from the training rows.
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
            raise unknown("column", name, known, field="keep", place=f"in {path} for `keep`")
    columns = () if schema is None else schema.columns
    # Identifiers let people join the predictions with other tables.
    ids = [column.name for column in columns if column.type == "id" or column.role in ("client", "patient")]
    kept = [name for name in known if name in keep or name in ids]
    if own:
        clients = _clients_of(table, None if schema is None else schema.client)
        outputs = personal_outputs(model, own, [table], clients)
        without = [f"'{name}'" for name in dict.fromkeys(clients) if name not in own]
        if without and warn is not None:
            text = f"{path}: no personal models of {listing(without, 'client')}: the global model predicts their rows"
            warn(Notice(text, "no-personal-models", str(path)))
    else:
        outputs = model.outputs(table)
    counts = other_cells(columns, table)
    if counts and warn is not None:
        named = listing(
            [f"'{name}' ({count:,} of {len(table.frame):,} cells)" for name, count in counts.items()], "column"
        )
        text = f"{path}: values that are not levels of the model count as other in column {named}; check their spelling"
        warn(Notice(text, "unknown-level", next(iter(counts)) if len(counts) == 1 else None))
    if warn is not None:
        places = [f"in {path}"] * len(table.frame)
        if schema is not None and schema.client in known:
            places = [
                where if name is None else f"at {level_text(name)}"
                for where, name in zip(places, stripped(table.frame[schema.client]), strict=True)
            ]
        for notice in unit_notices(model, [table], places):
            warn(notice)
    answers = model.answers(outputs)
    if answers.ndim == 1:
        suffixes = [""]
        of_probabilities = [] if model.kind == "regression" else [f"_{name}" for name in model.classes_]
    else:
        width = answers.shape[1]
        targets = [column.name for column in columns if column.role == "target"]
        # Without a schema the labels have no names.
        suffixes = [f"_{name}" for name in (targets if len(targets) == width else range(1, width + 1))]
        of_probabilities = [] if model.kind == "regression" else suffixes
    values = answers.reshape(len(answers), -1).T.tolist()
    found = {f"prediction{suffix}": column for suffix, column in zip(suffixes, values, strict=True)}
    if of_probabilities:
        values = model.probabilities(outputs).T.tolist()
        found |= {f"probability{suffix}": column for suffix, column in zip(of_probabilities, values, strict=True)}
    for name in kept:
        if name in found or name == "row":
            raise InputError(f"{path}: rename the column '{name}'", code="duplicate-name", field=name)
    # Texts must not change, because people join tables by them. A number is written like a level, without ".0".
    kept_columns = [table.frame[name].astype(object).where(table.frame[name].notna(), "") for name in kept]
    cells = [[cell if isinstance(cell, str) else level_text(cell) for cell in column] for column in kept_columns]
    return csv_text(("row", *kept, *found), zip(range(1, len(table.frame) + 1), *cells, *found.values(), strict=True))
