"""Test `drfl bench`: algorithms on the embedded suite, ranked by paired differences from FedAvg."""

from __future__ import annotations

import csv
import json
import math
import signal
from pathlib import Path

import pandas as pd
import pytest
from tests.support.marks import long_beyond
from tests.support.refusals import refused

import drfl
import drfl.cli.new.project
from drfl.assessment.seeds import UNTRAINED
from drfl.cli import console
from drfl.cli.app import call
from drfl.core.errors import StoppedError
from drfl_papers.bench.ranking import ALL, rank, ranking, run_suite
from drfl_papers.bench.suite import SUITE, task
from drfl_papers.commands.bench import bench_command
from drfl_papers.commands.options import BenchOptions

JOBS = {job.name: job for job in SUITE}


def options(out, **changes):
    small = {"names": "DRFA,SCAFFOLD", "suite_jobs": "digits-small-client,hospitals", "seeds": 2, "rounds": 2}
    return BenchOptions(**{**small, "jobs": 1, "out": out, "as_json": True, **changes})


def test_clients_of_each_job_differ_as_stated():
    clean = JOBS["digits-small-client"].clients(3)
    assert len(clean.train[0]) == 15
    noisy, turned = JOBS["digits-label-noise"].clients(3), JOBS["digits-upside-down"].clients(3)
    rows = noisy.train[0]
    assert 0.3 < float((noisy.targets[rows] != turned.targets[rows]).double().mean()) < 0.4, "a tenth stays by chance"
    assert noisy.targets[noisy.train[1]].equal(turned.targets[turned.train[1]])
    assert noisy.test_targets.equal(turned.test_targets)
    assert turned.inputs[rows].equal(noisy.inputs[rows].flip(-1, -2))
    rates = JOBS["digits-base-rates"].clients(3)
    shares = [float((rates.targets[rows] < 5).double().mean()) for rows in rates.train]
    assert all(abs(share - (0.9 if i % 2 == 0 else 0.1)) < 0.06 for i, share in enumerate(shares))
    for job in SUITE:
        data = job.clients(3)
        assert min(map(len, data.train)) > 0
        assert min(map(len, data.test)) > 0
        assert task(data, 1).w0.equal(task(data, 1).w0)
        assert [rows.tolist() for rows in job.clients(4).test] != [rows.tolist() for rows in data.test]


@pytest.mark.long
def test_files_are_written_and_the_same_command_resumes(tmp_path, capsys, monkeypatch):
    assert bench_command(options(tmp_path)) == 0
    content = json.loads(capsys.readouterr().out)
    assert sorted(content["ranking"]) == ["DRFA", "SCAFFOLD"]
    with (tmp_path / "bench.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(content["differences"]) == 2 * 2 * 3
    assert {row["job"] for row in rows} == {"digits-small-client", "hospitals", ALL}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("history.csv")}
    assert len(before) == 2 * 3 * 2
    assert bench_command(options(tmp_path)) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == content["differences"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("history.csv")} == before
    with refused("other-run", "evaluate_every", "2", "3"):
        bench_command(options(tmp_path, rounds=3))


SHORT = ["bench", "--suite", "hospitals,digits-base-rates", "--algorithms", "SCAFFOLD", "--rounds", "1", "--seeds", "1"]


@pytest.mark.parametrize(("number", "code"), long_beyond(1, [(signal.SIGINT, 130), (signal.SIGTERM, 143)]))
def test_signal_stops_the_command_which_can_continue(number, code, tmp_path, monkeypatch):
    def interrupt(line):
        if line.startswith("[1/2]"):
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(console, "lines", lambda quiet: interrupt)
        assert call([*SHORT, "--jobs", "1", "--out", str(tmp_path)]) == code
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hospitals", "manifest.json"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("history.csv")}
    assert len(before) == 1
    assert call([*SHORT, "--jobs", "1", "--out", str(tmp_path)]) == 0
    assert before.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("history.csv")}.items()
    assert (tmp_path / "bench.csv").is_file()


@pytest.mark.filterwarnings("ignore::drfl.RunWarning")
def test_interrupted_job_ends_the_suite(tmp_path):
    def interrupt(line):
        if line.startswith("[1/2]"):
            signal.raise_signal(signal.SIGINT)

    jobs, algorithms = (
        [JOBS["hospitals"], JOBS["digits-base-rates"]],
        {"FedAvg": drfl.FedAvg(), "SCAFFOLD": drfl.SCAFFOLD()},
    )
    with pytest.raises(StoppedError):
        run_suite(jobs, lambda n: algorithms, tmp_path, rounds=1, seeds=1, workers=1, progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["hospitals"]


def runs(**values):
    """Return runs on two jobs at five seeds, given the worst accuracies of each algorithm on both jobs."""
    return pd.DataFrame(
        [
            {"job": job, "algorithm": name, "seed": seed, "stopped": "rounds" if accuracy else "diverged"}
            | {"worst_accuracy": accuracy or math.nan, "worst_loss": 1 - accuracy if accuracy else math.nan}
            | {"rounds": 50, "effective_rounds": 50}
            for name, pair in values.items()
            for job, of_job in zip("ab", pair, strict=True)
            for seed, accuracy in enumerate(of_job)
        ]
    )


FEDAVG = [(0.5, 0.52, 0.51, 0.5, 0.49), (0.6, 0.61, 0.6, 0.62, 0.6)]


def test_clear_gain_and_no_gain():
    better = [[x + 0.1 + 0.001 * k for k, x in enumerate(job)] for job in FEDAVG]
    noise = [[x + (-1) ** k * 0.05 for k, x in enumerate(job)] for job in FEDAVG]
    found = rank(runs(FedAvg=FEDAVG, Noise=noise, Better=better))
    names = [name for name, _, _ in ranking(found)]
    assert names == ["Better", "Noise"]
    whole = {(d.algorithm, d.metric): d for d in found if d.job == ALL}
    assert whole["Better", "worst_accuracy"].test.mean == pytest.approx(0.102)
    assert whole["Better", "worst_accuracy"].verdict == whole["Better", "worst_loss"].verdict == "better"
    assert whole["Better", "worst_loss"].test.mean == pytest.approx(-0.102)
    assert whole["Noise", "worst_accuracy"].verdict == "not significant"
    alone = rank(runs(FedAvg=FEDAVG, Better=better))
    assert alone[0].p < found[0].p or alone[0].p < next(d.p for d in found if d.algorithm == "Better")


def test_single_job_is_corrected_and_ranked():
    better = [[x + 0.1 + 0.001 * k for k, x in enumerate(job)] for job in FEDAVG]
    both = runs(FedAvg=FEDAVG, Better=better)
    found = rank(both[both.job == "a"])
    assert [(d.job, d.metric) for d in found] == [("a", "worst_accuracy"), ("a", "worst_loss")]
    assert [d.p for d in found] == pytest.approx([2 * found[0].test.p_t] * 2)  # Holm over the two metrics, which tie
    assert [name for name, _, _ in ranking(found)] == ["Better"]


def test_failed_run_has_no_difference_and_ranks_last():
    failed = [[0.9, 0.9, 0.0, 0.9, 0.9], [0.9] * 5]
    worse = [[x - 0.1 for x in job] for job in FEDAVG]
    found = rank(runs(FedAvg=FEDAVG, Failed=failed, Worse=worse))
    assert [name for name, _, _ in ranking(found)] == ["Worse", "Failed"]
    verdicts = {(d.job, d.algorithm): d.verdict for d in found if d.metric == "worst_accuracy"}
    assert verdicts["a", "Failed"] == verdicts[ALL, "Failed"] == "failed runs"
    assert verdicts["b", "Failed"] == "better"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"suite_jobs": "hospital"}, ("unknown-name", "job", "'hospitals'")),
        ({"names": "DRFB"}, ("unknown-name", "algorithm", "'DRFA'")),
        ({"names": "FedAvg"}, ("missing-option", "algorithms", "FedAvg")),
        ({"names": "DRFA,drfa"}, ("given-twice", "algorithms", "DRFA")),
        ({"suite_jobs": "hospitals,hospitals"}, ("given-twice", "suite", "hospitals")),
        ({"names": ""}, ("unknown-name", "algorithm")),
    ],
)
def test_mistakes_leave_no_files(changes, error, tmp_path):
    with refused(*error):
        bench_command(options(tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


def test_cohort_of_an_own_algorithm_has_a_default(tmp_path, capsys):
    written = Path(drfl.cli.new.project.__file__).parent / "templates" / "algorithm.py"
    names = f"{written}:FedAvgM"
    assert bench_command(options(tmp_path, names=names, suite_jobs="hospitals", seeds=1, rounds=1)) == 0
    assert json.loads(capsys.readouterr().out)["ranking"] == ["FedAvgM"]
    runs = drfl.load_runs(tmp_path / "hospitals")
    assert runs.set_index("algorithm")["m"]["FedAvgM"] == 4  # all four hospitals


@pytest.mark.parametrize("name", ["bench.csv", "notes.txt"])
def test_folder_with_other_files_is_refused_and_unchanged(name, tmp_path):
    (tmp_path / name).write_text("mine")
    with refused("foreign-folder", str(tmp_path)):
        bench_command(options(tmp_path))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


@pytest.mark.long
def test_algorithm_from_a_users_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import dataclasses\nimport drfl\n@dataclasses.dataclass(frozen=True)\nclass Mine(drfl.FedAvg):\n    m: int = 2"
    )
    assert bench_command(options(tmp_path / "out", names="mine.py:Mine", suite_jobs="hospitals")) == 0
    assert json.loads(capsys.readouterr().out)["ranking"] == ["Mine"]
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == ["hospitals"]


@pytest.mark.parametrize("who", ["Better", "FedAvg"])
def test_untrained_model_has_no_difference_and_ranks_last(who):
    better = [[x + 0.1 + 0.001 * k for k, x in enumerate(job)] for job in FEDAVG]
    worse = [[x - 0.1 for x in job] for job in FEDAVG]
    both = runs(FedAvg=FEDAVG, Better=better, Worse=worse)
    both.loc[(both.job == "b") & (both.algorithm == who) & (both.seed == 3), "effective_rounds"] = 0
    found = rank(both)
    verdicts = {(d.job, d.algorithm): d.verdict for d in found if d.metric == "worst_accuracy"}
    assert verdicts["b", "Better"] == verdicts[ALL, "Better"] == UNTRAINED
    assert verdicts["a", "Better"] == "better"
    if who == "Better":
        assert [name for name, _, _ in ranking(found)] == ["Worse", "Better"]
    else:
        assert verdicts["b", "Worse"] == UNTRAINED
