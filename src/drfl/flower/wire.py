"""Requests and replies as Flower's records, one message a client and exchange.

A model travels as one flat vector in its own type, never pickled. Numbers that name random streams travel as text, as
Flower's integers end at 2^63.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, MetricRecordValues, RecordDict
from torch import Tensor

from drfl.errors import InputError
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.request import GradientRequest, LossRequest, Request, TrainRequest

PROTOCOL = 1
"""Both ends must have the same; changed with every change of this file that the other end would misread."""

RAW = "drfl.vector"
"""How the bytes of an array are laid out: the numbers alone, in C order, little-endian."""


class ProtocolError(InputError):
    """A message that this end cannot read."""


@dataclass(frozen=True)
class Model:
    """What a site must know to build the model that it trains.

    Args:
        model: its name, see :data:`drfl.models.MODELS`; "" where the site brings its own.
        loss: its name, see :data:`drfl.losses.LOSSES`.
        dtype: "float32" or "float64".
        classes: number of outputs.
        engine: see :data:`drfl.engine.ENGINES`.
    """

    model: str
    loss: str
    dtype: str
    classes: int
    engine: str = "auto"


class Ask(NamedTuple):
    """What one message asks of one client.

    Args:
        client: its index.
        model: what it trains.
        w: (d,) the model sent.
        request: what to answer, of a cohort of this client alone; None = only the test.
        test: whether ``w`` is to be tested on the client's test rows too, before anything else.
        version: the shift's, see :func:`version`; "" where the request has none.
    """

    client: int
    model: Model
    w: Tensor
    request: Request | None = None
    test: bool = False
    version: str = ""


class Answer(NamedTuple):
    """What comes back.

    Args:
        parts: the fields of the reply to the request, after ``clients``: a model (d,), a loss ().
        test: mean score, mean loss and number of test samples, where they were asked for.
        gradients: samples whose gradient was computed.
        losses: samples whose loss was computed without.
        seconds: that the site worked on it.
        version: of the shift that the site keeps for next time; "" where it keeps none.
        lacking: whether the site does not hold the shift that the message meant: nothing was done.
    """

    parts: tuple[Tensor, ...] = ()
    test: tuple[float, float, int] | None = None
    gradients: int = 0
    losses: int = 0
    seconds: float = 0.0
    version: str = ""
    lacking: bool = False


def version(vector: Tensor) -> str:
    """Names the bytes of a vector; "zero" for one of zeros, which need not be sent at all."""
    if not bool(vector.any()):
        return "zero"
    return hashlib.blake2b(vector.detach().cpu().contiguous().numpy().data, digest_size=12).hexdigest()


def array_of(vector: Tensor) -> Array:
    """A vector as Flower's array."""
    values = vector.detach().cpu().contiguous().numpy()
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return Array(dtype=str(values.dtype), shape=values.shape, stype=RAW, data=little.tobytes())


def vector_of(array: Array) -> Tensor:
    """The vector in Flower's array.

    Raises:
        ProtocolError: it is none, or has not as many bytes as it says.
    """
    if array.stype != RAW or array.dtype not in ("float32", "float64") or len(array.shape) > 1:
        raise ProtocolError(f"an array of {array.stype} {array.dtype} of shape {tuple(array.shape)} is no vector")
    values = np.frombuffer(array.data, dtype=np.dtype(array.dtype).newbyteorder("<"))
    if values.size != int(np.prod(array.shape)):
        raise ProtocolError(f"an array of shape {tuple(array.shape)} came with {values.size} numbers")
    return torch.from_numpy(values.astype(array.dtype).reshape(array.shape))


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
    about = {
        "client": ask.client, "model": ask.model.__dict__, "test": ask.test,
        "version": ask.version, "request": None if ask.request is None else _plain(ask.request),
    }  # fmt: skip
    return RecordDict({"vectors": ArrayRecord(vectors), "ask": note(about)})


def read_ask(content: RecordDict) -> tuple[Ask, Tensor | None]:
    """What a message asks, and the shift in it.

    Raises:
        ProtocolError: the message is of another version of drfl, or damaged.
    """
    about = read_note(content, "ask")
    try:
        vectors = content.array_records["vectors"]
        w = vector_of(vectors["w"])
        shift = vector_of(vectors["shift"]) if "shift" in vectors else None
        client, told = int(about["client"]), about["request"]
        model = Model(**about["model"])
        request = None if told is None else _request(told, client, w)
        return Ask(client, model, w, request, bool(about["test"]), str(about["version"])), shift
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a message cannot be read ({type(error).__name__}: {error})") from error


def write_answer(answer: Answer) -> RecordDict:
    """The records of a reply."""
    about = {"version": answer.version, "lacking": answer.lacking, "parts": len(answer.parts)}
    numbers: dict[str, MetricRecordValues] = {
        "gradients": answer.gradients, "losses": answer.losses, "seconds": answer.seconds,
    }  # fmt: skip
    vectors: dict[str, Array] = {}
    for place, part in enumerate(answer.parts):
        if part.ndim:
            vectors[str(place)] = array_of(part)
        else:
            numbers[f"part {place}"] = float(part)
    if answer.test is not None:
        numbers |= dict(zip(("test score", "test loss", "test samples"), answer.test, strict=True))
    return RecordDict(
        {
            "vectors": ArrayRecord(vectors),
            "numbers": MetricRecord(numbers),
            "answer": note(about),
        }
    )


def read_answer(content: RecordDict) -> Answer:
    """What a client answers. Neither shapes nor values are looked at.

    Raises:
        ProtocolError: it is no reply of this version of drfl.
    """
    about = read_note(content, "answer")
    try:
        vectors = content.array_records["vectors"]
        numbers = cast("Mapping[str, float]", content.metric_records["numbers"])
        parts = []
        for place in range(int(about["parts"])):
            if str(place) in vectors:
                parts.append(vector_of(vectors[str(place)]))
            else:
                parts.append(torch.tensor(numbers[f"part {place}"], dtype=torch.float64))
        test = None
        if "test samples" in numbers:
            test = float(numbers["test score"]), float(numbers["test loss"]), int(numbers["test samples"])
        counts = int(numbers["gradients"]), int(numbers["losses"]), float(numbers["seconds"])
        return Answer(tuple(parts), test, *counts, str(about["version"]), bool(about["lacking"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a reply cannot be read ({type(error).__name__}: {error})") from error


def note(about: Mapping[str, object]) -> ConfigRecord:
    """Plain values as a record, with the version of the protocol."""
    return ConfigRecord({"json": json.dumps({"protocol": PROTOCOL, **about})})


def read_note(content: RecordDict, name: str) -> dict:
    """The plain values of a record.

    Raises:
        ProtocolError: there is no such record, or it is of another version.
    """
    try:
        about = json.loads(str(content.config_records[name]["json"]))
        found = about["protocol"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a message is not drfl's ({type(error).__name__}: {error})") from error
    if found != PROTOCOL:
        raise ProtocolError(
            f"the other end speaks version {found} of drfl's protocol, this one {PROTOCOL}: install the same drfl"
        )
    return about


def payload(content: RecordDict) -> int:
    """Bytes of a message's records as they travel, without what Flower and HTTP add."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    texts = sum(record.count_bytes() for record in content.config_records.values())
    return arrays + texts + sum(record.count_bytes() for record in content.metric_records.values())


def _plain(request: Request) -> dict[str, object]:
    key = {"seed": str(request.key.seed), "path": list(request.key.path)}
    if isinstance(request, TrainRequest):
        own = {"local": request.local.__dict__, "prox": request.prox, "snapshot": request.snapshot}
        return {"kind": request.kind, "key": key, **own, "average": request.average}
    return {"kind": request.kind, "key": key, "batch": cast("LossRequest | GradientRequest", request).batch}


def _request(told: Mapping[str, object], client: int, w: Tensor) -> Request:
    key_of = cast("Mapping[str, object]", told["key"])
    key = Key(int(str(key_of["seed"])), tuple(map(int, cast("Sequence[int]", key_of["path"]))))
    cohort = torch.tensor([client])
    if told["kind"] == TrainRequest.kind:
        local = LocalSGD(**cast("dict", told["local"]))
        prox, snapshot = float(cast("float", told["prox"])), cast("int | None", told["snapshot"])
        return TrainRequest(cohort, w, key, local, prox, None, snapshot, bool(told["average"]))
    kinds = {LossRequest.kind: LossRequest, GradientRequest.kind: GradientRequest}
    return kinds[str(told["kind"])](cohort, w, key, cast("int | None", told["batch"]))
