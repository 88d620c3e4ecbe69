"""Test the status of a deployment: from its folder, its log and the SuperLink."""

from __future__ import annotations

import json

import pytest

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
    assert (found.problem, found.runs, found.state, found.rounds, found.planned) == ("", ("8",), "none", 0, 50)


def test_unregistered_and_revoked_sites(folder):
    (folder.root / "keys/a.node").unlink()
    keys.revoke(folder, "b")
    assert [site.state for site in status.status_of(folder).sites] == ["not registered", "key revoked", "registered"]


def test_rounds_and_model_of_the_run(folder, capsys):
    out = folder.root / "runs/20261127T090000.000000"
    (out / "checkpoint/round-00000011").mkdir(parents=True)
    (out / "checkpoint/round-00000012").mkdir()
    assert (status.status_of(folder).state, status.status_of(folder).rounds) == ("unfinished", 12)
    for path in sorted((out / "checkpoint").iterdir()):
        path.rmdir()
    (out / "checkpoint").rmdir()
    (out / "model.safetensors").write_bytes(b"model")
    for failure, state in ((None, "finished"), ("the loss rose", "diverged")):
        (out / "summary.json").write_text(json.dumps({"rounds": 50, "failure": failure}))
        assert (status.status_of(folder).state, status.status_of(folder).rounds) == (state, 50)
    assert call(["deploy", "status", str(folder.root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == "runs/20261127T090000.000000/model.safetensors"
    assert told["sha256"].startswith("9372c470")
    assert told["sites"][1]["state"] == "offline"
    assert call(["deploy", "status", str(folder.root)]) == 0
    said = capsys.readouterr().out
    assert all(text in said for text in ("run 8", "50 of 50", "9372c470", "2026-11-27 09:04:58"))


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
