"""Test validation rows at the sites: selection and stopping as in a simulation."""

import csv
import io
import json

import msgspec
import pytest
import torch
from tests.support.refusals import refused

import drfl
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Loop, Simulation
from drfl.experiments.config.wrap import wrap_algorithm
from drfl.flower import server_app
from drfl.flower.client_app import Site, client_app, identity
from drfl.flower.deployed_federation import FlowerFederation
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import Answer, HoldOut, SiteIdentity
from drfl.flower.nodes import NameRoster, gather_members
from drfl.flower.records import read, write
from drfl.flower.settings import DeployedConfig
from drfl.flower.transport import Deadline
from drfl.task.models import MODELS
from drfl.task.task import Task
from drfl.training import step_size
from drfl.training.loop import run

from .conftest import MODEL, SIZES, clients, grid_of, site
from .test_server_app import settings


def simulated(more, rounds):
    """Simulate the same run, with the same validation rows."""
    job = {"algorithm": "DualDRDM", "rounds": rounds, "cohort": 4, "lr": 0.05, "engine": "loop", **more}
    config = DeployedConfig.model_validate(job)
    data = ClientData.from_arrays(*clients()).standardised()
    data = data.with_validation(0.2 if config.validation is None else config.validation, Key(0))
    with Key(0).fold("model").torch_scope():
        task = Task(MODELS["linear"]((6,), 3))
    fed = Simulation(data, task, engine=Loop())
    algorithm = wrap_algorithm(config, config.build_algorithm("DualDRDM", 4), None, data, task)
    rules = {name: more[name] for name in ("select", "patience", "until") if name in more}
    return run(algorithm, fed, rounds=rounds, check_data=False, **rules)


@pytest.mark.parametrize(
    ("more", "stopped"),
    [
        pytest.param({"select": "worst"}, "rounds", marks=pytest.mark.long),
        pytest.param({"select": "loss", "validation": 0.4}, "rounds", marks=pytest.mark.long),
        ({"patience": 1}, "patience"),
        ({"until": "avg_loss=100"}, "target"),
    ],
)
def test_deployment_selects_and_stops_like_a_simulation(tmp_path, more, stopped):
    text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in more.items())
    out = server_app.serve(grid_of(), settings(tmp_path, rounds=6, more=f'{text}\nengine = "loop"'))
    summary, there = json.loads((out / "summary.json").read_text()), simulated(more, 6)
    assert (summary["stopped"], summary["stopped_on"]) == (stopped, there.stopped_on)
    assert summary["rounds"] == there.rounds
    if there.selection.metric is not None:
        assert summary["selection"]["round"] == there.selection.round
        assert summary["selection"]["value"] == pytest.approx(there.selection.value, abs=1e-6)
    here, other = (
        [*csv.DictReader(io.StringIO(text))] for text in ((out / "history.csv").read_text(), there.history.to_csv())
    )
    # A round that ran together with the last test is dropped, but its traffic is counted.
    cost = () if stopped == "rounds" else ("bytes_up", "bytes_down", "gradient_evaluations")
    for row in (*here, *other):
        for name in cost:
            del row[name]
    assert here == other
    if stopped == "rounds":
        assert summary["returned"] == "selected"


def test_held_out_rows_are_counted_and_not_trained_on(tmp_path):
    held = [read(identity(site(n), HoldOut(0.5, 0)), SiteIdentity) for n in "abcd"]
    plain = [read(identity(site(n)), SiteIdentity) for n in "abcd"]
    assert [member.train for member in held] == list(SIZES)
    assert [member.held_out for member in plain] == [0, 0, 0, 0]
    for member, other in zip(held, plain, strict=True):
        assert 0 < member.held_out < member.train
        assert torch.equal(member.columns[0], other.columns[0])  # scaled over all rows, as in a simulation
    out = server_app.serve(grid_of(), settings(tmp_path, rounds=1, more='select = "worst"\nvalidation = 0.5'))
    rows = (out / "clients.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[4]) for row in rows] == [member.trained for member in held]


@pytest.mark.long
def test_step_sizes_come_from_training_rows():
    holdout, grid, roster = HoldOut(0.4, 0), grid_of(), NameRoster("abcd")
    members = gather_members(grid, roster, 1.0, 5.0, None, holdout)
    identities = {client: member.identity for client, member in members.items()}
    with Key(0).fold("model").torch_scope():
        task = Task(MODELS["linear"]((6,), 3))
    there = FlowerFederation(grid, roster, identities, MODEL, task.w0, Deadline(5.0), holdout=holdout)
    data = ClientData.from_arrays(*clients())
    here, whole = (Simulation(d, task, engine=Loop()) for d in (data.with_validation(0.4, Key(0)), data))
    assert there.sizes.tolist() == here.sizes.tolist() != whole.sizes.tolist()
    assert torch.equal(there.shares, here.shares)
    algorithm = drfl.FedAvg(local=drfl.LocalSGD(batch=None))
    sizes = [step_size.find(algorithm, fed, task.w0, Key(0)) for fed in (there, here, whole)]
    assert sizes[0].eta == sizes[1].eta != sizes[2].eta
    assert torch.equal(sizes[0].losses, sizes[1].losses)


@pytest.mark.long
def test_validation_needs_no_further_messages(tmp_path):
    plain, selecting = grid_of(), grid_of()
    (tmp_path / "b").mkdir()
    server_app.serve(plain, settings(tmp_path, rounds=3))
    server_app.serve(selecting, settings(tmp_path / "b", rounds=3, more="patience = 50"))
    assert plain.count == selecting.count


def test_unused_validation_is_refused(tmp_path):
    with refused("unused-option", "validation"):
        server_app.serve(grid_of(), settings(tmp_path, more="validation = 0.2"))


@pytest.mark.long
def test_impossible_validation_result_is_not_used(tmp_path, caplog):
    class Lying(InProcessGrid):
        def answer(self, message, context):
            reply = super().answer(message, context)
            if message.metadata.message_type in ("train", "evaluate") and context.node_config["name"] == "c":
                answer = read(reply.content, Answer)
                if answer.validation is not None and self.count[3] > 4:
                    lie = msgspec.structs.replace(answer.validation, score=0.999)
                    changed = write(msgspec.structs.replace(answer, validation=lie))
                    reply.content["message"] = changed["message"]
            return reply

    sites = {name: site(name) for name in "abcd"}
    grid = Lying(client_app(lambda c: sites[c.node_config["name"]]), [{"name": name} for name in "abcd"])
    out = server_app.serve(grid, settings(tmp_path, rounds=3, more='select = "worst"'))
    assert any(getattr(record.msg, "code", "") == "site-untested" for record in caplog.records)
    assert json.loads((out / "summary.json").read_text())["selection"]["value"] != 0.999


def test_site_with_one_training_row_uses_it_for_both():
    x, y = torch.randn(1, 3), torch.zeros(1, dtype=torch.int64)
    tiny = Site("a", ClientData.from_arrays({"a": (x, y)}, {"a": (x, y)}))
    assert read(identity(tiny, HoldOut(0.2, 0)), SiteIdentity).trained == 1
