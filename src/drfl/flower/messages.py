"""Requests and replies as Flower's records, one message a client and exchange.

A model travels as one flat vector in its own type, never pickled. Numbers that name random streams travel as text, as
Flower's integers end at 2^63.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, MetricRecordValues, RecordDict
from pydantic import ValidationError
from torch import Tensor

from drfl.core.audit_log import Head
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data.standardisation import Standardisation
from drfl.federation.requests import GradientRequest, LossRequest, Request, TrainRequest
from drfl.flower.schema import (
    MOST_TEXT,
    PROTOCOL,
    AnswerNote,
    AskNote,
    GradientNote,
    HeadNote,
    KeyNote,
    LocalNote,
    LossNote,
    ModelNote,
    Numbers,
    ProtocolError,
    TrainNote,
    note,
    read_note,
    validation_message,
)
from drfl.optim import local_optimizers
from drfl.optim.local import LocalSGD
from drfl.task.metrics import ACCURACY

RAW = "drfl.vector"
"""How the bytes of an array are laid out: the numbers alone, in C order, little-endian."""

TYPES = {"float32": 4, "float64": 8}
"""Bytes of a number, by the types that a vector may have."""

MOST_PARTS = 3
"""Vectors in one reply: a model, a snapshot and an average."""

TEST = ("test score", "test loss", "test samples", "test others", "test sums")
ALSO = ("also score", "also loss", "also samples", "also others", "also sums")
PRODUCTS = "products"

AUDIT = "audit"
"""The record with the head of the sender's audit log."""


@dataclass(frozen=True)
class Model:
    """What a site needs to build the model that it trains.

    Args:
        model: its name, see :data:`drfl.task.models.MODELS`; "" where the site has its own.
        loss: its name, see :data:`drfl.task.models.LOSSES`.
        dtype: "float32" or "float64".
        classes: number of outputs.
        metrics: what a test measures, see :data:`drfl.task.metrics.METRICS`; the score first.
        engine: see :data:`drfl.engine.ENGINES`.
    """

    model: str
    loss: str
    dtype: str
    classes: int
    engine: str = "auto"
    metrics: tuple[str, ...] = (ACCURACY.name,)


class Ask(NamedTuple):
    """A message to one client.

    Args:
        client: its index.
        model: what it trains.
        w: (d,) the model sent.
        request: what to answer, of a cohort of this client alone; None = only the test.
        test: whether ``w`` is to be tested on the client's test rows too, before anything else.
        version: the shift's, see :func:`version`; "" where the request has none.
        standardisation: by which the site scales its inputs; None = they are taken as they are.
        also: (d,) a second model to test, along with ``w``.
    """

    client: int
    model: Model
    w: Tensor
    request: Request | None = None
    test: bool = False
    version: str = ""
    standardisation: Standardisation | None = None
    also: Tensor | None = None


class SiteTest(NamedTuple):
    """What a test of a model gave.

    Args:
        score: the first of the model's metrics.
        loss: mean loss.
        samples: number of test rows.
        others: the other metrics.
        sums: five of each metric over the test rows, see :class:`drfl.federation.federation.Evaluation`; nothing of a
            single row.
    """

    score: float
    loss: float
    samples: int
    others: tuple[float, ...] = ()
    sums: tuple[tuple[float, ...], ...] = ()


Products = tuple[tuple[float, ...], ...]
"""Two for each measure, see :func:`drfl.data.row_scores.products`."""


class Answer(NamedTuple):
    """A client's answer.

    Args:
        parts: the fields of the reply to the request, after ``clients``: a model (d,), a loss ().
        test: of the test rows, where it was asked for.
        gradients: samples whose gradient was computed.
        losses: samples whose loss was computed without.
        seconds: working time of the site.
        version: of the shift that the site keeps for next time; "" where it keeps none.
        lacking: whether the site does not hold the shift that the message refers to: nothing was computed.
        digest: of the site's data, as in its identity before the run.
        also: the same as ``test`` of the second model.
        products: sums of the products of both models' values. None where there was no second model.
    """

    parts: tuple[Tensor, ...] = ()
    test: SiteTest | None = None
    gradients: int = 0
    losses: int = 0
    seconds: float = 0.0
    version: str = ""
    lacking: bool = False
    digest: str = "0" * 32
    also: SiteTest | None = None
    products: Products | None = None


def version(vector: Tensor) -> str:
    """Names the bytes of a vector; "zero" for one of zeros, which need not be sent at all."""
    # Before the first round all shifts are 0: without this each client would be sent a vector of zeros.
    if not bool(vector.any()):
        return "zero"
    return hashlib.blake2b(vector.detach().cpu().contiguous().numpy().data, digest_size=12).hexdigest()


def array_of(vector: Tensor) -> Array:
    """A vector as Flower's array."""
    values = vector.detach().cpu().contiguous().numpy()
    # The bytes mean the same on machines of either byte order; on a little-endian one nothing is copied.
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return Array(dtype=str(values.dtype), shape=values.shape, stype=RAW, data=little.tobytes())


def vector_of(array: Array) -> Tensor:
    """The vector in Flower's array.

    Raises:
        ProtocolError: it is none, or has not as many bytes as it says.
    """
    if array.stype != RAW or array.dtype not in TYPES:
        raise ProtocolError("an array is of another type than drfl's vectors")
    shape = tuple(array.shape)
    # Bytes are counted before anything of the claimed size is allocated.
    if len(shape) > 1 or min(shape, default=1) < 0 or len(array.data) != TYPES[array.dtype] * math.prod(shape):
        raise ProtocolError("an array is no vector of the length that it says")
    values = np.frombuffer(array.data, dtype=np.dtype(array.dtype).newbyteorder("<"))
    return torch.from_numpy(values.astype(array.dtype).reshape(shape))


def write_ask(ask: Ask, shift: Tensor | None, arrays: Mapping[str, Array] | None = None) -> RecordDict:
    """The records of a message.

    Args:
        ask: what is asked.
        shift: (d,) the shift to send; None where there is none or the client holds it.
        arrays: vectors by name that were packed for another client already.
    """
    vectors = {"w": array_of(ask.w)} if arrays is None else dict(arrays)
    if shift is not None:
        vectors["shift"] = array_of(shift)
    if ask.also is not None and "also" not in vectors:
        vectors["also"] = array_of(ask.also)
    if ask.standardisation is not None:
        vectors |= {"mean": array_of(ask.standardisation.mean), "scale": array_of(ask.standardisation.scale)}
    asked, request = ask.request, None
    if asked is not None:
        # Send the key, not numbers drawn from it, so that a site draws the minibatches that a simulation would draw.
        key = KeyNote(seed=str(asked.key.seed), path=list(asked.key.path))
        if isinstance(asked, TrainRequest):
            plain = {name: getattr(asked.local, name) for name in LocalNote.model_fields}
            plain["optimizer"] = str(asked.local.optimizer)
            local = LocalNote.model_validate(plain, strict=False)  # a number may be NumPy's
            own = {"prox": float(asked.prox), "snapshot": asked.snapshot, "average": asked.average}
            request = TrainNote(kind="train", key=key, local=local, **own)
        elif isinstance(asked, LossRequest):
            request = LossNote(kind="losses", key=key, batch=asked.batch)
        else:
            request = GradientNote(kind="gradients", key=key, batch=cast("GradientRequest", asked).batch)
    about = AskNote(
        protocol=PROTOCOL, client=ask.client, model=ModelNote(**asdict(ask.model)), test=ask.test,
        version=ask.version, request=request,
    )  # fmt: skip
    return RecordDict({"vectors": ArrayRecord(vectors), "ask": note(about)})


VECTORS = ("w", "also", "shift", "mean", "scale")
"""Of a request; only the first is always there."""


def read_ask(content: RecordDict) -> tuple[Ask, Tensor | None]:
    """The request in a message, and the shift in it.

    Raises:
        ProtocolError: the message is of another version of drfl, or damaged.
    """
    about, vectors = read_note(content, "ask", AskNote), vectors_in(content, VECTORS)
    if "w" not in vectors:
        raise ProtocolError("a request came without a model")
    w, also = vectors["w"], vectors.get("also")
    if also is not None and (not about.test or also.shape != w.shape or also.dtype != w.dtype):
        raise ProtocolError("a request came with a second model that is of another kind, or not to be tested")
    if ("mean" in vectors) != ("scale" in vectors):
        raise ProtocolError("a request came with only one of the vectors mean and scale")
    standardisation = None
    try:
        if "mean" in vectors:
            standardisation = Standardisation(vectors["mean"], vectors["scale"])
        plain, request = about.request, None
        if plain is not None:
            key, cohort = Key(int(plain.key.seed), tuple(plain.key.path)), torch.tensor([about.client])
            if isinstance(plain, TrainNote):
                optimizer = local_optimizers.parse(plain.local.optimizer)
                # The server applies the schedule and sends the η of this round.
                local = LocalSGD(**plain.local.model_dump(exclude={"optimizer"}), optimizer=optimizer)
                if plain.snapshot is not None and plain.snapshot > local.tau:
                    raise InputError(
                        f"there is no step {plain.snapshot} of {local.tau} to take a snapshot after",
                        code="out-of-range",
                        field="snapshot",
                    )
                request = TrainRequest(cohort, w, key, local, plain.prox, None, plain.snapshot, plain.average)
            else:
                make = {"losses": LossRequest, "gradients": GradientRequest}[plain.kind]
                request = make(cohort, w, key, plain.batch)
    except InputError as error:
        raise ProtocolError(f"a request cannot be met: {error}") from error
    model = Model(**about.model.model_dump())
    ask = Ask(about.client, model, w, request, about.test, about.version, standardisation, also)
    return ask, vectors.get("shift")


def write_answer(answer: Answer) -> RecordDict:
    """The records of a reply."""
    about = AnswerNote(
        protocol=PROTOCOL, parts=len(answer.parts), version=answer.version, lacking=answer.lacking,
        digest=answer.digest,
    )  # fmt: skip
    numbers: dict[str, MetricRecordValues] = {
        "gradients": answer.gradients, "losses": answer.losses, "seconds": answer.seconds,
    }  # fmt: skip
    vectors: dict[str, Array] = {}
    for place, part in enumerate(answer.parts):
        if part.ndim:
            vectors[str(place)] = array_of(part)
        else:
            # A loss is a float64 at both ends, which Flower's metrics hold exactly.
            numbers[f"part {place}"] = float(part)
    for names, tested in ((TEST, answer.test), (ALSO, answer.also)):
        if tested is not None:
            sums = [value for own in tested.sums for value in own]
            numbers |= dict(zip(names, (*tested[:3], list(tested.others), sums), strict=True))
    if answer.products is not None:
        numbers[PRODUCTS] = [value for own in answer.products for value in own]
    records = {"vectors": ArrayRecord(vectors), "numbers": MetricRecord(numbers), "answer": note(about)}
    return RecordDict(records)


def read_answer(content: RecordDict) -> Answer:
    """A client's answer: its fields have the types and ranges of :mod:`drfl.flower.schema`.

    Whether vectors have the length of the model, and numbers are finite, is checked elsewhere.

    Raises:
        ProtocolError: it is no reply of this version of drfl.
    """
    # Reject other records: a record that drfl does not read could carry data out of a site unseen.
    if set(content) - {AUDIT} != {"vectors", "numbers", "answer"}:
        raise ProtocolError("a reply has other records than drfl's")
    about = read_note(content, "answer", AnswerNote)
    # The schema allows at most three parts.
    places = tuple(str(place) for place in range(about.parts))
    vectors = vectors_in(content, places)
    record = content.metric_records.get("numbers")
    # Parts and test are taken out by name; the model below rejects names that it does not know.
    given = dict(record) if record is not None else {}
    parts = {int(place): given.pop(f"part {place}") for place in places if f"part {place}" in given}
    tests = {field: tuple(given.pop(name, None) for name in names) for field, names in (("test", TEST), ("also", ALSO))}
    tests = {field: None if found == (None,) * len(found) else found for field, found in tests.items()}
    products = given.pop(PRODUCTS, None)
    try:
        numbers = Numbers.model_validate({**given, **tests, "products": products, "parts": parts})
    except ValidationError as error:
        raise ProtocolError(validation_message(error)) from None
    scalars = {str(place): torch.tensor(value, dtype=torch.float64) for place, value in numbers.parts.items()}
    if vectors.keys() & scalars.keys() or vectors.keys() | scalars.keys() != set(places):
        raise ProtocolError("a reply has a part twice, or lacks one")
    parts = tuple({**vectors, **scalars}[place] for place in places)
    work = numbers.gradients, numbers.losses, numbers.seconds
    test, also = (
        None if tested is None else SiteTest(*tested[:3], tuple(tested[3]), _pieces(tested[4], 5))
        for tested in (numbers.test, numbers.also)
    )
    products = None if numbers.products is None else _pieces(numbers.products, 2)
    return Answer(parts, test, *work, about.version, about.lacking, about.digest, also, products)


def _pieces(values: list[float], length: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(values[at : at + length]) for at in range(0, len(values), length))


def digest_of_content(content: RecordDict) -> str:
    """Name all that a message says by 32 hexadecimal digits, the head of the sender's audit log apart."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(set(content) - {AUDIT}):
        for key, value in sorted(content[name].items()):
            # An empty list has lost the type of its numbers on the way, so that types are those of single values.
            array = isinstance(value, Array)
            plain = f"{value.dtype} {tuple(value.shape)} {value.stype}" if array else repr(value)
            data = value.data if array else b""
            digest.update(repr((name, key, plain, len(data))).encode("utf-8", "surrogatepass"))
            digest.update(data)
    return digest.hexdigest()


def write_head(content: RecordDict, head: Head | None) -> RecordDict:
    """Add the head of the sender's audit log to a message; nothing if it keeps none."""
    if head is not None:
        content[AUDIT] = note(HeadNote(head=str(head)))
    return content


def read_head(content: RecordDict) -> Head | None:
    """The head of the sender's audit log; None if the message has none.

    Raises:
        ProtocolError: It has another form.
    """
    if AUDIT not in content:
        return None
    try:
        return Head.parse(read_note(content, AUDIT, HeadNote).head)
    except ProtocolError:
        raise
    except ValueError:
        raise ProtocolError("the head of its audit log has another form") from None


def most_bytes(w: Tensor) -> int:
    """The size in bytes of the largest valid reply for a model w (d,)."""
    return MOST_PARTS * w.numel() * w.element_size() + MOST_TEXT


def vectors_in(content: RecordDict, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The vectors of a message by name; no others may be there."""
    record = content.array_records.get("vectors")
    if record is None or not set(record) <= set(names):
        raise ProtocolError("a message has other vectors than drfl's")
    return {name: vector_of(array) for name, array in record.items()}
