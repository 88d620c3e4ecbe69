"""Test `drfl tune`."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tomllib

import pytest
from tests.support.marks import long_beyond
from tests.support.refusals import check_refusal
from tests.support.rollbacks import set_back_once
from tests.support.small_search import Here

from drfl.cli import tune
from drfl.cli.app import call
from drfl.core.run_end import DOUBLE_DAGGER, RESET
from drfl.experiments.tuning.criterion import Criterion
from drfl.task.metrics import ACCURACY

JOB = "dataset = 'digits'\nclients = 4\ncohort = 3\nengine = 'loop'\nsteps = 2\nbatch = 8\nrounds = 2\n"
SMALL = ["job.toml", "--algorithms", "FedAvg,DRFA", "--seeds", "2", "--confirm-seeds", "0"]
LINE = re.compile(
    r"\[(\d+)/12\] (FedAvg|DRFA) trial [0-5]: worst accuracy \d+\.\d % \(best \d+\.\d %\)"
    rf"(, {RESET}: .+ rounds count\))?(, about \d+ (s|min) left)?"
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)


@pytest.fixture
def here(monkeypatch):
    """Run cells in this process, so that a test is fast."""
    monkeypatch.setattr(tune, "make_pool", Here())


def disturbed(number, lines, folder):
    """Start a search, send it a signal after a number of lines, and return its exit code and output."""
    # far more trials than needed, so that the search is still running when the signal arrives
    command = [sys.executable, "-m", "drfl", "tune", *SMALL, "--trials", "500", "--jobs", "1", "--out", "a"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert process.stderr is not None
    for _ in range(lines):
        process.stderr.readline()
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), long_beyond(1, [(signal.SIGINT, 130), (signal.SIGTERM, 143)]))
@pytest.mark.long
def test_signal_stops_the_search_which_can_continue(number, code, tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "make_pool", Here())
    assert call(["tune", *SMALL, "--trials", "2", "--out", "undisturbed"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(tune, "make_pool", lambda *given, **more: (signal.raise_signal(number), Here()())[1])
        assert call(["tune", *SMALL, "--trials", "2", "--out", "a"]) == code
    assert not (tmp_path / "a/job.toml").exists()
    assert call(["tune", *SMALL, "--trials", "2", "--out", "a"]) == 0
    for name in ("job.toml", "trials.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


@pytest.mark.long
def test_killed_and_interrupted_search_ends_with_the_same_bytes(tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tune, "make_pool", Here())
        assert call(["tune", *SMALL, "--trials", "6", "--out", "undisturbed"]) == 0
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert [line.split("/")[0] for line in lines] == [f"[{n}" for n in range(1, 13)]
    assert "hyperparameters: undisturbed/job.toml" in printed.out

    assert disturbed(signal.SIGKILL, 1, tmp_path)[0] == -signal.SIGKILL
    assert not (tmp_path / "a/job.toml").exists()
    code, out, err = disturbed(signal.SIGINT, 1, tmp_path)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1].startswith("drfl: interrupted")
    assert disturbed(signal.SIGTERM, 1, tmp_path)[0] == 143
    assert call(["tune", *SMALL, "--trials", "6", "--jobs", "2", "--out", "a", "--json"]) == 0
    again = capsys.readouterr()
    assert again.err == ""
    content = tomllib.loads((tmp_path / "a/job.toml").read_text())
    assert json.loads(again.out) == {**content, "file": "a/job.toml"}
    for name in ("job.toml", "trials.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    command = "drfl tune job.toml --algorithms FedAvg,DRFA --trials 6 --seeds 2 --criterion worst --confirm-seeds 0"
    assert content["provenance"]["command"] == command


@pytest.mark.long
def test_search_fails_if_every_run_diverges(here, tmp_path, capsys):
    (tmp_path / "job.toml").write_text("lr = 1.0\n" + JOB + "[algorithms.FedAvg]\nweight_decay = 1e38\n")
    options = ["--trials", "1", "--seeds", "1", "--jobs", "1", "--absolute-step-size", "--out", "a"]
    assert call(["tune", "job.toml", *options]) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "[1/1] FedAvg trial 0: worst accuracy 0.0 % (best 0.0 %), diverged at some seeds"
    assert len(err) == 2
    assert "FedAvg" in err[1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["mnist-lienar"], ("unknown-name", "job", "'mnist-linear'")),
        (["nothing.toml"], ("file-not-found", "nothing.toml")),
        (["job.toml", "--algorithms", "DRDN"], ("unknown-name", "algorithm", "'DRDM'")),
        (["job.toml", "--trials", "0"], ("usage", None, "--trials")),
        (["job.toml", "--seeds", "0"], ("usage", None, "--seeds")),
        (["job.toml", "--confirm-seeds", "4"], ("out-of-range", "confirm_seeds", "0", "5", "4")),
        (["job.toml", "--rounds", "0"], ("usage", None, "--rounds")),
        (["job.toml", "--rounds", "3", "--set", "rounds=4"], ("given-twice", "rounds", "--rounds", "--set")),
        (["job.toml", "--set", "clents=4"], ("unknown-name", "key", "'clients'")),
        (["job.toml", "--set", "cohort=9"], ("out-of-range", "m", "m=9")),
        (["job.toml", "--criterion", "wurst"], ("unknown-name", "criterion", "'wurst'")),
        (["job.toml", "--stand-in"], ("unused-option", "stand_in", "--stand-in")),
        (["mnist-linear", "--stand-in"], ("unused-option", "stand_in", "'mnist-linear'")),
        (["job.toml", "--out", "job.toml"], ("not-a-folder", "job.toml")),
        (["job.toml", "--out", "."], ("foreign-folder", ".")),
        (["mnist-linear", "--data-dir", "nowhere"], ("folder-not-found", "data_dir", "'nowhere'")),
        (
            ["job.toml", "--set", "lr=0.1"],
            ("conflicting-options", "lr", "0.1", "FedAvg", "`absolute_step_size`"),
        ),
        ([], ("usage", None, "missing")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_and_leave_no_files(arguments, error, tmp_path, capsys):
    before = {path.name for path in tmp_path.iterdir()}
    check_refusal(["tune", *arguments], *error)
    printed = capsys.readouterr()
    assert printed.err.startswith("drfl: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.long
def test_trials_of_another_search_are_refused(here, capsys):
    small = ["tune", "job.toml", "--algorithms", "FedAvg", "--trials", "1", "--seeds", "1", "--jobs", "1", "--out", "a"]
    assert call([*small, "--json"]) == 0
    capsys.readouterr()
    check_refusal([*small, "--rounds", "3"], "other-run", "rounds", "a/study.db", "FedAvg", "2", "3")
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.long
def test_step_size_is_searched_in_multiples_of_the_determined_one(here, capsys):
    small = ["tune", *SMALL, "--jobs", "1", "--out", "a"]
    assert call([*small, "--trials", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["provenance"]["relative_step_size"] is True
    assert found["provenance"]["criterion"] == Criterion("worst", ACCURACY).sentence()
    with open("a/trials.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:3] == ["algorithm", "trial", "lr_schedule"], "no trial has an η that is a number"
    factors = [row["lr_schedule"] for row in rows if row["algorithm"] == "FedAvg"]
    assert factors[0] == "", "the first trial is the defaults"
    assert all(0.25 <= float(text.removeprefix("constant:factor=")) <= 4 for text in factors[1:])


@pytest.mark.long
def test_job_with_its_own_schedule_is_not_searched_in_multiples(tmp_path, capsys):
    (tmp_path / "job.toml").write_text(JOB + "[algorithms.FedAvg]\nlr_schedule = 'cosine:rounds=2'\n")
    named = ["lr_schedule = 'cosine:rounds=2'", "FedAvg"]
    check_refusal(["tune", "job.toml"], "conflicting-options", "lr_schedule", *named)


def test_missing_paper_data_suggest_the_stand_in(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9")  # an address without a server
    monkeypatch.delenv("DRFL_DATA", raising=False)
    assert call(["tune", "cifar10-entk", "--data-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--stand-in" in said


@pytest.mark.long
def test_rolled_back_trial_is_reported(here, capsys, monkeypatch):
    """The first of two tuning seeds is rolled back in round 4 of 5."""
    set_back_once(monkeypatch, 1000)
    small = [
        "tune",
        "job.toml",
        "--algorithms",
        "FedAvg",
        "--seeds",
        "2",
        "--rounds",
        "5",
        "--jobs",
        "1",
        "--absolute-step-size",
    ]
    where = f"{RESET}: seed 1000 (2 of 5 rounds count)"
    assert call([*small, "--trials", "1", "--out", "a"]) == 0
    said, err = capsys.readouterr()
    assert where in err
    assert re.search(rf"{DOUBLE_DAGGER} {RESET}: FedAvg .*1000 \(2 of 5", " ".join(said.split()))
    with open("a/job.toml", "rb") as file:
        (place,) = tomllib.load(file)["scores"]["FedAvg"]["set_back"]
    assert all(part in place for part in ("1000", "2 of 5"))
    assert call([*small, "--trials", "1", "--out", "a"]) == 0  # uses the stored trials
    assert DOUBLE_DAGGER in capsys.readouterr().out
    assert call([*small, "--trials", "1", "--set", "lr=0.1", "--out", "b"]) == 0
    assert RESET not in "".join(capsys.readouterr())
