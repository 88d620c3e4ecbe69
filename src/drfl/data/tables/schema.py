"""The schema of a table: content and use of each column, the same at all sites."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError, unknown
from drfl.core.json_toml import read_toml
from drfl.data.dataset import TaskName
from drfl.data.tables.conditions import text_columns
from drfl.data.tables.targets import check_count
from drfl.data.tables.text_form import DETECT, ReadOptions
from drfl.data.tables.written import ORDERS

Type = Literal["number", "whole number", "yes/no", "category", "date", "text", "id"]
Role = Literal["feature", "target", "client", "patient", "sensitive", "excluded"]

TYPES: tuple[Type, ...] = get_args(Type)
ROLES: tuple[Role, ...] = get_args(Role)
TASKS: tuple[TaskName, ...] = get_args(TaskName)

NUMBERS: tuple[Type, ...] = ("number", "whole number")
WITH_LEVELS: tuple[Type, ...] = ("yes/no", "category")

SYNONYMS: dict[str, Type] = {
    "integer": "whole number", "int": "whole number", "float": "number", "double": "number", "numeric": "number",
    "bool": "yes/no", "boolean": "yes/no", "binary": "yes/no", "string": "category", "str": "category",
    "categorical": "category", "factor": "category", "datetime": "date",
}  # fmt: skip
"""Names of types in other programs → types of a schema."""

MISSING = " missing"
"""Suffix of the name of a feature that is 1 if a value is missing."""

FORMAT = 1
"""Version of the canonical form that the digest covers."""

HEADER = """\
# The columns of a table, the same at all sites. Edit this file, then check tables with 'drfl data check'.
# type: number, whole number, yes/no, category, date, text or id. Text and id columns are not features.
# role: feature (the default), target, client, patient, sensitive or excluded.
# range = [MIN, MAX], missing = ["", "-9"] (codes that mean missing), unit = "mg/dL", levels = [...];
# date_order = "DMY" (day first) or "MDY"; other = true lets a category have further values; feature = true makes a
# sensitive column a feature. Above the columns, delimiter, decimal, thousands, encoding and missing = ["?"] say how all
# sites' files are read; without them drfl detects the form of each file.

"""
"""Comment at the beginning of a written file."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        name: Name of the column.
        type: Type of its values.
        unit: Unit of measurement, for people; sites must agree on it.
        range: Smallest and largest valid number; None for no limits.
        missing: Cell contents that mean "missing"; "" is a blank cell.
        levels: Values of a category or yes/no column, in their order; the first one is the reference.
        role: Use of the column.
        other: Whether a category may have other values than its levels. They share one feature.
        feature: Whether a sensitive column is a feature too.
        date_order: Order in dates such as 03.04.2021, "DMY" or "MDY"; None to detect it in each table.

    Raises:
        InputError: If these do not fit together.
    """

    name: str
    type: Type
    unit: str | None = None
    range: tuple[float, float] | None = None
    missing: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    role: Role = "feature"
    other: bool = False
    feature: bool = False
    date_order: str | None = None

    def __post_init__(self) -> None:
        place = f"column '{self.name}'"
        for name, values, known in (("type", self.type, TYPES), ("role", self.role, ROLES)):
            if values not in known:
                synonyms = SYNONYMS if name == "type" else None
                raise _at(place, unknown(name, str(values), known, field=self.name, synonyms=synonyms))
        if self.range is not None:
            # Convert to floats, so that the bounds 0 and 0.0 give equal columns.
            low, high = map(float, self.range)
            object.__setattr__(self, "range", (low, high))
            if self.type not in NUMBERS or not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise self._wrong("range needs a column of numbers, and two numbers, the smaller one first")
        is_target, levels = self.role == "target", set(self.levels)
        for is_wrong, problem in (
            ((self.type in WITH_LEVELS) != bool(levels), "yes/no and category need levels, other types have none"),
            (len(levels) < len(self.levels) or not all(map(str.strip, levels)), "levels must differ and not be blank"),
            (self.type == "yes/no" and len(levels) != 2, f"yes/no has two levels, not {len(levels)}"),
            (bool(levels & set(self.missing)), "a value cannot be a level and missing at once"),
            (self.other and (self.type != "category" or is_target), "other = true is for categories, not for targets"),
            (
                self.feature and (self.role != "sensitive" or self.type in ("text", "id")),
                "feature = true is for sensitive columns that are neither text nor id",
            ),
            (self.date_order is not None and self.type != "date", "date_order is for columns of dates"),
            (self.date_order not in (None, *ORDERS), f"date_order must be {' or '.join(ORDERS)}"),
        ):
            if is_wrong:
                raise self._wrong(problem)

    def _wrong(self, problem: str) -> InputError:
        return InputError(f"column '{self.name}': {problem}", code="invalid-value", field=self.name)

    @property
    def is_feature(self) -> bool:
        """Whether the model sees the column."""
        return self.type not in ("text", "id") and (self.role == "feature" or self.feature)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the numbers that encode the column; empty if it is not a feature."""
        if not self.is_feature:
            return ()
        # The first level has no feature: it applies if no other does.
        names = [f"{self.name}_{level}" for level in self.levels[1:]] if self.levels else [self.name]
        if self.other:
            names.append(f"{self.name} other")
        if self.missing:
            names.append(f"{self.name}{MISSING}")
        return tuple(names)

    def content(self) -> dict[str, object]:
        """Return the values that differ from the defaults, as in a file, without the name."""
        found: dict[str, object] = {}
        for part in fields(self)[1:]:
            value = getattr(self, part.name)
            if value != part.default:
                found[part.name] = [*value] if isinstance(value, tuple) else value
        if self.range is not None:
            # Whole bounds are written as people write them, which keeps the digest independent of the point.
            found["range"] = [int(bound) if bound == int(bound) else bound for bound in self.range]
        return found


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table, the task, and how columns are encoded.

    The order of the columns is that of the features. A table may have its columns in any order.

    - A number, whole number or date (as days since 1970-01-01) is one feature.
    - A yes/no column is 1 for its second level.
    - A category has a feature of 0 and 1 for each level but the first, and one for all other values if it allows them.
    - A column with codes for missing values has one more feature, which is 1 if the value is missing.
    - Text and id columns, and those with the roles client, patient and excluded, are not features. A sensitive column
      is a feature only with ``feature=True``.

    Args:
        columns: The columns.
        task: Kind of task.
        positive: The class that counts as positive, if there are two.
        reading: Properties of all sites' files that drfl should not detect. Its words for missing values are blank
            cells in every column.
        inferred: Whether drfl made the schema from the rows of tables that have none, for the file of the model.

    Raises:
        InputError: If columns, task and positive class do not fit together.

    Example:
        >>> age = Column("age", "number", unit="years", range=(0, 120))
        >>> ill = Column("ill", "yes/no", levels=("no", "yes"), role="target")
        >>> TableSchema((age, ill), positive="yes").features
        ('age',)
    """

    columns: tuple[Column, ...]
    task: TaskName = "classification"
    positive: str | None = None
    reading: ReadOptions = DETECT
    inferred: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
        for role in ("client", "patient"):
            names = [column.name for column in self.columns if column.role == role]
            if len(names) > 1:
                raise InputError(
                    f"columns '{names[0]}' and '{names[1]}' both have the role {role}: only one column can have it",
                    code="conflicting-options",
                    field=names[1],
                )
        # A level or an indicator can give a feature the name of another column.
        for what, names in (("column", [column.name for column in self.columns]), ("feature", [*self.features])):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InputError(f"two {what}s are called '{twice}': rename one", code="duplicate-name", field=twice)
        for column in self.columns:
            both = [level for level in column.levels if level in self.reading.missing]
            if both:
                raise InputError(
                    f"column '{column.name}': '{both[0]}' is a level here, but the schema lists it under "
                    "'missing' for all columns: list it in 'missing' of single columns instead",
                    code="conflicting-options",
                    field=column.name,
                )
        self._check_targets()
        if not self.features:
            raise InputError("the schema has no column to learn from", code="no-features", field="columns")

    def _check_targets(self) -> None:
        targets = [column for column in self.columns if column.role == "target"]
        if not targets:
            raise InputError('no column has role = "target": name the column to predict', code="missing-option")
        check_count(self.task, len(targets))
        suitable = {"classification": WITH_LEVELS, "regression": NUMBERS, "multi-label": ("yes/no",)}[self.task]
        for column in targets:
            if column.type not in suitable or (self.task == "classification" and len(column.levels) < 2):
                raise InputError(
                    f"target '{column.name}' has the type {column.type}, but task '{self.task}' needs "
                    f"{' or '.join(suitable)}, with at least two levels if it has levels",
                    code="wrong-task",
                    field=column.name,
                )
            if column.missing and self.task != "multi-label":
                raise InputError(
                    f"column '{column.name}': a target cannot be missing: remove such rows, and remove 'missing'",
                    code="invalid-value",
                    field=column.name,
                )
        if self.positive is None:
            return
        if self.task != "classification" or len(targets[0].levels) != 2:
            raise InputError(
                "positive needs a target of two classes: remove it", code="unused-option", field="positive"
            )
        if self.positive not in targets[0].levels:
            raise unknown("positive class", self.positive, targets[0].levels, field="positive")

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the model's inputs, in their order."""
        return tuple(name for column in self.columns for name in column.features)

    @cached_property
    def targets(self) -> tuple[Column, ...]:
        """The columns to predict."""
        return tuple(column for column in self.columns if column.role == "target")

    @property
    def client(self) -> str | None:
        """The column that names each row's client; None if there is none."""
        return next((column.name for column in self.columns if column.role == "client"), None)

    @property
    def patient(self) -> str | None:
        """The column that names each row's patient; None if there is none."""
        return next((column.name for column in self.columns if column.role == "patient"), None)

    @cached_property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes in the order of their numbers, the positive one last; None without classes."""
        if self.task != "classification":
            return None
        levels = self.targets[0].levels
        return levels[::-1] if self.positive == levels[0] else levels

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of the columns that do not hold numbers, or that the target compares with a text."""
        compared = text_columns([column.name for column in self.targets])
        return (*(column.name for column in self.columns if column.type not in NUMBERS), *compared)

    @property
    def has_missing(self) -> bool:
        """Whether features may be missing."""
        return any(column.missing for column in self.columns if column.is_feature)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that decides how a table is encoded, the order of the columns included.

        Comments in a file and the order of the codes for missing values do not change it.
        """
        columns = []
        for column in self.columns:
            content = column.content()
            if column.missing:
                content["missing"] = sorted(column.missing)
            columns.append([column.name, content])
        whole = {"format": FORMAT, "task": self.task, "positive": self.positive, "columns": columns}
        if self.reading != DETECT:
            whole["reading"] = self.reading.content()
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def check_options(
        self,
        targets: Sequence[str] | None = None,
        group: str | None = None,
        drop: Sequence[str] = (),
        task: str | None = None,
        patient: str | None = None,
    ) -> None:
        """Check that other options do not contradict the schema.

        Raises:
            InputError: If one does; the field is the option.
        """
        own_targets = tuple(column.name for column in self.targets)
        roles = {column.name: column.role for column in self.columns}
        # Options that repeat the schema are harmless, so only other values are rejected.
        for option, value, own in (
            ("target", None if targets is None else tuple(targets), own_targets),
            ("group", group, self.client),
            ("task", task, self.task),
            ("patient", patient, self.patient),
        ):
            if value is not None and value != own:
                shown = [", ".join(part) if isinstance(part, tuple) else part for part in (value, own)]
                raise InputError(
                    f"{option} is '{shown[0]}', but the schema says {shown[1]}: remove the option, or edit the schema",
                    code="conflicting-options",
                    field=option,
                )
        for name in drop:
            if roles.get(name) != "excluded":
                raise InputError(
                    f"`drop` names '{name}', which the schema does not exclude: remove the option, or set "
                    'role = "excluded" in the schema',
                    code="conflicting-options",
                    field="drop",
                )

    @classmethod
    def read(cls, path: str | Path) -> TableSchema:
        """Read a schema from a TOML file.

        Raises:
            InputError: If the file cannot be read, has an unknown key, type or role, or columns do not fit together.
        """
        path = Path(path)
        content = read_toml(path)
        try:
            return cls.of(content)
        except InputError as error:
            raise _at(str(path), error) from None

    @classmethod
    def of(cls, content: Mapping[str, object]) -> TableSchema:
        """Make a schema from plain values, as :meth:`to_plain` returns them.

        Raises:
            InputError: If a key, type or role is unknown, or columns do not fit together.
        """
        for key in content:
            if key not in (*_HEAD, "columns"):
                raise unknown("key", key, (*_HEAD, "columns"), field=key)
        head: dict[str, Any] = {key: content[key] for key in _HEAD if key in content}
        for key, value in head.items():
            if not (_is_texts(value) if key == "missing" else isinstance(value, str)):
                what = "a list of texts" if key == "missing" else "a text"
                raise InputError(f"{key} must be {what}", code="wrong-type", field=key)
        head["missing"] = tuple(head.get("missing", ()))
        reading = ReadOptions(**{key: head.pop(key) for key in [*head] if key not in ("task", "positive")})
        columns = content.get("columns")
        if not isinstance(columns, dict) or not all(isinstance(values, dict) for values in columns.values()):
            raise InputError(
                "a schema needs a table per column, such as [columns.age]", code="missing-option", field="columns"
            )
        parts = list[Column]()
        for name, values in columns.items():
            place = f"column '{name}'"
            for key, value in values.items():
                if key not in _KEYS:
                    raise _at(place, unknown("key", key, _KEYS, field=name))
                fits, what = _KEYS[key]
                if not fits(value):
                    raise InputError(f"{place}: {key} must be {what}", code="wrong-type", field=name)
            if "type" not in values:
                raise InputError(f"{place} has no type", code="missing-option", field=name)
            # Lists of a file are tuples here, because a frozen dataclass must not change.
            plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
            parts.append(Column(name, **plain))
        return cls(tuple(parts), reading=reading, **head)

    def to_plain(self) -> dict[str, object]:
        """Return the schema as plain values, as in a file."""
        head = {"task": self.task, **({} if self.positive is None else {"positive": self.positive})}
        return {**head, **self.reading.content(), "columns": {column.name: column.content() for column in self.columns}}

    def write(self, path: str | Path) -> None:
        """Write the schema to a TOML file, which may exist.

        Raises:
            InputError: If the file cannot be written.
        """
        import tomli_w  # imported here, because only this function needs it

        path = Path(path)
        # tomli_w gives each value of a list a line, which makes a schema long.
        text = HEADER + _LIST.sub(_one_line, tomli_w.dumps(self.to_plain()))
        try:
            with atomic_write(path) as file:
                file.write(text.encode())
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}", code="cannot-write", field=str(path)) from None


_LIST = re.compile(r"\[\n((?: {4}.*,\n)*)\]")
"""A list as tomli_w writes it, with a value in each line."""


def _one_line(found: re.Match[str]) -> str:
    text = "[" + ", ".join(line.strip().removesuffix(",") for line in found[1].splitlines()) + "]"
    return text if len(text) <= 100 else found[0]


def _at(place: str, error: InputError) -> InputError:
    return InputError(f"{place}: {error}", code=error.code, field=error.field)


_KEYS: dict[str, tuple[Callable[[object], bool], str]] = {
    "type": (lambda value: isinstance(value, str), 'a text such as "number"'),
    "unit": (lambda value: isinstance(value, str), 'a text such as "mg/dL"'),
    "role": (lambda value: isinstance(value, str), 'a text such as "feature"'),
    "range": (
        lambda value: isinstance(value, list) and len(value) == 2 and all(type(x) in (int, float) for x in value),
        "two numbers such as [0, 120]",
    ),
    "missing": (lambda value: _is_texts(value), 'a list of texts such as ["", "-9"]'),
    "levels": (lambda value: _is_texts(value), 'a list of texts such as ["0", "1"]'),
    "other": (lambda value: isinstance(value, bool), "true or false"),
    "feature": (lambda value: isinstance(value, bool), "true or false"),
    "date_order": (lambda value: isinstance(value, str), '"DMY" or "MDY"'),
}
"""The keys of a column in a file, whether a value has the right type, and what that is."""

_HEAD = ("task", "positive", *(option.name for option in fields(ReadOptions)))
"""The keys above the columns."""


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
