"""A cell: one algorithm on one job at one seed, its result kept in a file of its own, so that it is never run twice."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from drfl.data.files import atomic_write
from drfl.experiments.rundir import json_text
from drfl.history import LEDGER_COLUMNS, Metrics

FORMAT = 1
"""Goes up when the same cell gives another record than before, so that old records are not taken for new ones."""

Record = dict[str, object]
"""What a cell gave, as JSON: see `drfl.experiments.reproduce.training.train` and `.distance.approach`."""


class Cell(NamedTuple):
    """What is to be run.

    Args:
        kind: "training" (of a `Config`), or "distance" to the optimum of a problem.
        job: everything that the result depends on, plain values; equal jobs are the same cell.
        cost: roughly how long it takes, in any unit that is the same for all cells.
    """

    kind: Literal["training", "distance"]
    job: Mapping[str, object]
    cost: float

    @property
    def key(self) -> str:
        """The name of its record: a digest of the job."""
        text = json.dumps([FORMAT, self.kind, self.job], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def read(folder: Path, cell: Cell) -> Record | None:
    """The record of a cell that was run; None where there is none, or a damaged one."""
    try:
        record = json.loads((folder / f"{cell.key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    right = isinstance(record, dict) and record.get("key") == cell.key and _sound(cell.kind, record)
    return record if right else None


def _sound(kind: str, record: Record) -> bool:
    """Whether a record has all that is read of it."""
    rounds, parameters = record.get("rounds"), record.get("parameters")
    if not isinstance(record.get("stopped"), str) or not isinstance(rounds, int) or not isinstance(parameters, dict):
        return False
    steps = parameters.get("steps")
    if not isinstance(record.get("versions"), dict) or not (steps is None or isinstance(steps, int)):
        return False
    if kind == "distance":
        errors, chosen = record.get("errors"), record.get("chosen")
        return (isinstance(errors, list) and isinstance(chosen, dict)) and all(
            map(_number, (*errors, *chosen.values()))
        )
    rows = record.get("rows")
    return isinstance(rows, list) and all(isinstance(row, dict) and _row(row) for row in rows)


def _row(row: Mapping[str, object]) -> bool:
    """Whether an evaluated round has its number, its metrics and its counters."""
    counters = (row.get(name) for name in LEDGER_COLUMNS)
    metrics = (row.get(name) for name in Metrics._fields)
    return isinstance(row.get("round"), int) and all(map(_finite, counters)) and all(map(_number, metrics))


def _number(value: object) -> bool:
    """Whether it is a number, or the text that JSON has in place of an infinity or NaN."""
    return _finite(value) or value in ("nan", "inf", "-inf") or isinstance(value, float)


def _finite(value: object) -> bool:
    """Whether it is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def write(folder: Path, cell: Cell, record: Record) -> None:
    """Keep a record, whole or not at all.

    Raises:
        OSError: the folder cannot be written to.
    """
    with atomic_write(folder / f"{cell.key}.json") as file:
        file.write(json_text({"key": cell.key, "kind": cell.kind, "job": cell.job, **record}).encode())


def run(cell: Cell, data_dir: Path | None) -> Record:
    """Run a cell here; a run that diverges or is refused is a result too.

    Args:
        cell: what.
        data_dir: where the data set's files lie; it has no say in the result.
    """
    if cell.kind == "distance":
        from drfl.experiments.reproduce.distance import approach

        return approach(cell.job)
    from drfl.experiments.reproduce.training import train

    return train(cell.job, data_dir)
