"""Cells of searches and reproductions: one algorithm on one job at one seed, whose result is stored and not computed
again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from drfl.experiments.execution import records
from drfl.experiments.execution.records import Record
from drfl.task.metrics import ACCURACY
from drfl.training.history import LEDGER_COLUMNS, columns_of

FORMAT = 3
"""The version of records. Increment it when the same cell gives another record, so that old records are not used."""

Number = Annotated[float, Strict()] | Literal["nan", "inf", "-inf"]
"""A number, or the text that represents an infinity or NaN in JSON."""


class Content(BaseModel):
    """The part of every record that drfl reads; a record may hold more."""

    model_config = ConfigDict(strict=True)

    stopped: str
    rounds: int
    parameters: dict[str, object]
    versions: dict[str, object]

    @field_validator("parameters")
    @classmethod
    def _whole_steps(cls, value: dict[str, object]) -> dict[str, object]:
        if not isinstance(value.get("steps"), int | None):
            raise ValueError("steps is not a whole number")
        return value


class TrainingContent(Content):
    """The record of a training run: a row per evaluated round, and the number of test samples of each client."""

    rows: list[dict[str, Number]]
    samples: list[Annotated[int, Field(ge=0, lt=2**31)]] = []
    clients_per_round: Annotated[float, Field(ge=0)] | None = None
    score: str = ACCURACY.name

    @model_validator(mode="after")
    def _whole(self) -> TrainingContent:
        # Every row needs its number, the metrics of the run's score, and finite counters.
        for row in self.rows:
            counters = [row.get(name) for name in LEDGER_COLUMNS]
            finite = all(isinstance(count, int | float) and math.isfinite(count) for count in counters)
            if not {"round", *columns_of(self.score)} <= row.keys() or not finite:
                raise ValueError("a row lacks a metric or a counter")
        return self


class DistanceContent(Content):
    """The record of a distance to an optimum: the error after each round, and the values chosen by trial."""

    errors: list[Number]
    chosen: dict[str, Number]


CONTENT: Mapping[str, TypeAdapter[TrainingContent] | TypeAdapter[DistanceContent]] = {
    "training": TypeAdapter(TrainingContent),
    "distance": TypeAdapter(DistanceContent),
}
"""The content that a record of each kind must have."""


class Cell(NamedTuple):
    """A run whose result can be stored.

    Args:
        kind: "training" (a run of a `Config`), or "distance" (to the optimum of a problem).
        job: Everything that the result depends on, as plain values. Cells with equal jobs are the same cell.
        cost: A rough estimate of the time, in a unit that is the same for all cells.
    """

    kind: Literal["training", "distance"]
    job: Mapping[str, object]
    cost: float

    @property
    def key(self) -> str:
        """The name of the cell's record: a digest of the job."""
        # Sort the keys, so that equal jobs have equal digests for any order of their keys.
        text = json.dumps([FORMAT, self.kind, self.job], sort_keys=True, ensure_ascii=False)
        # 96 bits: two of a million jobs have the same digest with a probability below 1e-17.
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def read(folder: Path, cell: Cell) -> Record | None:
    """Read the record of a cell; returns None if it is missing or damaged."""
    record = records.read(folder, cell.key)
    if record is None:
        return None
    try:
        CONTENT[cell.kind].validate_python(record)
    except (ValidationError, OverflowError):  # OverflowError: a whole number that no float can hold
        return None
    return record


def write(folder: Path, cell: Cell, record: Record) -> Record:
    """Write the record of a cell, and return it as :func:`read` will."""
    return records.write(folder, cell.key, {"kind": cell.kind, "job": cell.job, **record})
