"""Conditions such as ``price > 100000``, which make a yes/no target of a column."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from drfl.core.errors import InputError, unknown

ANSWERS = ("no", "yes")
"""Names of the two classes: whether the condition does not hold, or holds."""

COMPARISONS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
"""The comparisons; a longer one comes before its beginning."""

GRAMMAR = re.compile(
    r"\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>[^`<>=!]+?))"
    rf"\s*(?P<comparison>{'|'.join(COMPARISONS)})"
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"""|'(?P<single>[^']*\S[^']*)'|"(?P<double>[^"]*\S[^"]*)"|(?P<word>[^\s`'"<>=!](?:[^`'"<>=!]*[^\s`'"<>=!])?))\s*"""
)
"""``COLUMN > NUMBER``: a column, in backticks if it holds a comparison, a comparison, and a number or a text."""


class Condition(NamedTuple):
    """A comparison of a column with a value.

    Args:
        column: Name of the column.
        comparison: One of :data:`COMPARISONS`.
        value: A finite number; or a text, for ``==`` and ``!=``.
    """

    column: str
    comparison: str
    value: float | str

    @classmethod
    def parse(cls, text: str) -> Condition | None:
        """Return the condition that a text states; None if it states none."""
        found = GRAMMAR.fullmatch(text)
        if found is None:
            return None
        column, comparison = found["quoted"] or found["plain"], found["comparison"]
        if found["number"] is not None:
            number = float(found["number"])
            # 1e999 is infinite, and a comparison with it would have one answer.
            return cls(column, comparison, number) if np.isfinite(number) else None
        word = found["single"] or found["double"] or found["word"]
        # Texts have no order.
        return cls(column, comparison, word.strip()) if comparison in ("==", "!=") else None

    @classmethod
    def of(cls, target: str, columns: Sequence[str], place: str, source: str = "`target`") -> Condition | None:
        """Return the condition that a target states about one of these columns.

        Args:
            target: The target.
            columns: The columns of the table.
            place: Name of the table.
            source: What names the target, for messages.

        Returns:
            None if the target is a column, or no condition.
        """
        # A column may be called "price > 9": its name wins.
        if target in columns or not re.search("[<>=!]", target):
            return None
        found = cls.parse(target)
        if found is None:
            raise InputError(
                f"target '{target}' is neither a column of {place} nor a condition. Write COLUMN > NUMBER with one of "
                f"{' '.join(COMPARISONS)}, or COLUMN == 'TEXT'",
                code="invalid-format",
                field="target",
            )
        if found.column not in columns:
            raise unknown("column", found.column, columns, field="target", place=f"in {place} for {source}")
        return found

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Return (n,) float64: 1 if the condition holds, 0 if not, and NaN if the value is unknown.

        Args:
            values: (n,) numbers; for a condition on a text 0 if the value is this text, and another number if not.
        """
        # The caller has replaced the text itself by 0.
        value = 0.0 if isinstance(self.value, str) else self.value
        return np.where(np.isnan(values), np.nan, COMPARISONS[self.comparison](values, value))


def text_columns(targets: Sequence[str]) -> list[str]:
    """List the columns that conditions compare with a text, whose cells must stay text."""
    found = [Condition.parse(target) for target in targets]
    return [condition.column for condition in found if condition is not None and isinstance(condition.value, str)]


def used_columns(targets: Sequence[str]) -> list[str]:
    """List the targets, and the columns of those that are conditions."""
    found = [Condition.parse(target) for target in targets]
    return [*targets, *(condition.column for condition in found if condition is not None)]
