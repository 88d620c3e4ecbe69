"""Test that a fit at sites gives a simulation's choice, p-values and model, from sums over the sites' rows."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from tests.support.marks import long_beyond
from tests.support.refusals import refused

import drfl
from drfl.core.audit_log import AuditLog
from drfl.core.errors import DrflError
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.data.model_store import ModelStore
from drfl.experiments.fit import fit as fit_module
from drfl.experiments.fit.members import PORTFOLIO, Member
from drfl.experiments.run.manifest import is_finished
from drfl.flower import deployed_fit, nodes, server_app, transport
from drfl.flower.client_app import Site, client_app
from drfl.flower.deploy import runs
from drfl.flower.deploy.audit import audit
from drfl.flower.deployed_fit import fit_sites
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import AnswerLosses, Ask, AskLosses, HoldOut, ModelRecipe
from drfl.flower.model_losses import answer_losses
from drfl.flower.records import read, write
from drfl.flower.settings import read_server
from drfl.flower.site_policy import SitePolicy
from drfl.task.models import MODELS
from drfl.task.task import Task

SIZES = {"a": 160, "b": 130, "c": 45}
SETTINGS = """
timeout = 5.0
wait = 0.05
insecure = true
[job]
algorithm = "DRDM"
rounds = {rounds}
engine = "loop"
dtype = "float64"
checkpoint_every = 1
{more}
"""
MODEL = ModelRecipe("linear", "cross-entropy", "float64", 2, "loop")
SLOW = Member("slow", "FedAvg", {"lr": 1e-4})


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    for module in (nodes, transport):
        monkeypatch.setattr(module, "PAUSE", 0.001)


@pytest.fixture
def two_members(monkeypatch):
    monkeypatch.setattr(fit_module, "PORTFOLIO", (SLOW, PORTFOLIO[0]))


def arrays(name, n, part):
    noise = torch.Generator().manual_seed(2 * ord(name) + part)
    x = torch.randn(n, 4, generator=noise, dtype=torch.float64) * torch.tensor([1.0, 5, 1, 20]) + 3
    sign = torch.tensor([1.0, 0.2, -1, 0.01 if name == "c" else -0.01], dtype=torch.float64)
    return x, ((x - 3) @ sign + torch.randn(n, generator=noise) / 2 > 0).long()


def data_of(names="abc", **options):
    parts = ({name: arrays(name, SIZES[name] if part == 0 else 40, part) for name in names} for part in (0, 1))
    return ClientData.from_arrays(*parts, dtype=torch.float64, **options)


def sites_of(folder, change=lambda name, data: data, **options):
    sites = {}
    for name in SIZES:
        (folder / name).mkdir(exist_ok=True)
        log = AuditLog(folder / name / "audit.jsonl", "site", name)
        data = change(name, data_of(name))
        sites[name] = Site(name, data, folder=folder / name, audit=log, **options)
    return sites


def grid_of(folder, kind=InProcessGrid, **options):
    sites = sites_of(folder, **options)
    return kind(client_app(lambda context: sites[context.node_config["name"]]), [{"name": name} for name in sites])


def server(folder, rounds=4, more="", top=""):
    path = folder / "server.toml"
    tables = "".join(f'[[sites]]\nname = "{name}"\n' for name in SIZES)
    path.write_text(top + SETTINGS.format(rounds=rounds, more=more) + tables)
    return path


def task():
    with Key(0).fold("model").torch_scope():
        return Task(MODELS["linear"]((4,), 2).double())


def simulated(data=None, rounds=4):
    data = (data_of() if data is None else data).standardised()
    return drfl.fit(data, task(), budget=rounds, engine=drfl.Loop(), progress=None)


def fit_json(out):
    return json.loads((out / "fit.json").read_text())


def check_same(out, here):
    """Assert that the fit in a folder equals that of a simulation, except for the references."""
    there, summary = fit_json(out), here.summary()
    assert there["references"] == {}
    assert there["reason"] == here.reason
    for one, other in zip(there["members"], summary["members"], strict=True):
        assert one == pytest.approx(other, abs=1e-9)
    for name in ("chosen", "parameters", "validation_rows", "test", "budget", "clients", "personal"):
        assert there[name] == summary[name]
    module = drfl.load_model(out / "model.safetensors")
    w = torch.cat([module.weights[name].flatten() for name in here.finished.job.task.layout.names])
    assert torch.allclose(w, here.model, rtol=0, atol=1e-12)


@pytest.mark.long
def test_portfolio_is_judged_as_in_a_simulation(tmp_path):
    grid, path = grid_of(tmp_path), server(tmp_path)
    check_same(fit_sites(grid, path), simulated())
    job = read_server(path).job
    # A round of these members needs fewer exchanges than the maximum of any algorithm.
    assert job.max_requests < max(grid.count.values()) <= job.max_fit_requests


@pytest.mark.long
def test_three_sites_choose_the_member_of_a_simulation_with_its_p_values(two_members, tmp_path, monkeypatch):
    fitted = []

    def recorded(*arguments):
        fitted.append(fit_module.fit_jobs(*arguments))
        return fitted[0]

    monkeypatch.setattr(deployed_fit, "fit_jobs", recorded)
    out, here = fit_sites(grid_of(tmp_path), server(tmp_path)), simulated()
    assert here.chosen is PORTFOLIO[0]
    assert here.candidates[0].group == "2 clients with few validation rows, judged together"  # c has 9, and b joins it
    assert fitted[0].choice.p == pytest.approx(here.choice.p, rel=0, abs=1e-12, nan_ok=True)
    assert fitted[0].choice.p[1] < 0.05
    for one, other in zip(fitted[0].candidates, here.candidates, strict=True):
        assert one.losses.mean == pytest.approx(other.losses.mean, rel=1e-12)
        assert one.losses.squares == pytest.approx(other.losses.squares, rel=1e-10)
    check_same(out, here)
    names = {path.name for path in out.iterdir()}
    assert {"summary.json", "fit.json", "model.safetensors", "report.html", "traffic.json"} <= names
    assert is_finished(out)


@pytest.mark.long
def test_rows_that_sites_share_are_not_independent(two_members, tmp_path, monkeypatch):
    fits = []

    def recorded(jobs, *others):
        fits.append((jobs.independent, fit_module.fit_jobs(jobs, *others)))
        return fits[-1][1]

    def with_rows_of_a(name, data):
        parts = (torch.cat(pair) for pair in zip(arrays(name, SIZES[name], 0), arrays("a", 30, 0), strict=True))
        return ClientData.from_arrays({"b": (*parts,)}, {"b": arrays("b", 40, 1)}) if name == "b" else data

    monkeypatch.setattr(deployed_fit, "fit_jobs", recorded)
    for place, change in (("apart", lambda name, data: data), ("shared", with_rows_of_a)):
        for name in SIZES:
            (tmp_path / place / name).mkdir(parents=True)
            (tmp_path / place / name / "rows.key").write_bytes(b"k" * 32)
        policy = SitePolicy(shared_rows_key="rows.key")
        out = fit_sites(grid_of(tmp_path / place, change=change, policy=policy), server(tmp_path / place, rounds=1))
        is_apart = place == "apart"
        assert fits[-1][0] is is_apart
        assert fits[-1][1].assessment.independent is is_apart
        assert json.loads((out / "summary.json").read_text())["shared_test_rows"] is not is_apart


class Dying(InProcessGrid):
    """Kill the server program once the second candidate has a checkpoint."""

    folder = None

    def push_messages(self, messages):
        if any(self.folder.glob("fits/*/checkpoint/step-2/round-*")):
            raise KeyboardInterrupt
        return super().push_messages(messages)


class Counting(InProcessGrid):
    """Count local training."""

    def answer(self, message, context):
        self.kinds = getattr(self, "kinds", [])
        kind = message.metadata.message_type
        if kind == "train" and read(message.content, Ask).work is not None:
            kind = "work"
        self.kinds.append(kind)
        return super().answer(message, context)


@pytest.mark.long
def test_killed_server_continues_without_repeating_finished_candidates(two_members, tmp_path):
    (tmp_path / "whole").mkdir()
    whole = grid_of(tmp_path / "whole", Counting)
    expected = fit_json(fit_sites(whole, server(tmp_path / "whole", rounds=2)))
    path, dying = server(tmp_path, rounds=2), grid_of(tmp_path, Dying)
    dying.folder = tmp_path
    with pytest.raises(KeyboardInterrupt):
        fit_sites(dying, path)
    (folder,) = (tmp_path / "fits").iterdir()
    assert not is_finished(folder)
    rest = grid_of(tmp_path, Counting)
    out = fit_sites(rest, path)
    assert (out, is_finished(out)) == (folder, True)
    assert fit_json(out) == expected
    assert not (out / "checkpoint").exists()
    # the first candidate is not trained again
    assert 0 < rest.kinds.count("work") <= whole.kinds.count("work") - 3 * 2


@pytest.mark.long
def test_fit_leaves_a_complete_audit_and_delivers_its_model(two_members, tmp_path):
    path = server(tmp_path, rounds=2, top='audit = "audit.jsonl"\ndeliver = true\n')
    out = fit_sites(grid_of(tmp_path, policy=SitePolicy(receive_models="any")), path)
    logs = [tmp_path / "audit.jsonl", *(tmp_path / name / "audit.jsonl" for name in SIZES)]
    assert [finding for finding in audit(logs) if finding.kind == "problem"] == []
    lines = [json.loads(line) for line in logs[1].read_text().splitlines()]
    # the initial model, two members and their differences
    assert [line.get("what") for line in lines if line["event"] == "asked"].count("validation") == 4
    assert set(json.loads((out / "delivery.json").read_text())["sites"].values()) == {"received"}
    assert ModelStore(tmp_path / "a" / "models").current().read_bytes() == (out / "model.safetensors").read_bytes()


@pytest.mark.long
def test_no_test_row_is_used_before_the_choice(two_members, tmp_path):
    """Other test rows do not change the choice, its numbers and the model."""

    def flipped(name, data):
        return replace(data, test_targets=torch.cat([1 - data.test_targets[:2], data.test_targets[2:]]))

    (tmp_path / "other").mkdir()
    one = fit_sites(grid_of(tmp_path), server(tmp_path, rounds=2))
    two = fit_sites(grid_of(tmp_path / "other", change=flipped), server(tmp_path / "other", rounds=2))
    decisive = ("name", "chosen", "worst_validation_loss", "p", "excluded")
    before = [[[m[k] for k in decisive] for m in fit_json(x)["members"]] for x in (one, two)]
    assert before[0] == before[1]
    weights = [drfl.load_model(x / "model.safetensors").weights for x in (one, two)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert fit_json(one)["test"] != fit_json(two)["test"]


def with_patients(name, data):
    """Give every four rows of a site one patient."""
    return replace(
        data, test_inputs=data.inputs, test_targets=data.targets, test=data.train,
        patients=torch.arange(len(data.inputs)) // 4,
    )  # fmt: skip


@pytest.mark.long
def test_patients_count_as_in_a_simulation(two_members, tmp_path):
    out = fit_sites(grid_of(tmp_path, change=with_patients), server(tmp_path, rounds=2))
    data = with_patients("", data_of())
    # patients of two sites differ, although each site numbers its patients from 0
    starts = np.repeat(np.arange(3) * 1000, list(SIZES.values()))
    patients = torch.cat([torch.arange(n) // 4 for n in SIZES.values()]) + torch.from_numpy(starts)
    here = simulated(replace(data, patients=patients), rounds=2)
    assert "validation patients" in here.candidates[0].group
    check_same(out, here)


@pytest.mark.parametrize(
    ("more", "code", "field"),
    [
        ('select = "worst"', "unused-option", "select"),
        ("patience = 3", "unused-option", "patience"),
        ('until = "test:worst_accuracy=0.9"', "unused-option", "until"),
        ("validation = 0.3", "unused-option", "validation"),
        ('returned = "last"', "unused-option", "returned"),
        ("cohort = 9", "invalid-value", None),
    ],
)
def test_settings_that_a_fit_cannot_use_are_refused_before_training(more, code, field, tmp_path):
    grid = grid_of(tmp_path, Counting)
    with refused(code, field):
        fit_sites(grid, server(tmp_path, more=more))
    assert not {"train", "evaluate", "work"} & set(getattr(grid, "kinds", ()))
    assert not (tmp_path / "fits").exists()


def test_batch_loss_is_refused_before_training(tmp_path, monkeypatch):
    source = "import drfl, torch\n\nloss = drfl.BatchLoss(torch.nn.functional.cross_entropy)\n"
    for folder in (tmp_path, *(tmp_path / name for name in SIZES)):
        folder.mkdir(exist_ok=True)
        (folder / "own.py").write_text(source)
    grid = grid_of(tmp_path, Counting)
    with refused("unsupported-combination", "loss"):
        fit_sites(grid, server(tmp_path, more='loss = "own.py:loss"'))
    assert not {"train", "evaluate", "work"} & set(grid.kinds)


class Lying(InProcessGrid):
    """Change site b's answers about validation rows."""

    lie = None

    def answer(self, message, context):
        reply = super().answer(message, context)
        if message.metadata.message_type == "query.validation" and context.node_config["name"] == "b" and self.lie:
            reply.content["message"] = write(self.lie(read(reply.content, AnswerLosses)))["message"]
        return reply


def changed(answer, part, **values):
    first, *rest = getattr(answer, part)
    return msgspec.structs.replace(answer, **{part: (msgspec.structs.replace(first, **values), *rest)})


def one_row_more(answer):
    return msgspec.structs.replace(answer, rows=answer.rows + 1, sizes=answer.sizes + 1)


def lying(folder, lie):
    """Return a grid with a malicious site, and the settings."""
    grid = grid_of(folder, Lying)
    grid.lie = lie
    return grid, server(folder, rounds=1)


@pytest.mark.parametrize(
    "lie",
    [
        lambda a: msgspec.structs.replace(a, digest="0" * 32),
        lambda a: changed(a, "losses", cross=1e9),
        *long_beyond(
            0,
            [
                lambda a: changed(a, "losses", squares=-1.0),
                lambda a: changed(a, "gains", mean=9.0) if a.gains else a,
                lambda a: changed(a, "gains", squares=1e9) if a.gains else a,
                lambda a: changed(a, "gains", mean=float("nan")) if a.gains else a,
            ],
            ["negative squares", "mean", "squares", "not a number"],
        ),
    ],
)  # fmt: skip
def test_site_with_contradictory_sums_is_named(two_members, tmp_path, lie):
    with refused("site-untested", "b", kind=DrflError):
        fit_sites(*lying(tmp_path, lie))


@pytest.mark.long
def test_fit_continues_once_the_sums_agree(two_members, tmp_path):
    grid, path = lying(tmp_path, one_row_more)
    with refused("site-untested", "b", kind=DrflError):
        fit_sites(grid, path)
    grid.lie = None
    assert is_finished(fit_sites(grid, path))


def test_site_refuses_losses_that_its_policy_does_not_allow(two_members, tmp_path):
    grid = grid_of(tmp_path, policy=SitePolicy(requests_a_day=3))
    with refused("site-untested", kind=DrflError):
        fit_sites(grid, server(tmp_path, rounds=1))


@pytest.mark.long
def test_site_with_one_training_row_does_not_count(two_members, tmp_path):
    def tiny(name, data):
        return replace(data, train=(data.train[0][:1],)) if name == "c" else data

    out = fit_sites(grid_of(tmp_path, change=tiny), server(tmp_path, rounds=2))
    data = data_of()
    here = simulated(replace(data, train=(*data.train[:2], data.train[2][:1])), rounds=2)
    check_same(out, here)
    assert fit_json(out)["validation_rows"] == 32 + 26


def test_only_sums_leave_a_site():
    site = Site("a", data_of("a"))
    w = task().w0
    holdout = HoldOut(0.2, 0, tested=True)
    with refused("sites-differ", "model"):
        answer_losses(site, AskLosses(MODEL, (w[1:],), holdout))
    answer = answer_losses(site, AskLosses(MODEL, (w, w + 1, 2 * w), holdout))
    assert (answer.rows, answer.units, answer.sizes) == (32, 32, 32.0)
    assert (len(answer.losses), len(answer.gains)) == (3, 2)
    numbers = msgspec.msgpack.decode(msgspec.msgpack.encode(answer))
    flat = [x for part in ("losses", "gains") for each in numbers[part] for x in each.values()]
    assert len(flat) == 5 * 3  # three numbers per model and per difference, for any number of rows
    with pytest.raises(ValueError, match="tested"):
        AskLosses(MODEL, (w,), HoldOut(0.2, 0))


@pytest.mark.long
def test_app_fits_if_the_request_is_a_fit(two_members, tmp_path):
    config = {server_app.DEPLOYMENT: str(server(tmp_path, rounds=1)), server_app.REQUEST: runs.FIT}
    context = Context(1, 0, {}, RecordDict(), config)
    server_app.main(grid_of(tmp_path), context)
    (folder,) = (tmp_path / "fits").iterdir()
    assert is_finished(folder)
    assert not (tmp_path / "run").exists()
