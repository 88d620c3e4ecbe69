"""The part of a checkpoint that is no tensor: its record in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import from_json

from drfl.checkpoint.state_tensors import COUNTERS, FORMAT, LONGEST, DamagedError

MOST_ROUNDS = 2**53
"""Up to here floating-point numbers count."""

MOST = 2**62
"""A counter of the ledger has room to grow until it fills 64 bits."""

Count = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]


class Record(BaseModel):
    """The part of a checkpoint that is no tensor.

    Args:
        format: see :data:`FORMAT`.
        round: rounds done.
        skipped: how many of them nobody answered.
        ledger: every counter of :class:`drfl.federation.Ledger`.
        seconds: wall time so far.
        identity: of the run that wrote it.
    """

    # unknown keys may come from a later version, which would have changed the format if they mattered
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    format: Literal[5]
    round: Count
    skipped: Count
    ledger: dict[str, Annotated[int, Field(ge=0, le=MOST)]]
    seconds: float = Field(ge=0, le=LONGEST)
    identity: dict[str, Any]

    @field_validator("ledger")
    @classmethod
    def _all_counters(cls, ledger: dict[str, int]) -> dict[str, int]:
        for name in COUNTERS:
            if name not in ledger:
                raise ValueError(f"it lacks {name}")
        return ledger


def read_record(data: bytes) -> Record:
    """A record from the bytes of ``run.json``.

    Raises:
        DamagedError: another version wrote it, or it holds something impossible; names that.
    """
    try:
        content: object = from_json(data)
    except ValueError as error:
        raise DamagedError(f"run.json is no JSON ({error})") from None
    if isinstance(content, Mapping) and content.get("format", FORMAT) != FORMAT:
        raise DamagedError("another version of drfl wrote it")
    try:
        record = Record.model_validate(content)
    except ValidationError as error:
        raise DamagedError(f"run.json, {first_fault(error)}") from None
    if record.skipped > record.round:
        raise DamagedError(f"run.json, skipped: {record.skipped} rounds of {record.round}")
    return record


def first_fault(error: ValidationError) -> str:
    """Where the first thing lies that is wrong, and what it is."""
    first = error.errors()[0]
    where, what = ".".join(map(str, first["loc"])) or "all of it", str(first.get("ctx", {}).get("error", first["msg"]))
    return f"{where}: {what[:1].lower()}{what[1:]}"
