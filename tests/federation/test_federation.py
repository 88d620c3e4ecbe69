"""Test the messages between server and clients, and their cost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.problems import federation
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.federation import Bundling, Federation, Ledger, WrappedFederation
from drfl.federation.local_method import LocalMethod
from drfl.federation.requests import Losses, LossRequest, Replies, TrainRequest, select_rows
from drfl.optim.local import LocalSGD
from drfl.testing import ConstantFederation

REQUESTS = [
    pytest.param(lambda fed, cohort, w, key: fed.train(cohort, w, LocalSGD(lr=0.1), key), id="train"),
    pytest.param(
        lambda fed, *request: fed.train_with(LocalMethod(), *request[:2], LocalSGD(lr=0.1), request[2]), id="with"
    ),
    pytest.param(lambda fed, *request: fed.losses(*request), id="losses"),
    pytest.param(lambda fed, *request: fed.gradients(*request, batch=2), id="gradients"),
]


def losses(clients, values):
    return Losses(torch.tensor(clients, dtype=torch.int64), torch.tensor(values, dtype=torch.float64))


def test_unbiased_estimate_by_hand():
    """The estimate is N divided by the number of answers, at the clients that answered, in any order."""
    assert losses([3, 0], [1.0, 2.0]).unbiased(5).tolist() == [5.0, 0, 0, 2.5, 0]
    assert losses([2], [1.5]).unbiased(3).tolist() == [0, 0, 4.5]
    assert losses([1, 0], [1.0, 2.0]).unbiased(2).tolist() == [2.0, 1.0]


def test_unbiased_estimate_without_replies_is_zero():
    assert losses([], []).unbiased(3).tolist() == [0, 0, 0]


@given(n=st.integers(1, 20), data=st.data())
def test_sum_of_the_estimate_is_n_times_the_mean(n, data):
    clients = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))
    values = data.draw(st.lists(st.floats(0, 10), min_size=len(clients), max_size=len(clients)))
    v = losses(clients, values).unbiased(n)
    assert v.dtype == torch.float64
    assert float(v.sum()) == pytest.approx(n * sum(values) / len(values))
    assert set(v.nonzero().flatten().tolist()) <= set(clients)


@pytest.mark.long
@pytest.mark.parametrize("m", [1, 3, 6])
def test_estimate_is_unbiased_over_uniform_cohorts(m):
    """E_U[v] is the vector of losses, within four standard errors each."""
    f, trials = torch.tensor([0.1, 2.0, 0.7, 1.3, 0.4, 3.1, 0.9], dtype=torch.float64), 3000
    total = torch.zeros(7, dtype=torch.float64)
    for r in range(trials):
        U = sampling.uniform(7, m, Key(9).fold(r)).clients
        total += Losses(U, f[U]).unbiased(7)
    error = f * ((7 / m - 1) / trials) ** 0.5
    assert ((total / trials - f).abs() <= 4 * error).all()
    assert float(Losses(torch.arange(7), f).unbiased(7).sub(f).abs().max()) < 1e-15


def test_ledger_counts_requests():
    ledger = Ledger()
    ledger.down(3, 100)
    ledger.up(2, 40)
    ledger.up(0, 1000)
    ledger.gradient_evaluations += 7
    assert ledger.totals() == {
        "bytes_down": 300,
        "bytes_up": 80,
        "messages": 5,
        "gradient_evaluations": 7,
        "loss_evaluations": 0,
    }


def test_totals_are_a_snapshot():
    ledger = Ledger()
    before = ledger.totals()
    ledger.down(1, 1)
    assert set(before.values()) == {0}


def test_unrequested_parts_are_none():
    replies = Replies(torch.arange(2), torch.zeros(2, 3))
    assert replies.snapshot is None
    assert replies.average is None
    assert replies.merged(lambda w_i: w_i.sum(0))[1:] == (None, None)
    assert select_rows(replies, torch.tensor([1]))[2:] == (None,) * 4


def test_merged_applies_to_all_parts_of_a_reply():
    w = torch.arange(6.0).view(2, 3)
    model = Replies(torch.arange(2), w, w + 1, w + 2).merged(lambda w_i: w_i.mean(0))
    assert [part.tolist() for part in model] == [[1.5, 2.5, 3.5], [2.5, 3.5, 4.5], [3.5, 4.5, 5.5]]


SHIFT = torch.arange(6.0).view(3, 2)


def train(**options):
    return TrainRequest(torch.tensor([4, 0, 2]), torch.zeros(2), Key(0), LocalSGD(), **options)


@pytest.mark.parametrize("rows", [torch.tensor([0, 2]), torch.tensor([True, False, True])])
def test_request_to_part_of_the_cohort(rows):
    some = train(shift=SHIFT, snapshot=1).only(rows)
    assert some.cohort.tolist() == [4, 2]
    assert torch.equal(some.shift, SHIFT[[0, 2]])
    assert (some.snapshot, some.vectors) == (1, 2)
    assert train().only(rows).shift is None
    assert LossRequest(torch.tensor([4, 0, 2]), torch.zeros(2), Key(0), 7).only(rows).batch == 7


@pytest.mark.parametrize(("snapshot", "average"), [(None, False), (2, False), (None, True), (2, True)])
def test_empty_reply_has_the_requested_parts(snapshot, average):
    nobody = train(snapshot=snapshot, average=average).empty_reply()
    assert nobody.w.shape == (0, 2)
    assert (nobody.snapshot is None, nobody.average is None) == (snapshot is None, not average)


def test_federation_only_needs_ask_and_evaluate():
    class Echo(ConstantFederation):
        def ask(self, request):
            asked.append(request)
            return super().ask(request)

    asked, fed, cohort, w, key = [], Echo([1.0, 2.0, 4.0]), torch.tensor([2, 0]), torch.ones(2).double(), Key(3)
    fed.train(cohort, w, LocalSGD(), key, prox=0.5, shift=SHIFT[:2], snapshot=2, average=True)
    assert fed.losses(cohort, w, key, batch=5).values.tolist() == [4.0, 1.0]
    assert fed.gradients(cohort, w, key).losses.tolist() == [4.0, 1.0]
    assert [request.kind for request in asked] == ["train", "losses", "gradients"]
    assert all(request.cohort is cohort and request.w is w and request.key is key for request in asked)
    first, second, third = asked
    assert (first.prox, first.snapshot, first.average, second.batch, third.batch) == (0.5, 2, True, 5, None)
    assert torch.equal(first.shift, SHIFT[:2])


def test_averages_are_requested_through_all_wrappers():
    asked, inside = [], ConstantFederation([1.0, 2.0])
    inside.averaged = True

    class Noting(WrappedFederation):
        def ask(self, request):
            asked.append(request.average)
            return super().ask(request)

    reply = Noting(Noting(inside)).train(torch.arange(2), inside.w0, LocalSGD(), Key(0))
    assert asked == [True, True]
    assert reply.average.shape == (2, 2)


def test_federation_without_ask_or_evaluate_cannot_be_created():
    class Half(Federation):
        def ask(self, request):
            raise AssertionError

    with pytest.raises(TypeError, match="evaluate"):
        Half()


def test_bundling_is_detected_by_its_method():
    class Both(WrappedFederation):
        def evaluate_later(self, models):
            return lambda: [self.evaluate(w) for w in models]

    inside = ConstantFederation([1.0])
    assert not isinstance(inside, Bundling)
    assert not isinstance(WrappedFederation(Both(inside)), Bundling)
    assert isinstance(Both(inside), Bundling)


@pytest.mark.parametrize(("cohort", "code"), [
    ([0, 1], "wrong-type"),
    (torch.tensor([0.0, 1.0]), "wrong-type"),
    (torch.tensor(1), "wrong-type"),
    (torch.tensor([True, False, True]), "wrong-type"),
    (torch.tensor([0, 7]), "out-of-range"),
    (torch.tensor([-1, 0]), "out-of-range"),
    (torch.tensor([1, 0, 1]), "given-twice"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("ask", REQUESTS)
def test_wrong_cohort_is_refused(ask, cohort, code):
    fed = federation()
    with refused(code, "cohort"):
        ask(fed, cohort, fed.w0, Key(0))


@pytest.mark.parametrize("ask", REQUESTS)
def test_wrong_model_or_key_is_refused(ask):
    fed, cohort = federation(), torch.tensor([0, 1])
    for w, code in ((fed.w0[:2], "wrong-shape"), (fed.w0.float(), "wrong-type"), (fed.w0.numpy(), "wrong-type")):
        with refused(code, "model"):
            ask(fed, cohort, w, Key(0))
    with refused("wrong-type", "key", "3"):
        ask(fed, cohort, fed.w0, 3)


@pytest.mark.parametrize("ask", REQUESTS)
def test_empty_cohort_has_an_empty_reply(ask):
    fed = federation()
    assert ask(fed, torch.arange(0), fed.w0, Key(0)).clients.numel() == 0
    assert fed.ledger.messages == 0
