"""Test sites that are absent, leave, return or join later, and that report on their data."""

import json
import threading
import time
from contextlib import suppress

import pytest
import torch
from tests.support.marks import long_except
from tests.support.refusals import logged, quotes, refused

import drfl
from drfl.algorithms import ALGORITHMS
from drfl.core.errors import DivergedError, Notice
from drfl.data import ClientData
from drfl.flower import server_app
from drfl.flower.claims import site_warnings
from drfl.flower.client_app import Site, client_app, identity
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import SiteIdentity
from drfl.flower.nodes import NameRoster, gather_members
from drfl.flower.records import read
from drfl.flower.site_policy import SitePolicy
from drfl.optim.local import LocalSGD

from .conftest import clients, federation, grid_of, site
from .test_server_app import settings

AWAY, LEAVES, BACK, ROUNDS = 2, 3, 6, 7
"""The client that is absent after round LEAVES until round BACK."""


def algorithm_of(kind):
    options = {} if kind == "ScaffPD" else {"m": 4}
    if kind in ("DRFA", "DRDM", "DualDRDM"):
        options["gamma"] = 0.01
    return ALGORITHMS[kind](local=LocalSGD(steps=3, lr=0.02), **options)


def played(kind, away):
    """Return the states of a run in which a client is away for some rounds, or not at all."""
    grid = grid_of()
    fed, states = federation(grid, timeout=0.05), []

    def coming_and_going(progress):
        states.append(progress.state)
        # A round runs together with the previous round's test, so it has ended when a callback is called.
        if away and progress.round == LEAVES - 1:
            grid.offline.add(AWAY + 1)
        if progress.round == BACK - 1:
            grid.offline.discard(AWAY + 1)

    drfl.run(algorithm_of(kind), fed, rounds=ROUNDS, seed=3, callbacks=[coming_and_going], check_data=False)
    return states, fed


def test_missing_sites_are_named_at_once_and_after_arrivals(caplog):
    grid = grid_of()
    grid.offline |= {2, 3}
    timer = threading.Timer(0.2, lambda: grid.offline.discard(2))
    timer.start()
    start = time.monotonic()
    with refused("sites-missing", None, "0.5 s", "c", "--wait", "remove-site"):
        gather_members(grid, NameRoster("abcd"), 0.5, 5.0)
    assert time.monotonic() - start < 3
    timer.join()
    assert logged(caplog) == [("sites-missing", None)] * 2
    first, second = caplog.messages
    assert first.endswith("b, c")
    assert second.endswith(" c")


def test_wait_option_shortens_the_waiting(tmp_path):
    path = settings(tmp_path)
    path.write_text(path.read_text().replace("wait = 0.05", "wait = 1000.0"))
    grid = grid_of()
    grid.offline.add(2)
    with refused("sites-missing", None, "0.01 s", " b"):
        server_app.serve(grid, path, wait=0.01)


@pytest.mark.parametrize(
    "kind", long_except(["DualDRDM"], ["DRDM", "DualDRDM", "FedDyn", "SCAFFOLD", "DRFA", "ScaffPD"])
)
def test_returning_site_keeps_its_weight_and_drift_term(kind):
    states, fed = played(kind, away=True)
    before, gone, back = states[LEAVES], states[BACK], states[ROUNDS]
    table = next((name for name in ("h", "c_i", "reports") if hasattr(before, name)), None)
    if table is not None:

        def rows(state):
            held = getattr(state, table)
            return (held.c if table == "reports" else held).dense()

        assert torch.equal(rows(gone)[AWAY], rows(before)[AWAY])
        assert not torch.equal(rows(gone)[0], rows(before)[0])
        assert not torch.equal(rows(back)[AWAY], rows(gone)[AWAY])
        if isinstance(getattr(before, "c", None), torch.Tensor):
            for state in states:  # c = mean of all N rows, with the row of the site that is away
                torch.testing.assert_close(state.c, rows(state).mean(0), rtol=1e-5, atol=1e-6)
    for state in states:
        lam = getattr(state, "lam", torch.full((4,), 0.25, dtype=torch.float64))
        assert float(lam.sum()) == pytest.approx(1)
        assert (lam >= 0).all()
    assert fed.site_health()["c"]["answered"] > 0


@pytest.mark.long
def test_weight_of_an_absent_site_changes_only_by_projection():
    plain, centred = played("DRDM", away=True)[0], played("DualDRDM", away=True)[0]
    # DRDM adds positive losses to the other weights, and the projection lowers all weights equally.
    assert plain[BACK].lam[AWAY] < plain[LEAVES].lam[AWAY]
    # Dual DRDM centres the reports of the other clients, so this weight does not change.
    assert float(centred[BACK].lam[AWAY]) == pytest.approx(float(centred[LEAVES].lam[AWAY]), abs=1e-9)
    stayed = played("DualDRDM", away=False)[0]
    assert not torch.allclose(stayed[BACK].lam, centred[BACK].lam)


@pytest.mark.long
def test_site_that_joins_during_a_run_belongs_to_the_next_one(tmp_path):
    train, test = clients()
    extra = Site("e", ClientData.from_arrays({"e": train["a"]}, {"e": test["a"]}))
    sites = {**{name: site(name) for name in "abcd"}, "e": extra}

    asked = []

    class Joining(InProcessGrid):
        def push_messages(self, messages):
            self.offline = {5} if self.count[1] < 4 else set()
            return super().push_messages(messages)

        def answer(self, message, context):
            if context.node_id == 5:
                asked.append(message.metadata.message_type)
            return super().answer(message, context)

    app, nodes_of = client_app(lambda context: sites[context.node_config["name"]]), [{"name": name} for name in sites]
    first, path = Joining(app, nodes_of), settings(tmp_path)
    out = server_app.serve(first, path)
    assert 5 not in first.offline
    assert set(asked) == {"query.identity"}  # the reply shows that the site does not belong to this run
    path.write_text(path.read_text() + '[[sites]]\nname = "e"\n')
    with refused("other-sites", "out", "e"):
        server_app.serve(None, path)  # the sites of a run are fixed
    path.write_text(path.read_text().replace('"run"', '"next"'))
    with suppress(DivergedError):  # after its results are written
        server_app.serve(InProcessGrid(app, nodes_of), path)
    for folder, names in ((out, "abcd"), (tmp_path / "next", "abcde")):
        header, *rows = (folder / "lambda.csv").read_text().splitlines()
        assert header.split(",")[1:] == [*names]
        assert [float(weight) for weight in rows[0].split(",")[1:]] == pytest.approx([1 / len(names)] * len(names))


@pytest.mark.long
def test_other_lr_after_a_diverged_run_is_a_one_line_error(tmp_path):
    path = settings(tmp_path, more="classes = 3")
    text = path.read_text()
    path.write_text(text.replace("lr = 0.05", "lr = 1e30"))
    with refused("loss-rose", "lr", kind=DivergedError):
        server_app.serve(grid_of(), path)
    path.write_text(text)
    with refused("other-run", "algorithms.DualDRDM.lr", "'run'", "'out'", "server.toml", "lr"):
        server_app.serve(grid_of(), path)
    path.write_text(text.replace('"run"', '"again"'))
    assert server_app.serve(grid_of(), path).name == "again"


def odd_site(name, warnings):
    """Make a site with a code for missing values in a column, and two rows of one class."""
    generator = torch.Generator().manual_seed(ord(name))
    x = torch.rand(60, 3, generator=generator) * 9
    x[::7, 1] = 999
    y = (torch.arange(60) < 2).long()
    data = ClientData.from_arrays({name: (x, y)}, {name: (x[:20], y[:20])}, columns=("age", "chol", "bmi"))
    return Site(name, data, policy=SitePolicy(warnings=warnings))


def test_policy_limits_the_warnings_that_a_site_sends():
    told = {each: read(identity(odd_site("a", each)), SiteIdentity) for each in ("columns", "figures", "none")}
    assert told["none"].warnings == ()
    codes = {warning.code: warning for warning in told["columns"].warnings}
    assert {"missing-code", "few-of-a-class"} <= set(codes)
    assert (codes["missing-code"].column, codes["few-of-a-class"].column) == ("chol", "")
    assert {warning.text for warning in told["columns"].warnings} == {""}
    assert any("999" in warning.text for warning in told["figures"].warnings)
    (notice,) = [n for n in site_warnings({0: told["columns"]}, ["x"]) if n.code == "missing-code"]
    assert notice.field == "chol"
    assert "999" not in notice


@pytest.mark.long
def test_site_warnings_reach_the_report(tmp_path, caplog):
    sites = {name: odd_site(name, "figures" if name == "a" else "columns") for name in "abcd"}
    grid = grid_of(load=lambda context: sites[context.node_config["name"]])
    with caplog.at_level("WARNING", "drfl"), suppress(DivergedError):
        server_app.serve(grid, settings(tmp_path, rounds=2))
    out = tmp_path / "run"
    warnings = json.loads((out / "summary.json").read_text())["warnings"]
    assert [line for line in warnings if "site a" in line and "999" in line]
    (line,) = [line for line in warnings if "sites b, c, d" in line and "missing-code" in line]
    assert quotes(line, "'chol'")
    assert not [line for line in warnings if "site a" not in line and "999" in line]
    assert "missing-code" in {r.msg.code for r in caplog.records if isinstance(r.msg, Notice)}
    assert "missing-code" in (out / "report.html").read_text(encoding="utf-8")
