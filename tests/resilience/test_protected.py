"""Test every algorithm with protection: unchanged with honest clients, and working with malicious ones."""

from __future__ import annotations

import itertools
import logging
import math

import pytest
import torch
from tests.resilience.federations import EVERYBODY, LOCAL, SIZES, N, algorithm_of, fed_of
from tests.support.marks import crossed, long_except
from tests.support.problems import federation
from tests.support.refusals import logged, quotes, refused

from drfl import Key, LocalSGD, run
from drfl.algorithms import ALGORITHMS
from drfl.ambiguity import CVaR
from drfl.core.errors import DivergedError, NonFiniteError
from drfl.engine import Loop
from drfl.federation.federation import WrappedFederation
from drfl.federation.requests import TrainRequest
from drfl.resilience import Clip, Krum, LambdaConcentration, Protected, Quarantine, RobustClip, Trim
from drfl.testing import DropoutFederation, Recording
from drfl.testing.attacks import ConstantLosses, InflatedLosses, ScaledUpdates
from drfl.testing.state import bits_differ, leaves, through_a_file

DEAF = ("FedAvg", "FedNova", "FedProx", "SCAFFOLD", "FedDyn", "FedMGDAPlus")
"""Algorithms that request no losses."""


def states_of(algorithm, fed, rounds, seed=1):
    state, found = algorithm.init(fed), []
    for r in range(1, rounds + 1):
        state, info = algorithm.round(state, fed, Key(seed).fold("round", r))
        found.append((state, info))
    return found


class Broken(WrappedFederation):
    """A client's models are NaN in some rounds, counted from 1."""

    def __init__(self, fed, client, rounds):
        super().__init__(fed)
        self.client, self.rounds, self.asked = client, set(rounds), 0

    def ask(self, request):
        reply = super().ask(request)
        if isinstance(request, TrainRequest):
            self.asked += 1
            if self.asked in self.rounds:
                reply.w[reply.clients == self.client] = math.nan
        return reply


@pytest.mark.parametrize(
    ("name", "guards", "reports"),
    [
        ("DRFA", (Trim(9),), 3),
        ("DRFA", (Trim(1), Clip(3.0), Trim(2)), 3),
        ("ScaffPD", (Trim(3),), 3),
        ("TERM", (Trim(3),), 3),
        ("AFL", (Trim(N),), N),
        ("DRFAGA", (Trim(N),), N),
    ],
)
def test_guards_that_would_drop_every_reported_loss_are_refused(name, guards, reports):
    algorithm = algorithm_of(name) if name == "AFL" else algorithm_of(name, m=3)
    dropped = sum(guard.f for guard in guards if isinstance(guard, Trim))
    with refused("few-clients", "guards", "Trim", str(dropped), str(reports)):
        run(Protected(algorithm, guards=guards), fed_of(), rounds=1)
    Protected(algorithm, guards=(Trim(reports - 1),)).init(fed_of())


@pytest.mark.parametrize(
    ("name", "most"), [("DRFA", 8), ("TERM", 8), ("ScaffPD", 12), ("AAggFFS", 12), ("AFL", 12), ("DRFAGA", 12)]
)
def test_default_cohorts_count_for_the_checks(name, most):
    fed, algorithm = fed_of((*SIZES, 5, 6, 7, 8)), ALGORITHMS[name](local=LOCAL)
    assert fed.n == 12
    with refused("few-clients", "guards", "Trim", str(most)):
        Protected(algorithm, guards=(Trim(most),)).init(fed)
    Protected(algorithm, guards=(Trim(most - 1),)).init(fed)
    asked = 8 if name == "DRFAGA" else most  # all clients report their losses, but fewer train
    f = asked // 2 - 1  # Krum needs 2f + 3 replies
    with refused("few-clients", "aggregator", str(asked)):
        Protected(algorithm, aggregator=Krum(f)).init(fed)
    Protected(algorithm, aggregator=Krum(f - 1)).init(fed)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_honest_clients_leave_the_algorithm_bitwise_unchanged(name):
    alone, protected = (fed_of(), fed_of())
    algorithm = algorithm_of(name)
    pairs = zip(states_of(algorithm, alone, 4), states_of(Protected(algorithm, norm=1e3), protected, 4), strict=True)
    for (mine, info), (wrapped, other) in pairs:
        assert bits_differ(mine, wrapped.inner) == []
        assert torch.equal(wrapped.w, mine.w)
        assert info.answered.tolist() == other.answered.tolist()
    assert alone.ledger == protected.ledger
    memory = wrapped.memory
    assert (int(memory.rejected), int(memory.clipped)) == (0, 0)
    assert not memory.flagged.any()


@pytest.mark.parametrize(
    "name",
    long_except(
        ["SCAFFOLD", "DRDM", "DRFA", "ScaffPD"],
        [name for name, make in ALGORITHMS.items() if not hasattr(make, "no_average")],
    ),
)
def test_protection_leaves_the_averaged_solution_unchanged(name):
    algorithm = algorithm_of(name)
    alone, protected = (
        run(one, fed_of(), rounds=4, averaged=True) for one in (algorithm, Protected(algorithm, norm=1e3))
    )
    assert int(protected.state.memory.rejected) == 0
    assert all(torch.equal(mine, other) for mine, other in zip(alone.average, protected.average, strict=True))


@pytest.mark.parametrize("name", ["DRFA", "ScaffPD"])
def test_protection_leaves_minibatches_unchanged(name):
    algorithm = algorithm_of(name, local=LocalSGD(steps=2, lr=0.05, batch=4), dual_batch=4)
    alone, protected = (federation((8, 9, 12, 10, 30, 7, 16, 11), engine=Loop()) for _ in range(2))
    mine, wrapped = states_of(algorithm, alone, 2)[-1][0], states_of(Protected(algorithm), protected, 2)[-1][0]
    assert bits_differ(mine, wrapped.inner) == []
    assert alone.ledger == protected.ledger
    assert alone.ledger.bytes_up > 0


@pytest.mark.parametrize(
    ("name", "guards"),
    crossed(list(ALGORITHMS), {"robust": (RobustClip(),), "clip, trim": (Clip(3.0), Trim(1))}),
)
def test_nan_and_huge_reports_do_not_break_any_algorithm(name, guards):
    fed = ConstantLosses(ConstantLosses(fed_of(), [0], math.nan), [1], 1e30)
    result = run(Protected(algorithm_of(name), guards=guards), fed, rounds=5, evaluate_every=5)
    for path, leaf in leaves(result.state.inner).items():
        assert torch.isfinite(leaf.double()).all(), path
        assert leaf.double().abs().max() < 1e6, path  # this includes the scale of the dual step
    memory = result.state.memory
    if name in DEAF:
        assert (int(memory.rejected), int(memory.clipped)) == (0, 0)
    else:
        assert memory.flagged[:2].tolist() == [True, True]
        assert int(memory.rejected) == 3  # after three rejections client 0 is in quarantine
        assert int(memory.clipped) >= 5


def test_tight_guard_limits_a_huge_report():
    algorithm = algorithm_of("DRFA", gamma=0.005)
    alone, _ = states_of(algorithm, InflatedLosses(fed_of(), [0], 100.0), 1)[0]
    held, _ = states_of(Protected(algorithm, guards=(RobustClip(3, 0.1),)), InflatedLosses(fed_of(), [0], 100.0), 1)[0]
    assert alone.lam[0] == 1
    assert held.lam[0] < 0.3
    assert held.flagged[0]
    assert int(held.memory.clipped) == int(held.flagged.sum())


@pytest.mark.parametrize("claim", [1e3, 1e30])
def test_default_guard_limits_a_report_with_a_user_step_size(claim):
    tau, gamma, rounds = LOCAL.steps, 1e-5, 6
    algorithm = algorithm_of("DRFA", gamma=gamma)
    honest = states_of(Protected(algorithm), fed_of(), rounds)
    states = [state for state, _ in states_of(Protected(algorithm), ConstantLosses(fed_of(), [0], claim), rounds)]
    # Eleven times the largest median of reports; N/m, because a cohort's reports represent all clients.
    most = 11 * max(float(state.memory.guards[-1]) for state in states)
    bound = tau * gamma * most * N / (algorithm.m or N)
    lams = [1 / N, *(float(state.lam[0]) for state in states)]
    gains = [after - before for before, after in itertools.pairwise(lams)]
    assert bound / 3 < max(gains) <= bound < 0.1
    assert max(float(state.lam[0]) for state, _ in honest) < lams[-1]


def test_repeatedly_rejected_client_is_quarantined_for_a_while():
    recording = Recording(Broken(fed_of(), 2, {2, 3, 4}))
    protected = Protected(algorithm_of("FedAvg"), quarantine=Quarantine(strikes=3, rounds=4))
    states = [state for state, _ in states_of(protected, recording, 10)]
    asked = [2 in call.cohort.tolist() for call in recording.of("train")]
    assert asked == [True] * 4 + [False] * 4 + [True] * 2
    assert [bool(state.flagged[2]) for state in states] == [False] + [True] * 7 + [False] * 2
    assert int(states[-1].memory.rejected) == 3
    assert [int(state.memory.strikes[2]) for state in states[:4]] == [0, 1, 2, 0]


def test_valid_replies_clear_strikes_and_silence_does_not():
    def strikes(rounds, lost=()):
        broken, found = Broken(fed_of(), 2, rounds), []
        protected = Protected(algorithm_of("FedAvg"))
        state = protected.init(broken)
        for r in range(1, 5):
            fed = DropoutFederation(broken, train=[2]) if r in lost else broken
            state, _ = protected.round(state, fed, Key(1).fold("round", r))
            found.append(int(state.memory.strikes[2]))
        return found

    assert strikes({1, 2, 4}) == [1, 2, 0, 1]
    assert strikes({1, 2}, lost=[3]) == [1, 2, 2, 0]


def test_round_is_empty_if_all_clients_are_in_quarantine():
    recording = Recording(fed_of())
    protected = Protected(algorithm_of("SCAFFOLD"), norm=1e-9, quarantine=Quarantine(strikes=1, rounds=2))
    states = states_of(protected, recording, 4)
    assert [info.is_empty for _, info in states] == [True] * 4
    assert len(recording.of("train")) == 2  # rounds 1 and 4
    assert torch.equal(states[-1][0].w, fed_of().w0)


def test_all_clients_are_asked_without_quarantine():
    recording = Recording(fed_of())
    states_of(Protected(algorithm_of("FedAvg"), norm=1e-9, quarantine=None), recording, 5)
    assert all(len(call.cohort) == N for call in recording.of("train"))


def test_mostly_non_finite_replies_are_a_divergence():
    fed = ConstantLosses(fed_of(), range(N), math.nan)
    with refused("not-finite", None, "losses", kind=NonFiniteError):
        states_of(Protected(algorithm_of("AFL")), fed, 1)
    with refused("diverged", None, "round 1", kind=DivergedError):
        run(Protected(algorithm_of("AFL")), fed, rounds=2)


def test_model_beyond_max_norm_counts_as_missing():
    fed = ScaledUpdates(fed_of(), [4], 1e6)
    state, info = states_of(Protected(algorithm_of("FedAvg"), norm=10.0), fed, 1)[0]
    assert info.answered.tolist() == [i for i in EVERYBODY.tolist() if i != 4]
    assert state.w.abs().max() < 10


def test_each_client_and_reason_is_logged_once(caplog):
    fed = ConstantLosses(fed_of(), [0, 3], math.inf)
    with caplog.at_level(logging.WARNING, "drfl.resilience"):
        states_of(Protected(algorithm_of("AFL"), quarantine=None), fed, 5)
    assert logged(caplog) == [("reply-rejected", "client 0"), ("reply-rejected", "client 3")]
    assert all(quotes(message, "NaN") for message in caplog.messages)


def test_client_with_most_weight_for_long_is_reported(caplog):
    fed, concentration = ConstantLosses(fed_of(), [5], 1e3), LambdaConcentration(share=0.5, long=4)
    with caplog.at_level(logging.WARNING, "drfl.resilience"):
        states_of(Protected(algorithm_of("DRFA", gamma=0.1), guards=(), concentration=concentration), fed, 8)
        assert logged(caplog) == [("dominant-client", "client 5")]
        assert quotes(caplog.messages[0], "client 5", "0.5", "4")
        caplog.clear()
        states_of(Protected(algorithm_of("FedAvg"), concentration=LambdaConcentration(share=0.0, long=2)), fed_of(), 4)
        assert caplog.messages == []  # FedAvg has shares, but no λ


def test_one_of_few_clients_can_have_more_than_half_the_weight():
    concentration, none = LambdaConcentration(long=1), torch.zeros(4, dtype=torch.int64)
    assert concentration.newly_dominant(concentration.after(none, torch.tensor([0.7, 0.1, 0.1, 0.1]))) == []
    assert concentration.newly_dominant(concentration.after(none, torch.tensor([0.1, 0.8, 0.1, 0.0]))) == [1]
    assert concentration.newly_dominant(concentration.after(none[:2], torch.tensor([1.0, 0.0]))) == []
    assert (concentration.limit(10), concentration.limit(4)) == (0.5, 0.75)


def test_run_resumes_from_a_file():
    protected = Protected(algorithm_of("DRFA", gamma=0.05), guards=(Clip(50.0), RobustClip(3, 0.1)))
    fed = ConstantLosses(ConstantLosses(fed_of(), [0], math.nan), [1], 40.0)
    states = states_of(protected, fed, 6)
    state = through_a_file(states[2][0])
    for r in range(4, 7):
        state, _ = protected.round(state, fed, Key(1).fold("round", r))
    assert bits_differ(state, states[-1][0]) == []
    assert int(state.memory.clipped) > 0
    assert state.memory.guards.isnan().nonzero().flatten().tolist() == [0]  # all its reports were rejected


def test_caps_on_lambda_apply_without_a_guard():
    state = states_of(algorithm_of("DRFA", gamma=0.5, ambiguity=CVaR(0.5)), ConstantLosses(fed_of(), [0], 1e6), 6)[-1][
        0
    ]
    assert float(state.lam[0]) == pytest.approx(1 / (0.5 * N))


def test_attributes_of_the_algorithm_are_visible():
    protected = Protected(algorithm_of("DRFA"))
    assert protected.local is LOCAL
    assert protected.ambiguity is protected.algorithm.ambiguity


@pytest.mark.parametrize("claim", [1e2, 1e6, 1e30])
@pytest.mark.parametrize(
    ("name", "most"), [("AFL", 1), ("DRFA", 1), ("DRFAGA", 1), ("DRDM", 1), ("DualDRDM", 1), ("ScaffPD", 3)]
)
def test_default_dual_step_limits_any_report(name, most, claim):
    """The dual step has D = 0.1 without any guard; SCAFF-PD's extrapolation can move λ three times as far."""
    algorithm, fed = algorithm_of(name), ConstantLosses(fed_of(), [2], claim)
    before = algorithm.init(fed).lam
    for state, _ in states_of(algorithm, fed, 6):
        assert (state.lam - before).max() <= most * 0.1 + 1e-12
        before = state.lam
    assert before[2] > 1 / N
