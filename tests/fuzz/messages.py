"""Messages of a deployment with changed fields, which Flower accepts but which are wrong.

An answer is not only read. The federation also uses it as one of three replies.
"""

from __future__ import annotations

import functools
import logging

import msgspec
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis.strategies import composite, integers, lists, one_of, sampled_from
from tests.flower.conftest import federation, grid_of, site

from drfl.core.key import Key
from drfl.data import Standardisation
from drfl.federation.requests import GradientRequest, LossRequest, TrainRequest
from drfl.flower import nodes, transport
from drfl.flower.client_app import identity
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import Answer, Ask, ModelRecipe, SiteTest, request_of, work_of
from drfl.flower.nodes import member_of
from drfl.flower.records import MESSAGE, PROTOCOL, VECTORS, read, write
from drfl.optim.local import LocalSGD

from . import strategies
from .judge import Parser
from .strategies import chance, mutated_bytes, mutated_json

VALUES = (
    *strategies.VALUES, "zero", "0" * 24, "0" * 32, "f" * 33, "linear", "float64", "train", "x" * 70_000, [1e999],
    [2**40], {"kind": "losses", "seed": 0, "path": [], "batch": None}, 2**64 - 1, b"train", [0.5], [0, 1, 2],
)  # fmt: skip
REALS = (0, 1, -1, 7, 2**31, 2**40, 2**62, -(2**63), 0.0, 0.5, -0.5, 1e300, float("inf"), -float("inf"), float("nan"))
TYPES = ("float32", "float64", "int8", "float16", "object", ">f4", "U3", "", "x" * 5000)
SHAPES = ((), (0,), (21,), (3, 7), (-1,), (2**62,), (2**40, 2**40), (1,) * 40, (21, 1))
KINDS = ("ask", "answer", "identity")


@functools.cache
def originals() -> dict[str, list[dict]]:
    """Return messages of each kind as plain values, {record: {name: value}}, including the fields."""
    w = torch.arange(21, dtype=torch.float32)
    model, key, one = ModelRecipe("linear", "cross-entropy", "float32", 3), Key(3).fold("a"), torch.tensor([1])
    requests = (
        TrainRequest(one, w, key, LocalSGD(lr=0.1), 0.1, None, 2, True), LossRequest(one, w, key, 8),
        GradientRequest(one, w, key, None), None,
    )  # fmt: skip
    loss, by = torch.tensor(0.5, dtype=torch.float64), Standardisation(*torch.ones(2, 6, dtype=torch.float64))
    answers = (
        Answer((w,), tested(9), 16, 0, 0.1), Answer((w, w), None, 16, 0, 0.1, "0" * 24),
        Answer((loss,), None), Answer((w, loss), None), Answer(lacking=True),
        Answer((), tested(9), also=tested(6), products=((5.0, 4.0),)),
    )  # fmt: skip
    return {
        "ask": [
            plain(write(Ask(1, model, w, request and work_of(request), True, "zero", w, by, w))) for request in requests
        ],
        "answer": [plain(write(answer)) for answer in answers],
        "identity": [plain(identity(site("b")))],
    }


def tested(right: int) -> SiteTest:
    """Return the sums of 15 rows, of which this number is right."""
    return SiteTest(right / 15, 0.1, 15, (), ((15.0, float(right), float(right)),))


def plain(content: RecordDict) -> dict:
    """Return records as plain values with decoded fields."""
    found: dict = {name: dict(record) for name, record in content.items()}
    found[MESSAGE]["fields"] = msgspec.msgpack.decode(found[MESSAGE]["fields"])
    return found


@composite
def mutated_message(draw):
    """Draw the kind of a message, and its records with up to three changes."""
    kind = draw(sampled_from(KINDS))
    records = {name: dict(record) for name, record in draw(sampled_from(originals()[kind])).items()}
    for change in draw(lists(sampled_from(CHANGES), max_size=3)):
        change(draw, records)
    return kind, records


def _field(draw, records):
    """Change, remove or add a field at any depth."""
    if isinstance(fields := records.get(MESSAGE, {}).get("fields"), dict) and fields:
        records[MESSAGE]["fields"] = draw(mutated_json(fields, draw(sampled_from((VALUES, REALS)))))


def _bytes(draw, records):
    """Damage the bytes of the fields, or replace them by text."""
    if isinstance(fields := records.get(MESSAGE, {}).get("fields"), dict):
        damaged = mutated_bytes(packed(fields))
        records[MESSAGE]["fields"] = draw(one_of(damaged, damaged, sampled_from(("", "{}", b"", b"\x91" * 60_000))))


def _protocol(draw, records):
    """Change the protocol version, or add another entry."""
    if MESSAGE in records:
        name = draw(sampled_from(("protocol", "more")))
        records[MESSAGE][name] = draw(sampled_from((PROTOCOL, PROTOCOL + 1, float(PROTOCOL), True, "8", b"8", [8])))


def _vector(draw, records):
    """Change a vector's type, shape, style, length or name, or remove it."""
    vectors = records.get(VECTORS)
    if not vectors or not all(isinstance(array, Array) for array in vectors.values()):
        return
    name = draw(sampled_from(list(vectors)))
    array = vectors.pop(name)
    parts = {"dtype": array.dtype, "shape": tuple(array.shape), "stype": array.stype, "data": array.data}
    other = {
        "dtype": sampled_from(TYPES), "shape": sampled_from(SHAPES), "stype": sampled_from(("numpy.ndarray", "", "x")),
        "data": one_of(
            integers(0, len(array.data)).map(lambda length: array.data[:length]),
            sampled_from((array.data * 2, b"\xff" * len(array.data))),
        ),
    }  # fmt: skip
    part = draw(sampled_from((*other, None)))
    if part is not None:
        new = draw(sampled_from((name, name, name, "0", "2", "00", "mean", "\ud7ff", "")))
        vectors[new] = Array(**{**parts, part: draw(other[part])})


def _record(draw, records):
    """Remove or rename a record."""
    if records:
        record = records.pop(draw(sampled_from(list(records))))
        if draw(chance(60)):
            records[draw(sampled_from((MESSAGE, VECTORS, "audit", "more")))] = record


CHANGES = (_field, _field, _field, _field, _vector, _vector, _bytes, _protocol, _record)


def packed(value) -> bytes:
    """Pack a value as MessagePack, including invalid UTF-8 and huge integers, which drfl cannot write."""
    return msgspec.msgpack.encode(_packable(value))


def _packable(value):
    if isinstance(value, dict):
        return {name: _packable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_packable(part) for part in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(5, str(value).encode())
    if isinstance(value, str) and (data := value.encode("utf-8", "surrogatepass")) != value.encode("utf-8", "replace"):
        return msgspec.Raw(b"\xdb" + len(data).to_bytes(4) + data)
    return value


def built(records: dict) -> RecordDict:
    """Return the records for Flower, without those that Flower refuses."""
    found = RecordDict()
    for name, values in records.items():
        values = {k: packed(v) if isinstance(v, dict) else v for k, v in values.items()}
        for kind in (ArrayRecord, MetricRecord, ConfigRecord):
            try:
                found[name] = kind(values)
                break
            except (TypeError, ValueError, AttributeError):
                continue
    return found


class Swapping(InProcessGrid):
    """Replace the second node's reply to a training request."""

    content: RecordDict | None = None

    def answer(self, message: Message, context) -> Message:
        """Read and use an answer."""
        reply = super().answer(message, context)
        if self.content is not None and context.node_id == 2 and message.metadata.message_type == "train":
            reply.content = self.content
        return reply


@functools.cache
def deployed():
    """Make a grid of three sites and its federation, which never skips a site."""
    nodes.PAUSE = transport.PAUSE = 0.001
    grid = grid_of("abc", grid=Swapping)
    return grid, federation(grid, "abc")


def read_message(item, folder):
    """Read a message at its receiving end."""
    kind, records = item
    deployed()  # Flower builds no messages before this call
    content = built(records)
    if kind == "ask":
        request_of(read(content, Ask))
    elif kind == "identity":
        reply = Message(RecordDict(), 1, "query.identity")
        reply.content = content
        member_of(reply)
    else:
        use(content)


def use(content: RecordDict) -> None:
    """Require that the reply is rejected or has a model of the right length, and that the others are used."""
    grid, fed = deployed()
    grid.content = content
    for health in fed._transport.health.values():
        health.record_usable()
    everybody, local = torch.arange(3), LocalSGD(steps=1, lr=0.1, batch=4)
    log = logging.getLogger("drfl.flower")
    log.disabled = True  # avoid a log line for every input
    try:
        reply = fed.train(everybody, fed.w0, local, Key(0))
    finally:
        log.disabled = False
    assert {0, 2} <= set(reply.clients.tolist())
    assert reply.w.shape == (len(reply.clients), len(fed.w0))
    assert all(0 <= count < 2**62 for count in fed.ledger.totals().values())


MESSAGES = (Parser("fields of messages", mutated_message(), read_message),)
