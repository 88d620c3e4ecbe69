"""Test `drfl compare --resume` after stops, kills, changes and overwriting."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from tests.support.refusals import check_refusal, notice_codes, notices, refusal
from tests.support.run_files import different, results_in

from drfl.cli.app import call
from drfl.experiments.run.manifest import is_finished
from drfl.experiments.run.run_directory import ClaimedFolder
from drfl.training.callbacks import Progress

SMALL = [
    "--engine", "loop", "--clients", "5", "--cohort", "3", "--steps", "2", "--threads", "1",
    "--algorithms", "FedAvg,DRDM", "--seeds", "2",
]  # fmt: skip
JOB = [*SMALL, "--rounds", "6", "--checkpoint-every", "2"]
CELLS = ["FedAvg-seed0", "DRDM-seed0", "FedAvg-seed1", "DRDM-seed1"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stop(monkeypatch):
    """Raise a signal so that the comparison stops after round r of a cell; None never stops it."""

    def arm(cell, r):
        def show(self, step):
            algorithm, seed = cell.split("-seed")
            if self.label.endswith(f"] {algorithm}, seed {seed}") and step.round + 1 == r:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Progress, "__call__", show)

    yield arm
    monkeypatch.undo()


def every_file(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same(a, b):
    return different(results_in(a), results_in(b)) == []
    return True


def refused(arguments, capsys):
    capsys.readouterr()
    error = refusal(arguments)
    assert capsys.readouterr().err.count("\n") == 1
    return error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.long
def test_stop_before_the_first_finished_run(number, code, tmp_path, capsys, monkeypatch):
    job = [*JOB, "--checkpoint-every", "0"]
    assert call(["compare", *job, "--out", "w/a"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "__call__", lambda self, step: signal.raise_signal(number) if step.round < 1 else None)
        assert call(["compare", *job, "--out", "a"]) == code
        assert call(["compare", "--resume", "--out", "a"]) == code
    assert "unfinished-run" in refused_code(["compare", *job, "--out", "a"], capsys)
    assert call(["compare", "--resume", "--out", "a"]) == 0
    assert same(tmp_path / "a", tmp_path / "w/a")


@pytest.mark.long
def test_half_overwritten_comparison_is_not_finished(tmp_path, capsys):
    assert call(["compare", *JOB, "--out", "w/a"]) == 0
    assert call(["compare", *JOB, "--out", "a"]) == 0
    with pytest.MonkeyPatch.context() as patch:

        def full(claim, config):
            raise OSError(28, os.strerror(28))

        patch.setattr(ClaimedFolder, "begin", full)
        assert call(["compare", *JOB, "--out", "a", "--overwrite"]) == 2
    assert not is_finished(tmp_path / "a")
    assert call(["compare", *JOB, "--resume", "--out", "a"]) == 0
    assert same(tmp_path / "a", tmp_path / "w/a")


def refused_code(arguments, capsys):
    capsys.readouterr()
    assert call([*arguments, "--json"]) == 2
    return json.loads(capsys.readouterr().out)["error"]["code"]


def killed(folder, arguments, when):
    """Start a comparison and kill it when ``when()`` is true; return False if it ended before."""
    command = [sys.executable, "-m", "drfl", "compare", *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not when():
            time.sleep(0.002)
        process.kill()
        _, told = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), told
    return process.returncode != 0


@pytest.mark.long
def test_repeatedly_killed_comparison_ends_with_the_same_bytes(tmp_path, capsys):
    assert call(["compare", *JOB, "--out", "w/a"]) == 0
    a, draw = tmp_path / "a", random.Random(1)
    # during the first cell, then at a random time after it, then during the last cell
    moments = [
        lambda: any(a.glob("*/checkpoint/round-*")),
        lambda: (a / "FedAvg-seed0/summary.json").exists() and draw.random() < 0.05,
        lambda: any(a.glob("DRDM-seed1/checkpoint/round-*")),
    ]
    options = [*JOB, "--out", "a"]
    for moment in moments:
        assert killed(tmp_path, options, moment), "it ended before it could be killed"
        assert {path.name for path in tmp_path.iterdir()} == {"w", "a"}, "a hidden folder is left"
        assert refused(["compare", *JOB, "--out", "a"], capsys).code == "unfinished-run"
        options = ["--resume", "--out", "a"]
    done = {path.parent.name: path.stat().st_mtime_ns for path in a.glob("*-seed*/summary.json")}
    assert "FedAvg-seed0" in done
    assert call(["compare", "--resume", "--out", "a"]) == 0
    assert all((a / name / "summary.json").stat().st_mtime_ns == before for name, before in done.items())
    assert same(a, tmp_path / "w/a")
    assert {path.name for path in tmp_path.iterdir()} == {"w", "a"}
    assert notice_codes(["compare", "--resume", "--out", "a"])[0] == "nothing-to-resume"


def test_finished_comparison_is_printed_and_its_files_are_written(tmp_path, capsys):
    job = [*SMALL, "--rounds", "2", "--out", "a"]
    capsys.readouterr()
    assert call(["compare", *job, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    before = every_file(tmp_path)
    capsys.readouterr()
    assert call(["compare", "--resume", "--out", "a", "--json", "--latex", "t.tex", "--costs-to", "avg_loss=99"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == first
    assert "avg_loss=99" in printed.err
    assert "rounds to" in (tmp_path / "t.tex").read_text()
    (tmp_path / "t.tex").unlink()
    assert every_file(tmp_path) == before
    assert call(["compare", "--resume", "--out", "a"]) == 0
    assert "a/report.html" in capsys.readouterr().out


def test_run_whose_files_are_missing_runs_again(tmp_path):
    assert call(["compare", *SMALL, "--rounds", "2", "--out", "a"]) == 0
    before = results_in(tmp_path / "a")
    (tmp_path / "a/DRDM-seed1/model.safetensors").unlink()  # no comparison reads it
    assert "nothing-to-resume" in notice_codes(["compare", "--resume", "--out", "a"])
    for name in ("compare.csv", "DRDM-seed1/clients.csv"):
        (tmp_path / "a" / name).unlink()
        assert "interrupted" in notice_codes(["assess", "a"], exit_code=2 if "/" in name else 0)
        check_refusal(["compare", "--resume", "--out", "a", "--clients", "2"], "other-run", "clients", "5", "2")
        assert call(["compare", "--resume", "--out", "a"]) == 0
        assert "nothing-to-resume" in notice_codes(["compare", "--resume", "--out", "a"])
    assert different(results_in(tmp_path / "a"), before) == []


def test_resumed_comparison_of_failed_runs_has_failed(tmp_path):
    (tmp_path / "bad.py").write_text(
        "import dataclasses\nimport drfl\n@dataclasses.dataclass(frozen=True)\nclass Bad(drfl.FedAvg):\n"
        "    def round(self, state, fed, key):\n        raise drfl.DivergedError('NaN')\n"
    )
    job = [*SMALL, "--rounds", "2", "--algorithms", "bad.py:Bad", "--out", "a"]
    for resume in ([], ["--resume"]):
        assert call(["compare", *job, *resume]) == 1


def test_resumed_comparison_equals_an_uninterrupted_one(stop, tmp_path, capsys):
    job = [*JOB, "--evaluate-every", "3"]
    assert call(["compare", *job, "--out", "w/a"]) == 0
    stop("FedAvg-seed1", 4)
    unfinished = notices(["compare", *job, "--out", "a"], exit_code=130)[-1]
    assert "a/report.html" in capsys.readouterr().out
    assert unfinished.code == "interrupted"
    assert all(part in unfinished for part in ("2 of 4", "'drfl compare --resume --out a'"))
    for command in (["report", "a", "--out", "page.html"], ["assess", "a"]):
        (told,) = notices(command)
        assert (told.code, told.field) == ("interrupted", "a")
        assert "2 of 4" in told
    assert (tmp_path / "a/compare.csv").read_text().count("\n") == 3
    assert not (tmp_path / "a/FedAvg-seed1/summary.json").exists()
    stop("none-seed0", 0)
    (told,) = (notice for notice in notices(["compare", "--resume", "--out", "a"]) if notice.code == "resumed")
    assert all(part in told for part in ("FedAvg-seed1", "4 of 6"))
    assert same(tmp_path / "a", tmp_path / "w/a")


@pytest.mark.long
def test_failed_cells_are_remembered(stop, tmp_path, capsys):
    refuse = ["DRFA.sampling=without-replacement", "DRFA.gamma=10"]
    job = ["--clients", "6", "--cohort", "4", "--steps", "2", "--rounds", "9", "--threads", "1", "--seeds", "2"]
    job += ["--algorithms", "FedAvg,DRFA,DRDM", "--param", "FedAvg.lr=1e38"]
    job += [word for text in refuse for word in ("--param", text)]
    assert call(["compare", *job, "--out", "w/a"]) == 0
    stop("DRDM-seed0", 2)
    assert call(["compare", *job, "--out", "a"]) == 130
    kept = sorted(path.name for path in (tmp_path / "a/checkpoint").glob("*-seed*.json"))
    assert kept == ["DRFA-seed0.json", "FedAvg-seed0.json"]
    stop("none-seed0", 0)
    capsys.readouterr()
    assert call(["compare", "--resume", "--out", "a"]) == 0
    assert re.search(r"seed 0: FedAvg diverged\b", capsys.readouterr().err)
    assert same(tmp_path / "a", tmp_path / "w/a")


@pytest.mark.long
def test_resuming_another_comparison_names_the_difference(stop, tmp_path, capsys):
    stop("DRDM-seed0", 3)
    assert call(["compare", *JOB, "--out", "a"]) == 130
    before = every_file(tmp_path / "a")
    for options, *error in (
        (["--lr", "0.7"], "other-run", "algorithms.FedAvg.lr", "0.7"),
        (["--param", "DRDM.mu=7"], "other-run", "algorithms.DRDM.mu"),
        (["--rounds", "9"], "other-run", "rounds", "6", "9"),
        (["--seeds", "1"], "other-run", "seeds", "0, 1", "0"),
        (["--algorithms", "DRDM"], "other-run", "algorithms", "FedAvg, DRDM", "DRDM"),
        (["--overwrite"], "conflicting-options", "resume"),
    ):
        check_refusal(["compare", "--resume", "--out", "a", *options], *error)
    check_refusal(["run", "--resume", "--out", "a"], "foreign-folder", "a", "comparison", "run")
    check_refusal(["compare", "--resume"], "needs-option", "resume", "`out`")
    check_refusal(["compare", "--resume", "--out", "b"], "nothing-to-resume", "b")
    assert every_file(tmp_path / "a") == before
    stop("none-seed0", 0)
    again = ["compare", "--resume", "--out", "a", "--checkpoint-every", "1", *SMALL, "--rounds", "6"]
    assert call(again) == 0
    check_refusal(["compare", "--resume", "--out", "a", "--rounds", "3"], "other-run", "rounds", "6", "3")


def test_changed_data_are_refused(stop, tmp_path, capsys):
    stop("DRDM-seed0", 3)
    assert call(["compare", *JOB, "--out", "a"]) == 130
    path = tmp_path / "a/checkpoint/identity.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": 32 * "0"}))
    error = refused(["compare", "--resume", "--out", "a"], capsys)
    assert (error.code, error.field) == ("other-run", "data")
    path.write_text("{}")
    assert "identity.json" in str(refused(["compare", "--resume", "--out", "a"], capsys))


@pytest.mark.long
def test_cell_with_a_lost_or_damaged_record_runs_again(stop, tmp_path):
    assert call(["compare", *JOB, "--out", "w/a"]) == 0
    stop("FedAvg-seed1", 3)
    assert call(["compare", *JOB, "--out", "a"]) == 130
    (tmp_path / "a/checkpoint/FedAvg-seed0.json").unlink()
    (tmp_path / "a/checkpoint/DRDM-seed0.json").write_text('{"algorithm": "DRDM"')
    stop("none-seed0", 0)
    assert call(["compare", "--resume", "--out", "a"]) == 0
    assert same(tmp_path / "a", tmp_path / "w/a")


@pytest.mark.long
def test_second_process_is_refused(tmp_path, capsys):
    command = [sys.executable, "-m", "drfl", "compare", *SMALL, "--rounds", "5000", "--out", "a"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        while not any((tmp_path / "a").glob("*/checkpoint/round-*")):
            assert process.poll() is None, "it ended before it could be stopped"
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGSTOP)
        for how in ("--resume", "--overwrite"):
            arguments = ["compare", *SMALL, "--rounds", "5000", "--out", "a", how]
            assert refused(arguments, capsys).code == "folder-in-use"
        process.kill()


@pytest.mark.long
def test_overwriting_removes_cells_and_keeps_foreign_files(tmp_path, capsys):
    assert call(["compare", *JOB, "--out", "a"]) == 0
    for name in ("notes.txt", "FedAvg-seed0/notes.txt", "mine/history.csv", "DRDM-seed1/mine/summary.json"):
        (tmp_path / "a" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "a" / name).write_text("mine")
    capsys.readouterr()
    assert call(["compare", *JOB, "--seeds", "0,2", "--out", "a", "--overwrite"]) == 0
    assert "a: files that are not of the comparison were kept: DRDM-seed1, mine, notes.txt" in (
        capsys.readouterr().err.splitlines()
    )
    assert call(["compare", *JOB, "--seeds", "0,2", "--out", "w/a"]) == 0
    a, b = results_in(tmp_path / "a"), results_in(tmp_path / "w/a")
    more = {"notes.txt", "FedAvg-seed0/notes.txt", "mine/history.csv", "DRDM-seed1/mine/summary.json"}
    assert set(a) == {*b, *more, "DRDM-seed1/manifest.json"}
    assert {a[name] for name in more} == {b"mine"}
    assert [name for name in b if a[name] != b[name]] == []


@pytest.mark.long
def test_stored_configuration_repeats_the_comparison(tmp_path):
    assert call(["compare", *JOB, "--out", "a"]) == 0
    assert call(["compare", "a/config.toml", "--seeds", "2", "--out", "w/a"]) == 0
    assert same(tmp_path / "a", tmp_path / "w/a")
