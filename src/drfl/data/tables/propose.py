"""Propose a schema for tables that have none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drfl.core.errors import InputError, Notice
from drfl.data.dataset import TaskName
from drfl.data.tables.columns import (
    CATEGORIES,
    NA_WORDS,
    RARE,
    SHARE_OF_NUMBERS,
    WRITTEN,
    Columns,
    frame_row,
    levels_of,
)
from drfl.data.tables.conform import bits_among, level_text, stripped
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.table import Table, text_names
from drfl.data.tables.text_form import DETECT, ReadOptions
from drfl.data.tables.written import ISO, LIKE_DATE, days_of

if TYPE_CHECKING:
    import pandas as pd

NEARLY_ALL = 0.98
"""A column is treated as an identifier if the number of its values is at least this share of its rows."""

FEW, SEVERAL = 20, 50
"""Minimum numbers of rows for treating distinct words, and distinct whole numbers, as identifiers."""

GRADE = re.compile(r"\d+[^\W\d_]")
"""A word such as 4A."""

OPPOSITES = {
    "no": "yes", "n": "y", "false": "true", "nein": "ja", "non": "oui", "absent": "present", "negative": "positive",
}  # fmt: skip
"""Pairs of words in lower case that answer yes or no, the negative one first."""

UNKNOWN = (*NA_WORDS, "?", "-", ".")
"""Words that mean "missing" in columns of numbers and dates."""


class Proposal(NamedTuple):
    """A schema, and warnings about it."""

    schema: TableSchema
    notices: tuple[Notice, ...]


def propose(
    tables: Sequence[pd.DataFrame],
    target: str | Sequence[str],
    group: str | None = None,
    drop: Sequence[str] = (),
    task: TaskName | None = None,
    patient: str | None = None,
    reading: ReadOptions = DETECT,
) -> Proposal:
    """Infer a schema from tables.

    Levels with fewer than :data:`drfl.data.tables.columns.RARE` rows are omitted and become "other". Ranges are omitted
    too, because the smallest and the largest value belong to single persons.
    """
    import pandas as pd

    targets = (target,) if isinstance(target, str) else tuple(target)
    # Wrong values are errors later, when the schema encodes the tables.
    others = (group, patient, *drop)
    named = [Table("the table", text_names(table), frame_row) for table in tables]
    tables = [table.with_answers(targets, others, strict=False).frame for table in named]
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    Columns(targets, group, tuple(drop), patient=patient).check("the tables", names)
    cells = {name: pd.concat([t[name] for t in tables if name in t], ignore_index=True) for name in names}
    if task is None:
        answers = [_Values.of(cells[name]) for name in targets]
        are_labels = all(set(values.texts) - set(UNKNOWN) <= {"0", "1"} for values in answers)
        numbers = answers[0].numbers
        # Few distinct whole numbers are classes. A column of blanks has no numbers.
        is_quantity = not np.isnan(numbers).any() and (not answers[0].is_whole or len(numbers) > CATEGORIES)
        if len(answers) > 1:
            task = "multi-label" if are_labels else "regression"
        else:
            task = "regression" if is_quantity and len(numbers) else "classification"
    columns, notices = [], list[Notice]()
    for name in names:
        if name == group:
            columns.append(Column(name, "text", role="client"))
        elif name == patient:
            columns.append(Column(name, "id", role="patient"))
        elif name in drop:
            columns.append(Column(name, "text", role="excluded"))
        elif name in targets:
            columns.append(_target(name, _Values.of(cells[name]), task, notices))
        else:
            parts = [table[name] for table in tables if name in table]
            columns.append(_feature(name, _Values.of(cells[name]), parts, notices))
    levels = next(column.levels for column in columns if column.name == targets[0])
    positive = levels[-1] if task == "classification" and len(levels) == 2 else None
    return Proposal(TableSchema(tuple(columns), task, positive, reading), tuple(notices))


def inferred_schema(
    inputs: pd.DataFrame, targets: Iterable[str], roles: Columns, classes: Sequence[str] | None
) -> TableSchema:
    """Return the schema by which :func:`drfl.data.tables.columns.one_hot` has encoded tables without one.

    Words have their values as levels, so a table with other words does not conform to it.
    """
    from pandas.api.types import is_numeric_dtype

    words = [name for name in inputs if not is_numeric_dtype(inputs[name])]
    # One-hot features come after the numbers.
    columns = [Column(str(name), "number") for name in inputs if name not in words]
    for name in words:
        columns.append(Column(str(name), "category", levels=tuple(levels_of(inputs[name]))))
    for name in targets:
        if roles.task == "multi-label":
            columns.append(Column(name, "yes/no", missing=("",), levels=("0", "1"), role="target"))
        elif classes is None:
            columns.append(Column(name, "number", role="target"))
        else:
            columns.append(Column(name, "category", levels=tuple(classes), role="target"))
    columns += [] if roles.group is None else [Column(roles.group, "text", role="client")]
    columns += [] if roles.patient is None else [Column(roles.patient, "id", role="patient")]
    return TableSchema(tuple(columns), roles.task, inferred=True)


class _Values(NamedTuple):
    """The different values of a column (k,), as levels are written and as numbers, NaN for others; and their rows."""

    texts: np.ndarray
    counts: np.ndarray
    blanks: int
    numbers: np.ndarray

    @classmethod
    def of(cls, cells: pd.Series) -> _Values:
        import pandas as pd
        from pandas.api.types import is_bool_dtype, is_numeric_dtype

        if is_numeric_dtype(cells) and not is_bool_dtype(cells):  # a text for each of a million cells would take long
            numbers, counts = np.unique(cells.dropna().to_numpy(dtype=np.float64), return_counts=True)
            texts = np.array([str(number).removesuffix(".0") for number in numbers.tolist()], dtype=object)
            return cls(texts, counts, int(cells.isna().sum()), np.where(np.isfinite(numbers), numbers, np.nan))
        plain = stripped(cells)
        levels = [level_text(text) for text in plain.dropna()]
        bits = bits_among(levels)
        texts, counts = np.unique(np.array([bits.get(text, text) for text in levels], dtype=object), return_counts=True)
        numbers = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
        return cls(texts, counts, int(plain.isna().sum()), np.where(np.isfinite(numbers), numbers, np.nan))

    @property
    def rows(self) -> int:
        """Cells that are not blank."""
        return int(self.counts.sum())

    def share(self, hits: np.ndarray) -> float:
        """Return the share of the cells whose value is among the hits."""
        return float(self.counts[hits].sum() / self.rows) if self.rows else 0.0

    @property
    def is_whole(self) -> bool:
        """Whether all numbers are whole."""
        known = self.numbers[~np.isnan(self.numbers)]
        return bool((known == np.round(known)).all())

    def sorted_texts(self) -> list[str]:
        """Return the values with at least :data:`RARE` rows in ascending order, negative words first."""
        texts = [str(text) for text in self.texts[self.counts >= RARE]]
        if all(text.lower() in (*OPPOSITES, *OPPOSITES.values()) for text in texts):
            return sorted(texts, key=lambda text: (text.lower() not in OPPOSITES, text))
        by_text = dict(zip(self.texts, self.numbers, strict=True))
        # Numbers come first, in numerical order.
        return sorted(texts, key=lambda text: (np.isnan(by_text[text]), np.nan_to_num(by_text[text]), text))


def _target(name: str, values: _Values, task: TaskName, notices: list[Notice]) -> Column:
    if task == "regression":
        return Column(name, "whole number" if values.is_whole else "number", role="target")
    # Only labels may be unknown.
    missing = tuple(str(text) for text in values.texts if text in UNKNOWN) if task == "multi-label" else ()
    levels = [level for level in values.sorted_texts() if level not in missing]
    rare = int(((values.counts < RARE) & ~np.isin(values.texts, missing)).sum())
    if task == "multi-label" and values.blanks:
        missing = ("", *missing)
    if rare:
        text = (
            f"target '{name}': the schema omits classes with fewer than {RARE} rows ({rare}). Add them to "
            "levels if the schema may name them, or remove these rows"
        )
        notices.append(Notice(text, "rare-levels", name))
    if len(levels) < 2:
        raise InputError(
            f"target '{name}' has fewer than two classes with at least {RARE} rows: a schema needs at least two",
            code="constant-target",
            field=name,
        )
    # The first level counts as no, see sorted_texts.
    kind = "yes/no" if len(levels) == 2 else "category"
    return Column(name, kind, missing=missing, levels=tuple(levels), role="target")


def _written_numbers(name: str, values: _Values) -> list[Notice]:
    """Warn of a category whose words are numbers with a unit or a sign."""
    for what in ("a per cent sign", "a currency sign", "a number and a unit"):
        # Grades such as 4A are words.
        hits = np.array(
            [bool(re.fullmatch(WRITTEN[what], text)) and not GRADE.fullmatch(text) for text in values.texts]
        )
        if values.share(hits) >= SHARE_OF_NUMBERS:
            text = (
                f"column '{name}': '{values.texts[hits][0]}' has {what}, so drfl reads the column as a "
                "category, not as numbers: write plain numbers"
            )
            return [Notice(text, "numbers-as-words", name)]
    return []


def _feature(name: str, values: _Values, parts: Sequence[pd.Series], notices: list[Notice]) -> Column:
    import pandas as pd

    texts, is_number = [str(text) for text in values.texts], ~np.isnan(values.numbers)
    blank = ("",) if values.blanks else ()
    words = tuple(str(text) for text in values.texts[~is_number] if text in UNKNOWN)
    if values.share(is_number | np.isin(values.texts, words)) >= SHARE_OF_NUMBERS and is_number.any():
        if values.is_whole:
            # An identifier counts the rows of every table, or differs in nearly every row of a long one.
            steps = [np.diff(pd.to_numeric(part, errors="coerce").to_numpy(dtype=np.float64)) for part in parts]
            counts_rows = values.rows >= FEW and all(len(step) > 1 and bool((step == 1).all()) for step in steps)
            if counts_rows or (values.rows >= SEVERAL and len(texts) >= NEARLY_ALL * values.rows):
                text = f"column '{name}' looks like an identifier and is not a feature"
                notices.append(Notice(text, "identifier", name))
                return Column(name, "id")
        return Column(name, "whole number" if values.is_whole else "number", missing=(*blank, *words))
    is_date = np.array([bool(ISO.fullmatch(text) or LIKE_DATE.fullmatch(text)) for text in texts], dtype=bool)
    if values.share(is_date) >= SHARE_OF_NUMBERS:
        dates = pd.Series([*values.texts], dtype=object)
        marks = dates.str.extract(rf"^{LIKE_DATE.pattern}$")[1]
        # If some rows have 3/4/2021 and others 31.3.2021, the latter do not determine the order in the former.
        orders = {days_of(dates[marks == mark]).orders for mark in marks.dropna().unique()} - {()}
        # If the dates allow both orders, the user must choose one.
        order = orders.pop() if len(orders) == 1 else ()
        return Column(name, "date", missing=(*blank, *words), date_order=order[0] if len(order) == 1 else None)
    if values.rows >= FEW and len(texts) >= NEARLY_ALL * values.rows:
        notices.append(Notice(f"column '{name}' looks like an identifier and is not a feature", "identifier", name))
        return Column(name, "id")
    levels, rare = values.sorted_texts(), int((values.counts < RARE).sum())
    if len(levels) > CATEGORIES or not levels:
        text, code = f"has {len(texts)} different words, so it is text", "too-many-categories"
        if not values.rows:
            text, code = "is blank in all rows, so it is text", "blank-column"
        notices.append(Notice(f"column '{name}' {text} and not a feature", code, name))
        return Column(name, "text")
    notices += _written_numbers(name, values)
    if rare:
        text = f"column '{name}': values with fewer than {RARE} rows ({rare}) are not in the schema and count as other"
        notices.append(Notice(text, "rare-levels", name))
    lower = [level.lower() for level in levels]
    if len(levels) == 2 and not rare and OPPOSITES.get(lower[0]) == lower[1]:
        return Column(name, "yes/no", missing=blank, levels=tuple(levels))
    # Rare values share a feature: a schema leaves the site and must not contain names that identify a person.
    return Column(name, "category", missing=blank, levels=tuple(levels), other=bool(rare))
