"""Test that a run with one hostile site of four ends with results or a one-line error."""

import importlib.util
import json
import math
import re
from pathlib import Path

import pytest
import torch
from flwr.app import Error, Message
from tests.support.marks import long_beyond, long_except
from tests.support.refusals import logged

from drfl.core.errors import DrflError
from drfl.flower import nodes, server_app, transport
from drfl.flower.deployment import Preparation
from drfl.flower.in_process import InProcessGrid
from drfl.flower.settings import read_server
from drfl.report import load_run

from .conftest import grid_of, session_of

HOSTILE = 2
"""The node's number; its site is "b"."""

SETTINGS = """
out = "run"
timeout = 5.0
wait = 0.05
insecure = true
[job]
algorithm = "{algorithm}"
rounds = {rounds}
lr = 0.05
checkpoint_every = 1
{more}
[[sites]]
name = "a"
[[sites]]
name = "b"
[[sites]]
name = "c"
[[sites]]
name = "d"
"""


def behaviours():
    path = Path(__file__).parents[2] / "scripts" / "hostile_site.py"
    spec = importlib.util.spec_from_file_location("hostile_site", path)
    module = importlib.util.module_from_spec(spec)
    from drfl.flower import client_app

    kept = client_app.write, client_app.identity
    try:
        spec.loader.exec_module(module)
    finally:  # the script replaces a site's functions, which is meant for its own process
        client_app.write, client_app.identity = kept
    return {one.name: one for one in module.behaviours() if not one.process}


BEHAVIOURS = behaviours()
KEPT = ["test sums = []", "answer.more = 'than asked'"]
# test_messages.py, test_sums.py and test_faults.py try further values of each field, without a run.
SERVED = [name for name, one in BEHAVIOURS.items() if one.first or name in KEPT]


class Hostile(InProcessGrid):
    """Change the replies of one node from the second one on, so that its first test is known."""

    behaviour = None
    replies = 0

    def answer(self, message, context):
        reply = super().answer(message, context)
        of = "identity" if message.metadata.message_type == "query.identity" else "reply"
        if context.node_id != HOSTILE or of != self.behaviour.of or reply.has_error():
            return reply
        self.replies += of == "reply"
        if of == "identity" or self.replies > 1:
            try:
                reply.content = self.behaviour.change(reply.content)
            except RuntimeError as error:
                return Message(Error(2, str(error)), reply_to=message)
        return reply


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    for module in (nodes, transport):
        monkeypatch.setattr(module, "PAUSE", 0.001)


def serve(folder, behaviour, algorithm="DualDRDM", more="cohort = 4", rounds=3):
    path = folder / "server.toml"
    path.write_text(SETTINGS.format(algorithm=algorithm, more=more, rounds=rounds))
    grid = grid_of(grid=Hostile)
    grid.behaviour = behaviour
    return server_app.serve(grid, path)


@pytest.mark.parametrize("name", long_except(KEPT, SERVED))
def test_run_ends_with_results_or_a_one_line_error(name, tmp_path, caplog):
    behaviour = BEHAVIOURS[name]
    told = None
    try:
        out = serve(tmp_path, behaviour, rounds=2)
    except DrflError as error:
        out, told = None, str(error)
    assert all(len(line) < 500 and line.isprintable() for line in caplog.messages)
    if told is not None and told.startswith("the mean test loss over clients ended"):
        out = tmp_path / "run"  # arbitrary finite values are accepted; the results then say that the run has failed
    if out is None:
        assert behaviour.of == "identity", f"a reply ended the run: {told}"
        assert len(told.splitlines()) == 1
        assert len(told) < 400
        assert not (tmp_path / "run").exists()
        return
    record = load_run(out)
    assert record.clients["client"].tolist() == ["a", "b", "c", "d"]
    assert all(math.isfinite(record.final(metric)) for metric in ("avg_accuracy", "worst_accuracy", "worst_loss"))
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == 2
    assert 0 <= summary["ledger"]["gradient_evaluations"] < 2**50


@pytest.mark.long
@pytest.mark.parametrize(
    "name", long_beyond(1, ["gradients = inf", "answer.parts = inf", "the fields are no MessagePack"])
)
def test_other_sites_train_as_if_the_site_were_silent(name, tmp_path):
    """The bytes are the same for every reason of rejection."""
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    one = serve(tmp_path / "one", BEHAVIOURS[name])
    two = serve(tmp_path / "two", BEHAVIOURS["it raises, with 1 MB of text"])
    for file in ("model.safetensors", "lambda.csv", "clients.csv"):
        assert (one / file).read_bytes() == (two / file).read_bytes()


@pytest.mark.long
def test_hostile_site_is_skipped_longer_and_longer_and_recorded(tmp_path, caplog):
    out = serve(tmp_path, BEHAVIOURS["gradients = inf"], more="cohort = 4\n")
    told = json.loads((out / "traffic.json").read_text())["sites"]
    assert told["b"]["rejected"] >= 3
    assert told["b"]["left_out"] >= 1
    assert told["a"]["rejected"] == told["a"]["left_out"] == 0
    skipped = [r.getMessage() for r in caplog.records if getattr(r.msg, "code", None) == "site-skipped"]
    assert any(re.search(r"\bb\b.*\b3\b.*\bexchange\b", text) for text in skipped)


@pytest.mark.long
def test_data_change_during_a_run_is_reported_once(tmp_path, caplog):
    out = serve(tmp_path, BEHAVIOURS["other data in every reply"])
    assert logged(caplog).count(("data-changed", "b")) == 1
    told = json.loads((out / "traffic.json").read_text())["sites"]
    assert [told[name]["data_changed"] for name in "abcd"] == [False, True, False, False]


def test_site_cannot_choose_its_name_in_results(tmp_path, caplog):
    sites = {1: "a", 2: "b", 3: "c", 4: "d"}
    grid = grid_of(grid=Hostile)
    grid.behaviour = BEHAVIOURS["a name that a spreadsheet runs"]
    grid.keys = {node: name.encode() for node, name in sites.items()}
    known = nodes.KeyRoster(tuple("abcd"), tuple(name.encode() for name in "abcd"))
    members = nodes.gather_members(grid, known, 1.0, 1.0)
    assert members[1].identity.name == "=1+1"
    path = tmp_path / "server.toml"
    path.write_text(SETTINGS.format(algorithm="FedAvg", more="", rounds=3))
    told = {client: member.identity for client, member in members.items()}
    found = Preparation.of(session_of(grid, known, told, read_server(path), tmp_path))
    assert found.sites.names == ("a", "b", "c", "d")
    assert torch.equal(found.sites.sizes, torch.tensor([30, 18, 41, 12]))
