"""The same numbers behind a grid as in a simulation."""

import pytest
import torch

import drfl
from drfl import algorithm, cohort
from drfl.algorithm import Info
from drfl.data import ClientData
from drfl.engine import Loop, Stacked, Threads
from drfl.errors import DivergedError, NonFiniteError
from drfl.flower.site import Site, engine_of
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.protection import Protected

from .conftest import federation, grid_of, simulation

LOCAL = LocalSGD(steps=3, lr=0.1, batch=8)
ALGORITHMS = {
    "FedAvg": drfl.FedAvg(m=3, local=LOCAL),
    "DRFA": drfl.DRFA(m=3, local=LOCAL, averaged=True),
    "ScaffPD": drfl.ScaffPD(m=4, local=LOCAL),
    "DRDM": drfl.DRDM(m=3, local=LOCAL, averaged=True),
    "DualDRDM": drfl.DualDRDM(m=3, local=LOCAL),
    "FedDyn": drfl.FedDyn(m=3, local=LOCAL),
    "SCAFFOLD": drfl.SCAFFOLD(m=3, local=LOCAL),
    "QFedAvg": drfl.QFedAvg(m=3, local=LOCAL),
    "protected": Protected(drfl.DualDRDM(m=3, local=LOCAL)),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_number_is_that_of_the_simulation(name):
    a = drfl.run(ALGORITHMS[name], simulation(), rounds=5, seed=3)
    b = drfl.run(ALGORITHMS[name], federation(), rounds=5, seed=3)
    assert torch.equal(a.state.w, b.state.w)
    assert torch.equal(a.state.lam, b.state.lam)
    for row, other in zip(a.history.rows, b.history.rows, strict=True):
        assert {**row.ledger, "bytes_down": 0} == {**other.ledger, "bytes_down": 0}
        assert row.metrics == pytest.approx(other.metrics, abs=1e-6)


@pytest.mark.parametrize("name", ["FedAvg", "DRFA", "ScaffPD"])
def test_the_ledger_counts_models_as_a_simulation_does(name):
    a, b = (drfl.run(ALGORITHMS[name], fed, rounds=3) for fed in (simulation(), federation()))
    assert a.history.last.ledger == b.history.last.ledger


def test_the_ledger_does_not_count_a_shift_that_the_site_keeps():
    everybody = drfl.DRDM(m=4, local=LOCAL, sampling=cohort.everybody)
    a, b = (drfl.run(everybody, fed, rounds=3) for fed in (simulation(), federation()))
    models = 3 * (4 + 4) * a.state.w.numel() * 4  # three rounds: to train from, and to report on
    assert b.history.last.ledger["bytes_down"] == models
    assert a.history.last.ledger["bytes_down"] == models + models // 2


def test_the_payload_of_a_large_model_is_what_the_ledger_says():
    sites = {name: wide(name) for name in "ab"}
    grid = grid_of("ab", lambda context: sites[context.node_config["name"]])
    fed = federation(grid, "ab", w0=torch.zeros(3 * 100_001))
    drfl.run(drfl.FedAvg(m=1, local=LOCAL), fed, rounds=2)
    seen, counted = fed.traffic, fed.ledger
    assert seen.bytes_down - seen.test_bytes_down == pytest.approx(counted.bytes_down, rel=0.01)
    assert seen.bytes_up - seen.test_bytes_up == pytest.approx(counted.bytes_up, rel=0.01)
    assert seen.test_bytes_down == pytest.approx(4 * 3 * 100_001 * 4, rel=0.01)  # one of two, twice, and both
    assert seen.exchanges == 3
    assert seen.answers == 6
    assert 0 < seen.site_seconds < 2 * seen.seconds


def wide(name):
    generator = torch.Generator().manual_seed(0)
    part = torch.randn(4, 100_000, generator=generator), torch.tensor([0, 1, 2, 0])
    return Site(name, ClientData.from_arrays({name: part}, {name: part}))


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_default_engine_traces_nothing_and_agrees_to_rounding(model, monkeypatch):
    monkeypatch.setattr(Stacked, "train", lambda *_, **__: pytest.fail("it traces"))
    fed = federation(model=model, engine="auto")
    a = drfl.run(drfl.DualDRDM(m=3, local=LOCAL), fed, rounds=3)
    b = drfl.run(drfl.DualDRDM(m=3, local=LOCAL), federation(model=model), rounds=3)
    torch.testing.assert_close(a.state.w, b.state.w)
    torch.testing.assert_close(a.state.lam, b.state.lam)


def test_engines_of_a_site():
    assert engine_of("auto", "cpu") == Threads(workers=1, intra_op=None)
    assert engine_of("auto", "cuda:1") == Loop()
    assert engine_of("stacked", "cpu") == Stacked()


def test_a_test_and_the_request_after_it_are_one_message():
    grid = grid_of()
    drfl.run(drfl.FedAvg(m=4, local=LOCAL), federation(grid), rounds=5)
    # its name, twice; then a test with the request of each of five rounds; the last test
    assert dict(grid.count) == dict.fromkeys((1, 2, 3, 4), 2 + 5 + 1)


def test_what_goes_wrong_before_the_first_request_is_told_by_the_round_itself():
    class Broken(drfl.FedAvg):
        def round(self, state, fed, key):
            if bool(state.w.isnan().any()):
                raise NonFiniteError("the model is NaN")
            return state._replace(w=state.w * torch.nan), Info.nobody(cohort.everybody(state.lam, 4, key))

    with pytest.raises(DivergedError, match="diverged in round 1"):
        drfl.run(Broken(m=4, local=LOCAL), federation(), rounds=3)
    broken = Broken(m=4, local=LOCAL)
    state = broken.init(federation())
    algorithm._announce(broken, state._replace(w=state.w * torch.nan), federation(), Key(0), last=False)
