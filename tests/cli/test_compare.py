"""Test `drfl compare`."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import statistics
import subprocess
import sys

import pytest
from tests.support.rollbacks import set_back_once

from drfl.algorithms import ALGORITHMS
from drfl.cli.app import call
from drfl.core.run_end import DAGGER, DOUBLE_DAGGER, ON_TEST, RESET
from drfl.report import load_run
from drfl.report.compared import rank_algorithms
from drfl.report.groups import group_runs
from drfl.report.summary_text import takeaway

THREE = ["--algorithms", "FedAvg,DRFA,DRDM"]
SMALL = ["--engine", "loop", "--clients", "6", "--cohort", "4", "--rounds", "2", "--steps", "2", "--seeds", "2"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "algorithms", [["FedAvg", "DRFA"], pytest.param([*ALGORITHMS], id="all", marks=pytest.mark.long)]
)
def test_comparison_has_a_run_per_cell_and_one_report(algorithms, tmp_path, capsys):
    once = [*SMALL, "--rounds", "1", "--seeds", "1"]
    assert call(["compare", *once, "--algorithms", ",".join(algorithms), "--out", "a"]) == 0
    cells = {f"{name}-seed0" for name in algorithms}
    files = {"config.toml", "manifest.json", "summary.json", "compare.csv", "outcomes.json", "table.md", "report.html"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == cells | files
    assert "a/report.html" in capsys.readouterr().out


@pytest.mark.long
def test_table_shows_mean_and_spread_of_the_runs(tmp_path, capsys):
    call(["compare", *SMALL, "--algorithms", "DRFA", "--out", "a"])
    assert {path.name for path in (tmp_path / "a").glob("*-seed*")} == {"DRFA-seed0", "DRFA-seed1"}
    assert re.search(r"± std .*\b2\b", capsys.readouterr().out)
    with (tmp_path / "a/compare.csv").open(newline="") as file:
        worst = [float(row["worst_accuracy"]) for row in csv.DictReader(file)]
    found = json.loads((tmp_path / "a/summary.json").read_text())["algorithms"]["DRFA"]["worst_accuracy"]
    assert found["mean"] == pytest.approx(statistics.fmean(worst), abs=1e-6)
    assert found["std"] == pytest.approx(statistics.stdev(worst), abs=1e-6)


@pytest.mark.long
def test_single_seed_has_no_spread(tmp_path, capsys):
    arguments = ["compare", *SMALL, "--seeds", "1", "--algorithms", "DRFA", "--param", "weight_decay=0.01"]
    assert call([*arguments, "--certificate", "--out", "a"]) == 0
    out = capsys.readouterr().out
    assert "±" not in out + (tmp_path / "a/table.md").read_text()
    assert json.loads((tmp_path / "a/summary.json").read_text())["algorithms"]["DRFA"]["gap"]["std"] == "nan"


@pytest.mark.long
def test_comparison_shows_duality_gaps(tmp_path, capsys):
    arguments = [*SMALL, "--algorithms", "DRFA,FedAvg", "--param", "weight_decay=0.1", "--certificate"]
    arguments += ["--evaluate-every", "2", "--dtype", "float64"]
    assert call(["compare", *arguments, "--out", "a"]) == 0
    with (tmp_path / "a/compare.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    for cell in cells:
        with (tmp_path / f"a/{cell['algorithm']}-seed{cell['seed']}/history.csv").open(newline="") as file:
            last = list(csv.DictReader(file))[-1]
        assert [cell[name] for name in ("primal", "lower", "gap")] == [last[n] for n in ("primal", "lower", "gap")]
    found = json.loads((tmp_path / "a/summary.json").read_text())["algorithms"]["DRFA"]["gap"]
    gaps = [float(cell["gap"]) for cell in cells if cell["algorithm"] == "DRFA"]
    assert found == pytest.approx({"mean": statistics.fmean(gaps), "std": statistics.stdev(gaps)}, abs=2e-9)
    table = (tmp_path / "a/table.md").read_text().splitlines()
    assert table[0].endswith("| std | gap |")
    assert f"| {found['mean']:.3g} ± {found['std']:.2g} |" in table[2]
    assert "gap" in capsys.readouterr().out


@pytest.mark.long
def test_comparison_without_certificates_does_not_mention_them(tmp_path):
    call(["compare", *SMALL, "--algorithms", "DRFA", "--out", "a"])
    for name in ("compare.csv", "table.md", "summary.json"):
        assert "gap" not in (tmp_path / "a" / name).read_text()


@pytest.mark.long
def test_algorithms_share_the_partition_of_a_seed(tmp_path):
    call(["compare", *SMALL, *THREE, "--out", "a"])
    for seed in (0, 1):
        texts = {(tmp_path / f"a/{name}-seed{seed}/partition.json").read_bytes() for name in ("FedAvg", "DRFA", "DRDM")}
        assert len(texts) == 1
        starts = {
            (tmp_path / f"a/{name}-seed{seed}/history.csv").read_text().splitlines()[1] for name in ("FedAvg", "DRDM")
        }
        assert len(starts) == 1
    other = (tmp_path / "a/DRFA-seed1/partition.json").read_bytes()
    assert other != (tmp_path / "a/DRFA-seed0/partition.json").read_bytes()


def test_cell_equals_the_run_with_the_same_options(tmp_path):
    call(["compare", *SMALL, "--algorithms", "FedAvg,DRFA", "--out", "a"])
    call(["run", *SMALL[:-2], "--algorithm", "DRFA", "--seed", "1", "--out", "b"])
    assert (tmp_path / "a/DRFA-seed1/history.csv").read_bytes() == (tmp_path / "b/history.csv").read_bytes()


def test_parameters_affect_only_the_named_algorithm(tmp_path):
    once = [*SMALL, "--seeds", "1"]
    call(["compare", *once, *THREE, "--param", "DRFA.lr=0.7", "--param", "DRDM.mu=3", "--out", "a"])
    read = {
        name: json.loads((tmp_path / f"a/{name}-seed0/summary.json").read_text())["parameters"]
        for name in ("FedAvg", "DRFA", "DRDM")
    }
    assert [read[name]["lr"] for name in ("FedAvg", "DRFA", "DRDM")] == [None, 0.7, None]
    assert read["DRDM"]["mu"] == 3


def test_diverged_cell_is_reported_and_others_continue(tmp_path, capsys):
    call(["compare", *SMALL, "--algorithms", "FedAvg,DRDM", "--param", "FedAvg.lr=1e38", "--out", "a"])
    printed = capsys.readouterr()
    assert re.search(r"FedAvg diverged .*\b1\b", printed.err)
    assert "diverged" in printed.out
    with (tmp_path / "a/compare.csv").open(newline="") as file:
        stopped = {row["algorithm"]: row["stopped"] for row in csv.DictReader(file)}
    assert stopped == {"FedAvg": "diverged", "DRDM": "rounds"}


@pytest.mark.long
def test_infinite_loss_is_reported_and_others_continue(tmp_path, capsys):
    (tmp_path / "job.toml").write_text(
        "dataset = 'digits'\nclients = 4\ncohort = 2\nsteps = 4\nloss = 'squared'\nrounds = 2\n"
        "[algorithms.FedAvg]\nlr = 300.0\n[algorithms.SCAFFOLD]\nlr = 0.01\n"
    )
    assert call(["compare", str(tmp_path / "job.toml"), "--seeds", "2", "--out", str(tmp_path / "c")]) == 0
    assert len(re.findall(r"FedAvg, seed [01]: .* inf, .* lr\b", capsys.readouterr().err)) == 2
    assert "SCAFFOLD" in (tmp_path / "c/table.md").read_text()


@pytest.mark.long
def test_refused_run_does_not_stop_the_others(tmp_path, capsys):
    refused = ["DRFA.sampling=without-replacement", "DRFA.gamma=10"]
    arguments = ["--algorithms", "DRFA,DRDM", *(word for text in refused for word in ("--param", text))]
    assert call(["compare", *SMALL, *arguments, "--rounds", "9", "--out", "a"]) == 0
    printed = capsys.readouterr()
    assert "seed 0: only" in printed.err
    assert "refused" in printed.out
    assert "| DRFA | refused |" in (tmp_path / "a/table.md").read_text()
    with (tmp_path / "a/compare.csv").open(newline="") as file:
        stopped = {row["algorithm"]: row["stopped"] for row in csv.DictReader(file)}
    assert stopped == {"DRFA": "refused", "DRDM": "rounds"}
    counts = json.loads((tmp_path / "a/summary.json").read_text())["algorithms"]["DRFA"]
    assert (counts["runs"], counts["diverged"], counts["refused"]) == (0, 0, 2)


def test_comparison_without_finished_runs_mentions_no_report(tmp_path, capsys):
    assert call(["compare", *SMALL, "--algorithms", "FedAvg", "--param", "lr=1e38", "--out", "a"]) == 1
    out = capsys.readouterr().out
    assert "diverged" in out
    assert "report.html" not in out
    assert not (tmp_path / "a/report.html").exists()
    assert (tmp_path / "a/compare.csv").exists()


def test_rounds_to_target_are_shown(tmp_path, capsys):
    two = ["--algorithms", "FedAvg,DRDM", "--rounds", "30", "--seeds", "1", "--until", "avg_accuracy=0.6"]
    call(["compare", *SMALL[:4], *two, "--out", "a"])
    assert re.search(r"avg_accuracy=0\.6, .*\b30\b", " ".join(capsys.readouterr().out.split()))
    reached = json.loads((tmp_path / "a/summary.json").read_text())["algorithms"]["DRDM"]["rounds_to_target"]
    assert len(reached) == 1
    assert 0 < reached[0] < 30


@pytest.mark.long
def test_algorithms_stopped_by_test_rows_are_marked_and_not_compared(tmp_path, capsys):
    until = ["--rounds", "30", "--seeds", "2", "--until", "test:avg_accuracy=0.6", "--out", "a"]
    assert call(["compare", *SMALL[:4], *THREE, *until]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert ON_TEST in out
    assert "95 %" not in out
    names = ["FedAvg", "DRFA", "DRDM"]
    table = (tmp_path / "a/table.md").read_text(encoding="utf-8")
    assert all(f"| {name} {DAGGER} |" in table for name in names)
    assert table.splitlines()[-1] == f"{DAGGER} {ON_TEST}"
    with (tmp_path / "a/compare.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert {(row["stopped"], row["stopped_on"]) for row in cells} == {("target", "test")}
    assert {row["worst_accuracy_low"] for row in cells} == {"nan"}
    summary = json.loads((tmp_path / "a/summary.json").read_text())["algorithms"]
    assert [summary[name]["stopped_on_test"] for name in names] == [2, 2, 2]
    page = (tmp_path / "a/report.html").read_text(encoding="utf-8")
    assert ON_TEST in page
    groups = group_runs([load_run(tmp_path / "a" / f"{name}-seed{seed}") for name in names for seed in range(2)])
    assert takeaway(groups, rank_algorithms(groups)) is None
    capsys.readouterr()
    assert call(["assess", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["paired"] == []


def interrupt_after(lines, folder, arguments):
    command = [sys.executable, "-m", "drfl", "compare", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert process.stderr is not None
    for _ in range(lines):
        process.stderr.readline()
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.long
def test_ctrl_c_keeps_finished_runs(tmp_path):
    # two lines per run, so the fifth line belongs to the third run
    arguments = [*THREE, "--rounds", "20", "--evaluate-every", "20", "--clients", "6", "--seeds", "50", "--out", "a"]
    code, out, err = interrupt_after(5, tmp_path, arguments)
    assert code == 130
    assert "a/report.html" in out
    assert "'drfl compare --resume --out a'" in err
    cells = [path.parent for path in (tmp_path / "a").glob("*-seed*/summary.json")]
    assert 2 <= len(cells) < 100
    with (tmp_path / "a/compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {f"{row['algorithm']}-seed{row['seed']}" for row in rows} == {path.name for path in cells}
    assert {row["rounds"] for row in rows} == {"20"}


@pytest.mark.long
@pytest.mark.parametrize("keep", [["--checkpoint-every", "0"], []])
def test_ctrl_c_before_the_first_finished_run(keep, tmp_path):
    code, out, err = interrupt_after(1, tmp_path, ["--rounds", "100000", "--out", "a", *keep])
    assert (code, out) == (130, "")
    assert "'drfl compare --resume --out a'" in err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_json_prints_only_one_object(capsys):
    call(["compare", *SMALL, "--seeds", "1", "--algorithms", "FedAvg", "--json", "--out", "a"])
    printed = capsys.readouterr()
    assert list(json.loads(printed.out)["algorithms"]) == ["FedAvg"]
    assert printed.err == ""


@pytest.mark.long
def test_file_selects_the_algorithms(tmp_path):
    (tmp_path / "job.toml").write_text("clients = 6\nrounds = 1\n[algorithms.DRFA]\n[algorithms.FedAvg]\nlr = 0.2\n")
    assert call(["compare", "job.toml", "--seeds", "3,5", "--out", "a"]) == 0
    cells = {path.name for path in (tmp_path / "a").iterdir() if path.is_dir()}
    assert cells == {"DRFA-seed3", "DRFA-seed5", "FedAvg-seed3", "FedAvg-seed5"}


PAIR = ["--engine", "loop", "--clients", "6", "--cohort", "4", "--steps", "2", "--algorithms", "FedAvg,SCAFFOLD"]


@pytest.mark.long
def test_rolled_back_runs_are_marked_everywhere(tmp_path, capsys, monkeypatch):
    """SCAFFOLD's second seed is rolled back in round 4 of 5; FedAvg has a step size set by the user."""
    set_back_once(monkeypatch, 1)
    assert call(["compare", *PAIR, "--param", "FedAvg.lr=0.1", "--rounds", "5", "--seeds", "2", "--out", "a"]) == 0
    said, err = capsys.readouterr()
    (line,) = re.findall(rf"{DOUBLE_DAGGER} {RESET}: [^)]*\)", " ".join(said.split()))
    assert all(part in line for part in ("SCAFFOLD", "1", "2 of 5"))
    assert f"SCAFFOLD {DOUBLE_DAGGER}" in said
    assert len(re.findall(r"SCAFFOLD .*2 of 5", err)) == 1
    table = (tmp_path / "a/table.md").read_text(encoding="utf-8")
    assert f"| SCAFFOLD {DOUBLE_DAGGER} |" in table
    assert "| FedAvg |" in table
    assert table.splitlines()[-1] == line
    with (tmp_path / "a/compare.csv").open(newline="") as file:
        cells = {(row["algorithm"], row["seed"]): row for row in csv.DictReader(file)}
    assert list(cells["SCAFFOLD", "1"])[2:5] == ["rounds", "rollbacks", "effective_rounds"]
    counts = {cell: (row["rollbacks"], row["effective_rounds"]) for cell, row in cells.items()}
    assert counts.pop(("SCAFFOLD", "1")) == ("1", "2")
    assert set(counts.values()) == {("0", "5")}
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert sum("2 of 5" in text for text in summary["warnings"]) == 1
    own = summary["algorithms"]["SCAFFOLD"]
    assert (own["runs"], own["rollbacks"], own["effective_rounds"]) == (2, [0, 1], [5, 2])
    run = json.loads((tmp_path / "a/SCAFFOLD-seed1/summary.json").read_text())
    assert (run["rounds"], run["rollbacks"], run["effective_rounds"]) == (5, 1, 2)
    page = (tmp_path / "a/report.html").read_text(encoding="utf-8")
    assert line in page
    assert "2 of 5" in page
    assert call(["report", "a", "--out", "again.html"]) == 0
    assert line in (tmp_path / "again.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_early_rollback_gives_no_warning(tmp_path, capsys, monkeypatch):
    set_back_once(monkeypatch, 1)
    call(["compare", *PAIR, "--param", "FedAvg.lr=0.1", "--rounds", "6", "--seeds", "2", "--out", "a"])
    said, err = capsys.readouterr()
    assert re.search(r"SCAFFOLD [^)]*3 of 6", " ".join(said.split()))
    assert "3 of 6" not in err
    assert re.search(rf"SCAFFOLD [^.]*{RESET}[^.]*3 of 6", (tmp_path / "a/report.html").read_text("utf-8"))
