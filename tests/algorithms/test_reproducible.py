"""The same seed gives the same run, whatever the engine, the threads and the order of the clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.problems import federation

from drfl.algorithms import DRDM, DRFA, FedAvg
from drfl.engine import Loop, Stacked, Threads
from drfl.federation import TrainRequest, WrappedFederation
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
LOCAL = LocalSGD(steps=4, lr=0.1, batch=8)
ALGORITHMS = {
    "FedAvg": FedAvg(m=4, local=LOCAL),
    "DRFA": DRFA(m=4, gamma=0.02, local=LOCAL, dual_batch=8),
    "DRDM": DRDM(m=4, mu=0.5, gamma=0.01, local=LOCAL, dual_batch=8),
}
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


def outcome(algorithm, engine=None, seed=1, fed=None):
    result = run(algorithm, fed or federation(engine=engine), rounds=5, seed=seed)
    names = tuple(map(str, range(len(result.lam))))
    return result, result.history.to_csv() + result.history.lambda_csv(names)


@pytest.fixture
def threads():
    """Sets the number of threads, and restores it."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@every_algorithm
def test_same_seed_same_bytes(algorithm, engine):
    first, text = outcome(algorithm, engine)
    again, same = outcome(algorithm, engine)
    _, other = outcome(algorithm, engine, seed=2)
    assert text == same
    assert torch.equal(first.state.w, again.state.w)
    assert text != other


@every_algorithm
def test_engines_give_the_same_bytes(algorithm):
    loop, text = outcome(algorithm, Loop())
    stacked, same = outcome(algorithm, Stacked())
    chunked, chunks = outcome(algorithm, Stacked(megabytes=0.0005))
    threaded, threads = outcome(algorithm, Threads(3))
    assert text == same == chunks == threads
    assert (loop.state.w - threaded.state.w).abs().max() < 1e-10
    assert (loop.state.w - stacked.state.w).abs().max() < 1e-10
    assert (loop.state.w - chunked.state.w).abs().max() < 1e-10


@every_algorithm
def test_threads_do_not_matter(algorithm, engine, threads):
    texts = []
    for n in (1, 2):
        threads(n)
        texts.append(outcome(algorithm, engine)[1])
    assert texts[0] == texts[1]


@every_algorithm
def test_a_federation_can_be_used_again(algorithm):
    """A second run on the same federation logs what it costs itself, not what the first one did."""
    fed = federation()
    assert outcome(algorithm, fed=fed)[1] == outcome(algorithm, fed=fed)[1]


def test_order_of_the_cohort_permutes_the_replies(engine):
    fed = federation(engine=engine)
    forward, order = torch.tensor([0, 2, 3, 5]), torch.tensor([2, 0, 3, 1])
    shift = torch.arange(4.0, dtype=torch.float64)[:, None].expand(-1, len(fed.w0)) / 50
    options = {"prox": 0.4, "snapshot": 3, "average": True}
    a = fed.train(forward, fed.w0, LOCAL, Key(0), shift=shift, **options)
    b = fed.train(forward[order], fed.w0, LOCAL, Key(0), shift=shift[order], **options)
    for mine, permuted in zip(a, b, strict=True):
        torch.testing.assert_close(mine[order], permuted, rtol=0, atol=1e-13)
    ask = {"key": Key(0), "batch": 8}
    a, b = fed.losses(forward, fed.w0, **ask), fed.losses(forward[order], fed.w0, **ask)
    torch.testing.assert_close(a.values[order], b.values, rtol=0, atol=1e-13)
    a, b = fed.gradients(forward, fed.w0, **ask), fed.gradients(forward[order], fed.w0, **ask)
    torch.testing.assert_close(a.values[order], b.values, rtol=0, atol=1e-13)


def test_a_client_does_the_same_in_any_cohort(engine):
    fed = federation(engine=engine)
    alone = fed.train(torch.tensor([4]), fed.w0, LOCAL, Key(0)).w[0]
    together = fed.train(torch.arange(6), fed.w0, LOCAL, Key(0)).w[4]
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-13)


def test_algorithms_share_their_minibatches():
    """At one seed a client that trains in round 1 draws the same samples under FedAvg, DRFA and DRDM."""
    local_models = {}

    class Recording(WrappedFederation):
        def __init__(self, name):
            super().__init__(federation())
            self.name = name

        def ask(self, request):
            if not isinstance(request, TrainRequest):
                return self.fed.ask(request)
            reply = self.fed.ask(replace(request, prox=0.0, shift=None))  # compare the data, not the corrections
            local_models[self.name] = dict(zip(reply.clients.tolist(), reply.w, strict=True))
            return reply

    for name, algorithm in ALGORITHMS.items():
        run(algorithm, Recording(name), rounds=1, seed=4)
    common = set.intersection(*(set(models) for models in local_models.values()))
    assert any(i in common for i in (2, 3, 4, 5)), "a client with more samples than a minibatch is needed"
    for i in common:
        for other in ("DRFA", "DRDM"):
            torch.testing.assert_close(local_models["FedAvg"][i], local_models[other][i], rtol=0, atol=1e-13)
