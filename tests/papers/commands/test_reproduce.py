"""Test `drfl reproduce`."""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest
import tomli_w
from tests.support.marks import long_beyond
from tests.support.refusals import check_refusal, quotes, refusal
from tests.support.small_spec import SMALL

from drfl.cli.app import call
from drfl.experiments.execution import run_cells
from drfl.experiments.execution.executor import LocalExecutor
from drfl.experiments.execution.run_cells import CellPool
from drfl_papers import specification

QUICK = ["--quick", "--jobs", "1"]


@pytest.fixture(autouse=True)
def papers(tmp_path, monkeypatch):
    """Use two small specifications; the second has a stand-in for missing data."""
    folder = tmp_path / "papers" / "specs"
    folder.mkdir(parents=True)
    plain = {name: value for name, value in SMALL.items() if name != "name"}
    plain["settings"] = SMALL["settings"][:1]
    untuned = [{**method, "tuned": False} for method in SMALL["methods"]]
    nowhere = {**plain, "job": "nowhere", "methods": untuned, "stand_in": {"why": "The data are nowhere."}}
    job = {**SMALL["job"], "dataset": "cifar-10", "stand_in": {"dataset": "digits"}}
    (tmp_path / "papers/jobs").mkdir()
    (tmp_path / "papers/jobs/nowhere.toml").write_text(tomli_w.dumps(job))
    (folder / "small-table-1.toml").write_text(tomli_w.dumps(plain))
    (folder / "small-table-2.toml").write_text(tomli_w.dumps(nowhere))
    monkeypatch.setattr(specification, "PAPERS", tmp_path / "papers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRFL_MIRROR", (tmp_path / "no-mirror").as_uri())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def refused(capsys, *arguments):
    """Return the error of a refusal that prints one line."""
    error = refusal(["reproduce", *arguments])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return error


@pytest.mark.parametrize(("number", "code"), long_beyond(1, [(signal.SIGINT, 130), (signal.SIGTERM, 143)]))
def test_signal_stops_the_command_which_can_continue(number, code, monkeypatch, tmp_path):
    def here(workers, run, *given, **more):
        if number is not None:
            signal.raise_signal(number)
        return CellPool(LocalExecutor(run))

    monkeypatch.setattr(run_cells, "make_pool", here)
    assert call(["reproduce", "small-table-1", *QUICK, "--out", "a"]) == code
    assert not (tmp_path / "a/small-table-1").exists()
    number = None
    assert call(["reproduce", "small-table-1", *QUICK, "--out", "a"]) == 0
    assert (tmp_path / "a/small-table-1/summary.json").is_file()


def test_no_name_lists_all_results(capsys, tmp_path):
    assert call(["reproduce"]) == 0
    assert "small-table-1" in capsys.readouterr().out
    assert call(["reproduce", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["specifications"]
    assert [(row["name"], row["done"]) for row in rows] == [("small-table-1", False), ("small-table-2", False)]
    assert not (tmp_path / "evidence").exists()


@pytest.mark.long
def test_table_shows_our_numbers_beside_the_papers(capsys, tmp_path):
    assert call(["reproduce", "small-table-1", *QUICK]) == 0
    captured = capsys.readouterr()
    assert "84.81" in captured.out
    assert captured.err.count("\n") >= 2, "a line a cell"
    folder = tmp_path / "runs/papers/quick/small-table-1"
    assert {"table.md", "cells.csv", "summary.json"} <= {path.name for path in folder.iterdir()}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["command"] == "drfl reproduce small-table-1 --quick"
    assert (summary["rounds"], summary["repeats"], summary["stand_in"]) == (1, 1, False)
    assert str(tmp_path) not in "".join(path.read_text() for path in folder.iterdir())


@pytest.mark.long
def test_stand_in_is_used_and_named_if_data_are_missing(capsys, tmp_path):
    assert call(["reproduce", "--all", *QUICK, "--out", "a"]) == 0
    assert re.search(r"small-table-2 .*\bstand-in\b.*'cifar-10'", capsys.readouterr().err)
    assert "The data are nowhere." in (tmp_path / "a/small-table-2/table.md").read_text()
    assert "The data are nowhere." not in (tmp_path / "a/small-table-1/table.md").read_text()
    # both tables use the same cells, and the second run reuses them all
    assert len(list((tmp_path / "a/.cells").iterdir())) == 2
    assert call(["reproduce", "--all", *QUICK, "--out", "a", "--json"]) == 0
    captured = capsys.readouterr()
    assert list(json.loads(captured.out)["written"]) == ["small-table-1", "small-table-2"]
    assert captured.err == ""


@pytest.mark.long
def test_original_data_can_be_required(capsys, tmp_path):
    assert "cifar-10" in str(refused(capsys, "small-table-2", *QUICK, "--data", "original"))
    assert call(["reproduce", "--all", *QUICK, "--data", "original"]) == 1
    captured = capsys.readouterr()
    assert re.search(r"small-table-2: .*'cifar-10'", captured.err)
    assert (tmp_path / "runs/papers/quick/small-table-1/table.md").is_file()


def test_mistakes_are_one_line_errors(capsys, tmp_path):
    for arguments, *told in (
        (["small-tabel-1"], "unknown-name", "'small-table-1'"),
        (["small-table-1", "--all"], "conflicting-options", "--all"),
        (["small-table-1", "--data", "mine"], "unknown-name", "auto, original, stand-in"),
        (["small-table-1", "--settings", "alpha=9"], "unknown-name", "setting 'alpha=9'"),
    ):
        error = refused(capsys, *arguments)
        assert (error.code, quotes(str(error), told[1])) == (told[0], True), error
    assert "--repeats" in str(refused(capsys, "small-table-1", "--repeats", "0"))
    (tmp_path / "file").write_text("")
    assert "file" in str(refused(capsys, "small-table-1", "--out", "file"))
    assert not (tmp_path / "evidence").exists()


@pytest.mark.long
def test_smaller_result_does_not_replace_a_larger_one_silently(capsys):
    assert call(["reproduce", "small-table-1", "--rounds", "1", "--jobs", "1", "--out", "a"]) == 0
    capsys.readouterr()
    smaller = ["--rounds", "1", "--repeats", "1", "--jobs", "1", "--out", "a"]
    check_refusal(["reproduce", "small-table-1", *smaller], "other-run", "repeats", "2", "1")


def test_missing_matplotlib_is_refused_before_any_run(capsys, monkeypatch, tmp_path):
    path = tmp_path / "papers/specs/small-figure-1.toml"
    text = (tmp_path / "papers/specs/small-table-1.toml").read_text()
    path.write_text(f'kind = "curves"\npanels = [{{ x = "round", y = "worst_accuracy" }}]\n{text}')
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "drfl[experiments]" in str(refused(capsys, "small-figure-1", *QUICK))
    assert not (tmp_path / "evidence").exists()
