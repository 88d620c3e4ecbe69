"""Stored results of training, read back: what `paired.csv` and the paired differences of `table.md` follow from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from drfl.errors import InputError
from drfl.experiments.cells import Record
from drfl.history import ACCURACY_COLUMNS, LEDGER_COLUMNS
from drfl.papers import paired_tests
from drfl.papers.plan import Collected, Scale, plan
from drfl.papers.specification import load_spec

PAIRED = "## Paired differences"


def read(folder: Path) -> Collected:
    """A result's plan, and records that hold the last round alone, as `cells.csv` has it; no parameters, no versions.

    Args:
        folder: of results, with `summary.json` and `cells.csv`.

    Raises:
        InputError: a file is missing or not drfl's, or the specification has other settings, methods or seeds now.
    """
    try:
        about = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        rows = list(csv.DictReader(io.StringIO((folder / "cells.csv").read_text(encoding="utf-8"))))
        spec = load_spec(about["name"])
        scale = Scale(
            repeats=about["repeats"],
            rounds=about["rounds"],
            settings=tuple(about["settings"]),
            stand_in=about["stand_in"],
        )
        by_place = {(row["setting"], row["method"], int(row["seed"])): _record(row) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{folder} holds no result that 'drfl reproduce' wrote: make it again") from None
    planned = plan(spec, scale)
    if {(p.setting, p.method, p.seed) for p in planned.cells} != by_place.keys():
        raise InputError(f"{folder} has other runs than the specification {spec.name} asks for now: make it again")
    places: dict[tuple[str, str], list[Record]] = {}
    for p in planned.cells:
        places.setdefault((p.setting, p.method), []).append(by_place[p.setting, p.method, p.seed])
    return Collected(planned, places)


def paired_files(folder: Path) -> dict[str, str]:
    """The texts of `paired.csv` and `table.md` as they are to be, by name; nothing is run and nothing is written.

    In `table.md` only what stands from the paired differences on is made again: they are its end.

    Args:
        folder: of results that have paired differences.

    Raises:
        InputError: as :func:`read`, or `table.md` has no paired differences.
    """
    collected = read(folder)
    try:
        before, found, _ = (folder / "table.md").read_text(encoding="utf-8").partition(PAIRED)
    except (OSError, ValueError):
        found = before = ""
    if not found:
        raise InputError(f"{folder / 'table.md'} has no paired differences: make it again with 'drfl reproduce'")
    tables = (table.markdown().rstrip("\n") for table in paired_tests.tables(collected))
    return {"paired.csv": paired_tests.to_csv(collected), "table.md": before + "\n\n".join(tables) + "\n"}


def _record(row: Mapping[str, str]) -> Record:
    names: Sequence[str] = (*ACCURACY_COLUMNS, *LEDGER_COLUMNS)
    rounds = int(row["rounds"])
    points = [{"round": rounds, **{name: float(row[name]) for name in names}}] if row["avg_accuracy"] else []
    return {"stopped": row["stopped"], "rounds": rounds, "rows": points, "parameters": {}, "versions": {}}
