"""Test every algorithm with a robust aggregation rule: its sums stay correct, and attackers do not dominate."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from functools import cache

import pytest
import torch
from tests.resilience.federations import N, algorithm_of, fed_of
from tests.support.marks import crossed, long_except
from tests.support.refusals import refused

from drfl import Key, LocalSGD, run
from drfl.algorithms import ALGORITHMS
from drfl.ambiguity import CVaR
from drfl.federation.federation import Federation, Ledger
from drfl.federation.requests import Replies
from drfl.federation.sampling import all_clients
from drfl.resilience import (
    CentredClip,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    MedianClip,
    ProbeCosine,
    Protected,
    ServerProbe,
    TrimmedMean,
)
from drfl.resilience.aggregation import AggregatingFederation, first_centres
from drfl.testing import DropoutFederation
from drfl.testing.attacks import ScaledUpdates, SignFlip
from drfl.testing.quadratic_federation import QuadraticFederation
from drfl.testing.state import bits_differ, leaves, through_a_file

W0 = torch.zeros(3, dtype=torch.float64)
PROBE = ServerProbe(fed_of())
RULES = [
    MedianClip(),
    TrimmedMean(2),
    CoordinateMedian(),
    GeometricMedian(),
    Krum(2),
    CentredClip(),
    ProbeCosine(PROBE),
]
IDS = [type(rule).__name__ for rule in RULES]
WIDE = [MedianClip(1e6), CentredClip(1e6), Krum(1, used=N), ProbeCosine(PROBE, 0.0, 1e6)]
"""Rules with limits so wide that they have no effect."""


def rounds(algorithm, fed, count=6):
    state = algorithm.init(fed)
    for r in range(1, count + 1):
        state, _ = algorithm.round(state, fed, Key(1).fold("round", r))
    return state


PAIRS = [(name, rule) for name in ALGORITHMS for rule in WIDE if (name, type(rule)) != ("DeltaFL", Krum)]
"""All pairs except Δ-FL with Krum, because Δ-FL trains fewer of the eight clients than Krum requires."""


NAMED = [f"{name}-{type(rule).__name__}" for name, rule in PAIRS]


FIVE = {"rounds": 5, "evaluate_every": 5}


@cache
def without_a_rule(name):
    """Return an algorithm with all clients, and its run."""
    drawn = "sampling" in {field.name for field in fields(ALGORITHMS[name])}
    algorithm = algorithm_of(name, **({"sampling": all_clients} if drawn else {}))
    return algorithm, run(algorithm, fed_of(), averaged=not hasattr(algorithm, "no_average"), **FIVE)


@pytest.mark.parametrize(("name", "rule"), long_except(NAMED[::9], PAIRS, NAMED))
def test_rule_without_effect_leaves_the_algorithm_unchanged(name, rule):
    algorithm, alone = without_a_rule(name)
    behind = run(Protected(algorithm, aggregator=rule), fed_of(), averaged=not hasattr(algorithm, "no_average"), **FIVE)
    mine, other = leaves(alone.state), leaves(behind.state.inner)
    for path, leaf in mine.items():
        assert torch.allclose(leaf.double(), other[path].double(), atol=1e-9, equal_nan=True), path
    assert not behind.state.memory.left_out.any()
    assert int(behind.state.memory.too_few) == 0


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@pytest.mark.parametrize(
    ("name", "table", "mean"), [("SCAFFOLD", "c_i", "c"), ("FedDyn", "h", "c"), ("DRDM", "h", "c")]
)
def test_mean_of_the_drift_terms_is_preserved(name, table, mean, rule):
    state = rounds(Protected(algorithm_of(name), aggregator=rule), SignFlip(fed_of(), [0, 5])).inner
    h = torch.stack([getattr(state, table)[torch.tensor([i])][0] for i in range(N)])
    assert h.abs().max() > 0
    assert torch.allclose(getattr(state, mean), h.mean(0), atol=1e-12)


def robust_of(name, rule):
    """Return the algorithm with all clients and, if it has λ, with at least half of the clients in every λ of its
    set.
    """
    options = {"sampling": all_clients} if name in ("DRFA", "DRDM", "DualDRDM") else {}
    ambiguity = {} if name in ("FedAvg", "SCAFFOLD") else {"ambiguity": CVaR(0.5)}
    return Protected(algorithm_of(name, **options, **ambiguity), aggregator=rule)


@cache
def clean(name):
    """Return the model after 60 rounds without attackers and rule."""
    return rounds(robust_of(name, None), fed_of(), 60).w


@pytest.mark.parametrize(
    ("factor", "rule", "name"),
    crossed(
        [-90.0, -1.0], dict(zip(IDS, RULES, strict=True)), ["FedAvg", "SCAFFOLD", "DRFA", "DRDM", "DualDRDM", "ScaffPD"]
    ),
)
def test_two_attackers_of_eight_do_not_dominate(name, rule, factor):
    """−90 is within the default bound."""
    held = rounds(robust_of(name, rule), ScaledUpdates(fed_of(), [0, 5], factor), 60)
    assert (held.w - clean(name)).norm() < 3


@pytest.mark.parametrize(
    "name",
    long_except(["DRDM", "ScaffPD"], ["SCAFFOLD", "DRDM", "DualDRDM", "ScaffPD"]),
)
def test_without_a_rule_drift_terms_accumulate_the_attack(name):
    state = rounds(robust_of(name, None), SignFlip(fed_of(), [0, 5]), 60)
    assert state.w.norm() > 1000


def test_client_excluded_by_krum_counts_as_missing_and_is_reported():
    state = rounds(Protected(algorithm_of("SCAFFOLD"), aggregator=Krum(2)), ScaledUpdates(fed_of(), [0, 5], -90.0))
    assert state.memory.left_out[[0, 5]].tolist() == [6, 6]
    assert int(state.memory.left_out.sum()) == 12
    assert not state.memory.flagged.any()  # honest clients with other data are also excluded
    assert not state.inner.c_i[torch.tensor([0, 5])].any()


class ConstantGradients(Federation):
    """Three clients of different sizes whose gradients are 1, 2 and 9 at every model."""

    def __init__(self):
        self.n, self.w0, self.ledger, self.sizes = 3, W0[:1], Ledger(), torch.tensor([8, 20, 32])
        self.shares, self.g = self.sizes / 60, torch.tensor([[1.0], [2.0], [9.0]]).double()

    def ask(self, request):
        u, velocity, models = request.w.expand(3, 1), 0.0, [request.w.expand(3, 1)]
        taus = request.local.steps_of(self.sizes, request.cohort)
        for _ in range(int(taus.max())):
            velocity = self.g + request.shift + request.local.momentum * velocity
            u = u - request.local.eta * velocity
            models.append(u)
        each, clients = torch.stack(models, 1), range(3)
        last = torch.stack([each[i, taus[i]] for i in clients])
        average = torch.stack([each[i, 1 : taus[i] + 1].mean(0) for i in clients])
        snapshot = None if request.snapshot is None else each[:, request.snapshot]
        return Replies(request.cohort, last, snapshot, average)

    def evaluate(self, w):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("local", "snapshot"),
    [
        (LocalSGD(steps=4, lr=0.1, batch=8), 2),
        (LocalSGD(epochs=2, lr=0.1, batch=8), None),
        (LocalSGD(steps=4, lr=0.1, batch=8, momentum=0.9), 1),
    ],
    ids=["steps", "epochs", "momentum"],
)
def test_models_of_equal_gradients_are_those_of_the_rule_applied_to_the_gradients(local, snapshot):
    """The rule's gradient is the median 2, so every client's models are those of steps along 2 + shift."""
    shift, clients = torch.tensor([[3.0], [2.0], [-5.0]]).double(), torch.arange(3)
    robust, honest = ConstantGradients(), ConstantGradients()
    honest.g = torch.full_like(honest.g, 2.0)
    arguments = {"shift": shift, "snapshot": snapshot, "average": True}
    expected = honest.train(clients, W0[:1], local, Key(0), **arguments)
    found = AggregatingFederation(robust, CoordinateMedian(), W0.new_zeros(2, 0)).train(
        clients, W0[:1], local, Key(0), **arguments
    )
    for mine, other in zip(expected.models, found.models, strict=True):
        if mine is not None:
            torch.testing.assert_close(other, mine, rtol=0, atol=1e-12)


def test_too_few_replies_for_a_rule_are_not_used(caplog):
    caplog.set_level(logging.WARNING, "drfl.resilience")
    protected = Protected(algorithm_of("SCAFFOLD"), aggregator=TrimmedMean(3))
    state = rounds(protected, DropoutFederation(fed_of(), train=[1, 4]), 3)
    assert int(state.memory.too_few) == 3
    assert state.memory.left_out.tolist() == [3, 0, 3, 3, 0, 3, 3, 3]
    assert torch.equal(state.w, fed_of().w0)
    said = [r.getMessage() for r in caplog.records if "replies" in r.getMessage()]
    assert len(said) == 1
    assert all(part in said[0] for part in ("7", "TrimmedMean(f=3)"))


@pytest.mark.parametrize("name", ["FedAvg", "ScaffPD"])
def test_always_too_small_cohorts_are_refused_at_the_start(name):
    with refused("few-clients", "aggregator", "Krum(f=3, used=0)", "9", "8"):
        run(Protected(algorithm_of(name), aggregator=Krum(3)), fed_of(), rounds=1)
    with refused("few-clients", "aggregator", "2"):
        run(Protected(algorithm_of(name, m=2), aggregator=MedianClip()), fed_of(), rounds=1)


def test_centre_is_the_mean_of_earlier_rounds_and_is_checkpointed():
    protected = Protected(algorithm_of("ScaffPD"), aggregator=CentredClip(momentum=0.5))
    first = rounds(protected, fed_of(), 1)
    assert first.memory.centres.norm(dim=1).gt(0).all()  # one for updates and one for gradients
    assert bits_differ(first, through_a_file(first)) == []
    fed = AggregatingFederation(fed_of(), CentredClip(momentum=0.5), torch.zeros(2, 3, dtype=torch.float64))
    g = fed.gradients(torch.arange(N), fed.w0, Key(0))
    assert torch.allclose(fed.centres[1], g.values.mean(0) / 2)
    assert not fed.centres[0].any()
    assert first.memory.centres.shape == (2, 3)
    assert Protected(algorithm_of("FedAvg"), aggregator=Krum(1)).init(fed_of()).memory.centres.shape == (2, 0)


def test_snapshots_and_averages_are_scaled_by_their_steps():
    rule, w, local = CentredClip(), fed_of().w0, algorithm_of("FedAvg").local
    centre = torch.tensor([8.0, 0.0, -8.0], dtype=torch.float64)
    fed = AggregatingFederation(fed_of(), rule, torch.stack([centre, 0 * centre]))
    up, plain = (one.train(torch.arange(N), w, local, Key(0), snapshot=1, average=True) for one in (fed, fed_of()))
    for part, sent, steps in ((up.w, plain.w, 2), (up.snapshot, plain.snapshot, 1), (up.average, plain.average, 1.5)):
        eta = local.lr * steps
        assert torch.allclose(part, w - eta * rule.bound((w - sent) / eta, centre))


def test_probe_knows_every_clients_own_gradient():
    """The order of the replies does not matter."""
    rule, fed = ProbeCosine(PROBE), fed_of()
    clients, w = torch.tensor([5, 0, 7, 2]), torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    exact = {i: fed.gradients(torch.tensor([i]), w, Key(0)).values[0] for i in range(N)}
    expected = rule.expected(clients, w, w)
    assert all(torch.equal(row, exact[i]) for row, i in zip(expected, clients.tolist(), strict=True))
    silent = ServerProbe(DropoutFederation(fed_of(), gradients=[5]))
    with refused("invalid-value", "fed"):
        ProbeCosine(silent).expected(clients, w, w)


@pytest.mark.long
def test_honest_outlier_passes_the_probe():
    """Client 3's optimum is far from the others', which nearly agree. The saddle point is half way between them."""
    optima = torch.linspace(-0.1, 0.1, N * 3, dtype=torch.float64).view(N, 3)
    optima[3] = 4.0
    curvature = torch.eye(3, dtype=torch.float64).expand(N, 3, 3)
    fed = QuadraticFederation(curvature, optima, optima.square().sum(1) / 2, shares=torch.full((N,), 1 / N), w0=W0)
    rules = None, ProbeCosine(ServerProbe(fed)), GeometricMedian(), Krum(2)
    held = [
        rounds(Protected(algorithm_of("DualDRDM", sampling=all_clients), aggregator=rule), fed, 300).w for rule in rules
    ]
    apart = [float((w - optima[3]).norm() / optima[3].norm()) for w in held]
    assert apart[:2] == pytest.approx([0.5, 0.5], abs=0.1)
    assert min(apart[2:]) > 0.75


@pytest.mark.parametrize(("name", "prox"), [("SCAFFOLD", 0.0), ("FedDyn", 2.0)])
def test_rule_sees_the_next_drift_terms(name, prox):
    """These are option II of SCAFFOLD with κ = 1/(ητ), and the update of FedDyn and DRDM with κ = μ."""
    seen, local = [], algorithm_of(name).local

    @dataclass(frozen=True)
    class Watching(MedianClip):
        def keep(self, U, centre=None):
            seen.append(U)
            return super().keep(U, centre)

    shift = torch.linspace(-1, 1, N * 3, dtype=torch.float64).view(N, 3)
    asked = {"key": Key(0), "prox": prox, "shift": shift}
    cohort, w = torch.arange(N).flip(0), fed_of().w0
    up = AggregatingFederation(fed_of(), Watching(1e6), first_centres(None, w)).train(cohort, w, local, **asked)
    plain = fed_of().train(cohort, w, local, **asked)
    rate = prox or 1 / (local.eta * local.tau)
    assert torch.allclose(seen[0], rate * (w - plain.w) - shift)
    assert torch.allclose(up.w, plain.w)


@pytest.mark.parametrize("name", long_except(["DRDM"], ["DRFA", "DRDM", "DualDRDM"]))
def test_excluded_client_does_not_affect_lambda(name):
    """An excluded client is served badly, so its true losses would draw λ to it."""
    algorithm = algorithm_of(name, gamma=0.02, sampling=all_clients)
    state = rounds(Protected(algorithm, aggregator=ProbeCosine(PROBE)), SignFlip(fed_of(), [0, 1]), 40)
    assert state.memory.left_out[:2].tolist() == [40, 40]
    honest = state.memory.left_out[2:].float() < 20
    assert honest.any()
    assert float(state.lam[:2].max()) < float(state.lam[2:][honest].max())
    assert float(state.lam[:2].sum()) < 0.1
