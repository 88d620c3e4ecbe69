"""Stored results of `drfl reproduce`: the rows of their CSV files, for deciding claims."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from drfl.core.csv_cells import unescape_formula
from drfl.core.errors import InputError
from drfl.core.run_end import FAILURES

Row = Mapping[str, str]


class StoredResults:
    """The results in a folder; each file is read once.

    Args:
        root: Folder with one subfolder per result.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows = functools.cache(self._rows)
        self.places = functools.cache(self._places)
        self.broken = functools.cache(self._broken)

    def of(self, result: str, file: str, setting: str, method: str) -> Sequence[Row]:
        """Return the rows of a method in a setting; empty if the file or the place is missing."""
        return self.places(result, file).get((setting, method), ())

    def settings(self, result: str) -> tuple[str, ...]:
        """Return the settings of a result, in its order."""
        return tuple(dict.fromkeys(row["setting"] for row in self.rows(result, "cells.csv")))

    def summary(self, result: str) -> Mapping[str, object]:
        """Read `summary.json`.

        Raises:
            InputError: If the file is missing or is not a JSON object.
        """
        path = self.root / result / "summary.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            content = None
        if not isinstance(content, dict):
            raise InputError(
                f"{path} is not the summary of a result. Make the result again.", code="damaged-file", field=str(path)
            )
        return cast("Mapping[str, object]", content)

    def _rows(self, result: str, file: str) -> tuple[Row, ...]:
        try:
            text = (self.root / result / file).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ()
        rows = csv.DictReader(io.StringIO(text))
        return tuple({name: unescape_formula(cell) for name, cell in row.items()} for row in rows)

    def _places(self, result: str, file: str) -> Mapping[tuple[str, str], Sequence[Row]]:
        places: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows(result, file):
            places.setdefault((row["setting"], row["method"]), []).append(row)
        return places

    def _broken(self, result: str, setting: str, method: str) -> frozenset[int]:
        rows = self.of(result, "cells.csv", setting, method)
        return frozenset(int(row["seed"]) for row in rows if row["stopped"] in FAILURES)
