"""Test `drfl fit`."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from tests.support.marks import long_beyond
from tests.support.refusals import check_refusal, notice_codes
from tests.support.run_files import different, results_in

import drfl
from drfl.cli.app import call
from drfl.core.tensor_files import read_tensors
from drfl.experiments.fit import steps
from drfl.experiments.run.manifest import is_finished

DIGITS = [
    "--partition", "iid", "--clients", "2", "--engine", "loop", "--steps", "2", "--threads", "1", "--budget", "4",
    "--checkpoint-every", "1", "--lr", "0.1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def hospitals(folder):
    """Write a table per hospital; the last one codes its outcome contrary to the others."""
    rng = np.random.default_rng(0)
    for h in range(3):
        x = rng.normal(size=(240, 3))
        y = (x @ [2, 1, 0] if h < 2 else x @ [-2, 1, 0]) + rng.normal(size=240) / 2 > 0
        with (folder / f"h{h}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "pressure", "noise", "ill"])
            writer.writerows([*map(repr, map(float, row)), int(label)] for row, label in zip(x, y, strict=True))
    return ["h0.csv", "h1.csv", "h2.csv", "--target", "ill", "--budget", "8", "--threads", "1"]


def test_fit_of_two_clients_writes_its_files(tmp_path, capsys):
    assert call(["fit", *DIGITS, "--out", "a"]) == 0
    shown = capsys.readouterr().out
    assert "FedAvg" in shown
    assert "local only" in shown
    assert {path.name for path in (tmp_path / "a").iterdir()} >= {
        "fit.json", "summary.json", "clients.csv", "model.safetensors", "report.html", "config.toml", "manifest.json",
    }  # fmt: skip
    assert not (tmp_path / "a/checkpoint").exists()
    decision = json.loads((tmp_path / "a/fit.json").read_text())
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert decision["algorithm"] == summary["algorithm"]
    assert decision["test"]["worst_accuracy"] == summary["final"]["worst_accuracy"]
    assert len(decision["members"]) == 6
    assert call(["assess", "a"]) == 0
    assert call(["report", "a", "--out", "b.html"]) == 0
    drfl.assess("a")


def test_finished_fit_is_printed_again_but_not_for_other_settings(tmp_path, capsys):
    assert call(["fit", *DIGITS, "--out", "a", "--json"]) == 0
    first = capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for options in ([], DIGITS, ["--budget", "4", "--steps", "2"]):
        assert call(["fit", *options, "--resume", "--out", "a", "--json"]) == 0
        assert capsys.readouterr().out == first
    algorithm = json.loads(first)["algorithm"]
    for options, field in {
        ("--budget", "77"): "rounds",
        ("--steps", "3"): f"algorithms.{algorithm}.steps",
        ("--dataset", "heart-disease"): "dataset",
        ("--dataset", "mnist"): "dataset",  # not on this machine
        ("--personalise",): "personalise",
    }.items():
        check_refusal(["fit", *options, "--resume", "--out", "a"], "other-run", field)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.long
def test_json_prints_only_one_object(capsys):
    assert call(["fit", *DIGITS, "--cohort", "1", "--over-select", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["directory"] == "runs/fit-digits-seed0"
    assert found["references"].keys() == {"local_only", "pooled"}
    assert sum(member["chosen"] for member in found["members"]) == 1


@pytest.mark.long
def test_personal_models_of_hospital_tables(tmp_path, capsys):
    arguments = hospitals(tmp_path)
    assert call(["fit", *arguments, "--personalise", "--out", "a", "--json"]) == 0
    decision = json.loads(capsys.readouterr().out)
    assert decision["personal"]["h2"]["used"] != "global model"
    tensors, _ = read_tensors(tmp_path / "a/personal.safetensors")
    clients = {name.partition("/")[0] for name in tensors}
    assert clients == {name for name, own in decision["personal"].items() if own["used"] != "global model"}
    assert decision["test_of_global_model"]["worst_accuracy"] < decision["test"]["worst_accuracy"]
    whole, own = drfl.load_model(tmp_path / "a"), drfl.load_model(tmp_path / "a", client="h2")
    rows = np.array([[1.0, 0, 0], [-1.0, 0, 0]])
    assert whole.predict(rows).tolist() != own.predict(rows).tolist()
    assert set(drfl.load_model(tmp_path / "a/model.safetensors").weights) == {
        name.partition("/")[2] for name in tensors
    }
    with (tmp_path / "a/clients.csv").open() as file:
        scores = {row["client"]: float(row["accuracy"]) for row in csv.DictReader(file)}
    assert min(scores.values()) == pytest.approx(decision["test"]["worst_accuracy"], abs=1e-6)
    assert call(["fit", *arguments, "--out", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"]["worst_accuracy"] < min(scores.values())


def stop_in(step, monkeypatch):
    """Interrupt the fit after the first round of its n-th run."""
    execute = steps.execute

    def interrupted(job, callbacks, watch, **options):
        def check(progress):
            if progress.round == 1:
                signal.raise_signal(signal.SIGINT)

        interrupted.calls += 1
        return execute(job, [*callbacks, check] if interrupted.calls == step else callbacks, watch, **options)

    interrupted.calls = 0
    monkeypatch.setattr(steps, "execute", interrupted)


@pytest.mark.long
@pytest.mark.parametrize("step", long_beyond(1, [3, 1, 7, 10]))
def test_resumed_fit_has_the_same_bytes(step, tmp_path, capsys):
    assert call(["fit", *DIGITS, "--personalise", "--out", "w/a"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        stop_in(step, patch)
        assert call(["fit", *DIGITS, "--personalise", "--out", "a"]) == 130
    assert not is_finished(tmp_path / "a")
    check_refusal(["fit", *DIGITS, "--out", "a"], "unfinished-run", "a")
    check_refusal(["run", "--resume", "--out", "a"], "foreign-folder", "a")
    capsys.readouterr()
    assert call(["fit", "--resume", "--out", "a"]) == 0
    assert f"[{step}/10]" in capsys.readouterr().err
    assert different(results_in(tmp_path / "w/a"), results_in(tmp_path / "a")) == []
    assert notice_codes(["fit", "--resume", "--out", "a"]) == ["nothing-to-resume"]
    assert notice_codes(["fit", *DIGITS, "--personalise", "--resume", "--out", "a"]) == ["nothing-to-resume"]


@pytest.mark.long
def test_killed_and_resumed_fit_has_the_same_bytes(tmp_path):
    job = [*DIGITS, "--budget", "20"]
    command = [sys.executable, "-m", "drfl", "fit", *job, "--out", "a"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"[1/9]" in process.stderr.readline()
        process.kill()
    assert not is_finished(tmp_path / "a")
    assert call(["fit", "--resume", "--out", "a"]) == 0
    assert call(["fit", *job, "--out", "w/a"]) == 0
    assert different(results_in(tmp_path / "w/a"), results_in(tmp_path / "a")) == []


@pytest.mark.long
def test_other_settings_are_not_resumed_and_finished_fit_is_overwritten(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        stop_in(2, patch)
        assert call(["fit", *DIGITS, "--out", "a"]) == 130
    check_refusal(["fit", *DIGITS, "--seed", "1", "--resume", "--out", "a"], "other-run")
    check_refusal(["fit", "--resume", "--budget", "9", "--out", "a"], "other-run")
    assert call(["fit", *DIGITS, "--overwrite", "--out", "a"]) == 0
    assert is_finished(tmp_path / "a")
    check_refusal(["fit", *DIGITS, "--out", "a"], "already-exists", "a")


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        (["missing.csv", "--target", "y"], "file-not-found", "missing.csv"),
        (["--budget", "0"], "usage", None),
        (["--target", "y"], "unused-option", "target"),
        (["--resume"], "needs-option", "resume"),
        (["--resume", "--out", "nothing"], "nothing-to-resume", "nothing"),
        (["--cohort", "3", "--clients", "2", "--partition", "iid"], "out-of-range", "m"),
        (["--algorithm", "FedAvg"], "usage", None),
    ],
)
def test_bad_options_are_refused(arguments, code, field):
    check_refusal(["fit", *arguments], code, field)


def test_setting_that_a_candidate_refuses_ends_the_fit_early(tmp_path):
    check_refusal(["fit", *DIGITS, "--table-dir", "none", "--out", "a"], "not-a-folder", "table_dir", "none")
    assert not (tmp_path / "a").exists()
