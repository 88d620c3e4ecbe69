"""Test `drfl energy`."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from tests.support.refusals import check_refusal, notice_codes

from drfl.cli.app import call
from drfl.core.errors import DivergedError
from drfl_papers.commands import energy
from drfl_papers.energy import Channel, Payload, Processor, Radio, cost_of

JOB = ["--clients", "6", "--engine", "loop", "--lr", "0.05", "--target-worst", "0.5", "--rounds", "30", "--seeds", "2"]
SMALL = [*JOB, "--steps", "2", "8", "--snr", "-5", "20", "--bandwidth", "1e5", "1e7"]
FILES = {"measurements.csv", "plan.csv", "plan.md", "heatmap.png", "heatmap.svg", "summary.json", "manifest.json"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_command_measures_and_plans(tmp_path, capsys):
    assert call(["energy", *SMALL, "--out", "a"]) == 0
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES
    printed = capsys.readouterr()
    assert all(part in printed.out for part in ("DRDM", "digits", "50 %", "a/heatmap.png"))
    assert "[4/4] τ = 8, seed 1: round 0/30" in printed.err
    runs = read(tmp_path / "a/measurements.csv")
    assert [(row["tau"], row["seed"]) for row in runs] == [("2", "0"), ("2", "1"), ("8", "0"), ("8", "1")]
    assert all(row["rounds"] for row in runs)

    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert (summary["source"], summary["target_worst"]) == ("here", 0.5)
    assert summary["processor"] == {
        "cycles_per_sample": 2560, "frequency": 1e9, "capacitance": 1e-28, "joules_per_step": None,
    }  # fmt: skip
    assert summary["radio"] == {"power": 0.2, "receive": None}
    # the plan follows from the measurements and the payload by the library's formulas
    payload = Payload(**{k: v for k, v in summary["payloads"][0].items() if k != "outage"})
    assert len(summary["plan"]) == 4
    for cell, row in zip(summary["plan"], read(tmp_path / "a/plan.csv"), strict=True):
        channel = Channel.uniform(1, cell["bandwidth"], cell["snr_db"])
        cost = cost_of(payload, Processor(2560), Radio(), channel)
        energies = {}
        for tau in (2, 8):
            rounds = [int(run["rounds"]) for run in runs if run["tau"] == str(tau)]
            energies[tau] = cost.joules(tau, sum(rounds) / 2)
        assert cell["best"]["joules"] == pytest.approx(min(energies.values()))
        assert energies[cell["best"]["tau"]] == pytest.approx(min(energies.values()))
        assert cell["runner_up"]["joules"] == pytest.approx(max(energies.values()))
        assert (int(row["tau"]), float(row["joules"])) == (
            cell["best"]["tau"], pytest.approx(cell["best"]["joules"], rel=1e-5),
        )  # fmt: skip


@pytest.mark.long
def test_rounds_match_the_underlying_runs(tmp_path):
    call(["energy", *SMALL, "--out", "a"])
    steps = ["--steps", "8", "--seed", "1", "--until", "worst_accuracy=0.5"]
    job = [word for word in JOB if word not in ("--target-worst", "0.5", "--seeds", "2")]
    call(["run", "--algorithm", "DRDM", *job, *steps, "--out", "b"])
    rounds = json.loads((tmp_path / "b/summary.json").read_text())["rounds"]
    found = read(tmp_path / "a/measurements.csv")
    assert [row["rounds"] for row in found if (row["tau"], row["seed"]) == ("8", "1")] == [str(rounds)]


@pytest.mark.long
def test_same_command_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        assert call(["energy", *SMALL, "--out", name]) == 0
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.long
def test_stored_measurements_and_runs_give_the_same_plan(tmp_path, capsys):
    call(["energy", *SMALL, "--out", "a"])
    grid = ["--snr", "-5", "20", "--bandwidth", "1e5", "1e7"]
    again = ["--measurements", "a/measurements.csv", "--clients", "6", "--engine", "loop", "--lr", "0.05"]
    assert call(["energy", *again, "--target-worst", "0.5", *grid, "--out", "b"]) == 0
    runs = []
    for row in read(tmp_path / "a/measurements.csv"):
        runs.append(f"run-{row['tau']}-{row['seed']}")
        job = ["--clients", "6", "--engine", "loop", "--lr", "0.05", "--rounds", row["rounds"], "--returned", "last"]
        call(["run", "--algorithm", "DRDM", *job, "--steps", row["tau"], "--seed", row["seed"], "--out", runs[-1]])
    assert call(["energy", "--runs", *runs, "--target-worst", "0.5", *grid, "--out", "c"]) == 0
    plans = [read(tmp_path / name / "plan.csv") for name in "abc"]
    assert plans[0] == plans[1] == plans[2]
    sources = [json.loads((tmp_path / name / "summary.json").read_text())["source"] for name in "abc"]
    assert sources == ["here", "file", "runs"]


@pytest.mark.long
def test_json_prints_only_one_object(capsys, tmp_path):
    assert call(["energy", *SMALL, "--json", "--out", "a"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    content = json.loads(printed.out)
    assert content.pop("directory") == "a"
    assert content == json.loads((tmp_path / "a/summary.json").read_text())


@pytest.mark.long
def test_failed_number_of_steps_is_excluded_and_reported(capsys, tmp_path):
    (tmp_path / "m.csv").write_text("tau,seed,rounds\n1,0,40\n1,1,\n10,0,5\n10,1,6\n")
    arguments = ["--measurements", "m.csv", "--clients", "6", "--engine", "loop", "--snr", "0", "--bandwidth", "1e6"]
    assert call(["energy", *arguments, "--out", "a"]) == 0
    assert re.search(r"τ = 1 [^.]*\bseed 1\b", " ".join(capsys.readouterr().out.split()))
    (row,) = read(tmp_path / "a/plan.csv")
    assert (row["tau"], row["rounds"], row["runner_up_tau"]) == ("10", "5.5", "")


@pytest.mark.long
def test_table_is_empty_if_nothing_reaches_the_target(capsys, tmp_path):
    (tmp_path / "m.csv").write_text("tau,seed,rounds\n1,0,\n")
    command = ["energy", "--measurements", "m.csv", "--clients", "6", "--engine", "loop", "--out", "a"]
    assert "target-not-reached" in notice_codes(command)
    assert "–" in capsys.readouterr().out
    assert {row["tau"] for row in read(tmp_path / "a/plan.csv")} == {""}


@pytest.mark.long
def test_diverged_run_never_reaches_the_target(monkeypatch, capsys, tmp_path):
    def broken(job, callbacks):
        raise DivergedError("DRDM diverged in round 2: lower lr")

    monkeypatch.setattr(energy, "execute", broken)
    assert call(["energy", *SMALL, "--seeds", "1", "--out", "a"]) == 0
    assert re.search(r"τ = 2, seed 0: DRDM diverged .*\b2\b", capsys.readouterr().err)
    assert [row["rounds"] for row in read(tmp_path / "a/measurements.csv")] == ["", ""]


@pytest.mark.long
def test_target_in_the_last_round_counts(tmp_path):
    call(["energy", *SMALL, "--steps", "8", "--seeds", "1", "--out", "a"])
    rounds = read(tmp_path / "a/measurements.csv")[1]["rounds"]  # --steps are 2, 8 and 8
    call(["energy", *JOB, "--steps", "8", "--seeds", "1", "--rounds", rounds, "--out", "b"])
    assert read(tmp_path / "b/measurements.csv")[0]["rounds"] == rounds


@pytest.mark.long
def test_device_and_downlink_affect_the_plan(capsys, tmp_path):
    (tmp_path / "m.csv").write_text("tau,seed,rounds\n5,0,10\n")
    base = ["energy", "--measurements", "m.csv", "--clients", "6", "--engine", "loop", "--snr", "0"]
    base += ["--bandwidth", "1e6", "--cycles-per-sample", "1e6", "--json"]

    def joules(*options):
        assert call([*base, *options]) == 0
        return json.loads(capsys.readouterr().out)["plan"][0]["best"]["joules"]

    plain, fast = joules(), joules("--frequency", "2e9")
    idle, silent = joules("--capacitance", "0"), joules("--power", "0")
    assert plain == pytest.approx(idle + silent)
    assert fast == pytest.approx(idle + 4 * silent)
    assert joules("--downlink", "1.0") > plain
    measured = json.loads((tmp_path / "runs/energy-drdm-digits/summary.json").read_text())["payloads"][0]
    assert joules("--joules-per-step", "2") == pytest.approx(idle + 10 * 5 * 2 * measured["participants"])


@pytest.mark.long
def test_fading_measures_every_outage(capsys, tmp_path):
    arguments = [*JOB, "--seeds", "1", "--steps", "8", "--snr", "0", "20", "--bandwidth", "1e6"]
    assert call(["energy", *arguments, "--fading", "--rate-min", "1e6", "--out", "a"]) == 0
    runs = read(tmp_path / "a/measurements.csv")
    assert [row["outage"] for row in runs] == ["0.632121", "0.009950"]
    payloads = json.loads((tmp_path / "a/summary.json").read_text())["payloads"]
    assert payloads[0]["up"] < 0.75 * payloads[1]["up"]
    assert int(runs[0]["rounds"] or 99) > int(runs[1]["rounds"])
    assert "63.2 %" in capsys.readouterr().err


@pytest.mark.long
def test_file_sets_the_job_and_options_override_it(tmp_path):
    (tmp_path / "job.toml").write_text(
        "clients = 6\nengine = 'loop'\nrounds = 4\nuntil = 'avg_accuracy=0.1'\nsteps = 99\n"
        "[algorithms.FedAvg]\nsteps = 99\nlr = 0.05\n"
    )
    arguments = ["job.toml", "--algorithm", "fedavg", "--target-worst", "0.9", "--steps", "1", "--seeds", "3,5"]
    assert call(["energy", *arguments, "--json", "--out", "a"]) == 0
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["config"]["algorithms"] == {"FedAvg": {"lr": 0.05}}
    assert (summary["config"]["rounds"], summary["algorithm"]) == (4, "FedAvg")
    assert [row["seed"] for row in read(tmp_path / "a/measurements.csv")] == ["3", "5"]
    assert energy.ROUNDS == 300


MISTAKES = [
    (["--bandwidth", "-1e6"], ("out-of-range", "bandwidth", "-1000000.0")),
    (["--bandwidth", "0"], ("out-of-range", "bandwidth")),
    (["--snr", "nan"], ("out-of-range", "snr", "dB")),
    (["--snr", "much"], ("usage", None, "--snr")),
    (["--snr"], ("usage", None, "--snr")),
    (["--target-worst", "0"], ("out-of-range", "target_worst", "--target-worst", "1", "0.0")),
    (["--target-worst", "80"], ("out-of-range", "target_worst", "--target-worst")),
    (["--steps", "0"], ("invalid-value", "steps")),
    (["--steps", "1.5"], ("usage", None, "--steps")),
    (["--seeds", "x"], ("invalid-format", "seeds", "'x'")),
    (["--power", "-1"], ("out-of-range", "power")),
    (["--downlink", "-1"], ("out-of-range", "downlink")),
    (["--frequency", "0"], ("out-of-range", "frequency")),
    (["--capacitance", "-1"], ("out-of-range", "capacitance")),
    (["--cycles-per-sample", "-1"], ("out-of-range", "cycles_per_sample")),
    (["--joules-per-step", "-1"], ("out-of-range", "joules_per_step")),
    (["--joules-per-step", "1", "--capacitance", "0"], ("conflicting-options", "--capacitance", "--joules-per-step")),
    (["--fading"], ("needs-option", "fading", "--fading", "--rate-min")),
    (["--rate-min", "1e5"], ("unused-option", "rate_min", "--rate-min", "--fading")),
    (["--fading", "--rate-min", "0"], ("out-of-range", "rate_min")),
    (["--measurements", "none.csv"], ("file-not-found", "none.csv")),
    (["--measurements", "a.csv", "--runs", "a"], ("conflicting-options", "--measurements", "--runs")),
    (["--measurements", "a.csv", "--steps", "1"], ("conflicting-options", "--steps", "--measurements")),
    (["--measurements", "a.csv", "--rounds", "0"], ("conflicting-options", "--rounds", "--measurements")),
    (["--runs", "a", "--dataset", "mnist"], ("conflicting-options", "--dataset", "--runs")),
    (["--runs", "a"], ("file-not-found", "a/config.toml")),
    (["job.toml", "--runs", "a"], ("conflicting-options", None, "--runs")),
    (["--algorithm", "DRDN"], ("unknown-name", "algorithm", "'DRDM'")),
    (["--param", "steps=3"], ("unused-option", "steps", "--steps", "--param steps=3")),
    (["--param", "gama=3"], ("unknown-name", "DRDM.gama", "'gamma'")),
    (["--cohort", "31"], ("out-of-range", "m", "m=31")),
    (["--out", "/proc/drfl/a"], ("cannot-write", "/proc")),
    (["none.toml"], ("file-not-found", "none.toml")),
]


@pytest.mark.parametrize(("arguments", "error"), MISTAKES, ids=[" ".join(arguments) for arguments, _ in MISTAKES])
def test_mistake_is_one_line_with_exit_code_2_and_no_file(arguments, error, tmp_path, capsys):
    check_refusal(["energy", *arguments], *error)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_matplotlib_is_refused_before_measuring(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_refusal(["energy", *SMALL], "package-missing", "matplotlib")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_overwrite_replaces_a_plan(tmp_path, capsys):
    (tmp_path / "m.csv").write_text("tau,seed,rounds\n5,0,10\n")
    arguments = ["energy", "--measurements", "m.csv", "--clients", "6", "--engine", "loop", "--out", "a"]
    assert call(arguments) == 0
    check_refusal(arguments, "already-exists", "a")
    assert call([*arguments, "--overwrite"]) == 0


@pytest.mark.long
def test_ctrl_c_leaves_no_files(tmp_path):
    arguments = ["energy", "--clients", "6", "--rounds", "100000", "--target-worst", "1", "--out", "deep/a"]
    command = [sys.executable, "-m", "drfl", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "drfl: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_option(capsys):
    assert call(["energy", "--help-all"]) == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    for option in ("--target-worst", "--snr", "--bandwidth", "--rate-min", "--measurements", "--runs", "--capacitance"):
        assert option in text
