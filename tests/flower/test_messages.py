"""Test that every message is transferred exactly or refused in one line."""

import math
import time

import msgspec
import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from tests.support.refusals import refused
from tests.support.scripts import ROOT

from drfl.core.audit_log import Head
from drfl.core.key import Key
from drfl.federation.requests import GradientRequest, LossRequest, TrainRequest
from drfl.flower import messages
from drfl.flower.messages import Answer, Ask, ModelRecipe, SiteIdentity, SiteTest, request_of, work_of
from drfl.flower.records import PROTOCOL, ProtocolError, array_of, read, read_head, write, write_head
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import SAM
from drfl.optim.schedules import Cosine

from .conftest import with_field

W, ONE, KEY = torch.arange(6.0), torch.tensor([1]), Key(2**64 - 1).fold("round", 3)
MODEL = ModelRecipe("linear", "cross-entropy", "float32", 2)
SUMS = ((15.0, 9.0, 9.0, 0.0, math.nan),)
TEST = SiteTest(math.inf, math.nan, 15, (0.5,), SUMS)
ANSWER = Answer((W, torch.tensor(0.1)), TEST, 16, 2, 0.1, "0" * 24, False, "f" * 32, TEST, ((5.0, -math.inf),))


SENT_BY_SITES = (
    messages.SiteIdentity, messages.SiteWarning, messages.SharedRows, messages.Answer, messages.SiteTest,
    messages.AnswerTests, messages.AnswerLosses, messages.LossSums, messages.Receipt,
)  # fmt: skip
SENT_BY_THE_SERVER = (
    messages.CodeFile, messages.ModelRecipe, messages.Work, messages.TrainWork, messages.LossWork,
    messages.GradientWork, messages.HoldOut, messages.AskIdentity, messages.SentTensor, messages.Ask,
    messages.FinishedModel, messages.AskTests, messages.AskLosses, messages.Delivery, messages.SentMethod,
)  # fmt: skip


def test_page_names_everything_that_a_site_sends():
    known = {each for each in vars(messages).values() if isinstance(each, type) and issubclass(each, messages.Message)}
    assert known - {messages.Message} == {*SENT_BY_SITES, *SENT_BY_THE_SERVER}
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    section = page.partition("\n## Data that leave a site\n")[2].partition("\n## ")[0]
    names = {name for each in SENT_BY_SITES for name in (each.__name__, *each.__struct_fields__)}
    assert {name for name in names if f"`{name}`" not in section} == set()


def travelled(content):
    return recorddict_from_proto(recorddict_to_proto(content))


def asking(request):
    return read(travelled(write(Ask(1, MODEL, W, work_of(request), True, "zero", W))), Ask)


def fields(message):
    return msgspec.msgpack.decode(write(message)["message"]["fields"])


def rejected(content, kind, *quoted):
    with refused("protocol", None, *quoted, kind=ProtocolError) as caught:
        read(content, kind)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


LOCAL = LocalSGD(
    np.int64(3), np.float32(0.5), np.int64(8), 0, np.float64(0.25), 2, optimizer=SAM(0.1), lr_schedule=Cosine(9)
)


@pytest.mark.parametrize(
    "request_",
    [
        TrainRequest(ONE, W, KEY, LOCAL, np.float64(0.5), None, np.int64(2), True),
        TrainRequest(ONE, W, KEY, LocalSGD(epochs=2, lr=1, batch=None), 0),
        LossRequest(ONE, W, KEY, np.int64(7)),
        LossRequest(ONE, W, KEY),
        GradientRequest(ONE, W, KEY, 1),
    ],
)
def test_site_reads_the_request_of_the_server(request_):
    ask = asking(request_)
    found = request_of(ask)
    assert type(found) is type(request_)
    assert (found.key, found.cohort.tolist()) == (KEY, [1])
    assert torch.equal(found.w, W)
    assert torch.equal(ask.shift, W)
    if not isinstance(request_, TrainRequest):
        assert found.batch == request_.batch
        return
    assert (found.prox, found.snapshot, found.average) == (request_.prox, request_.snapshot, request_.average)
    mine, sent = found.local, request_.local
    for name in ("steps", "epochs", "lr", "batch", "momentum", "weight_decay", "radius", "optimizer"):
        assert getattr(mine, name) == getattr(sent, name), name
    assert mine.lr_schedule == LocalSGD().lr_schedule


@pytest.mark.parametrize(
    ("change", "quoted"),
    [
        ({"lr": -1.0}, "lr"),
        ({"momentum": 1.0}, "momentum"),
        ({"radius": math.inf}, "radius"),
        ({"optimizer": "adam:beta1=7"}, "beta1"),
        ({"optimizer": "\x1b[2J"}, "optimizer"),
        ({"snapshot": 4}, "4"),
        ({"steps": None, "epochs": 1}, "epochs"),
        ({"epochs": 1}, "epochs"),
    ],
)
def test_impossible_request_is_refused(change, quoted):
    content = write(Ask(1, MODEL, W, work_of(TrainRequest(ONE, W, KEY, LocalSGD(3, 0.1), 0.5, None, 2))))
    work = {**msgspec.msgpack.decode(content["message"]["fields"])["work"], **change}
    ask = read(with_field(content, "work", work), Ask)
    with refused("protocol", None, quoted, kind=ProtocolError):
        request_of(ask)


def test_non_finite_numbers_and_large_seeds_are_transferred_exactly():
    found = read(travelled(write(ANSWER)), Answer)
    assert fields(found) == fields(ANSWER) or str(fields(found)) == str(fields(ANSWER))
    assert [part.dtype for part in found.parts] == [torch.float32, torch.float64]
    assert float(found.parts[1]) == float(torch.tensor(0.1))


@pytest.mark.parametrize("name", list(fields(ANSWER)))
def test_missing_field_of_a_reply_is_refused(name):
    rejected(with_field(write(ANSWER), name, ...), Answer)


@pytest.mark.parametrize("name", list(fields(Ask(1, MODEL, W))))
def test_missing_field_of_a_request_is_refused(name):
    rejected(with_field(write(Ask(1, MODEL, W)), name, ...), Ask)


BIG = 2**64 - 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gradients", (-1, 2**40 + 1, BIG, 2.0**64, 1.0, math.nan, True, "1", None, [1])),
        ("seconds", (-1.0, 1e10, math.nan, math.inf, 1, "1")),
        ("digest", ("", "0" * 31, "0" * 33, "g" * 32, "0" * 32 + "\n", 7)),
        ("version", ("Zero", "0" * 23, "zero\n", "0" * 25, None)),
        ("lacking", (1, "no", None)),
        ("parts", ([], [1, 0.5], [0, 1], [0, 0], [BIG], [-1], [True], [None], ["0"], [[0]], [0, *[0.5] * 5], 0)),
        ("test", ({}, [], {"score": 0.5}, 7)),
        ("also", (None,)),
        ("products", (None, [[1.0]], [[1.0, 2.0, 3.0]], [1.0, 2.0], [[1, 2.0]], [[0.0, 0.0]] * 66)),
        ("more", (None, "\x1b[2J" * 99)),
        ("\x1b[2J" * 99, (7,)),
    ],
)
def test_fields_of_a_reply_have_types_and_ranges(name, values):
    for value in values:
        rejected(with_field(write(ANSWER), name, value), Answer)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("name", ("", "x" * 129, "a\nb", "\u202e", 7)),
        ("shape", ([0], [2**24 + 1], [2**13] * 2, [1] * 9, [6.0], 6)),
        ("classes", (0, 2**16 + 1)),
        ("train", (0, 2**31 + 1, BIG)),
        ("test", (0, 1.5)),
        ("majority", (-0.1, 1.1, math.nan, 1)),
        ("columns", ([0, 1], [0], 0)),
    ],
)
def test_fields_of_a_description_have_types_and_ranges(name, values):
    about = SiteIdentity("a", (6,), 3, 30, 15, "0" * 32, 0.5)
    assert read(write(about), SiteIdentity).majority == 0.5
    for value in values:
        rejected(with_field(write(about), name, value), SiteIdentity)


def with_fields(data, protocol=PROTOCOL):
    content = write(ANSWER)
    content["message"] = ConfigRecord({"protocol": protocol, "fields": data})
    return content


def test_message_has_one_encoding():
    data = write(ANSWER)["message"]["fields"]
    names, first = fields(ANSWER), bytes([data[0]])
    assert read(with_fields(data), Answer)
    rejected(with_fields(bytes([data[0] + 1]) + data[1:] + msgspec.msgpack.encode("losses") + b"\x02"), Answer)
    rejected(with_fields(data + b"\0"), Answer)
    other = {name: names[name] for name in reversed(names)}
    rejected(with_fields(msgspec.msgpack.encode(other)), Answer)
    rejected(with_fields(first + data[1:].replace(b"\x10", b"\xcc\x10", 1)), Answer)  # an integer in more bytes
    assert b"\x10" in data[1:]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa5parts\xdd\xff\xff\xff\xff",
        b"\x81\xa7version\xdb\xff\xff\xff\xff",
        b"\x81\xa7version\xa3\xed\xa0\x80",
        b"\x81\xa1\xff\x01",
        b"\x81\xa5parts" + b"\x91" * 60_000 + b"\x01",
        b"\x81\xa5parts\x91" + b"\x81\x90" * 30_000,
        b"\x81\xa5parts\x91\xd7\xff" + b"\xff" * 8,
        b"\x81\xa1a" * 20_000,
        b"x" * 2**16 + b"x",
    ],
)
def test_foreign_bytes_are_refused_at_once(data):
    start = time.process_time()
    rejected(with_fields(data), Answer)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1, float(PROTOCOL), str(PROTOCOL), True])
def test_other_protocol_version_is_named(protocol):
    rejected(with_fields(b"of another form", protocol), Answer, str(PROTOCOL))
    rejected(RecordDict({"message": ConfigRecord({"protocol": protocol})}), Answer, str(PROTOCOL))


def test_additional_records_and_vectors_are_refused():
    for name, record in (("more", ConfigRecord({"a": 1})), ("vectors", ConfigRecord({})), ("message", ArrayRecord({}))):
        content = write(ANSWER)
        content[name] = record
        rejected(content, Answer)
    for more in ({"more": 1}, {"fields": "text"}):
        content = write(ANSWER)
        content["message"] = ConfigRecord({**content["message"], **more})
        rejected(content, Answer)
    for name in ("1", "00", "w", ""):
        content = write(ANSWER)
        content["vectors"] = ArrayRecord({**content["vectors"], name: array_of(W)})
        rejected(content, Answer)


def test_messages_with_the_same_vectors_share_bytes():
    packed = {}
    one, two = (write(Ask(client, MODEL, W, also=W + client, test=True), packed) for client in (0, 1))
    assert one["vectors"]["0"].data is two["vectors"]["0"].data
    assert len(packed) == 3
    assert torch.equal(read(two, Ask).also, W + 1)


def test_head_of_a_log_is_a_separate_record():
    head = Head(7, "0" * 64)
    assert read_head(write_head(write(ANSWER), head)) == head
    assert read(write_head(write(ANSWER), head), Answer).losses == 2
    assert read_head(write(ANSWER)) is None
    for wrong in ({"head": "x" * 10**7}, {"head": 7}, {}, {"head": str(head), "more": 1}):
        content = write(ANSWER)
        content["audit"] = ConfigRecord(wrong)
        with refused("protocol", kind=ProtocolError):
            read_head(content)
