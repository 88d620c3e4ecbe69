"""Check the values of text columns and classes: two spellings of a value, and values of a single client."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drfl.core.errors import InputError, Notice, listing
from drfl.data.tables.conform import level_text, stripped
from drfl.data.tables.schema import WITH_LEVELS, TableSchema

if TYPE_CHECKING:
    import pandas as pd

    from drfl.data.tables.table import Table

LEVELS = 1000
"""A column with more values is not compared value by value."""

CLOSE = 0.8
"""Similarity (of `difflib`) from which a value at one client looks like a typing error of another."""

LETTER = r"[^\W\d_]"


def words_of(cells: pd.Series, missing: Collection[str] = ()) -> pd.Series:
    """Return the cells of a column as levels are written; None for blank ones and for words that mean "missing"."""
    words = stripped(cells).map(level_text, na_action="ignore")
    return words.mask(words.isin([*missing]), None)


def check_levels(table: pd.DataFrame, owners: Sequence[str] | None) -> None:
    """Make sure that no value of a text column is spelt in two ways. Blank cells have no value."""
    for name, (values, codes) in _text_columns(table).items():
        counts = np.bincount(codes[codes >= 0], minlength=len(values))
        seen: dict[str, int] = {}
        pairs = []
        for k, value in enumerate(values):
            other = seen.setdefault(plain(value), k)
            if other != k:
                # The rarer spelling is more likely to be the wrong one.
                rare, usual = (k, other) if counts[k] <= counts[other] else (other, k)
                holders = {str(owners[row]) for row in (codes == rare).nonzero()[0]} if owners is not None else ()
                where = f" at {listing(sorted(holders), 'client')}" if holders else ""
                pairs.append(f"'{values[rare]}'{where} and '{values[usual]}'")
        if pairs:
            raise InputError(
                f"column '{name}': {listing(pairs, 'pair')} differ only in case, blanks or punctuation. "
                "Use one spelling",
                code="similar-values",
                field=str(name),
            )


def level_notices(features: pd.DataFrame, classes: pd.DataFrame, owners: Sequence[str] | None) -> list[Notice]:
    """Warn of text columns, and refuse classes, that clients write differently."""
    if owners is None or len(set(owners)) < 2:
        return []
    found = []
    for name, groups in _apart(classes, owners):
        raise InputError(
            f"column '{name}' has other classes at some clients than at others: {_listed(groups)}. Use the same "
            "classes everywhere, or list all of them in a schema",
            code="classes-differ",
            field=name,
        )
    cases = [f"column '{name}' ({_listed(groups)})" for name, groups in _apart(features, owners)]
    if cases:
        text = f"some clients share no value with the others: {listing(cases, 'case')}; use the same values everywhere"
        found.append(Notice(text, "values-differ"))
    if len(set(owners)) < 3:
        return found
    # A typing error nearly equals a value that its client lacks and several others have.
    names, typos = np.array(owners), []
    for name, (values, codes) in _text_columns(features).items():
        holders = [set(names[codes == k].tolist()) for k in range(len(values))]
        for k, value in enumerate(values):
            if len(holders[k]) > 1 or len(value) < 5:  # short words are often alike
                continue
            common = [values[j] for j in range(len(values)) if len(holders[j]) > 1 and not holders[k] & holders[j]]
            near = difflib.get_close_matches(value, common, n=1, cutoff=CLOSE)
            if near:
                typos.append(f"'{value}' in column '{name}' at {next(iter(holders[k]))}, like '{near[0]}'")
    if typos:
        text = f"values that look like typing errors: {listing(typos, 'value')}; correct them"
        found.append(Notice(text, "similar-values"))
    return found


def word_notices(tables: Sequence[Table], schema: TableSchema, owners: Sequence[str] | None) -> list[Notice]:
    """Check the words of tables whose schema drfl proposed, see :func:`check_levels` and :func:`level_notices`."""
    import pandas as pd

    features, classes = dict[str, pd.Series](), dict[str, pd.Series]()
    for column in schema.columns:
        # The levels of a condition are its answers.
        is_used = column.type in WITH_LEVELS and all(column.name in table.frame for table in tables)
        if is_used and (column.is_feature or column.role == "target"):
            cells = pd.concat([table.frame[column.name].astype(object) for table in tables], ignore_index=True)
            (features if column.is_feature else classes)[column.name] = words_of(cells, column.missing)
    check_levels(pd.DataFrame({**features, **classes}), owners)
    return level_notices(pd.DataFrame(features), pd.DataFrame(classes), owners)


def plain(value: str) -> str:
    """Remove differences that people overlook: case, outer blanks, and punctuation between letters."""
    value = re.sub(rf"(?<={LETTER})[\s\-_.]+(?={LETTER})", "", value.strip().casefold())
    # An abbreviation may end in a full stop.
    return re.sub(r"(?<=\w)\.$", "", value)


def _text_columns(table: pd.DataFrame) -> dict[str, tuple[list[str], np.ndarray]]:
    """Return the sorted values of each text column, and the index (n,) of the value of each row; −1 if it is blank."""
    from pandas.api.types import is_numeric_dtype

    found = {}
    for name in (name for name in table if not is_numeric_dtype(table[name])):
        is_known = table[name].notna().to_numpy(dtype=bool)
        words = table[name][is_known].astype(str).to_numpy(dtype=object)
        values, known = np.unique(words, return_inverse=True)
        if len(values) <= LEVELS:
            codes = np.full(len(is_known), -1)
            codes[is_known] = known.ravel()
            found[str(name)] = list(map(str, values)), codes
    return found


def _apart(table: pd.DataFrame, owners: Sequence[str]) -> list[tuple[str, list[tuple[list[str], list[str]]]]]:
    """List the columns that groups of clients write differently: with each group, its clients and its values.

    Clients are in one group if they share a value, or are linked by others that do.
    """
    import pandas as pd

    names = np.array(owners)
    found = []
    for name, (values, codes) in _text_columns(table).items():
        # Numbers of classes may well differ between clients, as with the digits that somebody writes.
        if pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").notna().all():
            continue
        groups, count = list[tuple[list[str], set[int]]](), 0
        for client in dict.fromkeys(owners):
            own = set(codes[names == client].tolist()) - {-1}
            if not own:
                continue
            count += 1
            linked = [group for group in groups if group[1] & own]
            clients = [each for group in linked for each in group[0]]
            groups = [group for group in groups if group not in linked]
            groups.append(([*clients, client], own.union(*(group[1] for group in linked))))
        # A column of names differs at every client, and one of regions has a single value in each group.
        several = all(len(own) > 1 for _, own in groups) and (len(groups) == 2 or len(groups) < count)
        odd = len(groups) == 2 and count > 2 and min(len(clients) for clients, _ in groups) == 1
        if len(groups) > 1 and (several or odd):
            ordered = sorted(groups, key=lambda group: len(group[0]))
            found.append((name, [(clients, [values[k] for k in sorted(own)]) for clients, own in ordered]))
    return found


def _listed(groups: Sequence[tuple[list[str], list[str]]]) -> str:
    """List groups of clients with their values, the largest group last and without its clients."""
    *few, (_, usual) = groups
    parts = [f"{_quoted(own)} at {listing(clients, 'client')}" for clients, own in few]
    return "; ".join([*parts, f"{_quoted(usual)} elsewhere"])


def _quoted(values: Sequence[str]) -> str:
    return listing([f"'{value}'" for value in values], "value")
