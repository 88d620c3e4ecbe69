"""Test the status of a deployment: from its folder, its log and the SuperLink."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.support.refusals import refused

from drfl.cli.app import call
from drfl.core.audit_log import AuditLog
from drfl.core.errors import DrflError
from drfl.flower.deploy import keys, runs, status
from drfl.flower.deploy.paths import DeploymentFolder

NODES = [
    {"node-id": "11", "status": "online", "online-at": "2026-11-27 09:02:11Z", "offline-at": "N/A"},
    {"node-id": "12", "status": "offline", "online-at": "2026-11-27 09:02:11Z", "offline-at": "2026-11-27 09:04:58Z"},
    {"node-id": "13", "status": "registered", "online-at": "N/A", "offline-at": "N/A"},
]
RUNS = [{"run-id": "7", "status": "finished:completed"}, {"run-id": "8", "status": "running"}]


@pytest.fixture
def folder(trio, monkeypatch):
    def ask(home, arguments):
        return {"success": True, "nodes": NODES, "runs": RUNS, "node-id": "99"}

    for module in (status, runs, keys):
        monkeypatch.setattr(module, "run_flwr", ask)
    return DeploymentFolder(trio)


def test_status_of_sites_with_last_change_and_reply(folder):
    log = AuditLog(folder.root / "audit.jsonl", "server", "server")
    log.add("started", run="8", sites=["a", "b", "c"])
    for site in "bab":
        log.add("received", site=site, request=1, digest=None, head=None)
    log.add("silent", site="c", request=1, reason="no reply")
    found = status.status_of(folder)
    assert [(site.name, site.state, site.since) for site in found.sites] == [
        ("a", "online", "2026-11-27 09:02:11Z"),
        ("b", "offline", "2026-11-27 09:04:58Z"),
        ("c", "registered", ""),
    ]
    a, b, c = (site.replied for site in found.sites)
    assert b >= a > "2026"
    assert c == ""
    assert (found.problem, found.runs) == ("", ("8",))
    assert (found.run.state, found.run.rounds, found.run.planned, found.fit.state) == ("none", 0, 50, "none")


def test_status_of_results_outside_the_folder(folder, tmp_path):
    path, results = folder.root / "server.toml", tmp_path / "results"
    path.write_text(path.read_text().replace('"runs/DATE"', f'"{results}/DATE"'))
    assert status.status_of(folder).run.out == f"{results}/DATE"
    out = results / "20261127T090000.000000"
    out.mkdir(parents=True)
    (out / "model.safetensors").write_bytes(b"model")
    delivery = {"signed": "2026-11-27", "sha256": "5f0c", "sites": {"a": "received", "b": "refused"}}
    (out / "delivery.json").write_text(json.dumps(delivery))
    found = status.status_of(folder)
    assert (found.run.out, found.run.model) == (str(out), str(out / "model.safetensors"))
    assert [site.model for site in found.sites] == ["5f0c", "", ""]


@pytest.mark.parametrize("line", ["nonsense", "[1]", "{}"])
def test_damaged_log_is_an_error_in_one_line(folder, line):
    (folder.root / "audit.jsonl").write_text(f"{line}\n")
    with refused("audit-log", str(folder.root / "audit.jsonl"), kind=DrflError):
        status.status_of(folder)


def test_unregistered_and_revoked_sites(folder):
    (folder.root / "keys/a.node").unlink()
    keys.revoke(folder, "b")
    assert [site.state for site in status.status_of(folder).sites] == ["not registered", "key revoked", "registered"]


def test_rounds_and_model_of_the_run(folder, capsys):
    out = folder.root / "runs/20261127T090000.000000"
    (out / "checkpoint/round-00000011").mkdir(parents=True)
    (out / "checkpoint/round-00000012").mkdir()
    assert (status.status_of(folder).run.state, status.status_of(folder).run.rounds) == ("unfinished", 12)
    for path in sorted((out / "checkpoint").iterdir()):
        path.rmdir()
    (out / "checkpoint").rmdir()
    (out / "model.safetensors").write_bytes(b"model")
    for failure, state in ((None, "finished"), ("the loss rose", "diverged")):
        (out / "summary.json").write_text(json.dumps({"rounds": 50, "failure": failure}))
        assert (status.status_of(folder).run.state, status.status_of(folder).run.rounds) == (state, 50)
    assert call(["deploy", "status", str(folder.root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["run"]["model"] == "runs/20261127T090000.000000/model.safetensors"
    assert told["run"]["sha256"].startswith("9372c470")
    assert told["sites"][1]["state"] == "offline"
    assert call(["deploy", "status", str(folder.root)]) == 0
    said = capsys.readouterr().out
    assert all(text in said for text in ("run 8", "50 of 50", "9372c470", "2026-11-27 09:04:58"))


@pytest.mark.parametrize("is_unfinished", [True, False])
def test_run_is_compared_with_its_own_rounds(folder, is_unfinished):
    out = folder.root / "runs/20261127T090000.000000"
    work = out / "checkpoint" if is_unfinished else out
    work.mkdir(parents=True)
    (work / "config.toml").write_text("rounds = 8\n")
    if not is_unfinished:
        (out / "summary.json").write_text(json.dumps({"rounds": 5, "failure": None}))
    found = status.status_of(folder).run
    assert (found.rounds, found.planned) == (0 if is_unfinished else 5, 8)


def test_rounds_and_candidate_of_the_fit(folder, capsys):
    out = folder.root / "fits/20261127T090000.000000"
    (out / "checkpoint").mkdir(parents=True)
    (out / "checkpoint/config.toml").write_text("rounds = 9\n")

    def shown():
        assert call(["deploy", "status", str(folder.root)]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("fit in"))

    assert shown() == "fit in 'fits/20261127T090000.000000': unfinished, candidate 1 of 6, 0 of 9 rounds"
    for step, last in ((1, 9), (2, 9), (3, 4)):
        (out / f"checkpoint/step-{step}/round-{last:08}").mkdir(parents=True)
    assert "candidate 3 of 6, 4 of 9 rounds" in shown()
    assert call(["deploy", "status", str(folder.root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["fit"]
    assert (told["state"], told["step"], told["steps"], told["rounds"]) == ("unfinished", 3, 7, 4)
    (out / "checkpoint/step-7").mkdir()
    assert "final run, 0 of 9 rounds" in shown()
    shutil.rmtree(out / "checkpoint")
    (out / "config.toml").write_text("rounds = 9\n")
    (out / "summary.json").write_text(json.dumps({"rounds": 9, "failure": None}))
    (out / "model.safetensors").write_bytes(b"model")
    assert shown() == "fit in 'fits/20261127T090000.000000': finished, 9 of 9 rounds"
    found = status.status_of(folder).fit
    assert (found.step, found.steps, found.model) == (0, 0, "fits/20261127T090000.000000/model.safetensors")


def test_unreachable_superlink_leaves_the_rest_of_the_status(folder, monkeypatch, capsys):
    def ask(*_):
        raise DrflError("no connection", code="superlink-failed")

    monkeypatch.setattr(status, "run_flwr", ask)
    assert call(["deploy", "status", str(folder.root)]) == 1
    captured = capsys.readouterr()
    assert "no connection" in captured.err
    assert captured.out.count("unknown") == 3


def test_last_model_received_by_each_site(folder):
    for place, signed, outcomes in (
        ("run", "2026-11-02", {"a": "received", "b": "it is offline"}),
        ("deliveries/x", "2026-11-03", {"b": "received"}),
        ("run-0", "2026-11-01", {"a": "received", "b": "received"}),
    ):
        (folder.root / place).mkdir(parents=True)
        content = {"signed": signed, "sha256": f"of {place}", "sites": outcomes}
        (folder.root / place / "delivery.json").write_text(json.dumps(content))
    assert [site.model for site in status.status_of(folder).sites] == ["of run", "of deliveries/x", ""]
