"""The schema of all messages: every field with its type and its range.

Nothing that a site sends is used before it is checked here: its numbers go into sums, allocations and files of the
server. The
ranges are wide enough for any honest site and narrow enough that no sum over a run overflows an integer of 64 bits.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeVar

from flwr.app import Array, ConfigRecord, RecordDict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from drfl.core.errors import InputError
from drfl.core.errors import printable as one_line

PROTOCOL = 7
"""Both ends must have the same; changed with every change of the messages that the other end would misread."""

MOST_ROWS = 2**31
"""Samples that one site may have."""

MOST_CLASSES = 2**16
MOST_INPUT = 2**24
"""Numbers in one input."""

MOST_COLUMNS = 2**12
"""Columns of a table that is standardised."""

MOST_COUNTED = 2**40
"""Samples in one reply's count of work: eight million replies of so many fit the ledger's 64 bits."""

MOST_TEXT = 2**16
"""Bytes of a message beside its vectors."""

MOST_SHOWN = 200
"""Characters of a site's own text that go into a line of the log."""

T = TypeVar("T", bound=BaseModel)


class ProtocolError(InputError):
    """A message that this end cannot read."""

    code = "protocol"


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it holds characters that cannot be printed")
    return text


def _small(shape: list[int]) -> list[int]:
    if math.prod(shape) > MOST_INPUT:
        raise ValueError(f"an input has at most {MOST_INPUT} numbers")
    return shape


def _fives(sums: list[float]) -> list[float]:
    if len(sums) % 5:
        raise ValueError("there are five sums for each metric")
    return sums


def _pairs(products: list[float]) -> list[float]:
    if len(products) % 2:
        raise ValueError("there are two products for each metric")
    return products


Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_printable)]
Version = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_printable)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Counted = Annotated[int, Field(ge=0, le=MOST_COUNTED)]
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Number = Annotated[float, Field()]
"""Any, NaN and infinity too: whether it can be used is decided by the code that uses it."""


class Strict(BaseModel):
    """No value is converted, and no other field may be present."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SiteIdentity(Strict):
    """A site's description of itself; see :class:`drfl.flower.nodes.Member`."""

    protocol: Literal[7]
    name: Name
    shape: Annotated[list[Annotated[int, Field(ge=1, le=MOST_INPUT)]], Field(max_length=8), AfterValidator(_small)]
    classes: Annotated[int, Field(ge=1, le=MOST_CLASSES)]
    train: Rows
    test: Rows
    majority: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None
    digest: Digest
    drfl: Version
    torch: Version


class AnswerNote(Strict):
    """The plain values of a reply; see :class:`drfl.flower.messages.Answer`."""

    protocol: Literal[7]
    parts: Annotated[int, Field(ge=0, le=3)]
    version: Annotated[str, Field(pattern="^(zero|[0-9a-f]{24})?$")]
    lacking: bool
    digest: Digest


MOST_METRICS = 64
"""What a test may measure beside the score."""

Tested = tuple[
    Number,
    Number,
    Annotated[int, Field(ge=0, le=MOST_ROWS)],
    Annotated[list[Number], Field(max_length=MOST_METRICS)],
    Annotated[list[Number], Field(max_length=5 * (MOST_METRICS + 1)), AfterValidator(_fives)],
]
"""Score, mean loss, samples, other metrics, five sums for each metric; see :mod:`drfl.flower.possible_tests`."""


class Numbers(Strict):
    """The numbers of a reply; the five of each test are all there or none, and products where there are two tests."""

    gradients: Counted
    losses: Counted
    seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
    parts: dict[Annotated[int, Field(ge=0, le=2)], Number]
    test: Tested | None
    also: Tested | None
    products: Annotated[list[Number], Field(max_length=2 * (MOST_METRICS + 1)), AfterValidator(_pairs)] | None

    @model_validator(mode="after")
    def _of_two(self) -> Numbers:
        if (self.also is None) != (self.products is None):
            raise ValueError("products are those of two tests")
        return self


class ModelNote(Strict):
    """See :class:`drfl.flower.messages.Model`."""

    model: Annotated[str, Field(max_length=64)]
    loss: Annotated[str, Field(max_length=64)]
    dtype: Literal["float32", "float64"]
    classes: Annotated[int, Field(ge=0, le=MOST_CLASSES)]
    engine: Annotated[str, Field(max_length=64)]
    metrics: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(min_length=1, max_length=MOST_METRICS)]


class KeyNote(Strict):
    """See :class:`drfl.core.key.Key`; the seed is text, as Flower's integers end at 2^63."""

    seed: Annotated[str, Field(pattern="^[0-9]{1,20}$")]
    path: Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(max_length=256)]


Batch = Annotated[int, Field(ge=1, le=MOST_ROWS)] | None


class LocalNote(Strict):
    """See :class:`drfl.optim.local.LocalSGD`, which has the ranges; ``optimizer`` as :mod:`drfl.optim.local_optimizers`
    writes it.

    η is that of the round: a schedule stays at the server.
    """

    steps: Annotated[int, Field(ge=1, le=2**31)] | None
    epochs: Annotated[int, Field(ge=1, le=2**31)] | None
    optimizer: Annotated[str, Field(max_length=128)]
    lr: float
    batch: Batch
    momentum: float
    weight_decay: float
    radius: float | None


class TrainNote(Strict):
    """See :class:`drfl.federation.requests.TrainRequest`."""

    kind: Literal["train"]
    key: KeyNote
    local: LocalNote
    prox: Annotated[float, Field(allow_inf_nan=False)]
    snapshot: Annotated[int, Field(ge=1, le=2**31)] | None
    average: bool


class LossNote(Strict):
    """See :class:`drfl.federation.requests.LossRequest`."""

    kind: Literal["losses"]
    key: KeyNote
    batch: Batch


class GradientNote(Strict):
    """See :class:`drfl.federation.requests.GradientRequest`."""

    kind: Literal["gradients"]
    key: KeyNote
    batch: Batch


class AskNote(Strict):
    """The plain values of a request; see :class:`drfl.flower.messages.Ask`."""

    protocol: Literal[7]
    client: Annotated[int, Field(ge=0, le=2**31)]
    model: ModelNote
    test: bool
    version: Annotated[str, Field(pattern="^(zero|[0-9a-f]{24})?$")]
    request: Annotated[TrainNote | LossNote | GradientNote, Field(discriminator="kind")] | None


class HeadNote(Strict):
    """The head of the sender's audit log, see :class:`drfl.core.audit_log.Head`."""

    head: Annotated[str, Field(max_length=512)]


def note(plain: BaseModel) -> ConfigRecord:
    """Plain values as a record."""
    return ConfigRecord({"json": plain.model_dump_json()})


def read_note(content: RecordDict, name: str, kind: type[T]) -> T:
    """The plain values of a record.

    Args:
        content: a message's.
        name: the record's.
        kind: its schema.

    Raises:
        ProtocolError: there is no such record, or it does not fit the schema.
    """
    record = content.config_records.get(name)
    text = None if record is None else record.get("json")
    # Check the length first, as parsing a long text takes time before it fails.
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ProtocolError("a message is not drfl's: its text is missing or too long")
    try:
        return kind.model_validate_json(text.encode("utf-8", "surrogatepass"))
    except ValidationError as error:
        raise ProtocolError(validation_message(error)) from None


def payload(content: RecordDict) -> int:
    """Bytes of a message's records as they travel, without what Flower and HTTP add."""
    total = 0
    for name, record in content.items():
        total += len(name)
        for key, value in record.items():
            total += len(key) + _size(value)
    return total


def _size(value: object) -> int:
    """Bytes of a value; Flower's own count raises where a text is empty."""
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_size, value)) if isinstance(value, list) else 8


def validation_message(error: ValidationError) -> str:
    """What is wrong with a message, in a line that quotes nothing of it but names of fields, cut short."""
    # Leave out the input: text from a site must not reach logs and terminals.
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["loc"] == ("protocol",):
        return f"the other end does not speak version {PROTOCOL} of drfl's protocol: install the same drfl at both ends"
    return f"{printable(where, 80) or 'its text'} cannot be read: {first['msg'][0].lower()}{first['msg'][1:]}"


def rejection_reason(error: Exception) -> str:
    """The reason for which a message is rejected, in a line; of an unforeseen error only its type."""
    return str(error) if isinstance(error, ProtocolError) else f"it cannot be read ({type(error).__name__})"


def printable(text: object, most: int = MOST_SHOWN) -> str:
    """A site's text for a line of the log: what a terminal would not print becomes a space, and the end is cut."""
    return one_line(text, most)
