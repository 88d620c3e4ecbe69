"""Stored results of training, read back: what the last models' tables and `paired.csv` follow from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from drfl.errors import InputError
from drfl.experiments.cells import Record
from drfl.history import ACCURACY_COLUMNS, DIGITS, LEDGER_COLUMNS
from drfl.papers import output, paired_tests
from drfl.papers.plan import Collected, Planned, Scale, plan
from drfl.papers.records import EQUAL_COLUMNS
from drfl.papers.specification import load_spec

Sizes = Callable[[Planned], Sequence[int]]
"""(N,) test samples of the clients of a run."""


def read(folder: Path, sizes: Sizes | None = None) -> Collected:
    """A result's plan, and records that hold the last round alone, as `cells.csv` has it; no parameters, no versions.

    Args:
        folder: of results, with `summary.json` and `cells.csv`.
        sizes: of the clients' test sets, where they are known; otherwise what equally good clients would show is as
            `cells.csv` has it, and unknown in older files.

    Raises:
        InputError: a file is missing or not drfl's, the specification has other settings, methods or seeds now, or the
            runs were tested on other test sets.
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
        record = by_place[p.setting, p.method, p.seed]
        if sizes is not None:
            record["samples"] = _fitting(sizes(p), record, f"{folder}: {p.setting}, {p.method}, seed {p.seed}")
        places.setdefault((p.setting, p.method), []).append(record)
    return Collected(planned, places)


def recomputed(folder: Path, sizes: Sizes | None = None) -> dict[str, str]:
    """The texts of `cells.csv`, `table.md` and `paired.csv` as they are to be, by name; nothing is run or written.

    In `table.md` only the tables of the last models are made again: they are its end.

    Args:
        folder: of results of training.
        sizes: as for :func:`read`.

    Raises:
        InputError: as :func:`read`, or `table.md` has no table of the last models.
    """
    collected = read(folder, sizes)
    tables = [table.markdown().rstrip("\n") for table in output.of_last_models(collected)]
    heading = tables[0].partition("\n")[0] + "\n"
    try:
        before, found, _ = (folder / "table.md").read_text(encoding="utf-8").partition(heading)
    except (OSError, ValueError):
        found = before = ""
    if not found:
        raise InputError(f"{folder / 'table.md'} has no tables of the last models: make it again with 'drfl reproduce'")
    paired = {} if collected.plan.spec.kind == "energy" else {"paired.csv": paired_tests.to_csv(collected)}
    return {"cells.csv": output.cells_csv(collected), "table.md": before + "\n\n".join(tables) + "\n", **paired}


def _fitting(sizes: Sequence[int], record: Record, where: str) -> list[int]:
    """The sizes, if the measured worst accuracy is a whole number of right answers out of one of them."""
    points = cast("Sequence[Mapping[str, float]]", record["rows"])
    worst = [point["worst_accuracy"] for point in points]
    if not all(any(abs(round(x * n) / n - x) < 10**-DIGITS for n in sizes) for x in worst):
        raise InputError(f"{where}: no client has a test set on which {worst[0]} can be measured: make it again")
    return list(sizes)


def _record(row: Mapping[str, str]) -> Record:
    names: Sequence[str] = (*ACCURACY_COLUMNS, *LEDGER_COLUMNS)
    rounds = int(row["rounds"])
    points = [{"round": rounds, **{name: float(row[name]) for name in names}}] if row["avg_accuracy"] else []
    # older files have no such columns
    equal = {name: float(row[name]) for name in EQUAL_COLUMNS if row.get(name)}
    return {
        "stopped": row["stopped"],
        "rounds": rounds,
        "rows": points,
        "equal": equal,
        "parameters": {},
        "versions": {},
    }
