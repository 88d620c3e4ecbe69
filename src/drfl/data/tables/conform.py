"""Check tables against a schema, and encode them as inputs and targets of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import MAX_LISTED, InputError, listing, suggestion
from drfl.core.unicode_form import difference
from drfl.data.tables.columns import LARGEST, RowName
from drfl.data.tables.conditions import ANSWERS, Condition
from drfl.data.tables.schema import NUMBERS, Column, TableSchema
from drfl.data.tables.spelling import plain
from drfl.data.tables.targets import FAR
from drfl.data.tables.written import ORDERS, days_of

if TYPE_CHECKING:
    import pandas as pd

    from drfl.data.tables.table import Table

MOST = 20
"""Maximum number of distinct wrong values of a column that are listed."""

WHOLE = re.compile(r"\A([-+]?\d+)\.0*\Z")
"""A whole number with a decimal point."""

TRUTHS = {"true": "True", "false": "False"}
"""Truth values in lower case → as levels are written. Excel and R write TRUE, pandas True."""

EXCEL_DAYS = 20_000, 60_000
"""Range of the numbers by which Excel stores the dates from 1954 to 2064."""

BITS = {"False": "0", "True": "1"}
"""Truth values → as tables write them that have 0 and 1 in the same column."""


Owner = Literal["schema", "model"]
"""Where the columns come from: a schema, which users can edit, or a trained model, whose columns are fixed."""


class SchemaRows(NamedTuple):
    """The rows of a table, encoded by its schema. Unknown labels of a multi-label task are NaN.

    Args:
        inputs: (n, p) float64, a column per feature of the schema; NaN where a number, date or yes/no value is missing.
        targets: (n,) int64 classes in the order of the schema; (n,) float64 for a single target of numbers; else (n, k)
            float64.
        wrong: (n,) whether a row has a wrong value. Such values are NaN, or the class -1.
        problems: The problems, one line each.
    """

    inputs: np.ndarray
    targets: np.ndarray
    wrong: np.ndarray
    problems: tuple[InputError, ...]


def conform(schema: TableSchema, table: Table) -> SchemaRows:
    """Encode a table, and reject values that the schema does not allow."""
    found = encode(schema, table)
    if found.problems:
        raise found.problems[0]
    return found


def encode(schema: TableSchema, table: Table) -> SchemaRows:
    """Encode a table and list all its problems, see :func:`conform`."""
    frame, place = table.frame, table.place
    names, n = [str(name) for name in frame.columns], len(frame)
    # Targets that are no columns of the table state conditions on its columns.
    conditions, problems = dict[str, Condition](), list[InputError]()
    for column in schema.targets:
        source = "`target`" if schema.inferred else f"the target '{column.name}' of the schema"
        try:
            condition = Condition.of(column.name, names, place, source) if len(column.levels) == 2 else None
        except InputError as error:
            problems.append(error)
            continue
        if condition is None:
            continue
        conditions[column.name] = condition
        if any(condition.column == other.name and other.is_feature for other in schema.columns):
            text = f"column '{condition.column}' decides the target '{column.name}', so it cannot be a feature: set "
            text += 'role = "excluded" in the schema'
            problems.append(InputError(text, code="conflicting-options", field=condition.column))
    if not problems:
        problems = _column_problems(schema.columns, names, place, conditions)
    inputs, targets, wrong = list[np.ndarray](), list[np.ndarray](), np.zeros(n, bool)
    for column in schema.columns:
        if not column.is_feature and column.role != "target":
            continue
        condition = conditions.get(column.name)
        name = column.name if condition is None else condition.column
        if name not in names:
            # The missing column is already a problem. NaN keeps the others in place.
            inputs += [np.full(n, np.nan)] * len(column.features)
            targets += [np.full(n, np.nan)] if column.role == "target" else []
            continue
        # Select by position, because a duplicate name would give two columns.
        cells = frame.iloc[:, names.index(name)]
        cells = _Cells.of(column, cells) if condition is None else _Cells.of_condition(condition, cells, column.missing)
        problems += cells.problems(table.row_name)
        wrong |= cells.wrong
        if column.role == "target":
            targets.append(cells.values if condition is None else condition.holds(cells.values))
        else:
            inputs += cells.features()
    whole = np.stack(inputs, axis=1)
    if schema.classes is not None:
        order = [schema.targets[0].levels.index(name) for name in schema.classes]
        codes = np.append(np.argsort(order), -1)  # the last one is for wrong values
        return SchemaRows(whole, codes[np.nan_to_num(targets[0], nan=-1).astype(int)], wrong, tuple(problems))
    y = targets[0] if schema.task == "regression" and len(targets) == 1 else np.stack(targets, axis=1)
    return SchemaRows(whole, y, wrong, tuple(problems))


def encode_features(columns: Sequence[Column], table: Table) -> np.ndarray:
    """Encode the features of rows for a trained model. Columns of the table that are not features are ignored."""
    columns = [column for column in columns if column.is_feature]
    wanted = {column.name for column in columns}
    others = [str(name) for name in table.frame.columns if str(name) not in wanted]
    frame = table.frame.loc[:, [str(name) in wanted for name in table.frame.columns]]
    names = [str(name) for name in frame.columns]
    for problem in _column_problems(columns, names, table.place, others=others, owner="model"):
        raise problem
    cells = [_Cells.of(column, frame.iloc[:, names.index(column.name)]) for column in columns]
    for problem in (problem for each in cells for problem in each.problems(table.row_name, "model")):
        raise problem
    return np.stack([feature for each in cells for feature in each.features()], axis=1)


def other_cells(columns: Sequence[Column], table: Table) -> dict[str, int]:
    """Count the cells of each column that are not among its levels and count as other; omit columns without any."""
    found = dict[str, int]()
    for column in columns:
        if column.is_feature and column.other and column.name in table.frame:
            values = _Cells.of(column, table.frame[column.name]).values
            count = int((values == len(column.levels)).sum())
            found |= {column.name: count} if count else {}
    return found


def answers_of(
    condition: Condition, cells: pd.Series, row_name: RowName, *, words: bool
) -> tuple[np.ndarray, list[InputError]]:
    """Return the answers to a condition, (n,) "no", "yes" and None, or 0, 1 and NaN; and the problems of the cells."""
    read = _Cells.of_condition(condition, cells, ("",))
    holds = condition.holds(read.values)
    # Position 2 is for unknown values.
    named = np.array([*ANSWERS, None], dtype=object)[np.nan_to_num(holds, nan=2).astype(int)]
    return (named if words else holds), read.problems(row_name)


def target_tensor(schema: TableSchema, targets: np.ndarray) -> tuple[Tensor, int]:
    """Return the targets of a :class:`drfl.data.Dataset`, and the number of outputs that a model needs."""
    if schema.classes is not None:
        return torch.from_numpy(targets), len(schema.classes)
    return torch.from_numpy(targets.astype(np.float32)), len(schema.targets)


def _column_problems(
    columns: Sequence[Column],
    names: Sequence[str],
    place: str,
    conditions: Mapping[str, Condition] | None = None,
    others: Sequence[str] = (),
    owner: Owner = "schema",
) -> list[InputError]:
    """List columns that a table lacks, has twice, or has in addition to these of a schema and of its conditions.

    ``others`` are names of columns that may be misspelt, but are not additional.
    """
    conditions = conditions or {}
    known = [*(column.name for column in columns), *(condition.column for condition in conditions.values())]
    found = []
    for column in columns:
        needed = (column.is_feature or column.role == "target") and column.name not in conditions
        if needed and column.name not in names:
            hint = suggestion(column.name, [name for name in (*names, *others) if name not in known])
            text = f"{place} has no column '{column.name}', which the {owner} needs" + (f". {hint}" if hint else "")
            found.append(InputError(text, code="missing-column", field=column.name))
    for name in names:
        if name not in known:
            text = f"{place} has the column '{name}', which the schema lacks. {suggestion(name, known)}".rstrip()
            text += ' Remove it, or add it to the schema, with role = "excluded" if it is not a feature'
            found.append(InputError(text, code="extra-column", field=name))
    for name in dict.fromkeys(known):
        if names.count(name) > 1:
            found.append(InputError(f"{place}: column '{name}' occurs twice", code="duplicate-column", field=name))
    return found


class _Cells(NamedTuple):
    """The cells of a column, with each distinct content once.

    Args:
        column: The column.
        codes: (n,) the content of each cell; -1 for a blank one.
        texts: (k,) the contents.
        numbers: (k,) their values: numbers, days, or positions among the levels; NaN if that is not possible, and the
            number of levels for a value that is not a level.
        is_code: (k,) whether a content means "missing".
        is_ambiguous: (k,) whether a date depends on the order of day and month, which is not known.
    """

    column: Column
    codes: np.ndarray
    texts: Sequence[object]
    numbers: np.ndarray
    is_code: np.ndarray
    is_ambiguous: np.ndarray

    @classmethod
    def of(cls, column: Column, cells: pd.Series) -> _Cells:
        """Read the cells of a column."""
        import pandas as pd
        from pandas.api.types import is_bool_dtype, is_complex_dtype, is_datetime64_any_dtype, is_numeric_dtype

        is_number = is_numeric_dtype(cells) and not is_bool_dtype(cells) and not is_complex_dtype(cells)
        if is_datetime64_any_dtype(cells):
            # Convert to text, so that dates in typed files are read like those in text files.
            cells = cells.dt.strftime("%Y-%m-%dT%H:%M:%S.%f%z").astype(object)
        if not is_number:
            cells = stripped(cells)
        # Read each content once: a million cells often have a few.
        codes, different = pd.factorize(cells)
        # Numbers stay an array: a text for each of a million would take long.
        texts = cast("Sequence[object]", different if is_number else [*map(str, different)])
        if is_number:
            amounts = np.asarray(different, dtype=np.float64)
        else:
            written = texts
            if column.type == "whole number":
                # A proposed schema calls a column that if it has 0 and 1 in one file and truth values in another.
                plain = [level_text(text) for text in texts]
                if {*plain} - {*column.missing} <= {*BITS, *BITS.values()}:
                    written = [BITS.get(text, text) for text in plain]
            amounts = np.asarray(pd.to_numeric(pd.Series([*written], dtype=object), errors="coerce"), dtype=np.float64)
        # -9 in a file of numbers is the code "-9", and so is -9.0.
        is_code = np.isin(amounts, amounts_in(cells, column.missing))
        if not is_number:
            is_code |= np.isin(np.array(texts, dtype=object), np.array(column.missing, dtype=object))
        is_ambiguous = np.zeros(len(texts), bool)
        if column.type in NUMBERS:
            numbers = amounts
        elif column.type == "date":
            dates = pd.Series([str(text) for text in texts], dtype=object)
            numbers, _, is_ambiguous = days_of(dates.mask(is_code, ""), column.date_order)
            # A cell with a date and a time is the code "1900-01-01" at midnight. NaN equals no date.
            is_code |= np.isin(numbers, days_of(pd.Series(column.missing, dtype=object), column.date_order).values)
        else:
            beside = len(column.levels) if column.other else np.nan
            # The levels of a schema may be written in another way than those that drfl proposes, such as TRUE.
            by_text = {level_text(level): k for k, level in enumerate(column.levels)}
            by_text |= {level: k for k, level in enumerate(column.levels)}
            if column.role == "target" and column.levels == ("0", "1"):
                # Truth values are labels, too. A schema that drfl inferred calls them 0 and 1.
                by_text |= {"False": 0, "True": 1}
            plain = [str(text) if str(text) in by_text else level_text(text) for text in texts]
            numbers = np.array([by_text.get(text, beside) for text in plain], dtype=np.float64)
        return cls(column, codes, texts, numbers, is_code, is_ambiguous)

    @classmethod
    def of_condition(cls, condition: Condition, cells: pd.Series, missing: tuple[str, ...]) -> _Cells:
        """Read the cells that a condition compares: numbers, or 0 for its text and 1 for others."""
        if isinstance(condition.value, str):
            levels = (level_text(condition.value),)
            return cls.of(Column(condition.column, "category", missing=missing, levels=levels, other=True), cells)
        return cls.of(Column(condition.column, "number", missing=missing, role="target"), cells)

    @property
    def missing(self) -> np.ndarray:
        """(n,) whether a cell is missing as the schema allows."""
        # The code −1 of a blank cell selects the last entry.
        return np.append(self.is_code, "" in self.column.missing)[self.codes]

    @property
    def values(self) -> np.ndarray:
        """(n,) the values; NaN for missing and wrong ones."""
        good = np.where(self.is_code, np.nan, self.numbers)
        good[list(self._faults())] = np.nan
        # The code −1 of a blank cell selects the last entry.
        return np.append(good, np.nan)[self.codes]

    @property
    def wrong(self) -> np.ndarray:
        """(n,) whether a cell is wrong."""
        return np.isnan(self.values) & ~self.missing

    def features(self) -> list[np.ndarray]:
        """Return the column's features, (n,) each."""
        column, values = self.column, self.values
        if column.type == "yes/no" or not column.levels:
            found = [values]
        else:
            count = len(column.levels) + column.other
            found = [(values == k).astype(np.float64) for k in range(1, count)]
        if column.missing:
            found.append(self.missing.astype(np.float64))
        return found

    def problems(self, row_name: RowName, owner: Owner = "schema") -> list[InputError]:
        """List the problems, one for each distinct content, and one for all ambiguous dates."""
        import pandas as pd

        found = []
        # The first row of each content; the last entry is for blank cells, whose code is −1.
        first = np.full(len(self.texts) + 1, len(self.codes))
        np.minimum.at(first, self.codes, np.arange(len(self.codes)))
        counts = np.bincount(self.codes + 1, minlength=len(self.texts) + 1)
        name, is_target = self.column.name, self.column.role == "target"
        if counts[0] and "" not in self.column.missing:
            remedy = "Fill it, or add \"\" to 'missing' of the column in the schema"
            if owner == "model":
                remedy = _remedy_for_model(self.column, "missing-values")
            elif is_target:
                remedy = "Remove such rows, or, for task 'multi-label', add \"\" to 'missing' of the column"
            text = f"{row_name(int(first[-1]))}, column '{name}': the value is missing{_times(counts[0])}. {remedy}"
            found.append(InputError(text, code="missing-values", field=name))
        faults = self._faults(owner)
        if self.is_ambiguous.any():
            k = int(np.where(self.is_ambiguous, first[:-1], len(self.codes)).argmin())
            readings = " or ".join(
                str(pd.Timestamp(days_of(pd.Series([str(self.texts[k])]), order).values[0], unit="D").date())
                for order in ORDERS
            )
            count = int(counts[1:][self.is_ambiguous].sum())
            remedy = 'Set the order in the schema: add date_order = "DMY" (day first) or "MDY" to the column'
            if owner == "model":
                remedy = _remedy_for_model(self.column, "ambiguous-date")
            cell = f"{row_name(int(first[k]))}, column '{name}': '{self.texts[k]}'"
            text = f"{cell} can be {readings}{_times(count)}. {remedy}"
            found.append(InputError(text, code="ambiguous-date", field=name))
            # An ambiguous date has no value, so it is among the faults too.
            faults = {k: fault for k, fault in faults.items() if not self.is_ambiguous[k]}
        for k, fault in list(faults.items())[:MOST]:
            remedy = "Correct it" if is_target else "Correct it, or add it to 'missing' in the schema"
            if not is_target and fault.code in ("not-a-number", "not-a-date"):
                remedy = f"Correct it, or read it as missing with `missing = '{self.texts[k]}'` or a schema"
            hint = suggestion(str(self.texts[k]), self.column.levels)
            if fault.code == "unknown-level":
                remedy = hint or "Correct it, or edit levels in the schema"
            elif fault.code == "similar-values":
                remedy = "Use one spelling"
            if owner == "model":
                remedy = _remedy_for_model(self.column, fault.code, hint)
            text = f"{row_name(int(first[k]))}, column '{name}': {fault}{_times(counts[k + 1])}. {remedy}"
            found.append(InputError(text, code=fault.code, field=name))
        if len(faults) > MOST:
            text = f"column '{name}': {len(faults) - MOST} more values are wrong, too"
            found.append(InputError(text, code=found[-1].code, field=name))
        return found

    def _faults(self, owner: Owner = "schema") -> dict[int, InputError]:
        """Return the problem of each wrong content by its position. The texts do not name row and column."""
        column, numbers, texts, name = self.column, self.numbers, self.texts, self.column.name
        found = dict[int, InputError]()
        for k in np.flatnonzero(np.isnan(numbers)).tolist():
            if column.type in NUMBERS:
                found[k] = InputError(f"expected a number, found '{texts[k]}'", code="not-a-number", field=name)
            elif column.type == "date":
                example = {"DMY": "31.3.2021", "MDY": "3/31/2021"}.get(column.date_order or "", "2021-03-31")
                day = amount_of(texts[k])
                text = f"expected a date such as {example}, found '{texts[k]}'"
                if day is not None and EXCEL_DAYS[0] <= day <= EXCEL_DAYS[1]:
                    text = f"{text}, which is {np.datetime64('1899-12-30') + int(day)} in Excel"
                found[k] = InputError(text, code="not-a-date", field=name)
            else:
                levels = listing([f"'{level}'" for level in column.levels], "level", MAX_LISTED)
                text = f"'{texts[k]}' is not a level of the {owner} ({levels})"
                found[k] = InputError(text, code="unknown-level", field=name)
        spellings = {plain(level): level for level in column.levels} if column.other else {}
        for k in np.flatnonzero(numbers == len(column.levels)).tolist() if spellings else ():
            value = level_text(texts[k])
            level = spellings.get(plain(value))
            if level is not None:
                reason = difference(value, level, "case, blanks or punctuation")
                text = f"'{value}' differs from '{level}' only in {reason}"
                found[k] = InputError(text, code="similar-values", field=name)
        largest = FAR if column.role == "target" else LARGEST
        if column.type in NUMBERS:
            for k in np.flatnonzero(np.abs(numbers) >= largest).tolist():
                text = f"{level_text(texts[k])} is infinite or beyond {largest:g}"
                found[k] = InputError(text, code="not-finite", field=name)
        if column.type == "whole number":
            for k in np.flatnonzero((numbers != np.round(numbers)) & np.isfinite(numbers)).tolist():
                text = f"expected a whole number, found {texts[k]}"
                found[k] = InputError(text, code="out-of-range", field=name)
        if column.range is not None:
            low, high = column.range
            # A value that is infinite is outside the range as well; it is reported once.
            for k in np.flatnonzero((numbers < low) | (numbers > high)).tolist():
                text = f"{level_text(texts[k])} is outside the range {low:g} to {high:g}"
                found.setdefault(k, InputError(text, code="out-of-range", field=name))
        return {k: fault for k, fault in sorted(found.items()) if not self.is_code[k]}


def _remedy_for_model(column: Column, code: str, hint: str = "") -> str:
    """Return the remedy for a cell of a row to predict, which must suit the columns of the training."""
    if code == "ambiguous-date":
        return "Write dates as 2021-03-31"
    if code == "similar-values":
        return "Use the spelling of the model"
    if code == "unknown-level":
        return f"{hint or 'Correct it.'} The model was trained without this value"
    verb = "Fill it" if code == "missing-values" else "Correct it"
    if "" in column.missing:
        return f"{verb}, or leave it blank if it is unknown"
    if column.missing:
        return f"{verb}, or write '{column.missing[0]}' if it is unknown"
    if code in ("out-of-range", "not-finite"):
        return verb
    return f"{verb}: the model was trained without missing values in this column"


def stripped(cells: pd.Series) -> pd.Series:
    """Return the cells as text without outer blanks; None for blank cells."""
    text = cells.astype(object).where(cells.notna(), "").astype(str).str.strip()
    return text.astype(object).where(text != "", None)


def level_text(value: object) -> str:
    """Return a value as the text of a level: 1.0 is the level "1", TRUE is the level "True", and " a " is "a"."""
    text = str(value).strip()
    return TRUTHS.get(text.lower()) or WHOLE.sub(r"\1", text)


def bits_among(levels: Iterable[str]) -> dict[str, str]:
    """Return 0 and 1 for the truth values among levels; empty if the levels are no mixture of both."""
    own = {*levels}
    return BITS if own & {*BITS} and own & {*BITS.values()} and own <= {*BITS, *BITS.values()} else {}


def amount_of(value: object) -> float | None:
    """Convert a value to a number; None if that is impossible or the number is not finite."""
    try:
        amount = float(str(value))
    except ValueError:
        return None
    return amount if np.isfinite(amount) else None


def amounts_in(cells: pd.Series, words: Sequence[str]) -> np.ndarray:
    """Return the numbers among words, rounded like the cells: 99.9 in float32 is not 99.9 in float64."""
    amounts = np.array([amount for amount in map(amount_of, words) if amount is not None], dtype=np.float64)
    stored: Any = getattr(cells.dtype, "numpy_dtype", cells.dtype)
    with np.errstate(over="ignore"):  # 99999 is infinite in float16
        return amounts.astype(stored).astype(np.float64) if stored.kind == "f" else amounts


def _times(count: int) -> str:
    return f" ({count} such cells)" if count > 1 else ""
