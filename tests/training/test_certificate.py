"""Test the duality gap: both bounds, when it is available, and its cost."""

from __future__ import annotations

import contextlib
import csv
import itertools
import math

import numpy as np
import pytest
import torch
from tests.support.marks import crossed, long_beyond
from tests.support.problems import federation, task_of
from tests.support.refusals import refused

from drfl.algorithms import AFL, DRFA, FedAvg, ScaffPD
from drfl.ambiguity import KL, ChiSquare, CVaR, Simplex
from drfl.data import ClientData
from drfl.engine import Loop, Simulation, Stacked
from drfl.federation.federation import Ledger
from drfl.optim.local import LocalSGD
from drfl.task.models import mlp
from drfl.task.task import Task
from drfl.testing import ConstantLosses, DropoutFederation, Recording
from drfl.testing.problems import curved_quadratics, logistic, quadratics, robust_regression
from drfl.training import certificate
from drfl.training.averages import DecayingAverage
from drfl.training.certificate import Certifier, OneGradient, PooledSolver
from drfl.training.loop import run

PROBLEMS = [quadratics(), curved_quadratics(), robust_regression(), logistic()]
SETS = [Simplex(), Simplex(0.02), CVaR(0.5), ChiSquare(0.3), KL(0.4)]
PLAIN, DECAYED = LocalSGD(lr=0.1), LocalSGD(lr=0.1, weight_decay=0.1)
METHODS = [PooledSolver(), OneGradient()]


def certifier_of(problem, method=None):
    """Make a certifier that assumes convexity, because the problems' models are custom."""
    method = PooledSolver() if method is None else method
    return Certifier(problem.task(), method, mu=problem.strong_convexity, assume_convex=True)


def certify(certifier, fed, w, lam, **options):
    found = certifier(fed, w, lam, **{"local": PLAIN, **options})
    return None if found is None else found[0]


def random_point(problem, ambiguity, seed):
    rng = np.random.default_rng(seed)
    w = torch.from_numpy(rng.normal(size=problem.d))
    return w, ambiguity.project(torch.from_numpy(rng.dirichlet(np.full(problem.N, 0.5))))


def value_at(problem, ambiguity, w, lam):
    return float(lam @ problem.losses(w)) - ambiguity.penalty(lam)


# ------------------------------------------------------------------------------------------------- the bounds


@pytest.mark.parametrize(
    ("method", "ambiguity", "problem"),
    crossed({"pooled": METHODS[0], "gradient": METHODS[1]}, SETS, {p.name: p for p in PROBLEMS}),
)
def test_gap_is_zero_at_the_saddle_point(problem, ambiguity, method):
    w, lam, value = problem.saddle(ambiguity)
    found = certify(certifier_of(problem, method), problem.federation(Loop()), w, lam, ambiguity=ambiguity)
    assert (found.primal, found.lower) == pytest.approx((value, value), abs=1e-8)
    assert found.gap == found.primal - found.lower
    assert found.proven


@pytest.mark.parametrize(("ambiguity", "problem"), crossed(SETS, {p.name: p for p in PROBLEMS}))
def test_bounds_enclose_the_saddle_value(problem, ambiguity):
    value, fed = problem.saddle(ambiguity).value, problem.federation(Loop())
    for seed in range(3):
        w, lam = random_point(problem, ambiguity, seed)
        pooled, gradient = (certify(certifier_of(problem, m), fed, w, lam, ambiguity=ambiguity) for m in METHODS)
        best = value_at(problem, ambiguity, problem.weighted_optimum(lam), lam)  # min_v F(v, λ)
        assert pooled.primal == pytest.approx(gradient.primal, rel=1e-12)
        assert gradient.lower <= pooled.lower + 1e-9 <= best + 2e-9
        assert pooled.lower == pytest.approx(best, abs=1e-7)
        assert pooled.lower <= value + 1e-9 <= pooled.primal + 2e-9


@pytest.mark.parametrize("ambiguity", SETS, ids=str)
def test_weak_duality(ambiguity):
    """No λ makes this model worse than the primal side, and no model makes this λ better than the lower bound."""
    problem = logistic()
    w, lam = random_point(problem, ambiguity, 7)
    found = certify(certifier_of(problem), problem.federation(Loop()), w, lam, ambiguity=ambiguity)
    for seed in range(15):
        v, u = random_point(problem, ambiguity, 100 + seed)
        assert value_at(problem, ambiguity, w, u) <= found.primal + 1e-12
        assert value_at(problem, ambiguity, v / 10, lam) >= found.lower - 1e-12


def test_one_gradient_is_exact_for_equal_curvatures():
    """For f_i = ½‖w − a_i‖² the bound from one gradient at any point is the minimum itself."""
    problem = quadratics()
    w, lam = random_point(problem, Simplex(), 4)
    found = certify(certifier_of(problem, OneGradient()), problem.federation(Loop()), w, lam)
    assert found.lower == pytest.approx(float(lam @ problem.losses(problem.weighted_optimum(lam))), abs=1e-12)


def test_gap_shrinks_towards_the_saddle_point():
    problem = curved_quadratics()
    target, fed, certifier = problem.saddle(Simplex()), problem.federation(Loop()), certifier_of(problem)
    uniform = torch.full((problem.N,), 1 / problem.N, dtype=torch.float64)
    ways = [1, 0.5, 0.25, 0.1, 1e-2, 1e-4]
    gaps = [certify(certifier, fed, s * fed.w0 + (1 - s) * target.w, target.lam.lerp(uniform, s)).gap for s in ways]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-3
    assert gaps[-1] > 0


@pytest.mark.long
def test_run_closes_its_gap():
    problem = quadratics()
    algorithm = ScaffPD(sigma=0.05, mu=0.5, local=LocalSGD(steps=1, lr=0.5, batch=None))
    history = run(
        algorithm, problem.federation(Loop()), rounds=300, evaluate_every=100, certify=certifier_of(problem)
    ).history
    gaps = [row.certificate.gap for row in history.rows]
    assert all(b < a / 2 for a, b in itertools.pairwise(gaps))
    assert -1e-9 < gaps[-1] < 1e-2 * gaps[0]


@pytest.mark.parametrize("method", METHODS, ids=["pooled", "gradient"])
def test_weight_decay_is_part_of_the_objective(method):
    """With f_i = ½‖w − a_i‖², the minimum of Σ λ_i f_i + (δ/2)‖w‖² is at ā/(1 + δ)."""
    problem, delta = quadratics(), 0.7
    fed = problem.federation(Loop())
    a = problem.gradients(torch.zeros(problem.d, dtype=torch.float64)).neg()
    _, lam = random_point(problem, Simplex(), 1)
    best = lam @ a / (1 + delta)
    local = LocalSGD(weight_decay=delta)
    found = certify(certifier_of(problem, method), fed, best, lam, local=local)
    decay = delta / 2 * float(best @ best)
    assert found.lower == pytest.approx(float(lam @ problem.losses(best)) + decay, abs=1e-9)
    assert found.primal == pytest.approx(float(problem.losses(best).max()) + decay, abs=1e-12)


def test_weight_decay_makes_convex_losses_strongly_convex():
    fed, certifier = federation(), Certifier(task_of())
    lam = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert certify(certifier, fed, fed.w0, lam, local=DECAYED).proven
    merely = certify(certifier, fed, fed.w0, lam)
    assert not merely.proven
    assert merely.gradient_norm <= certifier.method.tolerance


def test_early_end_of_the_search_gives_a_valid_bound():
    """The bound accounts for the remaining gradient, so more iterations only raise the lower bound."""
    problem = logistic()
    w, lam = random_point(problem, Simplex(), 3)
    lower = []
    for iterations in (1, 3, 10, 100):
        certifier = certifier_of(problem, PooledSolver(iterations=iterations))
        lower.append(certify(certifier, problem.federation(Loop()), w, lam).lower)
    best = value_at(problem, Simplex(), problem.weighted_optimum(lam), lam)
    assert lower == sorted(lower)
    assert all(bound <= best + 1e-12 for bound in lower)
    assert lower[0] < best - 1e-3


@pytest.mark.parametrize("method", METHODS, ids=["pooled", "gradient"])
def test_radius_gives_a_proven_bound_within_the_ball(method):
    fed, certifier = federation(), Certifier(task_of(), method)
    local, lam = LocalSGD(radius=2.0), torch.full((6,), 1 / 6, dtype=torch.float64)
    found = certify(certifier, fed, fed.w0, lam, local=local)
    assert found.proven
    rng = np.random.default_rng(0)
    for _ in range(30):
        v = torch.from_numpy(rng.normal(size=15))
        v *= 2 * rng.random() / v.norm()
        f = fed.losses(torch.arange(6), v, certificate.KEY).values
        assert float(lam @ f) >= found.lower - 1e-12


@pytest.mark.long
def test_float32_models_are_certified_to_their_precision():
    problem = logistic()
    w, lam = random_point(problem, Simplex(), 2)
    exact = certify(certifier_of(problem), problem.federation(Loop()), w, lam)
    single = certify(certifier_of(problem), problem.federation(dtype=torch.float32), w.float(), lam)
    assert (single.primal, single.lower) == pytest.approx((exact.primal, exact.lower), abs=1e-5)


def test_engines_agree():
    lam = torch.full((6,), 1 / 6, dtype=torch.float64)
    feds = [federation(engine=engine) for engine in (Loop(), Stacked())]
    loop, stacked = (certify(Certifier(task_of()), fed, fed.w0, lam, local=DECAYED) for fed in feds)
    assert loop[:2] == pytest.approx(stacked[:2], abs=1e-9)


def test_certificate_of_one_client():
    fed, lam = federation((30,)), torch.ones(1, dtype=torch.float64)
    found = certify(Certifier(task_of()), fed, fed.w0, lam, local=DECAYED)
    assert found.gap > 0
    at = Certifier(task_of())(fed, fed.w0, lam, local=DECAYED)[1]
    assert certify(Certifier(task_of()), fed, at, lam, local=DECAYED).gap == pytest.approx(0, abs=1e-9)


# ------------------------------------------------------------------------------------------------- requests


def test_gradient_method_needs_one_exchange():
    problem = quadratics()
    fed = Recording(problem.federation(Loop()))
    certify(certifier_of(problem, OneGradient()), fed, *random_point(problem, Simplex(), 0))
    (call,) = fed.calls
    assert call.kind == "gradients"
    assert call.batch is None
    assert call.cohort.tolist() == list(range(problem.N))


def test_only_clients_with_positive_weight_send_gradients():
    fed = Recording(federation())
    lam = torch.tensor([0.5, 0, 0, 0.5, 0, 0], dtype=torch.float64)
    certify(Certifier(task_of()), fed, fed.w0, lam, local=DECAYED)
    assert {tuple(call.cohort.tolist()) for call in fed.of("gradients")} == {(0, 3)}
    assert {len(call.cohort) for call in fed.of("losses")} == {6}


def test_search_continues_from_an_earlier_one():
    fed, certifier = Recording(federation()), Certifier(task_of())
    lam = torch.full((6,), 1 / 6, dtype=torch.float64)
    cold, point = certifier(fed, fed.w0, lam, local=DECAYED)
    first = len(fed.of("gradients"))
    fed.take()
    warm, _ = certifier(fed, fed.w0, lam, local=DECAYED, start=point)
    assert len(fed.of("gradients")) < first / 3
    assert warm[:2] == pytest.approx(cold[:2], abs=1e-9)


def test_bad_starting_point_is_not_used():
    fed, certifier = federation(), Certifier(task_of(), PooledSolver(iterations=1))
    lam = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert certify(certifier, fed, fed.w0, lam, local=DECAYED, start=fed.w0 + 100) == certify(
        certifier, fed, fed.w0, lam, local=DECAYED
    )


def test_large_federation_is_asked_in_parts(monkeypatch):
    fed = Recording(federation())
    lam = torch.full((6,), 1 / 6, dtype=torch.float64)
    whole = certify(Certifier(task_of()), fed, fed.w0, lam, local=DECAYED)
    monkeypatch.setattr(certificate, "EXCHANGE", 2 * len(fed.w0))
    fed.take()
    parts = certify(Certifier(task_of()), fed, fed.w0, lam, local=DECAYED)
    assert {len(call.cohort) for call in fed.of("gradients")} == {2}
    assert parts == pytest.approx(whole, abs=1e-9)


def test_order_of_replies_does_not_matter():
    fed, certifier = federation(), Certifier(task_of())
    lam = torch.tensor([0.3, 0.1, 0.05, 0.25, 0.1, 0.2], dtype=torch.float64)
    ordered = certify(certifier, fed, fed.w0, lam, local=DECAYED)
    assert certify(certifier, DropoutFederation(fed), fed.w0, lam, local=DECAYED) == pytest.approx(ordered, abs=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=["pooled", "gradient"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda fed: DropoutFederation.without(fed, [3]),
        lambda fed: DropoutFederation(fed, gradients=[3], losses=[]),
        lambda fed: ConstantLosses(fed, [3], math.nan),
        lambda fed: ConstantLosses(fed, [3], math.inf),
    ],
    ids=["silent", "no gradient", "nan", "infinite"],
)
def test_missing_client_gives_no_certificate(spoil, method):
    fed = federation()
    lam = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert Certifier(task_of(), method)(spoil(fed), fed.w0, lam, local=DECAYED) is None


def test_exchanges_are_not_counted():
    fed = federation()
    fed.losses(torch.arange(2), fed.w0, certificate.KEY)
    before = fed.ledger.totals()
    lam = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert certify(Certifier(task_of()), fed, fed.w0, lam) is not None
    assert Certifier(task_of())(DropoutFederation.without(fed, [0]), fed.w0, lam, local=PLAIN) is None
    assert fed.ledger.totals() == before


def test_paused_ledger_counts_again_afterwards():
    ledger = Ledger()
    ledger.up(2, 10)
    with contextlib.suppress(KeyError), ledger.paused():
        ledger.down(5, 7)
        raise KeyError
    assert ledger == Ledger(bytes_up=20, messages=2)
    ledger.down(1, 3)
    assert ledger == Ledger(bytes_up=20, bytes_down=3, messages=3)


# ------------------------------------------------------------------------------------------------- refusals


def test_non_convex_tasks_are_refused_unless_assumed_convex():
    task = task_of(mlp)
    with refused("no-certificate", "certificate", "2 layers", "linear model"):
        Certifier(task)
    assert Certifier(task, assume_convex=True).assume_convex


def test_gradient_method_requires_strong_convexity_or_a_ball():
    certifier = Certifier(task_of(), OneGradient())
    with refused("unsupported-combination", "certificate", "'gradient'", "weight_decay", "0"):
        certifier.check(PLAIN)
    with refused("unsupported-combination", "certificate", "'gradient'"):
        run(FedAvg(local=PLAIN), federation(), rounds=1, certify=certifier)
    certifier.check(DECAYED)
    certifier.check(LocalSGD(radius=3.0))
    Certifier(task_of(), OneGradient(), mu=0.1).check(PLAIN)


def test_client_weights_outside_the_set_are_refused():
    fed = federation()
    lam = torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)
    with refused("no-certificate", "lam"):
        certify(Certifier(task_of()), fed, fed.w0, lam, ambiguity=CVaR(0.5))


def test_vectors_of_another_length_are_refused():
    fed = federation()
    uniform = torch.full((6,), 1 / 6, dtype=torch.float64)
    for w, lam in ((fed.w0[:-1], uniform), (fed.w0, uniform[:-1])):
        with refused("wrong-shape", "certificate", "(15,)", "(6,)"):
            certify(Certifier(task_of()), fed, w, lam)


@pytest.mark.parametrize("method", METHODS, ids=["pooled", "gradient"])
def test_vectors_of_another_dtype_are_accepted(method):
    fed, uniform = federation(), torch.full((6,), 0.25, dtype=torch.float64) / 1.5
    certifier = Certifier(task_of(), method, mu=0.1)
    expected = certify(certifier, fed, fed.w0.float().double(), uniform.float().double())
    assert certify(certifier, fed, fed.w0.float(), uniform.float()) == expected


@pytest.mark.parametrize("bad", [{"tolerance": 0.0}, {"tolerance": math.nan}, {"iterations": 0}], ids=str)
def test_impossible_search_parameters_are_refused(bad):
    with refused("out-of-range", next(iter(bad))):
        PooledSolver(**bad)


def test_impossible_modulus_is_refused():
    with refused("out-of-range", "mu"):
        Certifier(task_of(), mu=-1.0)


# ------------------------------------------------------------------------------------------------- in a run


def rounds_of(fed, algorithm, **options):
    return run(algorithm, fed, rounds=4, seed=5, evaluate_every=2, **options)


@pytest.mark.parametrize(
    "algorithm", long_beyond(1, [DRFA(m=4, gamma=0.05, local=DECAYED), FedAvg(m=4, local=DECAYED)], ["DRFA", "FedAvg"])
)
def test_certified_run_equals_the_plain_run(algorithm):
    plain, certified = (
        rounds_of(federation(), algorithm),
        rounds_of(federation(), algorithm, certify=Certifier(task_of())),
    )
    assert torch.equal(plain.state.w, certified.state.w)
    assert torch.equal(plain.lam, certified.lam)
    for before, after in zip(plain.history.rows, certified.history.rows, strict=True):
        assert before.certificate is None
        assert after.certificate.gap > 0
        assert (before.metrics, before.ledger) == (after.metrics, after.ledger)
    lines, columns = (list(csv.DictReader(r.history.to_csv().splitlines())) for r in (plain, certified))
    assert [name for name in columns[0] if name not in lines[0]] == ["primal", "lower", "gap"]
    assert all(a.items() <= b.items() for a, b in zip(lines, columns, strict=True))


@pytest.mark.parametrize("returned", ["average", pytest.param("last", marks=pytest.mark.long)])
def test_row_certifies_the_returned_model_and_weights(returned):
    """These are the decaying averages of models and client weights, or the last ones."""
    seen, decaying = [], None
    algorithm = AFL(gamma=0.05, local=LocalSGD(steps=1, lr=0.1, weight_decay=0.1), ambiguity=CVaR(0.5))
    options = {"certify": Certifier(task_of()), "returned": returned, "callbacks": [seen.append]}
    result, points = rounds_of(federation(), algorithm, **options), []
    for step in seen:
        state, lam = step.state, step.state.lam
        if returned == "average":
            decaying = DecayingAverage.start(state.w, lam) if decaying is None else decaying.add(state.w, lam)
            lam = decaying.lam
        points.append((step.model, lam))
        assert torch.equal(step.model, state.w if decaying is None else decaying.w)
    for row, (w, lam) in zip(result.history.rows, points[::2], strict=True):
        again = certify(Certifier(task_of()), federation(), w, lam, local=algorithm.local, ambiguity=CVaR(0.5))
        assert row.certificate[:2] == pytest.approx(again[:2], abs=1e-8)
    assert torch.equal(result.model, points[-1][0])


@pytest.mark.long
def test_averaged_iterate_has_its_own_certificate():
    certifier, algorithm = Certifier(task_of()), DRFA(m=4, gamma=0.05, local=DECAYED)
    result = rounds_of(federation(), algorithm, averaged=True, certify=certifier)
    expected = certify(certifier, federation(), result.average.w, result.average.lam, local=DECAYED)
    assert result.averaged_certificate[:2] == pytest.approx(expected[:2], abs=1e-8)
    assert rounds_of(federation(), algorithm, averaged=True).averaged_certificate is None
    assert rounds_of(federation(), algorithm, certify=certifier).averaged_certificate is None


def test_run_continues_without_a_certificate():
    silent = DropoutFederation(federation(), losses=[2])
    result = rounds_of(silent, FedAvg(m=4, local=DECAYED), certify=Certifier(task_of()))
    assert [row.certificate for row in result.history.rows] == [None] * 3
    for line in csv.DictReader(result.history.to_csv().splitlines()):
        assert (line["primal"], line["lower"], line["gap"]) == ("nan", "nan", "nan")


@pytest.mark.long
def test_run_continues_its_search_between_rounds():
    fed, certifier, seen = Recording(federation()), Certifier(task_of()), []
    rounds_of(fed, FedAvg(m=4, local=DECAYED), certify=certifier, callbacks=[seen.append])
    asked = len(fed.of("gradients"))
    fed.take()
    for step in seen[::2]:  # the same certificates, each from scratch
        certify(certifier, fed, step.model, step.row.lam, local=DECAYED)
    assert asked < len(fed.of("gradients")) / 2


def test_certifier_of_another_task_is_refused():
    convex = Certifier(task_of())
    deep = Simulation(ClientData.from_arrays([(torch.randn(8, 3), torch.arange(8) % 2)] * 2), Task(mlp((3,), 2, (4,))))
    with refused("no-certificate", "certificate", "module"):
        rounds_of(deep, FedAvg(m=2, local=DECAYED), certify=convex)
    fed = federation()
    other = Certifier(Task(task_of().model, torch.nn.CrossEntropyLoss(label_smoothing=0.1)))
    with refused("no-certificate", "certificate", "loss"):
        rounds_of(fed, FedAvg(m=4, local=DECAYED), certify=other)
    with refused("wrong-type", "task"):
        Certifier(torch.nn.Linear(3, 2))  # pyright: ignore[reportArgumentType]
    with refused("wrong-type", "method"):
        Certifier(task_of(), "gradient")  # pyright: ignore[reportArgumentType]
