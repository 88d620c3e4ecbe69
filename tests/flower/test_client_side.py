"""Test client-side methods with three sites: results of a simulation, state on the sites' disks, approved code only."""

import hashlib
import logging
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd
import pytest
import tomli_w
import torch
from safetensors.torch import load as load_tensors
from tests.support.marks import long_except
from tests.support.refusals import refused

import drfl
from drfl.algorithms import CLIENT_SIDE
from drfl.core.key import Key
from drfl.core.user_code import load
from drfl.data import ClientData
from drfl.data.model_store import site_store
from drfl.engine import Loop, Simulation
from drfl.flower import server_app
from drfl.flower.deployed_federation import FlowerFederation
from drfl.flower.messages import CodeFile
from drfl.flower.nodes import NameRoster, gather_members
from drfl.flower.server_tasks import carry_out
from drfl.flower.site_methods import SiteStates, load_method, sent_method
from drfl.flower.site_policy import SitePolicy
from drfl.flower.site_task import task_of
from drfl.flower.transport import Deadline
from drfl.optim.local import LocalSGD
from drfl.training.checkpoint import Checkpoints

from .conftest import MODEL, clients, grid_of, site

LOCAL = LocalSGD(steps=4, lr=0.1, batch=8)
MLP = msgspec.structs.replace(MODEL, model="mlp", dtype="float64")
METHOD = """
from dataclasses import dataclass

from drfl import PersonalClientSide


@dataclass(frozen=True)
class Everything(PersonalClientSide):
    pull: float = 0.2

    def state(self, model):
        return {"rounds": model.vector.new_zeros(())}

    def private(self, model):
        return model.head

    def shared(self, model):
        return {"mean": model.vector.new_zeros(model.width), "rounds": model.vector.new_zeros(())}

    def loss(self, model, batch, context):
        features, outputs = model.features(batch.inputs)
        away = (features - context["mean"]).square().sum(1)
        return batch.mean(model.losses(outputs, batch.targets) + self.pull * away)

    def remember(self, model, data, context):
        return {"rounds": context.state["rounds"] + 1}

    def message_shapes(self, model):
        return {"mean": (model.width,)}

    def message(self, model, data, context):
        return {"mean": data.features(model).mean(0)}

    def merge(self, shared, messages, weights):
        return {"mean": weights @ messages["mean"], "rounds": shared["rounds"] + 1}
"""


def task(model=MLP, folder=None):
    with Key(0).fold("model").torch_scope():
        return task_of(model, (6,), folder)


def pair(folder, policy=None, model=MLP):
    """Make a simulation of three clients, and three sites with the same data."""
    train, test = clients("abc")
    data = ClientData.from_arrays(train, test, dtype=torch.float64)
    policy = SitePolicy() if policy is None else policy
    sites = {name: doubled(name, folder, policy) for name in "abc"}
    grid = grid_of("abc", lambda context: sites[context.node_config["name"]])
    roster = NameRoster("abc")
    members = {client: member.identity for client, member in gather_members(grid, roster, 1.0, 5.0).items()}
    own = task(model, folder)
    fed = FlowerFederation(grid, roster, members, model, own.w0, Deadline(5.0), task=own)
    return Simulation(data, task(model, folder), engine=Loop()), fed


def doubled(name, folder, policy):
    train, test = clients("abc")
    data = ClientData.from_arrays({name: train[name]}, {name: test[name]}, dtype=torch.float64)
    return replace(site(name, folder=folder, policy=policy), data=data)


def same(a, b, tolerance=0.0):
    torch.testing.assert_close(a.state.w, b.state.w, rtol=0, atol=tolerance)
    torch.testing.assert_close(a.model, b.model, rtol=0, atol=tolerance)
    assert a.evaluation.score.tolist() == b.evaluation.score.tolist()
    for row, other in zip(a.history.rows, b.history.rows, strict=True):
        assert row.ledger == other.ledger
        assert row.metrics == pytest.approx(other.metrics, abs=1e-9)


@pytest.mark.parametrize("name", long_except(["FedRep", "MIME"], [name for name in CLIENT_SIDE if name != "FedBN"]))
def test_all_numbers_equal_the_simulation(name, tmp_path):
    algorithm = CLIENT_SIDE[name](m=2, local=LOCAL)
    same(*(drfl.run(algorithm, fed, rounds=3, seed=3, check_data=False) for fed in pair(tmp_path)))


NORMALISED = """
import drfl
import torch


def net(shape, classes):
    layers = torch.nn.Linear(shape[0], 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh(), torch.nn.Linear(5, classes)
    return drfl.models.with_federated_batch_norm(torch.nn.Sequential(*layers))
"""


@pytest.fixture
def normalised(tmp_path):
    """Make a simulation and three sites with batch normalisation, from an approved file."""
    (tmp_path / "bn.py").write_text(NORMALISED)
    digest = hashlib.sha256(NORMALISED.encode()).hexdigest()
    model = msgspec.structs.replace(MLP, model="bn.py:net", code=(CodeFile("bn.py", digest),))
    return pair(tmp_path, SitePolicy(code={"bn.py": digest}), model)


def stored_at_sites(folder, store):
    """Return the stored rows at the sites, by the numbers that the server has."""
    numbers, like = store.dense()[:, 0], torch.zeros(1 + 4 * 5).double()
    return torch.stack([SiteStates(folder, name).read(int(numbers[i]), like) for i, name in enumerate("abc")])


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_fedbn_equals_the_simulation_and_layers_stay_at_sites(tmp_path, normalised):
    algorithm = CLIENT_SIDE["FedBN"](m=2, local=LOCAL)
    a, b = (drfl.run(algorithm, fed, rounds=3, seed=3, check_data=False) for fed in normalised)
    same(a, b, 1e-12)
    close(a.evaluation.loss, b.evaluation.loss)
    close(a.state.store.dense(), stored_at_sites(tmp_path, b.state.store))
    # The server has one number per state, and its own BatchNorm layers keep their initial values.
    assert b.state.store.dense().shape == (3, 1)
    norm = slice(6 * 5 + 5, 6 * 5 + 5 + 4 * 5)
    assert torch.equal(b.state.w[norm], normalised[1].w0[norm])
    assert not torch.equal(a.state.store.dense()[0, 1:], a.state.store.dense()[1, 1:])


def test_site_that_lost_batch_norm_starts_from_the_servers(tmp_path, normalised, caplog):
    algorithm = CLIENT_SIDE["FedBN"](m=3, local=LOCAL)
    states, keys = [algorithm.init(fed) for fed in normalised], [Key(0).fold("round", r) for r in (1, 2)]
    states = [algorithm.round(state, fed, keys[0])[0] for state, fed in zip(states, normalised, strict=True)]
    for path in (tmp_path / "drfl-clients" / "b").glob("*.safetensors"):
        path.unlink()
    # In the simulation, a row that was never written has the initial value.
    rows = states[0].store.dense()
    rows[1] = 0
    states[0] = states[0]._replace(store=states[0].store.put(torch.arange(3), rows))
    with caplog.at_level(logging.WARNING, "drfl"):
        states = [algorithm.round(state, fed, keys[1])[0] for state, fed in zip(states, normalised, strict=True)]
    assert {record.msg.field for record in caplog.records if record.msg.code == "state-lost"} == {"b"}
    close(states[0].w, states[1].w)
    close(states[0].store.dense(), stored_at_sites(tmp_path, states[1].store))


@pytest.mark.long
def test_server_resumes_with_the_client_states_of_that_round(tmp_path):
    simulation, fed = pair(tmp_path)
    algorithm = CLIENT_SIDE["Ditto"](m=2, local=LOCAL)
    keep = Checkpoints(tmp_path / "checkpoints", lambda: {}, every=1)
    drfl.run(algorithm, fed, rounds=3, seed=3, keep=keep)
    from drfl.training.checkpoint import resume_point
    from drfl.training.run_state import first

    fresh = first(algorithm, fed)
    point = resume_point(tmp_path / "checkpoints", algorithm, fed, rounds=5, fresh=fresh)
    again = drfl.run(algorithm, pair(tmp_path)[1], rounds=5, seed=3, start=point.progress)
    same(drfl.run(algorithm, simulation, rounds=5, seed=3), again)


def test_site_that_lost_its_state_starts_from_the_global_model(tmp_path, caplog):
    _, fed = pair(tmp_path)
    algorithm = CLIENT_SIDE["Ditto"](m=3, local=LOCAL)
    state = algorithm.init(fed)
    state, _ = algorithm.round(state, fed, Key(0).fold("round", 1))
    for path in (tmp_path / "drfl-clients" / "b").glob("*.safetensors"):
        path.write_bytes(b"broken")
    with caplog.at_level(logging.WARNING, "drfl"):
        own = algorithm.personal(state, state.w, fed, Key(0))
        lost = fed.evaluate_each(own)
    assert {record.msg.field for record in caplog.records if record.msg.code == "state-lost"} == {"b"}
    shared = fed.evaluate(state.w)
    assert lost.loss[1] == shared.loss[1]
    assert lost.loss[0] != shared.loss[0]


@pytest.mark.long
def test_site_that_misses_the_last_test_of_own_models_has_no_result(tmp_path):
    _, fed = pair(tmp_path)
    grid, algorithm = fed._transport.grid, CLIENT_SIDE["Ditto"](m=3, local=LOCAL)

    def leave(after):
        def callback(progress):
            # Each site is offline at the test of the round after this one.
            grid.offline = {2} if progress.round == after else set()

        return callback

    def scores(after):
        ends = drfl.run(algorithm, fed, rounds=3, callbacks=[leave(after)], check_data=False)
        return ends.evaluation.score.isnan().tolist(), fed.untested, ends.history.rows

    fed._transport.deadline = Deadline(0.1)
    assert scores(after=1)[:2] == ([False] * 3, ())
    missing, untested, rows = scores(after=2)
    assert (missing, untested) == ([False, True, False], ("b",))
    assert all(value == value for row in rows[:-1] for value in row.metrics)
    # Results of own models are not those of the global model.
    grid.offline = {2}
    fed.evaluate(fed.w0)
    assert fed.evaluate(fed.w0 + 1).score.isnan().tolist() == [False, True, False]


def test_own_results_are_not_those_of_the_global_model(tmp_path):
    _, fed = pair(tmp_path)
    fed._transport.deadline = Deadline(0.1)
    algorithm = CLIENT_SIDE["Ditto"](m=3, local=LOCAL)
    state, _ = algorithm.round(algorithm.init(fed), fed, Key(0).fold("round", 1))
    shared, own = fed.evaluate(state.w), algorithm.personal(state, state.w, fed, Key(0))
    fed._transport.grid.offline = {2}
    assert fed.evaluate_each(own).score.isnan().tolist() == [False, True, False]  # never tested before
    fed._transport.grid.offline = set()
    first = fed.evaluate_each(own)
    fed.evaluate(state.w)
    fed._transport.grid.offline = {2}
    assert fed.evaluate_each(own).loss[1] == first.loss[1] != shared.loss[1]
    assert fed.evaluate_each(own._replace(is_last=True)).score.isnan().tolist() == [False, True, False]


def test_states_are_private_and_old_ones_are_removed(tmp_path, monkeypatch):
    states = SiteStates(tmp_path, "a/b ü")
    assert states.folder.parent == tmp_path / "drfl-clients"
    states.folder.mkdir(parents=True)
    states.folder.chmod(0o777)
    row = torch.arange(5.0)
    previous = os.umask(0o022)
    try:
        number = states.write(row)
    finally:
        os.umask(previous)
    assert {stat.S_IMODE(path.stat().st_mode) for path in states.folder.iterdir()} == {0o600}
    assert stat.S_IMODE(states.folder.stat().st_mode) == 0o700
    assert number == states.write(row) != SiteStates(tmp_path, "other").write(row)
    assert torch.equal(states.read(number, torch.zeros(5)), row)
    assert not states.read(0, torch.zeros(5)).any()
    for like in (torch.zeros(4), torch.zeros(5, dtype=torch.float64)):
        assert not states.read(number, like).any()
    assert not states.read(number + 1, torch.zeros(5)).any()
    monkeypatch.setattr("drfl.flower.site_methods.MOST_BYTES", 1)
    numbers = [states.write(row + i) for i in range(6)]
    there = [bool(states.read(n, torch.zeros(5)).any()) for n in numbers]
    assert there == [False, False, False, True, True, True]


@pytest.fixture
def method(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(METHOD)
    monkeypatch.chdir(tmp_path)
    yield load("algorithm", "mine.py:Everything"), hashlib.sha256(METHOD.encode()).hexdigest()
    for name in [name for name in sys.modules if name.startswith("drfl_user_")]:
        del sys.modules[name]


def test_own_method_runs_at_sites_that_approved_its_digest(tmp_path, method):
    kind, digest = method
    algorithm = kind(m=2, local=LOCAL, pull=0.5)
    policy = SitePolicy(code={"mine.py": digest})
    a, b = (drfl.run(algorithm, fed, rounds=3, seed=1, check_data=False) for fed in pair(tmp_path, policy))
    # Received tensors have another memory alignment, which affects the last bits.
    same(a, b, 1e-14)
    torch.testing.assert_close(a.state.shared, b.state.shared, rtol=0, atol=1e-14)
    assert int(b.state.shared[-1]) == 3


def test_message_is_shortened_by_its_own_norm(tmp_path, method):
    """A message is no model, although it has as many numbers."""
    source = """
from dataclasses import dataclass

from drfl import ClientSide


@dataclass(frozen=True)
class Long(ClientSide):
    size: float = 1.0

    def shared(self, model):
        return {"c": model.vector.new_zeros(len(model.vector))}

    def message_shapes(self, model):
        return {"c": (len(model.vector),)}

    def message(self, model, data, context):
        return {"c": model.vector.new_full((len(model.vector),), self.size * len(model.vector) ** -0.5)}

    def merge(self, shared, messages, weights):
        return {"c": weights @ messages["c"]}

    def loss(self, model, batch, context):
        return batch.mean(model.losses(model(batch.inputs), batch.targets)) + 0 * context["c"].sum()
"""
    (tmp_path / "long.py").write_text(source)
    kind = load("algorithm", "long.py:Long")
    policy = SitePolicy(code={"long.py": hashlib.sha256(source.encode()).hexdigest()}, max_step=0.5)
    for size, norm in ((0.1, 0.1), (2.0, 0.5)):
        algorithm, (_, fed) = kind(m=3, local=LOCAL, size=size), pair(tmp_path, policy)
        state, _ = algorithm.round(algorithm.init(fed), fed, Key(0))
        assert float(state.shared.norm()) == pytest.approx(norm)
        assert state.shared.shape == fed.w0.shape


def test_unapproved_or_changed_code_is_refused(tmp_path, method):
    kind, digest = method
    sent = sent_method(kind(pull=0.5), torch.tensor([7.0], dtype=torch.float64))
    assert (sent.name, sent.sha256, sent.number) == ("mine.py:Everything", digest, 7)
    assert dict(sent.options) == {"m": None, "by_samples": True, "server": None, "pull": 0.5}
    approved = SitePolicy(code={"mine.py": digest})
    assert load_method(sent, approved, tmp_path).pull == 0.5
    with refused("untrusted-code", "code"):
        load_method(sent, SitePolicy(), tmp_path)
    with refused("untrusted-code", "code"):
        load_method(sent, SitePolicy(code={"mine.py": "0" * 64}), tmp_path)
    with refused("file-not-found"):
        load_method(sent, approved, tmp_path / "elsewhere")
    (tmp_path / "mine.py").write_text(METHOD + "# changed\n")
    with refused("untrusted-code", "code"):
        load_method(sent, approved, tmp_path)


@pytest.mark.parametrize("name", ["FedAvg", "SitePolicy", "os.system", "Ditto.loss", ""])
def test_only_built_in_methods_have_a_name(name, tmp_path):
    sent = msgspec.structs.replace(sent_method(CLIENT_SIDE["Ditto"](), None), name=name)
    with refused("unknown-name", "method"):
        load_method(sent, SitePolicy(), tmp_path)


def test_impossible_method_options_are_refused(tmp_path):
    sent = sent_method(CLIENT_SIDE["Ditto"](), None)
    with refused("out-of-range", "lam"):
        load_method(msgspec.structs.replace(sent, options=(("lam", -1.0),)), SitePolicy(), tmp_path)
    with refused("user-code-failed", "method"):
        load_method(msgspec.structs.replace(sent, options=(("nothing", 1),)), SitePolicy(), tmp_path)


def test_long_texts_of_a_method_are_refused_at_the_server(tmp_path, method):
    kind, _ = method
    named = type("E" * 120, (kind,), {"__module__": kind.__module__})
    assert len(sent_method(named(), None).name) == 128
    with refused("invalid-name"):
        sent_method(type("E" * 121, (kind,), {"__module__": kind.__module__})(), None)


def test_class_without_a_file_cannot_be_sent():
    kind = type("Typed", (drfl.ClientSide,), {"__module__": "__console__"})
    with refused("needs-file", "Typed"):
        sent_method(kind(), None)


SETTINGS = """
out = "run"
timeout = 5.0
wait = 0.05
insecure = true
[job]
algorithm = "Ditto"
model = "mlp"
rounds = 3
lr = 0.05
checkpoint_every = 1
[[sites]]
name = "a"
[[sites]]
name = "b"
[[sites]]
name = "c"
"""


@pytest.mark.long
def test_deployment_with_fedbn(tmp_path):
    (tmp_path / "bn.py").write_text(NORMALISED)
    policy = SitePolicy(code={"bn.py": hashlib.sha256(NORMALISED.encode()).hexdigest()})
    sites = {name: site(name, folder=tmp_path, policy=policy) for name in "abc"}
    path = tmp_path / "server.toml"
    path.write_text(SETTINGS.replace('"Ditto"', '"FedBN"').replace('"mlp"', '"bn.py:net"'))
    out = server_app.serve(grid_of("abc", lambda context: sites[context.node_config["name"]]), path)
    assert {"summary.json", "clients.csv", "model.safetensors", "report.html"} <= {p.name for p in Path(out).iterdir()}
    assert all(list((tmp_path / "drfl-clients" / name).glob("*.safetensors")) for name in "abc")


@pytest.mark.parametrize(
    ("name", "end"),
    [("Ditto", ""), ("FedRep", ""), ("Ditto", 'until = "worst_loss=1e6"\n'), ("Ditto", "patience = 1\n")],
)
def test_site_predicts_with_its_own_model(name, end, tmp_path, caplog):
    policy = SitePolicy(receive_models="any")
    sites = {each: site(each, folder=tmp_path / each, policy=policy) for each in "abc"}
    grid = grid_of("abc", lambda context: sites[context.node_config["name"]])
    path = tmp_path / "server.toml"
    path.write_text(
        SETTINGS.replace("Ditto", name).replace("[job]", f"deliver = true\n[job]\n{end}").replace("0.05", "1e-3")
    )
    out = server_app.serve(grid, path)
    tests = pd.read_csv(Path(out) / "clients.csv", index_col="client")
    files = {p.name for p in Path(out).iterdir()}
    assert {"summary.json", "clients.csv", "model.safetensors", "report.html"} <= files
    assert "personal.safetensors" not in files
    for each, part in sites.items():
        folder = tmp_path / each
        (folder / "site.toml").write_text(f'name = "{each}"\n')
        caplog.clear()
        drfl.load_model(folder)
        assert [record.msg.code for record in caplog.records] == ["no-personal-models"]
        rows = part.data.test[0]
        logits = drfl.load_model(folder, client=each).to_torch()(part.data.test_inputs[rows])
        loss = torch.nn.functional.cross_entropy(logits, part.data.test_targets[rows])
        assert loss.item() == pytest.approx(tests["loss"][each], rel=1e-4)
        with refused("unknown-name", "client"):
            drfl.load_model(folder, client="x")
        assert {p.name for p in (folder / "drfl-clients").iterdir()} == {each}
        (own,) = folder.glob("models/own-*")
        assert stat.S_IMODE(own.stat().st_mode) == 0o600


def test_own_models_of_an_earlier_round_are_refused(tmp_path):
    sites = {each: site(each, folder=tmp_path / each) for each in "abc"}
    path = tmp_path / "server.toml"
    path.write_text(SETTINGS.replace("[job]", '[job]\nselect = "worst"'))
    with refused("unsupported-combination", "select", "Ditto"):
        server_app.serve(grid_of("abc", lambda context: sites[context.node_config["name"]]), path)


@pytest.mark.parametrize("name", ["..", ".", "../x", "院" * 128, "x" * 128, "a.b"])
def test_states_of_any_site_are_in_their_own_folder(name, tmp_path):
    states, row = SiteStates(tmp_path, name), torch.arange(5.0)
    assert torch.equal(states.read(states.write(row), torch.zeros(5)), row)
    assert states.folder.resolve().parent == tmp_path / "drfl-clients"
    assert states.folder != SiteStates(tmp_path, f"{name[:-1]}y").folder


def test_own_model_belongs_to_one_global_model(tmp_path):
    states, trained = SiteStates(tmp_path, "a"), task()
    w, own = trained.w0, trained.w0 + 1
    shared = trained.state_dict(w)
    assert states.own_model_of(shared) is None
    states.keep_own_model(trained, own, w)
    stored = load_tensors(states.own_model_of({**shared, "buffer": torch.ones(1)}))
    assert {name: value.tolist() for name, value in stored.items()} == {
        f"a/{name}": value.tolist() for name, value in trained.state_dict(own).items()
    }
    assert states.own_model_of(trained.state_dict(own)) is None
    assert states.own_model_of({"v": torch.zeros(2)}) is None
    # Later runs keep the own models of earlier ones, whose global model may be delivered late.
    for i in range(1, 6):
        states.keep_own_model(trained, own, w + i)
    assert states.own_model_of(shared) is not None
    states.keep_own_model(trained, own, w + 6)
    assert states.own_model_of(shared) is None
    assert states.own_model_of(trained.state_dict(w + 1)) is not None
    for path in states.folder.glob("own-*"):
        path.write_bytes(b"damaged")
    assert states.own_model_of(trained.state_dict(w + 1)) is None


@pytest.mark.long
def test_each_delivered_model_has_the_own_model_of_its_run(tmp_path):
    """The first model is delivered after the second run, and the site returns to the second one."""
    sites = {each: site(each, folder=tmp_path / each, policy=SitePolicy(receive_models="any")) for each in "abc"}
    grid, outs = grid_of("abc", lambda context: sites[context.node_config["name"]]), []
    path = tmp_path / "server.toml"
    for seed, deliver in ((1, "false"), (2, "true")):
        head = f"deliver = {deliver}\n[job]\nseed = {seed}"
        path.write_text(SETTINGS.replace('"run"', f'"run{seed}"').replace("[job]", head).replace("0.05", "1e-3"))
        outs.append(Path(server_app.serve(grid, path)))
    request = tmp_path / "request"
    request.mkdir()
    models = [str(outs[0] / "model.safetensors")]
    (request / "request.toml").write_text(tomli_w.dumps({"task": "deliver", "models": models, "code": []}))
    carry_out(grid, path, request)
    for each, part in sites.items():
        (tmp_path / each / "site.toml").write_text(f'name = "{each}"\n')
        rows, losses = part.data.test[0], []
        for _ in outs:
            module = drfl.load_model(tmp_path / each, client=each).to_torch()
            outputs = module(part.data.test_inputs[rows])
            losses.append(torch.nn.functional.cross_entropy(outputs, part.data.test_targets[rows]).item())
            site_store(tmp_path / each).roll_back()
        tests = [pd.read_csv(out / "clients.csv", index_col="client")["loss"][each] for out in outs]
        assert losses == pytest.approx(tests, rel=1e-4)
        assert tests[0] != pytest.approx(tests[1], rel=1e-3)
