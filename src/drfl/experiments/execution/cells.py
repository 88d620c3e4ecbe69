"""A cell: one algorithm on one job at one seed, its result kept in a file of its own, so that it is never run twice."""

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
"""Goes up when the same cell gives another record than before, so that old records are not taken for new ones."""

Number = Annotated[float, Strict()] | Literal["nan", "inf", "-inf"]
"""A number, or the text that JSON has in place of an infinity or NaN."""


class Content(BaseModel):
    """What is read of every record; more may be there."""

    model_config = ConfigDict(strict=True)

    stopped: str
    rounds: int
    parameters: dict[str, object]
    versions: dict[str, object]

    @field_validator("parameters")
    @classmethod
    def _whole_steps(cls, value: dict[str, object]) -> dict[str, object]:
        if not isinstance(value.get("steps"), int | None):
            raise ValueError("steps are no whole number")
        return value


class TrainingContent(Content):
    """Of a training run: a row per evaluated round, and the clients' test samples."""

    rows: list[dict[str, Number]]
    samples: list[Annotated[int, Field(ge=0, lt=2**31)]] = []
    clients_per_round: Annotated[float, Field(ge=0)] | None = None
    score: str = ACCURACY.name

    @model_validator(mode="after")
    def _whole(self) -> TrainingContent:
        """Every row has its number, the metrics of the run's score, and counters that are finite."""
        for row in self.rows:
            counters = [row.get(name) for name in LEDGER_COLUMNS]
            finite = all(isinstance(count, int | float) and math.isfinite(count) for count in counters)
            if not {"round", *columns_of(self.score)} <= row.keys() or not finite:
                raise ValueError("a row lacks a metric or a counter")
        return self


class DistanceContent(Content):
    """Of a distance to an optimum: the errors after each round, and what was chosen by trial."""

    errors: list[Number]
    chosen: dict[str, Number]


CONTENT: Mapping[str, TypeAdapter[TrainingContent] | TypeAdapter[DistanceContent]] = {
    "training": TypeAdapter(TrainingContent),
    "distance": TypeAdapter(DistanceContent),
}
"""What a record of each kind must hold."""


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
        # Sorted: equal jobs have equal digests, whatever the order of their keys.
        text = json.dumps([FORMAT, self.kind, self.job], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def read(folder: Path, cell: Cell) -> Record | None:
    """The record of a cell that was run; None where there is none, or a damaged one."""
    record = records.read(folder, cell.key)
    if record is None:
        return None
    try:
        CONTENT[cell.kind].validate_python(record)
    except (ValidationError, OverflowError):  # a whole number that no float can hold
        return None
    return record


def write(folder: Path, cell: Cell, record: Record) -> Record:
    """Keep a record; gives it as :func:`read` will.

    Raises:
        InputError: the folder cannot be written to.
    """
    return records.write(folder, cell.key, {"kind": cell.kind, "job": cell.job, **record})
