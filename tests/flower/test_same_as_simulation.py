"""Test that results behind a grid equal those of a simulation."""

from dataclasses import dataclass

import pytest
import torch
from tests.support.marks import long_beyond, long_except
from tests.support.refusals import refused

import drfl
from drfl.core.errors import DivergedError, NonFiniteError
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Loop, Stacked, Threads
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.flower.client_app import Site
from drfl.flower.site_task import engine_of
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import SAM
from drfl.optim.schedules import Cosine
from drfl.optim.server_optimizers import FedAdam
from drfl.resilience import Protected, Recorded, ReplyLog
from drfl.testing import Recording
from drfl.testing.attacks import ScaledUpdates
from drfl.testing.state import bits_differ
from drfl.training.checkpoint import Checkpoints, resume_point
from drfl.training.run_state import first

from .conftest import federation, grid_of, simulation

LOCAL = LocalSGD(steps=3, lr=0.1, batch=8)
EVERYBODY = torch.arange(4)
ALGORITHMS = {
    "FedAvg": drfl.FedAvg(m=3, local=LOCAL),
    "DRFA": drfl.DRFA(m=3, local=LOCAL),
    "ScaffPD": drfl.ScaffPD(m=4, local=LOCAL),
    "DRDM": drfl.DRDM(m=3, local=LOCAL),
    "DualDRDM": drfl.DualDRDM(m=3, local=LOCAL),
    "FedDyn": drfl.FedDyn(m=3, local=LOCAL),
    "SCAFFOLD": drfl.SCAFFOLD(m=3, local=LOCAL),
    "QFedAvg": drfl.QFedAvg(m=3, local=LOCAL),
    "FedNova": drfl.FedNova(m=3, local=LocalSGD(epochs=2, lr=0.1, batch=8)),
    "TERM": drfl.TERM(m=3, local=LOCAL),
    "PropFair": drfl.PropFair(m=3, local=LOCAL),
    "FedMGDAPlus": drfl.FedMGDAPlus(m=3, local=LOCAL),
    "AAggFFS": drfl.AAggFFS(local=LOCAL),
    "solver": drfl.FedAvg(m=3, local=LocalSGD(lr=0.1, optimizer=SAM(), lr_schedule=Cosine(9)), server=FedAdam()),
    "protected": Protected(drfl.DualDRDM(m=3, local=LOCAL)),
    "excess": drfl.DualDRDM(m=3, local=LOCAL, reference="own"),
}


AVERAGED = ("DRFA", "DRDM", "protected")


@pytest.mark.parametrize("name", long_except(["DualDRDM", "protected"], ALGORITHMS))
def test_all_numbers_equal_the_simulation(name):
    options = {"rounds": 3, "seed": 3, "averaged": name in AVERAGED, "returned": "best"}
    a, b = (drfl.run(ALGORITHMS[name], fed, **options) for fed in (simulation(), federation()))
    assert torch.equal(a.state.w, b.state.w)
    assert torch.equal(a.model, b.model)
    assert torch.equal(a.lam, b.lam)
    assert (a.average is None) == (name not in AVERAGED)
    assert a.average is None or all(torch.equal(mine, other) for mine, other in zip(a.average, b.average, strict=True))
    assert drfl.assess(a).to_frame().equals(drfl.assess(b).to_frame())  # also the possible worst clients
    for row, other in zip(a.history.rows, b.history.rows, strict=True):
        assert row.ledger == other.ledger
        assert row.metrics == pytest.approx(other.metrics, abs=1e-6)


@pytest.mark.long
def test_repeated_round_equals_the_simulation():
    """The first message of the round includes a test, and client 2's models are rejected at every step size."""
    algorithm = Protected(drfl.DualDRDM(m=4, local=LocalSGD(steps=3, batch=8)), quarantine=None)
    feds = (Recording(ScaledUpdates(fed, [2], 1e30)) for fed in (simulation(), federation()))
    (a, asked), (b, others) = ((drfl.run(algorithm, fed, rounds=4), fed.calls) for fed in feds)
    assert a.step_size.unaffected.tolist() == [False, False, True, False]
    assert torch.equal(a.model, b.model)
    assert bits_differ(a.step_size, b.step_size) == []
    kinds = [call.kind for call in asked]
    assert kinds.count("train") == 4 + 1
    assert kinds == [call.kind for call in others]


@pytest.mark.parametrize("name", long_except(["ScaffPD"], ["FedAvg", "DRFA", "ScaffPD"]))
def test_ledger_counts_models_like_a_simulation(name):
    a, b = (drfl.run(ALGORITHMS[name], fed, rounds=2) for fed in (simulation(), federation()))
    assert a.history.last.ledger == b.history.last.ledger


@pytest.mark.parametrize("kept", [True, pytest.param(False, marks=pytest.mark.long)])
def test_ledger_counts_shifts_kept_at_sites(kept):
    grid = grid_of()
    a, b = simulation(), federation(grid)
    drdm = drfl.DRDM(m=4, local=LOCAL, sampling=sampling.all_clients)
    states = drdm.init(a), drdm.init(b)
    for r in (1, 2, 3):
        key = Key(0).fold("round", r)
        states = drdm.round(states[0], a, key)[0], drdm.round(states[1], b, key)[0]
        assert a.ledger == b.ledger
        if not kept:
            for context in grid.contexts.values():
                context.state.clear()  # as if all SuperNodes had restarted
    assert b.ledger.messages == 3 * 2 * 4 * 2
    assert b.traffic.messages - 2 * 4 * (0 if kept else 2) == b.ledger.messages  # requests without their shift


@pytest.mark.long
def test_payload_of_a_large_model_matches_the_ledger():
    sites = {name: wide(name) for name in "ab"}
    grid = grid_of("ab", lambda context: sites[context.node_config["name"]])
    fed = federation(grid, "ab", w0=torch.zeros(3 * 5_001))
    drfl.run(drfl.FedAvg(m=1, local=LOCAL), fed, rounds=2)
    seen, counted = fed.traffic, fed.ledger
    assert seen.bytes_down - seen.test_bytes_down == pytest.approx(counted.bytes_down, rel=0.01)
    assert seen.bytes_up - seen.test_bytes_up == pytest.approx(counted.bytes_up, rel=0.01)
    # Models sent: 1 at first, 3 in round 1, 4 at the end (model and average to both sites).
    assert seen.test_bytes_down == pytest.approx((1 + 3 + 4) * 3 * 5_001 * 4, rel=0.01)
    assert seen.exchanges == 3
    assert seen.answers == 6
    assert 0 < seen.site_seconds < 2 * seen.seconds


def wide(name):
    generator = torch.Generator().manual_seed(0)
    part = torch.randn(4, 5_000, generator=generator), torch.tensor([0, 1, 2, 0])
    return Site(name, ClientData.from_arrays({name: part}, {name: part}))


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.long
def test_default_engine_traces_nothing_and_agrees_to_rounding(model, monkeypatch):
    monkeypatch.setattr(Stacked, "train", lambda *_, **__: pytest.fail("it traces"))
    fed = federation(model=model, engine="auto")
    a = drfl.run(drfl.DualDRDM(m=3, local=LOCAL), fed, rounds=3)
    b = drfl.run(drfl.DualDRDM(m=3, local=LOCAL), federation(model=model), rounds=3)
    torch.testing.assert_close(a.state.w, b.state.w)
    torch.testing.assert_close(a.lam, b.lam)


def test_engines_of_a_site_agree():
    assert engine_of("auto", "cpu") == Threads(workers=1, intra_op=None)
    assert engine_of("auto", "cuda:1") == Loop()
    assert engine_of("stacked", "cpu") == Stacked()


def test_test_and_next_request_share_a_message():
    grid = grid_of()
    drfl.run(drfl.FedAvg(m=4, local=LOCAL), federation(grid), rounds=5)
    # two identity requests, five rounds whose requests include a test, and the last test
    assert dict(grid.count) == dict.fromkeys((1, 2, 3, 4), 2 + 5 + 1)


def test_request_with_another_model_has_its_own_message():
    fed = federation(grid := grid_of())
    w, key = fed.w0, Key(0)
    before, expected = dict(grid.count), simulation()
    result = fed.evaluate_later([w])
    reply = fed.train(EVERYBODY, w + 1, LOCAL, key)
    assert torch.equal(reply.w, expected.train(EVERYBODY, w + 1, LOCAL, key).w)
    assert {node: grid.count[node] - before[node] for node in before} == dict.fromkeys(before, 1)
    (found,) = result()
    assert {node: grid.count[node] - before[node] for node in before} == dict.fromkeys(before, 2)
    assert torch.equal(found.score, expected.evaluate(w).score)
    tests = fed.traffic.test_bytes_down
    fed.train(EVERYBODY, w, LOCAL, key)  # no test is pending
    assert fed.traffic.test_bytes_down == tests > 0


@pytest.mark.parametrize("asked", [[0, 1, 2, 3], [2, 0]])
def test_unselected_sites_are_tested_with_the_others(asked):
    fed = federation(grid := grid_of())
    w, cohort, before, expected = fed.w0, torch.tensor(asked), dict(grid.count), simulation()
    result = fed.evaluate_later([w])
    reply = fed.losses(cohort, w, Key(0))
    assert reply.clients.tolist() == asked
    assert reply.values.tolist() == pytest.approx(expected.losses(cohort, w, Key(0)).values.tolist(), abs=1e-6)
    (found,), alone = result(), expected.evaluate(w)
    assert {node: grid.count[node] - before[node] for node in before} == dict.fromkeys(before, 1)
    assert torch.equal(found.score, alone.score)
    assert found.loss.tolist() == pytest.approx(alone.loss.tolist(), abs=1e-6)
    expected = simulation()
    expected.losses(cohort, w, Key(0))
    assert fed.ledger == expected.ledger


@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.long)])
def test_two_models_are_tested_in_one_message(first):
    fed = federation(grid := grid_of())
    w, before, expected = fed.w0, dict(grid.count), simulation()
    results = fed.evaluate_later([w, w * 2, w * 3])
    fed.train(EVERYBODY, w if first else w + 1, LOCAL, Key(0))
    found = results()
    assert [one.score.tolist() for one in found] == [expected.evaluate(w * k).score.tolist() for k in (1, 2, 3)]
    # The third test has its own message. If the request sends another model, all tests do.
    assert {node: grid.count[node] - before[node] for node in before} == dict.fromkeys(before, 2 if first else 3)
    assert torch.equal(fed.evaluate(w).score, expected.evaluate(w).score)


def test_final_test_has_its_own_message():
    fed = federation()
    assert torch.equal(fed.evaluate_later([fed.w0])()[0].score, simulation().evaluate(fed.w0).score)


@dataclass(frozen=True)
class Diverging(drfl.FedAvg):
    """Raise an error in round 3, before or after its request."""

    asks: bool = False

    def round(self, state, fed, key):
        found = super().round(state, fed, key) if key.round != 3 or self.asks else None
        if key.round == 3:
            raise NonFiniteError("the model is NaN")
        return found


@pytest.mark.parametrize("make", [simulation, federation])
@pytest.mark.parametrize("asks", [False, pytest.param(True, marks=pytest.mark.long)])
def test_error_in_a_prefetched_round_is_raised_after_the_test(asks, make):
    steps, kept = [], []
    options = {"callbacks": [steps.append], "keep": lambda progress, stopping: kept.append(progress)}
    with refused("diverged", None, "3", kind=DivergedError):
        drfl.run(Diverging(m=4, local=LOCAL, asks=asks), make(), rounds=5, **options)
    assert [step.row.round for step in steps] == [0, 1, 2]
    assert [(progress.round, len(progress.rows)) for progress in kept] == [(1, 2), (2, 3)]


@pytest.mark.parametrize("asks", [pytest.param(False, marks=pytest.mark.long), True])
def test_error_in_a_prefetched_round_is_dropped_if_a_callback_stops(asks):
    algorithm = Diverging(m=4, local=LOCAL, asks=asks)
    found = drfl.run(algorithm, federation(), rounds=5, callbacks=[lambda step: step.round == 2])
    plain = drfl.run(drfl.FedAvg(m=4, local=LOCAL), simulation(), rounds=2)
    assert found.rounds == 2
    assert torch.equal(found.state.w, plain.state.w)


class Catching(drfl.DRFA):
    """Treat every exception in a round as silence."""

    def round(self, state, fed, key):
        try:
            return super().round(state, fed, key)
        except BaseException:
            return state, Info.without_replies(sampling.all_clients(state.lam, 4, key))


@pytest.mark.long
def test_round_that_catches_all_exceptions_works():
    """Finding the requests of a round must not raise an exception within it."""
    options = {"m": 3, "local": LOCAL}
    grid, plain = grid_of(), grid_of()
    a = drfl.run(Catching(**options), federation(grid), rounds=4)
    b = drfl.run(drfl.DRFA(**options), federation(plain), rounds=4)
    assert a.skipped == 0
    assert torch.equal(a.state.w, b.state.w)
    assert a.history.to_csv() == b.history.to_csv()
    assert grid.count == plain.count


@pytest.mark.parametrize(("stop", "every"), long_beyond(1, [(0, 1), (2, 1), (2, 2), (3, 2)]))
def test_prefetched_round_is_dropped_if_a_callback_stops(stop, every, tmp_path):
    """The files are those of a run with fewer rounds; only the traffic shows the dropped round."""

    def played(fed, folder, rounds, callbacks=()):
        folder.mkdir()
        log, keep, steps = ReplyLog(), Checkpoints(folder / "checkpoint", dict, 100), []
        log.open(folder / "replies.csv")
        algorithm = Protected(Recorded(drfl.DRFA(m=3, local=LOCAL), log.add))
        options = {"evaluate_every": every, "averaged": True, "keep": keep}
        callbacks = [log, lambda step: steps.append(step.round), *callbacks]
        return drfl.run(algorithm, fed, rounds=rounds, seed=3, callbacks=callbacks, **options), steps, algorithm

    fed = federation()
    found, steps, algorithm = played(fed, tmp_path / "a", 6, [lambda step: step.round == stop])
    expected, _, _ = played(simulation(), tmp_path / "b", stop)
    assert steps == list(range(stop + 1))
    assert (found.rounds, found.skipped) == (stop, 0)
    assert torch.equal(found.state.w, expected.state.w)
    assert torch.equal(found.lam, expected.lam)
    assert all(torch.equal(mine, other) for mine, other in zip(found.average, expected.average, strict=True))
    assert int(found.average.rounds) == stop
    assert found.history.to_csv() == expected.history.to_csv()  # the ledger's columns among them
    assert found.history.lambda_csv("abcd") == expected.history.lambda_csv("abcd")
    assert (tmp_path / "a/replies.csv").read_bytes() == (tmp_path / "b/replies.csv").read_bytes()
    ahead = stop % every == 0
    assert (fed.ledger.messages > found.history.last.ledger["messages"]) == ahead
    if stop:
        fresh = first(algorithm, simulation(), averaged=True)
        point = resume_point(tmp_path / "a/checkpoint", algorithm, simulation(), fresh=fresh).progress
        assert (point.round, point.ledger) == (stop, found.history.last.ledger)
        assert [row.round for row in point.rows] == [row.round for row in found.history.rows if row.round % every == 0]
        again, whole = (
            drfl.run(algorithm, simulation(), rounds=6, seed=3, evaluate_every=every, averaged=True, start=start)
            for start in (point, None)
        )
        assert torch.equal(again.state.w, whole.state.w)
        assert torch.equal(again.average.w, whole.average.w)
        assert again.history.last.ledger == whole.history.last.ledger
    else:
        assert not (tmp_path / "a/checkpoint").exists()
