"""Test measurements from files and run directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refused

from drfl.core.errors import InputError
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config
from drfl.experiments.run.run_directory import claim_folder
from drfl.experiments.run.runner import execute, write_results
from drfl_papers.energy import Measurement, from_runs, read_csv
from drfl_papers.energy.measurements import to_csv

ROWS = st.lists(
    st.builds(
        Measurement,
        st.integers(1, 1000),
        st.integers(0, 2**63),
        st.none() | st.integers(0, 10**6),
        st.sampled_from([0.0, 0.5, 0.071234]),
    ),
    min_size=1,
)


@given(ROWS)
def test_written_measurements_are_read_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_text(to_csv(rows), encoding="utf-8")
    assert read_csv(path) == rows


def test_outage_column_is_optional():
    assert to_csv([Measurement(5, 0, 12), Measurement(5, 1, None)]) == "tau,seed,rounds\n5,0,12\n5,1,\n"


def test_columns_can_be_in_any_order_with_others(tmp_path):
    (tmp_path / "a.csv").write_bytes("\ufeffrounds,who,tau,seed\r\n 7 ,me,5,0\r\n".encode())
    assert read_csv(tmp_path / "a.csv") == [Measurement(5, 0, 7)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ("missing-column", "tau")),
        ("tau,seed\n1,0\n", ("missing-column", "rounds")),
        ("tau,seed,rounds\n", ("no-rows",)),
        ("tau,seed,rounds\n0,0,5\n", ("out-of-range", "tau", "2", "1", "'0'")),
        ("tau,seed,rounds\n1,0,5\n1,1,-5\n", ("out-of-range", "rounds", "3", "0", "'-5'")),
        ("tau,seed,rounds\n1,x,5\n", ("out-of-range", "seed", "2")),
        ("tau,seed,rounds\n1,,5\n", ("out-of-range", "seed", "2")),
        ("tau,seed,rounds\n1\n", ("out-of-range", "seed", "2")),
        ("tau,seed,rounds\n1.5,0,5\n", ("out-of-range", "tau", "2")),
        ("tau,seed,rounds\n²,0,5\n", ("out-of-range", "tau", "2")),
        ("tau,seed,rounds,outage\n1,0,5,2\n", ("out-of-range", "outage", "line 2", "0", "1", "'2'")),
        ("tau,seed,rounds,outage\n1,0,5,nan\n", ("out-of-range", "outage", "2")),
        ("tau,seed,rounds,outage\n1,0,5,some\n", ("out-of-range", "outage", "2")),
    ],
)
def test_damaged_files_are_refused(text, error, tmp_path):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with refused(*error) as caught:
        read_csv(tmp_path / "a.csv")
    assert str(tmp_path / "a.csv") in str(caught.value)


@given(st.binary(max_size=60))
def test_random_bytes_give_only_input_errors(tmp_path_factory, noise):
    path = tmp_path_factory.mktemp("noise") / "a.csv"
    path.write_bytes(b"tau,seed,rounds\n" + noise)
    try:
        found = read_csv(path)
    except InputError:
        return  # any other exception fails the test
    assert all(run.tau >= 1 and (run.rounds is None or run.rounds >= 0) for run in found)


def test_missing_file_is_refused(tmp_path):
    with refused("file-not-found"):
        read_csv(tmp_path / "none.csv")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a run directory of a small job."""
    folder = tmp_path_factory.mktemp("runs")

    def make(name, **options):
        job = {"algorithm": "FedAvg", "clients": 4, "engine": "loop", "rounds": 8, "lr": 0.5, **options}
        path = folder / name
        if not path.exists():
            with claim_folder(path) as claim:
                write_results(execute(build(Config.model_validate(job))), claim)
        return path

    return make


def test_run_of_a_users_algorithm(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import dataclasses\nimport drfl\n@dataclasses.dataclass(frozen=True)\nclass Mine(drfl.FedAvg):\n    pass\n"
    )
    path = made("mine", algorithm="mine.py:Mine", steps=3, rounds=1)
    assert from_runs([path], 1.0)[0] == [Measurement(3, 0, None)]


@pytest.mark.long
def test_first_round_at_the_target_counts(made):
    paths = [made("two", steps=2, until="test:avg_accuracy=0.99"), made("six", steps=6, seed=4)]
    found, notes = from_runs(paths, 0.05)
    expected = []
    for path, tau, seed in zip(paths, (2, 6), (0, 4), strict=True):
        rows = [line.split(",") for line in (path / "history.csv").read_text().splitlines()]
        at = rows[0].index("worst_accuracy")
        reached = [int(row[0]) for row in rows[1:] if float(row[at]) >= 0.05]
        expected.append(Measurement(tau, seed, reached[0] if reached else None))
    assert found == expected
    assert any(run.rounds for run in found)
    assert notes == []


def test_run_that_never_reached_the_target(made):
    assert from_runs([made("six", steps=6, seed=4)], 1.0)[0] == [Measurement(6, 4, None)]


def test_runs_with_validation_rows_are_another_job(made):
    with refused("runs-differ", "until"):
        from_runs([made("six", steps=6, seed=4), made("held", steps=2, until="avg_accuracy=0.99")], 0.05)


def test_run_that_ended_too_early_is_refused(made):
    path = made("early", steps=6, until="test:avg_accuracy=0.1")
    with refused("unfinished-run", str(path), "0.99"):
        from_runs([path], 0.99)
    summary = json.loads((path / "summary.json").read_text())
    for stopped in ("patience", "callback"):
        (path / "summary.json").write_text(json.dumps({**summary, "stopped": stopped}))
        with refused("unfinished-run", str(path), stopped):
            from_runs([path], 0.99)
    (path / "summary.json").write_text(json.dumps({**summary, "stopped": "interrupted"}))
    with refused("unfinished-run", str(path), "Ctrl-C"):
        from_runs([path], 0.99)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"clients": 5}, ("runs-differ", "clients", "(4 and 5)")),
        pytest.param({"algorithm": "DRFA"}, ("runs-differ", "algorithm", "(FedAvg and DRFA)"), marks=pytest.mark.long),
        pytest.param(
            {"algorithms": {"FedAvg": {"lr": 0.1}}}, ("runs-differ", "lr", "(0.5 and 0.1)"), marks=pytest.mark.long
        ),
    ],
)
def test_runs_of_different_jobs_are_refused(options, error, made):
    other = made(f"other-{next(iter(options))}", rounds=1, **options)
    with refused(*error):
        from_runs([made("six", steps=6, seed=4), other], 0.05)


def test_rare_evaluations_are_reported(made):
    found, notes = from_runs([made("rare", steps=6, evaluate_every=4)], 0.0)
    assert found == [Measurement(6, 0, 0)]
    assert notes == ["the runs were evaluated every 4 rounds, so their rounds are rounded up"]


def test_folder_without_a_run_is_refused(tmp_path):
    with refused("file-not-found"):
        from_runs([tmp_path], 0.5)
