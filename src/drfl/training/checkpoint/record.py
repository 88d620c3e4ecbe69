"""The schema of ``run.json``, the part of a checkpoint that is not tensors.

It is a module of its own, imported when a checkpoint is read, as the library does without pydantic until then.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from drfl.training.checkpoint.schema import COUNTERS, FORMAT, LONGEST, MOST, DamagedError

MOST_ROUNDS = 2**53
"""Up to here floating-point numbers count."""

Count = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]

Extent = tuple[Count, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]
"""The beginning of a file that grows along with a run: how many bytes, and their SHA-256."""


class CheckpointRecord(BaseModel):
    """The part of a checkpoint that is not tensors: ``run.json``.

    Args:
        format: see :data:`FORMAT`.
        round: rounds done.
        skipped: how many of them nobody answered.
        ledger: every counter of :class:`drfl.federation.federation.Ledger`.
        seconds: wall time so far.
        identity: of the run that wrote it.
        replies: the rows of a deployment's ``replies.csv`` up to this round; None if the run writes no such file.
    """

    # unknown keys may come from a later version, which would have changed the format if they mattered
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
            raise ValueError("another version of drfl wrote it")
        return format

    @field_validator("skipped")
    @classmethod
    def _at_most_all(cls, skipped: int, before: ValidationInfo) -> int:
        if skipped > before.data.get("round", skipped):
            raise ValueError(f"{skipped} rounds of {before.data['round']}")
        return skipped

    @field_validator("ledger")
    @classmethod
    def _all_counters(cls, ledger: dict[str, int]) -> dict[str, int]:
        for name in COUNTERS:
            if name not in ledger:
                raise ValueError(f"it lacks {name}")
        # This drops counters of later versions and fixes the order.
        return {name: ledger[name] for name in COUNTERS}


def record_of(data: bytes) -> CheckpointRecord:
    """Check the bytes of ``run.json``.

    Raises:
        DamagedError: another version wrote it, or it holds something impossible; names the first fault.
    """
    try:
        return CheckpointRecord.model_validate_json(data)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise DamagedError(f"run.json, {first_fault(error)}", field=where or "run.json") from None


def first_fault(error: ValidationError) -> str:
    """Say where the first fault is that pydantic found, and what it is."""
    first = error.errors()[0]
    where, what = ".".join(map(str, first["loc"])) or "all of it", str(first.get("ctx", {}).get("error", first["msg"]))
    return f"{where}: {what[:1].lower()}{what[1:]}"
