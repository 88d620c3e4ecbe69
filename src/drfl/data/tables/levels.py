"""Check the values of text columns and classes: two spellings of a value, and values of a single client."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drfl.core.errors import InputError, Notice, listing
from drfl.core.unicode_form import difference
from drfl.data.tables.columns import NA_WORDS, RARE
from drfl.data.tables.conform import amount_of, bits_among, level_text, stripped
from drfl.data.tables.schema import WITH_LEVELS, TableSchema
from drfl.data.tables.spelling import plain

if TYPE_CHECKING:
    import pandas as pd

    from drfl.data.tables.table import Table

LEVELS = 1000
"""A column with more values is not compared value by value."""

CLOSE = 0.8
"""A value at one client looks like a typing error of another at this similarity (of `difflib`)."""

LETTERS = 20
"""More classes of one character each are letters, not codes such as y and n."""

CHANCE = 1e-3
"""Probability below which the absence of a class at a client is not chance."""

MISSING_WORDS = {word.casefold() for word in (*NA_WORDS, "?", "-", ".", "missing", "unknown")}
"""Words in lower case that are rarely the name of a class."""

MISSING_CODES = {sign * code for code in (9, 99, 999, 9999, 99999) for sign in (1, -1)} | {-1}
"""Numbers that often represent a missing class."""


def words_of(cells: pd.Series, missing: Collection[str] = ()) -> pd.Series:
    """Return the cells of a column as levels are written; None for blank ones and for words that mean "missing"."""
    words = stripped(cells).map(level_text, na_action="ignore")
    words = words.mask(words.isin([*missing]), None)
    bits = bits_among(words.dropna().unique())
    return words.replace(bits) if bits else words


def check_levels(table: pd.DataFrame, owners: Sequence[str] | None) -> None:
    """Make sure that no value of a text column is spelt in two ways. Blank cells have no value."""
    for name, (values, codes) in _text_columns(table).items():
        counts = np.bincount(codes[codes >= 0], minlength=len(values))
        seen: dict[str, int] = {}
        pairs, reasons = [], set[str]()
        for k, value in enumerate(values):
            other = seen.setdefault(plain(value), k)
            if other != k:
                # The rarer spelling is more likely to be the wrong one.
                rare, usual = (k, other) if counts[k] <= counts[other] else (other, k)
                holders = {str(owners[row]) for row in (codes == rare).nonzero()[0]} if owners is not None else ()
                where = f" at {listing(sorted(holders), 'client')}" if holders else ""
                pairs.append(f"'{values[rare]}'{where} and '{values[usual]}'")
                reasons.add(difference(values[rare], values[usual], "case, blanks or punctuation"))
        if pairs:
            raise InputError(
                f"column '{name}': {listing(pairs, 'pair')} differ only in {' or '.join(sorted(reasons))}. "
                "Use one spelling",
                code="similar-values",
                field=str(name),
            )


def level_notices(features: pd.DataFrame, classes: pd.DataFrame, owners: Sequence[str] | None) -> list[Notice]:
    """Warn of text columns, and reject classes, that clients write differently."""
    if owners is None or len(set(owners)) < 2:
        return []
    found = []
    for name, groups in _apart(classes, owners):
        raise InputError(
            f"column '{name}' has different classes at different clients: {_listed(groups)}. Use one "
            "spelling for each class, or if the classes really differ, list all of them in a schema",
            code="classes-differ",
            field=name,
        )
    found += class_notices(classes, owners)
    cases = [f"column '{name}' ({_listed(groups)})" for name, groups in _apart(features, owners)]
    if cases:
        text = f"some clients share no value with the others: {listing(cases, 'case')}; use the same values everywhere"
        found.append(Notice(text, "values-differ"))
    if len(set(owners)) < 3:
        return found
    # A typing error nearly equals a value that its client lacks and several others have.
    names, typos = np.array(owners) if features.shape[1] else np.array([]), dict[str, list[str]]()
    for name, (values, codes) in _text_columns(features).items():
        typos[name] = []
        holders = [set(names[codes == k].tolist()) for k in range(len(values))]
        for k, value in enumerate(values):
            if len(holders[k]) > 1 or len(value) < 5:  # short words are often alike
                continue
            common = [values[j] for j in range(len(values)) if len(holders[j]) > 1 and not holders[k] & holders[j]]
            near = difflib.get_close_matches(value, common, n=1, cutoff=CLOSE)
            if near:
                typos[name].append(f"'{value}' in column '{name}' at {next(iter(holders[k]))}, like '{near[0]}'")
    cases = [case for own in typos.values() for case in own]
    if cases:
        text = f"values that look like typing errors: {listing(cases, 'value')}; correct them"
        found.append(Notice(text, "similar-values"))
    # A value may well occur at a single client, unless this client seems to code others differently.
    return found + class_notices(features[[name for name, own in typos.items() if not own]], owners, by_chance=False)


def class_notices(table: pd.DataFrame, owners: Sequence[str] | None, *, by_chance: bool = True) -> list[Notice]:
    """Warn of classes that a single client has, and that it seems to code differently from all other clients.

    The other clients must have the same classes as each other. The client lacks one of them, the class looks like a
    code for a missing value, or, ``by_chance``, the class is too frequent to be absent elsewhere by chance. Without
    ``by_chance``, such a code must have several rows.
    """
    import pandas as pd

    # Sorting the names of millions of rows would take long.
    clients, names = pd.factorize(np.array([] if owners is None else owners, dtype=object))
    if len(names) < 3:
        return []
    found = []
    for name, (values, codes) in _text_columns(table, numbers=True).items():
        counts = np.zeros((len(names), len(values)), int)
        np.add.at(counts, (clients[codes >= 0], codes[codes >= 0]), 1)
        names_here, counts = names[counts.any(1)], counts[counts.any(1)]
        is_own = (counts > 0).sum(0) == 1
        # Several clients may have classes of their own, but all clients except one must have the same other classes.
        sets, which, sizes = np.unique((counts > 0) & ~is_own, axis=0, return_inverse=True, return_counts=True)
        usual, odd = sets[sizes.argmax()], np.flatnonzero(which.ravel() != sizes.argmax())
        if len(names_here) < 3 or len(odd) > 1 or not usual.any():
            continue
        amounts, cases = {amount_of(values[k]) for k in np.flatnonzero(usual)}, []
        for j in odd if len(odd) else np.flatnonzero(counts[:, is_own].any(1)):
            # A client that shares no class with the others is another problem, or has other numbers on purpose.
            if not counts[j, usual].any():
                continue
            elsewhere = counts.sum(0) - counts[j]
            total, shares = counts[j].sum(), elsewhere / elsewhere.sum()
            lacking = np.flatnonzero(usual & (counts[j] == 0) & ((1 - shares) ** total < CHANCE))
            few = []
            for k in np.flatnonzero(is_own & (counts[j] > 0)).tolist():
                amount = amount_of(values[k])
                if amount is None:
                    is_missing = values[k].strip().casefold() in MISSING_WORDS
                else:  # unless it is the next number of the others
                    is_missing = amount in MISSING_CODES and amount - 1 not in amounts
                is_missing &= by_chance or counts[j, k] >= RARE
                is_rare = by_chance and (total / counts.sum()) ** counts[j, k] < CHANCE
                if len(lacking) or is_missing or is_rare:
                    few.append(k)
            if few:
                own = listing([f"'{values[k]}' ({counts[j, k]} rows)" for k in few], "value")
                lacks = f", which lacks {_quoted([values[k] for k in lacking])}" if len(lacking) else ""
                cases.append(f"{own} at {names_here[j]}{lacks}")
        if cases:
            text = (
                f"column '{name}' has values that only one client uses: {listing(cases, 'client')}; check "
                "whether they are other names for common values, or codes for missing values, and "
                "correct or remove these rows"
            )
            found.append(Notice(text, "class-at-one-client", name))
    return found


def label_notices(labels: Mapping[str, np.ndarray], owners: Sequence[str] | None) -> tuple[Notice, ...]:
    """Check the classes (n,) of data whose inputs have no named columns, as those of a table."""
    import pandas as pd

    classes = pd.DataFrame({name: values for name, values in labels.items() if values.ndim == 1})
    for name, (values, _) in _text_columns(classes).items():
        # Letters in upper and lower case are different classes of images of letters.
        if len(values) <= LETTERS or max(map(len, values)) > 1:
            check_levels(classes[[name]], owners)
    return tuple(level_notices(classes.iloc[:, :0], classes, owners))


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


def _text_columns(table: pd.DataFrame, *, numbers: bool = False) -> dict[str, tuple[list[str], np.ndarray]]:
    """Return the sorted values of each text column, and the index (n,) of the value of each row; −1 if it is blank.

    If ``numbers``, columns of numbers are included.
    """
    from pandas.api.types import is_numeric_dtype

    found = {}
    for name in (name for name in table if numbers or not is_numeric_dtype(table[name])):
        is_known, is_number = table[name].notna().to_numpy(dtype=bool), is_numeric_dtype(table[name])
        words = table[name][is_known].to_numpy() if is_number else table[name][is_known].astype(str).to_numpy(object)
        values, known = np.unique(words, return_inverse=True)
        if len(values) <= LEVELS:
            codes = np.full(len(is_known), -1)
            codes[is_known] = known.ravel()
            found[str(name)] = list(map(level_text, values)) if is_number else list(map(str, values)), codes
    return found


def _apart(table: pd.DataFrame, owners: Sequence[str]) -> list[tuple[str, list[tuple[list[str], list[str]]]]]:
    """List the columns that groups of clients write differently: with each group, its clients and its values.

    Clients are in one group if they share a value, or are linked by others that do.
    """
    import pandas as pd

    names = np.array(owners)
    found = []
    for name, (values, codes) in _text_columns(table).items():
        # Numbers of classes may well differ between clients, as with the digits that a person writes.
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
