"""Check the columns of a user's table: roles, blank cells, numbers and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drfl.core.errors import InputError, unknown
from drfl.core.unicode_form import difference, visible_form
from drfl.data.dataset import TaskName
from drfl.data.tables.conditions import text_columns
from drfl.data.tables.spelling import folded
from drfl.data.tables.text_form import DETECT, ReadOptions
from drfl.data.tables.written import LIKE_NUMBER

if TYPE_CHECKING:
    import pandas as pd

    from drfl.data.tables.schema import TableSchema

CATEGORIES = 50
"""Maximum number of values of a text column. A column with more is treated as a name or a note."""

RARE = 5
"""A value with fewer rows might identify a person, so its name must not leave a site."""

LARGEST = 1e30
"""Upper bound of numbers. Larger ones are errors, and their squares overflow float32."""

RowName = Callable[[int], str]
"""Function that names the row with this index, such as "all.csv, line 2"."""


def row_names_of(place: str) -> RowName:
    """Return a function that names the rows of a place by their numbers from 1."""
    return lambda row: f"{place}, row {row + 1}"


def frame_row(row: int) -> str:
    """Name a row of a user's data frame or array by its index."""
    return f"row {row}"


class Columns(NamedTuple):
    """The roles of the columns, or a schema that names them, and how texts are read."""

    targets: tuple[str, ...]
    group: str | None = None
    drop: tuple[str, ...] = ()
    task: TaskName = "classification"
    schema: TableSchema | None = None
    patient: str | None = None
    reading: ReadOptions = DETECT

    @property
    def names(self) -> list[str]:
        """The columns that name clients and patients."""
        return [name for name in (self.group, self.patient) if name is not None]

    @property
    def texts(self) -> list[str]:
        """The columns, other than targets, whose cells stay text."""
        return [*self.names, *self.drop, *text_columns(self.targets)]

    @property
    def words(self) -> list[str]:
        """The columns whose cells stay text if drfl proposes a schema. Numbers to predict may have decimal commas."""
        return self.texts if self.task == "regression" else [*self.targets, *self.texts]

    def check(self, place: str, known: Sequence[str]) -> None:
        """Check that the named columns exist, and that no column has two roles."""
        roles = {"target": self.targets, "group": (self.group,), "drop": self.drop, "patient": (self.patient,)}
        for role, names in roles.items():
            for name in names:
                if name is not None and name not in known:
                    raise unknown("column", name, known, field=role, place=f"in {place} for `{role}`")
        self.check_roles()

    def check_roles(self) -> None:
        """Check that no column has two roles."""
        for name in self.targets:
            if self.targets.count(name) > 1:
                raise InputError(f"target '{name}' is named twice. Remove one", code="given-twice", field="target")
            if name == self.group:
                raise InputError(
                    f"column '{name}' cannot be both target and group", code="conflicting-options", field=name
                )
        if self.patient is not None and self.patient in (*self.targets, self.group):
            raise InputError(
                f"column '{self.patient}' cannot be both {'group' if self.patient == self.group else 'target'} and "
                "patient",
                code="conflicting-options",
                field="patient",
            )
        for name in self.drop:
            if name in (*self.targets, *self.names):
                role = "patient" if name == self.patient else "group" if name == self.group else "target"
                raise InputError(
                    f"column '{name}' is needed as {role}: do not drop it", code="conflicting-options", field="drop"
                )


BLANK_REMEDY = (
    "fill or remove such rows, exclude the column, or read blanks as missing values with `missing = ''` or a schema"
)
NAME_ROWS = "fill or remove such rows"
"""What to do about blank cells, and about those of a target or of a column that names clients or patients."""


def check_blanks(frame: pd.DataFrame, row_name: RowName, remedy: str = BLANK_REMEDY) -> None:
    """Check that no cell is blank."""
    blank = frame.isna().to_numpy(dtype=bool)
    if blank.any():
        (row, column), count = (int(k[0]) for k in blank.nonzero()), int(blank.sum())
        raise InputError(
            f"{row_name(row)}: column '{frame.columns[column]}' is blank ({count} blank{'s' * (count > 1)} in the "
            f"file): {remedy}",
            code="missing-values",
            field=str(frame.columns[column]),
        )


SHARE_OF_NUMBERS = 0.6
"""A text column with at least this share of numbers is treated as a column of numbers with errors."""

NA_WORDS = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A", "<NA>")
"""Words that mean "missing" in columns of numbers."""

CURRENCY = r"(?:[$€£¥₹₽₩₺₪฿]|EUR|USD|CHF|GBP)"

MARKS = "a decimal comma or a mark between thousands"
REMEDIES = {
    "a date": "make a schema, which reads dates, with 'drfl data describe'",
    MARKS: "set `decimal` or `thousands`, write plain numbers",
}
"""What to do about such cells, other than to write plain numbers."""

WRITTEN = {
    "a date": r"\s*(?:\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}(?!\.)"
    r"|\d{1,2}[ .-]+[^\W\d_]{3,}\.?[ -]\d{2,4})(?:[ T].*)?",
    MARKS: rf"\s*{LIKE_NUMBER.pattern}\s*",
    "a per cent sign": r"\s*[-+]?\d+(?:[.,]\d+)?\s*%\s*",
    "a currency sign": rf"\s*[-+]?\s*(?:{CURRENCY}\s*[-+]?\d[\d.,'\s]*|\d[\d.,'\s]*{CURRENCY})\s*",
    "a number and a unit": r"\s*[-+]?\d+(?:[.,]\d+)?\s*[^\W\d_]+\s*",
}
"""Patterns of numbers and dates that are read as text without a schema."""


def check_numbers(features: pd.DataFrame, row_name: RowName) -> None:
    """Check that no text column holds numbers or dates that could not be read."""
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    for name in (name for name in features if not is_numeric_dtype(features[name])):
        cells = features[name].astype(str)
        is_number = pd.to_numeric(cells, errors="coerce").notna().to_numpy()
        # Most cells are numbers, so the others are errors, not words.
        if is_number.mean() >= SHARE_OF_NUMBERS:
            row = int((~is_number).argmax())
            raise InputError(
                f"{row_name(row)}, column '{name}': expected a number, found '{cells.iloc[row]}' "
                f"({int((~is_number).sum())} such cells in the file): correct them, use `missing = "
                f"'{cells.iloc[row]}'` to treat them as missing, exclude the column with `drop`, "
                "or declare it a category in a schema",
                code="not-a-number",
                field=str(name),
            )
        # As words, each date or amount would become a column of its own.
        for what, pattern in WRITTEN.items():
            if cells.str.fullmatch(pattern).mean() >= SHARE_OF_NUMBERS:
                row = int((cells.str.fullmatch(pattern).to_numpy(dtype=bool) & ~is_number).argmax())
                remedy = REMEDIES.get(what, "write plain numbers")
                raise InputError(
                    f"{row_name(row)}, column '{name}': '{cells.iloc[row]}' has {what}, which drfl does "
                    f"not read: {remedy}, or exclude the column with `drop`",
                    code="not-a-number",
                    field=str(name),
                )


def check_no_text(features: pd.DataFrame, place: str) -> None:
    """Check that no column holds text, which each site would encode by its own words."""
    from pandas.api.types import is_numeric_dtype

    for name in features:
        if not is_numeric_dtype(features[name]):
            raise InputError(
                f"{place}, column '{name}': text needs a schema, so that all sites encode it alike. Make one with "
                "'drfl data describe', give it to every site, and set schema in site.toml",
                code="not-a-number",
                field=str(name),
            )


def check_size(features: pd.DataFrame, row_name: RowName) -> None:
    """Check that no number is infinite or too large."""
    from pandas.api.types import is_numeric_dtype

    for name in (name for name in features if is_numeric_dtype(features[name])):
        # Negate the comparison, so that NaN fails too.
        bad = ~(np.abs(features[name].to_numpy(dtype=np.float64)) < LARGEST)
        if bad.any():
            raise InputError(
                f"{row_name(int(bad.argmax()))}: column '{name}' is infinite or beyond {LARGEST:g}: cap "
                "it, or exclude it with `drop`",
                code="not-finite",
                field=str(name),
            )


def values_of(column: pd.Series) -> np.ndarray:
    """Return (n,) numbers or booleans, or words as text; NaN if all cells are blank."""
    from pandas.api.types import is_numeric_dtype

    # A column of blanks has no type of its own.
    if column.isna().all():
        return np.full(len(column), np.nan)
    return column.to_numpy() if is_numeric_dtype(column) else column.astype(str).to_numpy(dtype=object)


def check_forms(tables: Mapping[str, Sequence[str]]) -> None:
    """Check that no name of a column is written in two Unicode forms. ``tables`` has each place's columns."""
    names = dict[str, str]()
    for place, columns in tables.items():
        for name in columns:
            first = names.setdefault(visible_form(name), name)
            # A table that has both, such as "x²" and "x2", distinguishes them.
            if first != name and not any({first, name} <= set(others) for others in tables.values()):
                raise InputError(
                    f"{place}: column '{name}' and column '{first}' of other tables differ only in "
                    f"{difference(name, first)}. Use one spelling",
                    code="columns-differ",
                    field=name,
                )


def levels_of(words: pd.Series) -> list[str]:
    """Return the values of a text column, none blank, in the order of its features."""
    return sorted(words.astype(str).unique())


def one_hot(features: pd.DataFrame, place: str) -> pd.DataFrame:
    """Replace each text column by a column of 0 and 1 for each of :func:`levels_of` except the first."""
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    if not features.shape[1]:
        raise InputError(f"{place} has no column to learn from", code="no-features")
    words = [name for name in features if not is_numeric_dtype(features[name])]
    for name in words:
        levels = levels_of(features[name])
        if len(levels) > CATEGORIES:
            raise InputError(
                f"{place}: column '{name}' has {len(levels)} different words, more than {CATEGORIES}: exclude it with "
                "`drop`",
                code="too-many-categories",
                field=str(name),
            )
        features = features.assign(**{str(name): pd.Categorical(features[name].astype(str), levels)})
    # A column with a single value adds no column.
    return pd.get_dummies(features, columns=words, drop_first=True, dtype=float) if words else features


def check_alike(names: Sequence[str]) -> None:
    """Check that no two names of clients differ in spelling alone, which would split one client into two."""
    seen: dict[str, str] = {}
    for name in names:
        plain = folded(name)
        if not plain:
            raise InputError("a row's group is empty: give every row a group", code="missing-values", field="group")
        if plain in seen:
            reason = difference(seen[plain], name, "blanks or case")
            raise InputError(
                f"groups '{seen[plain]}' and '{name}' differ only in {reason}: use one spelling",
                code="similar-names",
                field="group",
            )
        seen[plain] = name
