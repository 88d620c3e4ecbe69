"""The schema of ``run.json``, the part of a checkpoint that is not tensors.

This is a separate module, imported when a checkpoint is read, because it loads pydantic, which the library avoids.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from drfl.training.checkpoint.state_schema import COUNTERS, FORMAT, LONGEST, MOST, DamagedError

MOST_ROUNDS = 2**53
"""Largest n such that every integer up to n is exactly a floating-point number."""

Count = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]

Extent = tuple[Count, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]
"""The beginning of a file that grows during a run: its length in bytes and its SHA-256."""


class CheckpointRecord(BaseModel):
    """The part of a checkpoint that is not tensors: ``run.json``.

    Args:
        format: See :data:`FORMAT`.
        round: Completed rounds.
        skipped: Rounds in which no client replied.
        ledger: Every counter of :class:`drfl.federation.federation.Ledger`.
        seconds: Wall time so far.
        identity: Identity of the run that wrote the checkpoint.
        replies: The rows of a deployment's ``replies.csv`` up to this round; None if the run writes no such file.
    """

    # Unknown keys are ignored: a later version that needs them would have changed the format.
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    format: int
    round: Count
    skipped: Count
    ledger: dict[str, Annotated[int, Field(ge=0, le=MOST)]]
    seconds: float = Field(ge=0, le=LONGEST)
    identity: dict[str, Any]
    replies: Extent | None

    @field_validator("format")
    @classmethod
    def _is_ours(cls, format: int) -> int:
        if format != FORMAT:
            raise ValueError("it was written by another version of drfl")
        return format

    @field_validator("skipped")
    @classmethod
    def _at_most_all(cls, skipped: int, before: ValidationInfo) -> int:
        if skipped > before.data.get("round", skipped):
            raise ValueError(f"{skipped} is more than the {before.data['round']} completed rounds")
        return skipped

    @field_validator("ledger")
    @classmethod
    def _all_counters(cls, ledger: dict[str, int]) -> dict[str, int]:
        for name in COUNTERS:
            if name not in ledger:
                raise ValueError(f"{name} is missing")
        # Drops counters of later versions and fixes the order.
        return {name: ledger[name] for name in COUNTERS}


def record_of(data: bytes) -> CheckpointRecord:
    """Validate the bytes of ``run.json``.

    Raises:
        DamagedError: If another version wrote it or a value is impossible; the message names the first fault.
    """
    try:
        return CheckpointRecord.model_validate_json(data)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise DamagedError(f"run.json, {first_fault(error)}", field=where or "run.json") from None


def first_fault(error: ValidationError) -> str:
    """Describe the first fault that pydantic reported, with its place."""
    first = error.errors()[0]
    where, what = ".".join(map(str, first["loc"])) or "document", str(first.get("ctx", {}).get("error", first["msg"]))
    return f"{where}: {what[:1].lower()}{what[1:]}"
