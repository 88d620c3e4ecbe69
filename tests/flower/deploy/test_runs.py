"""Test runs through Flower's command, and the handling of its answers."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest
from tests.support.refusals import check_refusal, quotes, refusal, refused

from drfl.cli import deploy
from drfl.cli.app import call
from drfl.experiments.run.run_directory import claim_folder
from drfl.flower import server_app
from drfl.flower.deploy import flower_cli, runs
from drfl.flower.deploy.paths import DeploymentFolder
from drfl.flower.session import read_resolved

FLWR = """#!{python} -IS
import json, os, sys, time
from pathlib import Path
home = Path(os.environ["FLWR_HOME"])
with (home / "calls").open("a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
answers = json.loads((home / "answers").read_text())
print("Using SuperLink: deployment (localhost:1)") if sys.argv[1] == "log" else None
print(answers[sys.argv[1]], end="", flush=True)
if sys.argv[1] == "log" and "linger" in answers:
    (home / "pid").write_text(str(os.getpid()))
    time.sleep(600)
"""


def ended(status, details="N/A"):
    return json.dumps({"success": True, "runs": [{"run-id": "7", "status": status, "status-details": details}]})


@pytest.fixture
def flwr(copy, tmp_path, monkeypatch):
    """Return a function that sets the command's answers, and the list of calls."""
    path = tmp_path / "bin/flwr"
    path.parent.mkdir()
    path.write_text(FLWR.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setattr(runs, "find_program", lambda name: path)
    monkeypatch.setattr(flower_cli, "find_program", lambda name: path)
    monkeypatch.setattr(flower_cli, "flower_version", lambda: "1.41.0")
    started = json.dumps({"success": True, "run-id": "7"}, indent=2)
    log = "INFO : Starting logstream for run_id `7`\nround 1\nround 2\n"

    def answer(**answers):
        texts = {"run": f"Successfully started\n{started}", "log": log, "stop": json.dumps({"success": True})}
        texts["list"] = json.dumps({"success": True, "runs": []})
        (copy / "flwr/answers").write_text(json.dumps({**texts, **answers}))

    def calls():
        return [json.loads(line) for line in (copy / "flwr/calls").read_text().splitlines()]

    answer.calls = calls
    return answer


def test_completed_run(flwr, copy, capsys):
    final = {"avg_accuracy": 0.9, "worst_accuracy": 0.75, "std_accuracy": 0.05, "avg_loss": 0.3, "worst_loss": None}
    summary = {"algorithm": "DRDM", "clients": 2, "rounds": 3, "final": final}
    (copy / "runs/20261127T090000.000000").mkdir(parents=True)
    (copy / "runs/20261127T090000.000000/summary.json").write_text(json.dumps(summary))
    flwr(list=ended("finished:completed"))
    assert call(["deploy", "run", str(copy)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[:2] == ["round 1", "round 2"]
    assert "DRDM, 2 sites, 3 rounds" in printed.out
    assert "75.0" in printed.out
    run = next(arguments for arguments in flwr.calls() if arguments[0] == "run")
    assert run[1:4] == [str(copy / "app"), "--run-config", f'deployment="{copy / "server.toml"}"']


def test_run_gets_its_waiting_time_and_request_its_folder(flwr, copy):
    flwr()
    folder = DeploymentFolder(copy)
    runs.submit(folder, wait=2.5)
    runs.submit(folder, request=copy / "deliveries/x")
    settings = f'deployment="{copy / "server.toml"}"'
    assert [run[3] for run in flwr.calls()] == [
        f"{settings} wait=2.5",
        f'{settings} request="{copy / "deliveries/x"}"',
    ]


def test_fit_is_a_request_and_prints_its_result(flwr, copy, capsys):
    for place, name in (("runs", "DRDM"), ("fits", "FedAvg")):
        folder = copy / place / "20261127T090000.000000"
        folder.mkdir(parents=True)
        summary = {"algorithm": name, "clients": 2, "rounds": 1, "final": {"worst_accuracy": 0.75}}
        (folder / "summary.json").write_text(json.dumps(summary))
    os.utime(copy / "runs/20261127T090000.000000/summary.json", (1, 1))
    flwr(list=ended("finished:completed"))
    assert call(["deploy", "fit", str(copy)]) == 0
    assert "FedAvg, 2 sites, 1 round\n" in capsys.readouterr().out
    assert flwr.calls()[1][3].endswith(' request="fit"')


def test_unfinished_fit_continues(flwr, copy, capsys):
    folder = copy / "fits/20261127T090000.000000"
    with pytest.raises(KeyboardInterrupt), claim_folder(folder, "fit", config="rounds = 1"):
        raise KeyboardInterrupt
    flwr(list=ended("finished:failed", "No heartbeat"))
    assert call(["deploy", "fit", str(copy)]) == 1
    assert f"drfl deploy fit {copy}" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("status", "details", "line"),
    [
        ("finished:failed", "site b:\n no data", "drfl: run 7 failed: site b: no data"),
        ("finished:stopped", "N/A", "drfl: run 7 was stopped"),
    ],
)
def test_failed_run(flwr, copy, capsys, status, details, line):
    flwr(list=ended(status, details))
    assert call(["deploy", "run", str(copy)]) == 1
    assert capsys.readouterr().err.splitlines() == ["run 7 submitted", line]


def test_unfinished_run_continues(flwr, copy, capsys):
    with pytest.raises(KeyboardInterrupt), claim_folder(copy / "runs/20261127T090000.000000", config="rounds = 1"):
        raise KeyboardInterrupt
    flwr(list=ended("finished:failed", "No heartbeat"))
    assert call(["deploy", "follow", str(copy), "7"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert quotes(told[0], "7", "No heartbeat")
    assert f"drfl deploy run {copy}" in told[1]


def test_run_that_cannot_be_resumed_is_not_continued(flwr, copy, tmp_path, capsys):
    run = copy / "runs/20261127T090000.000000"
    with pytest.raises(KeyboardInterrupt), claim_folder(run, config='sites = ["a", "c"]'):
        raise KeyboardInterrupt
    with refused("other-sites", "out", "c") as caught:
        server_app.check_sites(run, read_resolved(copy / "server.toml"))
    flwr(list=ended("finished:failed", f"InputError: {caught.value}"))
    assert call(["deploy", "run", str(copy)]) == 1
    told = capsys.readouterr().err.splitlines()
    assert quotes(told[-1], str(run))
    assert "drfl deploy run" not in told[-1]


def test_command_waits_for_the_end_after_the_log_stops(flwr, copy, monkeypatch):
    flwr(list=ended("running"))
    naps = []

    def nap(seconds):
        if seconds in runs.PAUSES:  # subprocess also calls sleep
            naps.append(seconds)
            flwr(list="nonsense" if len(naps) < 4 else ended("finished:completed"))

    monkeypatch.setattr(runs.time, "sleep", nap)
    assert call(["deploy", "follow", str(copy), "7"]) == 0
    assert naps == [2, 4, 8, 8]


def test_unreachable_superlink(flwr, copy, monkeypatch, capsys):
    flwr(list=json.dumps({"success": False, "error-message": "\nit is\naway\n\nmore\n"}))
    monkeypatch.setattr(runs, "PATIENCE", -1.0)
    assert call(["deploy", "follow", str(copy), "7"]) == 1
    assert "drfl: it is away\n" in capsys.readouterr().err


def test_run_continues_after_the_superlink_has_gone(flwr, copy, monkeypatch, capsys):
    with pytest.raises(KeyboardInterrupt), claim_folder(copy / "runs/20261127T090000.000000", config="rounds = 1"):
        raise KeyboardInterrupt
    text = "Connection to the SuperLink is unavailable. Please check your network connection."
    flwr(list=json.dumps({"success": False, "error-message": text}))
    monkeypatch.setattr(runs, "PATIENCE", -1.0)
    assert call(["deploy", "follow", str(copy), "7"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert quotes(told[0], str(copy / "start-superlink.sh"), f"drfl deploy check {copy}")
    assert f"drfl deploy run {copy}" in told[1]


@pytest.mark.parametrize("command", ["follow", "stop"])
@pytest.mark.parametrize("answer", [{"success": False, "error-message": "Error: [code: 16] Run ID not found."}, {}])
def test_unknown_run(flwr, copy, command, answer):
    answer = json.dumps(answer or {"success": True, "runs": []})
    flwr(list=answer, stop=json.dumps({"success": False, "error-message": "[code: 16] Run ID not found."}))
    check_refusal(["deploy", command, str(copy), "99"], "unknown-name", "run", "99", "drfl deploy status")


@pytest.mark.parametrize("value", ["abc", "nan"])
def test_wait_must_be_a_number(flwr, copy, value):
    assert quotes(str(refusal(["deploy", "run", str(copy), "--wait", value])), "--wait must be a", "number", value)


def test_missing_certificates_are_explained(flwr, copy):
    flwr(list=json.dumps({"success": False, "error-message": "Failed to read certificate file `ca.crt`."}))
    error = refusal(["deploy", "run", str(copy)], exit_code=1)
    assert quotes(str(error), "ca.crt", str(copy / "make-keys.sh"))


def test_detached_run(flwr, copy, capsys):
    flwr()
    assert call(["deploy", "run", "--detach", str(copy)]) == 0
    assert capsys.readouterr().out == "run 7 submitted\n"
    assert [arguments[0] for arguments in flwr.calls()] == ["list", "run"]


@pytest.mark.parametrize("command", ["run", "fit", "deliver", "evaluate"])
def test_nothing_is_submitted_during_a_run(flwr, copy, command):
    flwr(list=ended("running"))
    models = ["model.safetensors"] if command == "evaluate" else []
    check_refusal(["deploy", command, str(copy), *models], "run-in-progress", "run", f"drfl deploy stop {copy} 7")
    assert [arguments[0] for arguments in flwr.calls()] == ["list"]
    assert not any((copy / name).exists() for name in ("deliveries", "evaluations"))


@pytest.mark.parametrize("times", [1, 2])
def test_first_ctrl_c_detaches_and_second_stops(flwr, copy, monkeypatch, capsys, times):
    flwr()

    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "status", pressed)
    sleep = pressed if times == 2 else lambda seconds: None
    monkeypatch.setattr(deploy, "time", SimpleNamespace(sleep=sleep))
    assert call(["deploy", "follow", str(copy), "7"]) == 130
    printed = capsys.readouterr().err
    assert f"drfl deploy stop {copy} 7" in printed
    assert (["stop", "7", "--format", "json"] in flwr.calls()) is (times == 2)


def test_sigterm_leaves_nothing_running(flwr, copy, monkeypatch):
    flwr(linger=True)
    pid = copy / "flwr/pid"

    def written():  # the file is empty at first
        return pid.exists() and pid.read_text() != ""

    sent, lines = [], []

    def told(line, **_):
        lines.append(line)
        while line == "round 2" and not written():
            time.sleep(0.01)
        if written() and not sent:
            sent.append(line)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(deploy, "say", told)
    before = signal.getsignal(signal.SIGTERM)
    assert call(["deploy", "follow", str(copy), "7"]) == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert any(quotes(line, f"drfl deploy stop {copy} 7") for line in lines)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_stop_command(flwr, copy, capsys):
    flwr(stop=json.dumps({"success": False, "error-message": "run is already finished"}))
    error = refusal(["deploy", "stop", str(copy), "7"], exit_code=1)
    assert (error.code, quotes(str(error), "run is already finished")) == ("superlink-failed", True)
    assert call(["deploy", "stop", str(copy), "seven"]) == 2


def test_flower_programs_get_their_own_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", "/home/user/.flwr")
    monkeypatch.setenv("FORCE_COLOR", "1")
    found = flower_cli.make_environment(tmp_path)
    assert (found["FLWR_HOME"], found["FLWR_TELEMETRY_ENABLED"]) == (str(tmp_path), "0")
    assert "FORCE_COLOR" not in found
    assert found["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)


def test_program_beside_python_is_preferred_to_path(tmp_path, monkeypatch):
    for folder in ("beside", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "flwr").write_text("#!/bin/sh\n")
        (tmp_path / folder / "flwr").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(flower_cli.sys, "executable", str(tmp_path / "beside/python"))
    assert flower_cli.find_program("flwr") == tmp_path / "beside/flwr"
    (tmp_path / "beside/flwr").unlink()
    assert flower_cli.find_program("flwr") == tmp_path / "elsewhere/flwr"
    with refused("package-missing", "flower-nothing"):
        flower_cli.find_program("flower-nothing")


@pytest.mark.parametrize(
    ("version", "fits"),
    [("1.39.0", False), ("1.40.0", True), ("1.42.9", True), ("1.43.0", False), ("2.0.0", False), ("x", False)],
)
def test_versions_are_checked(version, fits):
    assert flower_cli.is_supported(version) is fits


@pytest.mark.parametrize("command", ["init x --sites a", "check x", "run x", "follow x 1", "stop x 1"])
def test_missing_flower_is_reported(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flower_cli, "flower_version", lambda: None)
    check_refusal(["deploy", *command.split()], "package-missing", "flwr", "'drfl[flower]'")
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_command_writes_and_checks_a_deployment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["deploy", "init", "fl", "--sites", "a, b", "--insecure", "--port", "18001"]) == 0
    assert "fl: written" in capsys.readouterr().out
    assert call(["deploy", "check", "fl"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok       server.toml: ") and line.endswith("2 sites: a, b") for line in lines)
    assert lines[-1].startswith("problem  SuperLink: ")
    assert all(part in lines[-1] for part in ("localhost:18001", "./start-superlink.sh"))
    check_refusal(["deploy", "check", "fl", "--site", "c"], "unknown-name", "site", "'c'")
    check_refusal(["deploy", "run", "fl/sites/a"], "not-a-deployment", "fl/sites/a")
    assert deploy.GRACE > 0
