"""Stored results of `drfl reproduce`, read by claims: rows of their CSV files."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from drfl.core.errors import InputError
from drfl.core.run_end import BROKEN

Row = Mapping[str, str]


class StoredResults:
    """The results under a folder; what was read once is kept."""

    def __init__(self, root: Path) -> None:
        """Under `root` there is a folder a result."""
        self.root = root
        self.rows = functools.cache(self._rows)
        self.places = functools.cache(self._places)
        self.broken = functools.cache(self._broken)

    def of(self, result: str, file: str, setting: str, method: str) -> Sequence[Row]:
        """The rows of a file that belong to a method in a setting; none where there is no such file or place."""
        return self.places(result, file).get((setting, method), ())

    def settings(self, result: str) -> tuple[str, ...]:
        """The settings that a result has, in its order."""
        return tuple(dict.fromkeys(row["setting"] for row in self.rows(result, "cells.csv")))

    def summary(self, result: str) -> Mapping[str, object]:
        """What `summary.json` says.

        Raises:
            InputError: it is missing or no JSON object.
        """
        path = self.root / result / "summary.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise InputError(
                f"{path} is not the summary of a result: make it again", code="damaged-file", field=str(path)
            )
        return cast("Mapping[str, object]", found)

    def _rows(self, result: str, file: str) -> tuple[Row, ...]:
        try:
            text = (self.root / result / file).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ()
        return tuple(csv.DictReader(io.StringIO(text)))

    def _places(self, result: str, file: str) -> Mapping[tuple[str, str], Sequence[Row]]:
        found: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows(result, file):
            found.setdefault((row["setting"], row["method"]), []).append(row)
        return found

    def _broken(self, result: str, setting: str, method: str) -> frozenset[int]:
        """The seeds at which a method broke off."""
        rows = self.of(result, "cells.csv", setting, method)
        return frozenset(int(row["seed"]) for row in rows if row["stopped"] in BROKEN)
