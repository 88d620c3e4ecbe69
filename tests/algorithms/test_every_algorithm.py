"""Test properties that hold for all algorithms of the registry."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from tests.support.problems import federation
from tests.support.refusals import refused

from drfl.algorithms import ALGORITHMS, DRDM, DRFA, FedAvg
from drfl.engine import Loop, Stacked, Threads
from drfl.federation.federation import WrappedFederation
from drfl.federation.requests import TrainRequest
from drfl.optim.local import LocalSGD
from drfl.testing import ConstantFederation
from drfl.training.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
LOCAL = LocalSGD(steps=4, lr=0.1, batch=8)
SAMPLED = [make for make in ALGORITHMS.values() if "m" in {field.name for field in fields(make)}]


def test_algorithms_with_a_cohort():
    assert {*ALGORITHMS.values()} - {*SAMPLED} == {ALGORITHMS["AFL"]}


@pytest.mark.parametrize("make", SAMPLED)
@pytest.mark.parametrize("m", [0, -2, 4, 1.5])
def test_impossible_cohort_sizes_are_refused(make, m):
    with refused("out-of-range", "m", "3"):
        run(make(m=m), ConstantFederation([1.0, 2.0, 3.0]), rounds=1)


def test_engines_and_reused_federations_write_the_same_bytes():
    """The ledger of a second run on the same federation does not include the first run."""
    algorithm, fed = DRDM(m=4, mu=0.5, gamma=0.01, local=LOCAL, dual_batch=8), federation()
    engines = [Loop(), Stacked(), Stacked(megabytes=0.0005), Threads(3)]
    results = [run(algorithm, f, rounds=4, seed=1) for f in (fed, fed, *(federation(engine=e) for e in engines))]
    names = tuple(map(str, range(fed.n)))
    assert len({result.history.to_csv() + result.history.lambda_csv(names) for result in results}) == 1


def test_algorithms_share_their_minibatches():
    """At one seed, a client that trains in round 1 draws the same samples under FedAvg, DRFA and DRDM."""
    algorithms = {
        "FedAvg": FedAvg(m=4, local=LOCAL),
        "DRFA": DRFA(m=4, gamma=0.02, local=LOCAL, dual_batch=8),
        "DRDM": DRDM(m=4, mu=0.5, gamma=0.01, local=LOCAL, dual_batch=8),
    }
    local_models = {}

    class LocalModels(WrappedFederation):
        def __init__(self, name):
            super().__init__(federation())
            self.name = name

        def ask(self, request):
            if not isinstance(request, TrainRequest):
                return self.fed.ask(request)
            reply = self.fed.ask(replace(request, prox=0.0, shift=None))  # compare the data, not the corrections
            local_models[self.name] = dict(zip(reply.clients.tolist(), reply.w, strict=True))
            return reply

    for name, algorithm in algorithms.items():
        run(algorithm, LocalModels(name), rounds=1, seed=4)
    common = set.intersection(*(set(models) for models in local_models.values()))
    assert any(i in common for i in (2, 3, 4, 5)), "a client with more samples than a minibatch is needed"
    for i in common:
        for other in ("DRFA", "DRDM"):
            torch.testing.assert_close(local_models["FedAvg"][i], local_models[other][i], rtol=0, atol=1e-13)
