"""The averaging methods: what they reduce to, where they converge, what they refuse."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
import torch
from tests.support.federations import Partial, Still
from tests.support.problems import federation
from tests.support.quadratics import Quadratics

from drfl.algorithms import SCAFFOLD, DeltaFL, FedAvg, FedDyn, FedProx, QFedAvg
from drfl.algorithms.deltafl import tail
from drfl.algorithms.drift import penalty
from drfl.algorithms.qfedavg import powers
from drfl.errors import DivergedError, InputError
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
NAN, INF = math.nan, math.inf
MINIBATCHES = LocalSGD(steps=4, lr=0.1, batch=8, momentum=0.3)


def exactly(rounds, algorithm, problem):
    """The last model after so many rounds on a quadratic problem."""
    fed = problem if isinstance(problem, Partial) else problem.federation()
    return run(algorithm, fed, rounds=rounds, evaluate_every=rounds).state.w.numpy()


def near(w, expected, tolerance=1e-10):
    np.testing.assert_allclose(w, expected, rtol=0, atol=tolerance)


def steps_of(algorithm, fed=None, rounds=4, seed=1, **options):
    steps, fed = [], federation() if fed is None else fed
    run(algorithm, fed, rounds=rounds, seed=seed, callbacks=[steps.append], **options)
    return steps


def states(*args, **options):
    return [step.state for step in steps_of(*args, **options)]


# What they reduce to


@pytest.mark.parametrize(
    "make", [lambda **o: FedProx(mu=0, **o), lambda **o: DeltaFL(theta=0, **o)], ids=["FedProx", "DeltaFL"]
)
@pytest.mark.parametrize("by_samples", [True, False])
@pytest.mark.parametrize("m", [None, 3])
def test_fedavg_bit_for_bit(make, by_samples, m, engine):
    options = {"m": m, "local": MINIBATCHES, "by_samples": by_samples}
    ours, theirs = (
        steps_of(algorithm(**options), federation(engine=engine), averaged=True) for algorithm in (make, FedAvg)
    )
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.state.w, b.state.w)
        assert torch.equal(a.average.w, b.average.w)
        assert torch.equal(a.average.lam, b.average.lam)


@pytest.mark.parametrize("m", [None, 3])
def test_q_0_is_the_uniform_mean(m):
    uniform = states(FedAvg(m=m, local=MINIBATCHES, by_samples=False))
    for a, b in zip(states(QFedAvg(q=0, m=m, local=MINIBATCHES)), uniform, strict=True):
        torch.testing.assert_close(a.w, b.w, rtol=0, atol=1e-14)


def test_scaffolds_first_round_is_fedavgs():
    """The controls are 0 then; η_g scales the move."""
    start, mean = states(FedAvg(m=3, local=MINIBATCHES, by_samples=False), rounds=1)
    for server_lr in (1.0, 0.4):
        first = states(SCAFFOLD(m=3, local=MINIBATCHES, server_lr=server_lr), rounds=1)[-1]
        torch.testing.assert_close(first.w, start.w + server_lr * (mean.w - start.w), rtol=0, atol=1e-14)


def test_what_is_sent_to_clients():
    """SCAFFOLD sends c − c_i, FedDyn −h_i, FedProx and FedDyn pull with μ, the others send nothing on top."""
    sent = {"FedAvg": FedAvg(m=3), "FedProx": FedProx(m=3, mu=0.3), "QFedAvg": QFedAvg(m=3), "DeltaFL": DeltaFL(m=3)}
    sent |= {"SCAFFOLD": SCAFFOLD(m=3), "FedDyn": FedDyn(m=3, mu=0.25)}
    for name, algorithm in sent.items():
        fed = Still([0.5, 1.0, 1.5, 2.0, 2.5])
        before = algorithm.init(fed)
        for r in range(2):
            state = before
            before, _ = algorithm.round(state, fed, Key(0).fold("round", r))
        call = fed.trained[-1]
        assert call["prox"] == {"FedProx": 0.3, "FedDyn": 0.25}.get(name, 0)
        assert call["key"] == Key(0).fold("round", 1, "sgd")
        if name == "SCAFFOLD":
            assert torch.equal(call["shift"], state.c - state.c_i[call["cohort"]])
            assert float(call["shift"].abs().max()) > 0
        elif name == "FedDyn":
            assert torch.equal(call["shift"], -state.h[call["cohort"]])
        else:
            assert call["shift"] is None
        if name in ("QFedAvg", "DeltaFL"):  # losses at the model before training, on all data by default
            assert torch.equal(fed.reports[-1]["w"], state.w)
            assert fed.reports[-1]["batch"] is None
            assert fed.reports[-1]["key"] == Key(0).fold("round", 1, "xi")


@pytest.mark.parametrize("make", [QFedAvg, DeltaFL])
def test_loss_batch(make):
    fed = Still([0.5, 1.0, 1.5])
    algorithm = make(loss_batch=7)
    algorithm.round(algorithm.init(fed), fed, Key(0))
    assert [report["batch"] for report in fed.reports] == [7]


COSTS = {  # vectors down and up, losses up, per client of the cohort; DeltaFL trains two of four
    "FedAvg": (FedAvg, 1, 1, 0),
    "FedProx": (FedProx, 1, 1, 0),
    "SCAFFOLD": (SCAFFOLD, 2, 1, 0),
    "FedDyn": (FedDyn, 2, 1, 0),
    "QFedAvg": (QFedAvg, 2, 1, 1),
    "DeltaFL": (lambda **o: DeltaFL(by_samples=False, **o), 1.5, 0.5, 1),
}


@pytest.mark.parametrize("row", COSTS.values(), ids=COSTS)
def test_costs(row):
    """What a round sends, as the pages under docs/algorithms say."""
    make, down, up, losses = row
    fed = federation()
    run(make(m=4), fed, rounds=1)
    vector = 8 * len(fed.w0)
    assert fed.ledger.bytes_down == 4 * vector * down
    assert fed.ledger.bytes_up == 4 * (vector * up + 8 * losses)
    assert fed.ledger.messages == 2 * 4 * (down if losses else 1)
    assert (fed.ledger.loss_evaluations > 0) == bool(losses)


# Where they converge


@pytest.mark.parametrize("samples", [None, (1, 2, 3, 4, 10)])
@pytest.mark.parametrize("tau", [1, 5])
def test_fedavg_and_fedprox_stop_where_they_should(samples, tau):
    """At the weighted optimum after one local step, off it by a known amount after more; μ weakens the drift."""
    problem, local = Quadratics.random(samples=samples), LocalSGD(steps=tau, lr=0.2, batch=None)
    lam = problem.shares
    drift = {}
    for mu in (0.0, 2.0):
        w = exactly(300, FedProx(mu=mu, local=local), problem)
        near(w, problem.fixed_point(lam, 0.2, tau, mu))
        drift[mu] = np.abs(w - problem.optimum(lam)).max()
    near(exactly(300, FedAvg(local=local), problem), problem.fixed_point(lam, 0.2, tau))
    if tau == 1:
        assert drift[0.0] < 1e-10
    else:
        assert drift[0.0] > drift[2.0] > 1e-2


CORRECTED = {
    "SCAFFOLD": lambda **o: SCAFFOLD(**o),
    "SCAFFOLD, half server steps": lambda **o: SCAFFOLD(server_lr=0.5, **o),
    "FedDyn": lambda **o: FedDyn(**o),
    "FedDyn, mu=3": lambda **o: FedDyn(mu=3.0, **o),
}
every_corrected = pytest.mark.parametrize("make", CORRECTED.values(), ids=CORRECTED)


@every_corrected
@pytest.mark.parametrize("m", [None, 2])
@pytest.mark.parametrize("solver", [{}, {"momentum": 0.6}, {"weight_decay": 0.5}], ids=str)
def test_corrected_methods_reach_the_optimum(make, m, solver):
    """Of the mean of all f_i (weight decay included), whatever the local steps and whoever takes part."""
    problem = Quadratics.random()
    w = exactly(1000, make(m=m, local=LocalSGD(steps=6, lr=0.1, batch=None, **solver)), problem)
    near(w, problem.optimum(np.full(5, 1 / 5), solver.get("weight_decay", 0.0)), 1e-8)


@every_corrected
def test_corrected_methods_bear_one_who_never_answers(make):
    """They reach the optimum of the mean over the others; the silent client's row stays 0."""
    problem = Quadratics.random()
    fed = Partial(problem.federation(), lost_train=(4,))
    w = exactly(1000, make(m=3, local=LocalSGD(steps=6, lr=0.1, batch=None)), fed)
    near(w, problem.optimum([1 / 4] * 4 + [0]), 1e-8)


def test_a_smaller_mu_is_slower_where_local_steps_go_far():
    """τηa is up to 12 here, so that clients all but reach their minimisers: μ = 1/(ητ) against a fifth of it."""
    problem, local = Quadratics.random(), LocalSGD(steps=20, lr=0.2, batch=None)
    optimum = problem.optimum(problem.shares)
    larger, smaller = (exactly(400, FedDyn(m=3, mu=mu, local=local), problem) for mu in (1 / 4, 1 / 20))
    assert np.abs(larger - optimum).max() < 1e-6
    assert np.abs(smaller - optimum).max() > 1e-3


@pytest.mark.parametrize("m", [None, 3])
def test_feddyn_in_a_ball(m):
    """With a projection in the local steps FedDyn reaches the constrained optimum; SCAFFOLD refuses."""
    problem = Quadratics.random()
    radius = 0.5 * float(np.linalg.norm(problem.optimum(problem.shares)))
    local = LocalSGD(steps=10, lr=0.1, batch=None, radius=radius)
    near(exactly(400, FedDyn(m=m, mu=1.0, local=local), problem), problem.constrained(radius), 1e-8)
    with pytest.raises(InputError, match=r"radius.*sum of gradients"):
        SCAFFOLD(local=local)


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_qfedavg_is_stationary_for_its_objective(q):
    """Σ_k F_k^q ∇F_k = 0 with one local step; the larger q, the lower the worst loss."""
    problem = Quadratics.random(seed=3)
    w = exactly(1500, QFedAvg(q=q, local=LocalSGD(steps=1, lr=0.2, batch=None)), problem)
    weights = problem.losses(w) ** q
    near(weights / weights.sum() @ problem.gradients(w), 0, 1e-8)
    average = problem.optimum(problem.shares)
    assert (problem.losses(w).max() < problem.losses(average).max() - 0.1) == (q > 0)


def test_deltafl_minimises_the_mean_over_the_tail():
    """Four clients on a line: the tail at θ = ½ is the outer two, wherever the inner two are."""
    problem = Quadratics([[1.0], [1.0], [1.0], [2.0]], [[-8.0], [0.2], [0.5], [6.0]])
    w = exactly(200, DeltaFL(theta=0.5, local=LocalSGD(steps=1, lr=0.2, batch=None)), problem)
    near(w, problem.optimum([0.5, 0, 0, 0.5]))
    assert set(np.argsort(problem.losses(w))[:2]) == {1, 2}


# The pieces


TAILS = {
    "theta 0": ([1, 2, 3], [1, 1, 1], 0.0, [1, 1, 1]),
    "exactly half": ([4, 1, 3, 2], [1, 1, 1, 1], 0.5, [1, 0, 1, 0]),
    "a little more than half": ([4, 1, 3, 2], [1, 1, 1, 1], 0.49, [1, 0, 1, 1]),
    "one": ([4, 1, 3, 2], [1, 1, 1, 1], 0.99, [1, 0, 0, 0]),
    "the worst-off is heavy": ([4, 1, 3], [8, 1, 1], 0.5, [1, 0, 0]),
    "the worst-off is light": ([4, 1, 3], [1, 8, 1], 0.5, [1, 1, 1]),
    "ties": ([2, 1, 2, 2], [1, 1, 1, 1], 0.75, [1, 0, 1, 1]),
    "all alike": ([2, 2, 2], [1, 1, 1], 0.9, [1, 1, 1]),
    "alone": ([5], [1], 0.9, [1]),
    "sums that round": ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [0.1] * 10, 0.7, [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]),
}


@pytest.mark.parametrize("case", TAILS.values(), ids=TAILS)
@pytest.mark.parametrize("scale", [1.0, 3.7])
def test_tails(case, scale):
    losses, weights, theta, expected = case
    found = tail(torch.tensor(losses).double(), scale * torch.tensor(weights).double(), theta)
    assert found.int().tolist() == expected
    order = torch.arange(len(losses)).flip(0)
    again = tail(torch.tensor(losses).double()[order], scale * torch.tensor(weights).double()[order], theta)
    assert torch.equal(again, found[order])


def test_tail_trains_and_the_others_do_not():
    fed = Still([0.5, 3.0, 1.0, 2.0])
    algorithm = DeltaFL(theta=0.5)
    state, info = algorithm.round(algorithm.init(fed), fed, Key(0))
    assert fed.asked[0].tolist() == [0, 1, 2, 3]
    assert fed.trained[0]["cohort"].tolist() == [1, 3] == info.cohort.clients.tolist()
    assert torch.equal(state.w, torch.full((2,), 2.0, dtype=torch.float64))  # (1 + 3) / 2
    assert torch.equal(info.losses.values, fed.values)


@pytest.mark.parametrize("q", [0.3, 1.0, 2.5])
def test_powers_are_the_papers_up_to_one_factor(q):
    F = torch.tensor([0.2, 3.0, 0.01], dtype=torch.float64)
    F_q, slope = powers(F, q)
    torch.testing.assert_close(F_q * 3.0**q, F**q, rtol=1e-12, atol=0)
    torch.testing.assert_close(slope * 3.0**q, q * F ** (q - 1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 2.0, 300.0])
@pytest.mark.parametrize("values", [[0.0, 1e-200, 3.0], [0.0, 1e200, 1e180], [2.0, 3.0, 5.0], [0.0, 0.0, 0.0]], ids=str)
def test_losses_of_zero_and_huge_ones(q, values):
    """The paper's step in decimal numbers that hardly overflow; 0·∞ counts 0, and a round without any loss stays."""
    fed, algorithm = Still(values), QFedAvg(q=q, local=LocalSGD(lr=0.1))
    state, info = algorithm.round(algorithm.init(fed), fed, Key(0))
    one, power, Delta, h = Decimal(1), Decimal(q), Decimal(0), Decimal(0)
    for i, F in enumerate(map(Decimal, values)):  # client i moves to w + i in both coordinates
        F_q = F**power if F or q else one
        slope = power * (one if q == 1 else F ** (power - 1)) if F or q >= 1 else Decimal(0)
        Delta, h = Delta - F_q * 10 * i, h + slope * 2 * (10 * i) ** 2 + 10 * F_q
    expected = float(-Delta / h) if h else 0.0
    assert state.w.tolist() == pytest.approx([expected] * 2, rel=1e-12)
    assert not info.empty


def test_a_client_without_loss_does_not_move_the_model():
    """Client i moves to w + i; only client 1 has a loss: w + F·L·1 / (q·L²·d·1² / F^{1−q} + L·F^q), d = 2."""
    algorithm, fed = QFedAvg(q=0.5, local=LocalSGD(lr=0.1)), Still([0.0, 4.0, 0.0])
    state, _ = algorithm.round(algorithm.init(fed), fed, Key(0))
    Delta, h = 2 * 10 * 1.0, 0.5 / 2 * (10**2 * 2) + 10 * 2
    assert state.w.tolist() == pytest.approx([Delta / h] * 2, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_rule_for_mu(steps, momentum):
    """A fifth of one over the distance that a unit direction takes a client."""
    local = LocalSGD(steps=steps, lr=0.05, momentum=momentum)
    distance = 0.05 * sum(momentum**k for t in range(steps) for k in range(t + 1))
    assert penalty(None, local) == pytest.approx(0.2 / distance)
    assert penalty(0.7, local) == 0.7


# What they refuse


BAD = {
    FedProx: {"mu": [-0.1, NAN, INF]},
    SCAFFOLD: {"server_lr": [0, -1, NAN, INF]},
    FedDyn: {"mu": [0, -1, 1e300, NAN, INF]},
    QFedAvg: {"q": [-0.5, NAN, INF], "loss_batch": [0, -1, 1.5]},
    DeltaFL: {"theta": [-0.1, 1, 1.5, NAN, "half", None], "loss_batch": [0, -1, 1.5]},
}


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [(make, name, value) for make, row in BAD.items() for name, values in row.items() for value in values],
)
def test_impossible_values(make, name, value):
    with pytest.raises(InputError, match=name):
        make(**{name: value})


@pytest.mark.parametrize("make", [FedAvg, *BAD])
@pytest.mark.parametrize("m", [0, -2, 4, 1.5])
def test_impossible_cohorts(make, m):
    with pytest.raises(InputError, match="between 1 and the number of clients, 3"):
        make(m=m).init(Still([1.0, 2.0, 3.0]))


def test_negative_losses_have_no_powers():
    fed = Still([1.0, -0.25, 2.0])
    with pytest.raises(InputError, match=r"client 1 reports the loss -0.25.*never negative"):
        run(QFedAvg(), fed, rounds=1)
    assert not fed.trained


@pytest.mark.parametrize("make", [QFedAvg, DeltaFL])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_losses_that_are_no_numbers(make, bad):
    fed = Still([1.0, 2.0, bad])
    with pytest.raises(DivergedError, match=rf"{make.__name__} diverged in round 1 .*clients \[2\]"):
        run(make(), fed, rounds=1)
    assert not fed.trained


@pytest.mark.parametrize("make", [FedAvg, *BAD])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types(make, dtype):
    fed = federation(dtype=dtype)
    for step in steps_of(make(m=4, local=MINIBATCHES), fed, rounds=2):
        assert step.state.w.dtype == dtype
        assert step.row.lam.dtype == torch.float64
        assert all(t.dtype == dtype for name, t in step.state._asdict().items() if name in ("c", "c_i", "h"))
