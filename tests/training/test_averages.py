"""Test the averages over a run's rounds: weights, precision, and the returned model."""

from __future__ import annotations

import math

import pytest
import torch
from tests.support.marks import long_except
from tests.support.problems import federation

from drfl.algorithms import AFL, DRFA, FedAvg
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import mixture_of
from drfl.federation.federation import WrappedFederation
from drfl.federation.requests import select_rows
from drfl.optim.local import LocalSGD
from drfl.testing import DropoutFederation, QuadraticFederation, Recording
from drfl.testing.state import bits_differ
from drfl.training.averages import DECAY, Average, DecayingAverage
from drfl.training.checkpoint import Checkpoints, resume_point
from drfl.training.history import Metrics
from drfl.training.loop import run

LOCAL, ONE = LocalSGD(steps=3, lr=0.1), torch.ones(1, dtype=torch.float64)


def weights_of(rounds, s=DECAY):
    """Return the weights in closed form: that of round t is proportional to t(t+1)…(t+s−1), which grows like t^s."""
    raw = [math.prod(range(t, t + s)) for t in range(1, rounds + 1)]
    total = sum(raw)
    return torch.tensor([weight / total for weight in raw], dtype=torch.float64)


def decaying_of(rows, start=None):
    """Return the average after each row of vectors, which also serve as client weights."""
    average = DecayingAverage.start(torch.full_like(rows[0], 1e6) if start is None else start, rows[0].double())
    for row in rows:
        average = average.add(row, row.double())
        yield average


@pytest.mark.parametrize("rounds", [1, 2, 3, 10, 500])
def test_weights_in_closed_form(rounds):
    """Unit vectors reveal the weights: the start has weight 0 from the first round on."""
    *_, average = decaying_of(torch.eye(rounds, dtype=torch.float64))
    torch.testing.assert_close(average.w, weights_of(rounds), rtol=1e-11, atol=1e-15)
    assert torch.equal(average.w, average.lam)
    assert int(average.rounds) == rounds


def test_weights_grow_like_a_power_for_any_length():
    """The last fraction u of the rounds has the weight 1 − (1 − u)^(s+1): a tenth has 61 %, a half all but 0.2 %."""
    for rounds in (1000, 10_000):
        weights = weights_of(rounds)
        for part in (0.1, 0.5):
            held = float(weights[-round(part * rounds) :].sum())
            assert held == pytest.approx(1 - (1 - part) ** (DECAY + 1), abs=5e-3)
        t = torch.arange(1, rounds + 1)[rounds // 10 :]
        ratio = weights[rounds // 10 :] / t.double() ** DECAY
        assert float(ratio.max() / ratio.min()) < 1 + 300 / rounds


def test_average_of_one_round_is_that_round():
    (average,) = decaying_of(torch.tensor([[0.1, 0.7]]), start=torch.tensor([0.3, 1e3]))
    torch.testing.assert_close(average.w, torch.tensor([0.1, 0.7]), rtol=0, atol=1e-4)
    assert not DecayingAverage.start(torch.ones(2), torch.ones(3)).rounds


ROUNDS = 2000
RUNS = {
    "noise": 100 + torch.randn(ROUNDS, 3, generator=torch.Generator().manual_seed(0)),
    "settling": 100 + 1 / torch.arange(1.0, ROUNDS + 1)[:, None],
    "drifting": 100 + torch.linspace(0, 0.1, ROUNDS)[:, None],
    "at rest": torch.full((ROUNDS, 1), 0.1),
}


@pytest.mark.parametrize("models", long_except(["drifting", "noise"], RUNS.values(), RUNS))
def test_long_runs_in_single_precision_lose_little(models):
    """Rounding hides only differences of models below about rounds/18 units in the last place."""
    average = DecayingAverage.start(models[0], models[0].double())
    for w in models:
        average = average.add(w, w.double())
    exact, unit = weights_of(ROUNDS) @ models.double(), float(models.max()) * torch.finfo(torch.float32).eps
    assert average.w.dtype == torch.float32
    assert float((average.w.double() - exact).abs().max()) < ROUNDS / 18 * unit
    assert average.lam.dtype == torch.float64
    torch.testing.assert_close(average.lam, exact, rtol=1e-12, atol=0)


def test_constant_model_is_its_own_average():
    w = torch.randn(5, generator=torch.Generator().manual_seed(1))
    average = DecayingAverage.start(w, w.double())
    for _ in range(100):
        average = average.add(w, w.double())
    assert torch.equal(average.w, w)
    assert torch.equal(average.lam, w.double())


def test_average_of_client_weights_is_in_the_simplex():
    lams = torch.distributions.Dirichlet(torch.full((20,), 0.1).double()).sample((300,))
    average = DecayingAverage.start(torch.zeros(1), torch.full((20,), 0.05).double())
    for lam in lams:
        average = average.add(torch.zeros(1), lam)
        assert float(average.lam.min()) >= -1e-15
        assert float(average.lam.sum()) == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize("kind", [Average, DecayingAverage])
def test_impossible_averages_are_refused(kind):
    average = kind.start(torch.zeros(1), torch.ones(1))
    assert average.describe_fault() is None
    assert average._replace(rounds=torch.tensor(-1)).describe_fault()


def test_average_with_weights_per_round():
    """Unit vectors reveal the weights; rounds of weight 1 give the plain mean bit for bit."""
    rows, weights = torch.eye(4, dtype=torch.float64), torch.tensor([1.0, 0.5, 3.0, 4.0], dtype=torch.float64)
    weighted = plain = Average.start(rows[0], rows[0])
    by_hand = rows[0]
    for r, (row, weight) in enumerate(zip(rows, weights.tolist(), strict=True), 1):
        weighted, plain = weighted.add(row, row, weight), plain.add(row, row)
        by_hand = by_hand + (row - by_hand) / r
    torch.testing.assert_close(weighted.w, weights / weights.sum(), rtol=1e-14, atol=0)
    assert torch.equal(weighted.w, weighted.lam)
    assert (int(weighted.rounds), float(weighted.weight)) == (4, 8.5)
    assert torch.equal(plain.w, by_hand)
    assert weighted.describe_fault() is None
    assert weighted._replace(weight=torch.zeros(())).describe_fault()
    assert Average.start(rows[0], rows[0])._replace(weight=torch.ones(())).describe_fault()


# ------------------------------------------------------------------------------------------------- in a run


def played(algorithm, fed, rounds, **options):
    steps, kept = [], []
    callbacks = [steps.append, *options.pop("callbacks", ())]
    keep = options.pop("keep", lambda progress, stopping: kept.append(progress))
    result = run(algorithm, fed, rounds=rounds, callbacks=callbacks, keep=keep, **options)
    return result, steps, kept


@pytest.mark.parametrize("algorithm", [FedAvg(m=3, local=LOCAL), DRFA(m=3, local=LOCAL)], ids=["FedAvg", "DRFA"])
def test_run_returns_the_average_of_its_models(algorithm):
    """These are the models after each round. Callbacks see the average, and the certificate uses it."""
    fed = federation()
    result, steps, kept = played(algorithm, fed, 7, evaluate_every=3)
    models = torch.stack([step.state.w for step in steps[1:]])
    mixtures = torch.stack([mixture_of(algorithm, step.state, fed) for step in steps[1:]])
    for r, step in enumerate(steps):
        expected = weights_of(r) @ models[:r] if r else fed.w0
        torch.testing.assert_close(step.model, expected, rtol=0, atol=1e-14)
    for r, progress in enumerate(kept, 1):
        torch.testing.assert_close(progress.decaying.lam, weights_of(r) @ mixtures[:r], rtol=0, atol=1e-14)
    assert torch.equal(result.model, steps[-1].model)
    assert torch.equal(result.state.w, models[-1])
    assert not torch.equal(result.model, result.state.w)
    for row, step in zip(result.history.rows, (steps[r] for r in (0, 3, 6, 7)), strict=True):
        assert row.metrics == Metrics.of(fed.evaluate(step.model))
        assert row.last_metrics == Metrics.of(fed.evaluate(step.state.w))
    assert torch.equal(result.evaluation.loss, fed.evaluate(result.model).loss)
    assert torch.equal(result.last.loss, fed.evaluate(result.state.w).loss)


def test_last_iterate_is_returned_on_request():
    fed = federation()
    result, steps, kept = played(DRFA(m=3, local=LOCAL), fed, 4, returned="last")
    assert torch.equal(result.model, result.state.w)
    assert torch.equal(result.evaluation.loss, result.last.loss)
    assert all(torch.equal(step.model, step.state.w) for step in steps)
    assert all(progress.decaying is None for progress in kept)
    assert all(row.metrics == row.last_metrics for row in result.history.rows)


def test_returned_model_does_not_affect_the_run():
    """Neither the training nor its cost changes."""
    average, last = (played(DRFA(m=3, local=LOCAL), federation(), 5, returned=r)[0] for r in ("average", "last"))
    assert bits_differ(average.state, last.state) == []
    for a, b in zip(average.history.rows, last.history.rows, strict=True):
        assert a.ledger == b.ledger
        assert a.last_metrics == b.metrics
        assert torch.equal(a.lam, b.lam)


def test_rounds_without_replies_do_not_count():
    silent = DropoutFederation(federation(), train=range(6))
    result, _, kept = played(DRFA(m=3, local=LOCAL), silent, 3)
    assert torch.equal(result.model, silent.w0)
    assert [int(progress.decaying.rounds) for progress in kept] == [0, 0]


def test_averaged_solution_is_stored_separately():
    result = played(DRFA(m=3, local=LOCAL), federation(), 4, averaged=True)[0]
    assert not torch.equal(result.average.w, result.model)
    assert torch.equal(result.model, played(DRFA(m=3, local=LOCAL), federation(), 4)[0].model)


def largest(fed, w):
    """Return the largest training loss over clients."""
    return float(fed.losses(torch.arange(fed.n), w, Key(0)).values.max())


@pytest.mark.parametrize(
    ("algorithm", "rounds", "expected"),
    [(FedAvg(m=6, local=LOCAL), 2, "last"), (DRFA(m=3, gamma=0.3, local=LOCAL), 12, "average")],
)
def test_best_has_the_smaller_largest_training_loss(algorithm, rounds, expected):
    fed = Recording(federation())
    plain = played(algorithm, federation(), rounds)[0]
    result, steps, _ = played(algorithm, fed, rounds, returned="best")
    ends = {"average": plain.model, "last": plain.state.w}
    losses = {name: largest(federation(), w) for name, w in ends.items()}
    assert result.returned == min(losses, key=losses.get) == expected
    assert torch.equal(result.model, ends[expected])
    assert torch.equal(result.evaluation.loss, federation().evaluate(result.model).loss)
    # Before the end, callbacks and history describe the average.
    assert torch.equal(steps[-1].model, plain.model)
    assert [row.round for row in result.history.rows] == [row.round for row in plain.history.rows]
    assert [row.metrics for row in result.history.rows[:-1]] == [row.metrics for row in plain.history.rows[:-1]]
    assert result.history.last.metrics == Metrics.of(result.evaluation)
    assert result.history.last.last_metrics == plain.history.last.last_metrics
    asked = fed.of("losses")[-2:]
    assert [call.w.equal(ends[name]) for call, name in zip(asked, ("last", "average"), strict=True)] == [True, True]
    assert all(len(call.cohort) == fed.n and call.batch is None for call in asked)
    cost = [result.history.last.ledger[name] - plain.history.last.ledger[name] for name in ("bytes_up", "bytes_down")]
    assert min(cost) > 0


class Choosing(WrappedFederation):
    """Change the reports of losses on all samples. The first request is about the last iterate."""

    def __init__(self, fed, change):
        super().__init__(fed)
        self.change, self.asked = change, 0

    def ask(self, request):
        reply = self.fed.ask(request)
        if request.kind != "losses" or request.batch is not None:
            return reply
        self.asked += 1
        return self.change(reply, self.asked == 1)


def silent(*clients):
    """Drop the reports of these clients."""
    return lambda reply, last: select_rows(
        reply, torch.tensor([c not in clients for c in reply.clients.tolist()]).nonzero()[:, 0]
    )


CHANGES = {
    "one client reports": (silent(0, 1, 2, 3, 4), "last"),
    "nobody reports": (silent(*range(6)), "average"),
    "nobody reports both": (lambda reply, last: silent(*((0, 1, 2) if last else (3, 4, 5)))(reply, last), "average"),
    "a report is no number": (lambda reply, last: reply._replace(values=reply.values * math.nan), "average"),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_choice_uses_clients_that_report_both(change, expected):
    fed = Choosing(federation(), change)
    assert played(FedAvg(m=6, local=LOCAL), fed, 2, returned="best")[0].returned == expected
    assert fed.asked == 2


@pytest.mark.parametrize("returned", long_except(["average"], ["average", "last", "best"]))
def test_resumed_run_is_bitwise_equal(returned, tmp_path):
    algorithm, options = DRFA(m=3, local=LOCAL), {"evaluate_every": 2, "returned": returned}
    whole, _, kept = played(algorithm, federation(), 6, **options)
    played(algorithm, federation(), 6, keep=Checkpoints(tmp_path, dict, 100), callbacks=[lambda s: s.round == 3])
    for start in kept:
        again = played(algorithm, federation(), 6, start=start, **options)[0]
        assert torch.equal(again.model, whole.model)
        assert again.history.to_csv() == whole.history.to_csv()
        assert torch.equal(again.evaluation.loss, whole.evaluation.loss)
    start = resume_point(tmp_path, algorithm, federation(), rounds=6).progress
    if returned == "average":
        assert torch.equal(played(algorithm, federation(), 6, start=start, **options)[0].model, whole.model)


def test_average_needs_no_communication():
    plain, averaged = Recording(federation()), Recording(federation())
    run(FedAvg(m=3, local=LOCAL), plain, rounds=3, returned="last")
    run(FedAvg(m=3, local=LOCAL), averaged, rounds=3)
    for a, b in zip(plain.calls, averaged.calls, strict=True):
        assert (a.kind, a.average, a.snapshot) == (b.kind, False, None)
        assert torch.equal(a.w, b.w)


@pytest.mark.parametrize("sampled", long_except(["True"], [False, True]))
@pytest.mark.long
def test_average_converges_although_the_last_iterate_circles(sampled):
    """Two clients have optima ∓1 on a line, and w and λ circle around the saddle point (0, ½)."""
    curvature = torch.full((2, 1, 1), 0.02, dtype=torch.float64)
    fed = QuadraticFederation(
        curvature, torch.tensor([[-1.0], [1.0]]).double(), torch.tensor([5.0, 5.0]).double(), w0=ONE
    )
    local = LocalSGD(steps=1, lr=0.05, batch=None)
    algorithm = AFL(gamma=0.05, local=local)
    if sampled:
        algorithm = DRFA(m=2, gamma=0.05, local=local, sampling=sampling.with_replacement)
    result, steps, _ = played(algorithm, fed, 600)
    last = max(abs(float(step.state.w)) for step in steps[400:])
    average = max(abs(float(step.model)) for step in steps[400:])
    assert average < 0.5 * last
    assert float(result.evaluation.loss.max()) < 5 + average + 1e-3


@pytest.mark.parametrize("average", [DecayingAverage, Average])
def test_average_shares_no_memory_with_the_state(average):
    """A checkpoint of a run without replies contains both, and cannot store shared memory."""
    w, lam = torch.zeros(3), torch.full((2,), 0.5, dtype=torch.float64)
    start = average.start(w, lam)
    assert start.w.data_ptr() != w.data_ptr()
    assert start.lam.data_ptr() != lam.data_ptr()


def test_run_without_replies_is_saved_and_resumed(tmp_path):
    silent = DropoutFederation(federation(), train=range(6))
    algorithm = FedAvg(m=3, local=LOCAL)
    run(algorithm, silent, rounds=2, keep=Checkpoints(tmp_path, dict, 1))
    found = resume_point(tmp_path, algorithm, silent, rounds=4)
    assert found.progress.skipped == found.progress.round
    assert torch.equal(run(algorithm, silent, rounds=4, start=found.progress).model, silent.w0)
