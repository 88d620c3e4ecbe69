"""Test which rows of a reply are valid, and the reasons for rejecting the others."""

from __future__ import annotations

import math

import pytest
import torch
from tests.resilience.federations import EVERYBODY, LOCAL, N, fed_of
from tests.support.refusals import refused

from drfl import Key
from drfl.core.errors import NonFiniteError
from drfl.federation.requests import GradientRequest, Gradients, Losses, LossRequest, Replies, TrainRequest, select_rows
from drfl.resilience import Reason, validate_reply
from drfl.resilience.validation import REASONS, misfit

W, KEY = fed_of().w0, Key(1)
TRAIN = TrainRequest(EVERYBODY, W, KEY, LOCAL, 0.0, None, 1, False)
LOSSES = LossRequest(EVERYBODY, W, KEY, None)
GRADIENTS = GradientRequest(EVERYBODY, W, KEY, None)
REQUESTS = {"train": TRAIN, "losses": LOSSES, "gradients": GRADIENTS}
FIELDS = [
    (kind, field)
    for kind, parts in {"train": ("w", "snapshot"), "losses": ("values",), "gradients": ("values", "losses")}.items()
    for field in parts
]


def reply_to(request):
    return fed_of().ask(request)


def same(one, other):
    return all(a is b is None or torch.equal(a, b) for a, b in zip(one, other, strict=True))


def forms(reply):
    return [part if part is None else (part.shape, part.dtype) for part in reply]


def reasons_of(checked):
    return {
        i: REASONS[code - 1] for i, code in zip(checked.clients.tolist(), checked.codes.tolist(), strict=True) if code
    }


def spoilt(kind, field, rows, value):
    reply = reply_to(REQUESTS[kind])
    part = getattr(reply, field).clone()
    part.view(len(part), -1)[rows, -1] = value
    return reply._replace(**{field: part})


@pytest.mark.parametrize("kind", REQUESTS)
def test_valid_reply_is_unchanged(kind):
    reply = reply_to(REQUESTS[kind])
    for rows in (torch.arange(N), torch.tensor([5, 0, 3]), torch.tensor([], dtype=torch.int64)):
        part = select_rows(reply, rows)
        checked = validate_reply(REQUESTS[kind], part, norm=1e6)
        assert checked.reply is part
        assert not checked.codes.any()


@pytest.mark.parametrize(("kind", "field"), FIELDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_value_rejects_the_whole_row(kind, field, value):
    reply = spoilt(kind, field, [1, 6], value)
    checked = validate_reply(REQUESTS[kind], reply)
    for norm in (None, 1e3):  # infinity is far away as well, and counts as infinity
        assert reasons_of(validate_reply(REQUESTS[kind], reply, norm)) == dict.fromkeys((1, 6), Reason.NOT_FINITE)
    kept = [0, 2, 3, 4, 5, 7]
    assert same(checked.reply, select_rows(reply, torch.tensor(kept)))


def test_finite_values_with_overflowing_sum_are_valid():
    reply = reply_to(GRADIENTS)
    huge = reply.values.clone()
    huge[0] = torch.finfo(huge.dtype).max
    assert not validate_reply(GRADIENTS, reply._replace(values=huge)).codes.any()
    assert reasons_of(validate_reply(GRADIENTS, reply._replace(values=huge), norm=1e9)) == {0: Reason.FAR}


def test_negative_loss_is_valid():
    assert not validate_reply(LOSSES, Losses(EVERYBODY, torch.full((N,), -3.0, dtype=torch.float64))).codes.any()


@pytest.mark.parametrize("field", ["w", "snapshot"])
def test_models_are_bounded_around_the_sent_model(field):
    reply = reply_to(TRAIN)
    part = W.expand(N, -1).clone()
    part[2, 0], part[3, 0] = W[0] + 0.99, W[0] - 1.01
    reply = reply._replace(w=W.expand(N, -1), snapshot=W.expand(N, -1))._replace(**{field: part})
    assert reasons_of(validate_reply(TRAIN, reply, norm=1.0)) == {3: Reason.FAR}
    assert not validate_reply(TRAIN, reply).codes.any()


def test_gradients_are_bounded_and_losses_are_not():
    values = torch.zeros(N, len(W), dtype=W.dtype)
    values[4, 1] = 2.0
    reply = Gradients(EVERYBODY, values, torch.full((N,), 1e9, dtype=torch.float64))
    assert reasons_of(validate_reply(GRADIENTS, reply, norm=1.5)) == {4: Reason.FAR}


def test_strangers_and_second_answers_are_rejected():
    request = LossRequest(torch.tensor([1, 3, 4]), W, KEY, None)
    clients = torch.tensor([3, 99, 1, 3, -1, 2, 99])
    checked = validate_reply(request, Losses(clients, torch.arange(7).double()))
    assert checked.reply.clients.tolist() == [3, 1]
    assert checked.reply.values.tolist() == [0.0, 2.0]
    assert [REASONS[c - 1] if c else None for c in checked.codes.tolist()] == [
        None, Reason.STRANGER, None, Reason.DUPLICATE, Reason.STRANGER, Reason.STRANGER, Reason.STRANGER,
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_wrong_shape_or_type_rejects_all_rows(kind, field):
    request = REQUESTS[kind]
    reply = reply_to(request)
    part = getattr(reply, field)
    for wrong in (part[..., None], part[:-1], torch.cat([part, part], -1)):
        checked = validate_reply(request, reply._replace(**{field: wrong}))
        assert reasons_of(checked) == dict.fromkeys(range(N), Reason.SHAPE)
        assert forms(checked.reply) == forms(request.empty_reply())
    for dtype in (torch.float32, torch.int64):
        assert set(reasons_of(validate_reply(request, reply._replace(**{field: part.to(dtype)}))).values()) == {
            Reason.DTYPE
        }


def test_exactly_the_requested_parts_must_be_present():
    whole = reply_to(TRAIN)
    assert set(reasons_of(validate_reply(TRAIN, whole._replace(snapshot=None))).values()) == {Reason.SHAPE}
    assert set(reasons_of(validate_reply(TRAIN, whole._replace(average=whole.w))).values()) == {Reason.SHAPE}


def test_empty_reply_has_empty_shapes():
    for request in REQUESTS.values():
        empty = select_rows(reply_to(request), torch.tensor([], dtype=torch.int64))
        assert forms(request.empty_reply()) == forms(empty)


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_more_than_half_non_finite_is_an_error(kind, field):
    half = validate_reply(REQUESTS[kind], spoilt(kind, field, [0, 1, 2, 3], math.nan))
    assert half.reply.clients.tolist() == [4, 5, 6, 7]
    with refused("not-finite", None, "clients 0, 1, 2 and 2 more clients", kind=NonFiniteError):
        validate_reply(REQUESTS[kind], spoilt(kind, field, [0, 1, 2, 3, 5], math.nan))
    with refused("not-finite", None, "'b', 'c', 'd' and 2 more clients", kind=NonFiniteError):
        validate_reply(REQUESTS[kind], spoilt(kind, field, [1, 2, 3, 4, 5], math.nan), names="abcdefgh")


def test_strangers_do_not_count_towards_half():
    request = LossRequest(torch.tensor([0, 1, 2]), W, KEY, None)
    values = torch.tensor([math.nan, 1.0, 1.0, math.nan, math.nan, math.nan]).double()
    assert validate_reply(request, Losses(torch.arange(6), values)).reply.clients.tolist() == [1, 2]
    with refused("not-finite", kind=NonFiniteError):
        validate_reply(request, Losses(torch.tensor([0, 5, 6]), torch.tensor([math.nan, 1.0, 1.0]).double()))


def test_backend_must_name_the_answering_clients():
    for clients in (EVERYBODY.double(), EVERYBODY[:, None]):
        with pytest.raises(ValueError, match="int64"):
            validate_reply(LOSSES, Losses(clients, torch.ones(N).double()))


@pytest.mark.parametrize("kind", REQUESTS)
def test_single_replies_are_validated_alike(kind):
    request, reply = REQUESTS[kind], reply_to(REQUESTS[kind])
    wrong = reply._replace(**{reply._fields[1]: reply[1].float()})
    for case in (reply, spoilt(kind, reply._fields[1], [2], 7.0), wrong):
        for i, code in enumerate(validate_reply(request, case).codes.tolist()):
            parts = [None if part is None else part[i] for part in case[1:]]
            assert misfit(request, parts) == (REASONS[code - 1] if code else None)


def test_single_reply_of_a_wrong_form():
    model, loss = W.clone(), torch.tensor(1.0, dtype=torch.float64)
    assert misfit(TRAIN, (model, model)) is None
    assert misfit(TRAIN, (model, model, None)) is None
    assert misfit(TRAIN, (model,)) is Reason.SHAPE
    assert misfit(TRAIN, (model, model, model)) is Reason.SHAPE
    assert misfit(TRAIN, ()) is Reason.SHAPE
    assert misfit(LOSSES, (loss[None],)) is Reason.SHAPE
    assert misfit(LOSSES, (loss, loss)) is Reason.SHAPE
    assert misfit(LOSSES, ()) is Reason.SHAPE
    assert misfit(LOSSES, (torch.full_like(loss, math.nan),)) is None
    assert misfit(GRADIENTS, (model, loss.float())) is Reason.DTYPE


def test_validated_fields_are_those_of_replies():
    assert Replies._fields == ("clients", "w", "snapshot", "average", "states", "messages")
