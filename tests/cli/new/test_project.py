"""Test the folder that `drfl new` writes."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import pytest
from tests.support.refusals import check_refusal, refused

from drfl.cli.app import call
from drfl.cli.new import project


@pytest.fixture
def study(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["new", "mystudy"]) == 0
    assert "mystudy" in capsys.readouterr().out
    monkeypatch.chdir("mystudy")
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = dict(sys.modules)
    yield Path.cwd()
    for name in ("algorithm", "model"):  # a name that no other test uses
        if name not in modules:
            sys.modules.pop(name, None)


@pytest.mark.usefixtures("study")
def test_folder_is_complete_and_reproducible():
    names = {"README.md", ".gitignore", "algorithm.py", "model.py", "study.toml", "test_study.py", "visits.csv"}
    assert {path.name for path in Path().iterdir()} == names
    assert project.files("mystudy") == {name: Path(name).read_text() for name in names}
    assert Path("README.md").read_text().startswith("# mystudy\n")
    assert not [text for text in project.files("mystudy").values() if "@NAME@" in text]


FEW = ["study.toml", "--rounds", "12", "--engine", "loop", "--json"]


@pytest.mark.usefixtures("study")
def test_toml_file_runs_without_data_warnings(capsys):
    assert call(["run", *FEW, "--out", "r"]) == 0
    summary = json.loads(Path("r/summary.json").read_text())
    assert (summary["clients"], summary["rounds"]) == (4, 12)
    assert (summary["algorithm"], summary["model"]) == ("FedAvgM", "model.py:net")
    assert "test rows" not in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.usefixtures("study")
def test_toml_file_works_with_compare(capsys):
    assert call(["compare", *FEW, "--seeds", "1", "--out", "c"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["algorithms"]) == {"FedAvgM", "FedAvg", "DualDRDM"}
    assert found["warnings"] == []
    assert Path("c/report.html").is_file()


@pytest.mark.usefixtures("study")
def test_its_tests_pass_and_reject_mistakes(monkeypatch):
    monkeypatch.syspath_prepend(os.getcwd())
    # Python compares bytecode with its source only by second and size, which may be equal for both versions.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = runpy.run_path("test_study.py")
    tests = {name: test for name, test in found.items() if name.startswith("test_")}
    assert len(tests) == 2
    for test in tests.values():
        test()
    text = Path("algorithm.py").read_text()
    wrong = text.replace("return MomentumState(model.w, w - model.w)", "return MomentumState(model.w, model.w - w)")
    assert wrong != text
    Path("algorithm.py").write_text(wrong)
    del sys.modules["algorithm"]
    again = runpy.run_path("test_study.py")
    with pytest.raises(AssertionError, match="converges"):
        again["test_algorithm_passes_the_conformance_suite"]()


def test_non_empty_folder_is_unchanged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/notes").write_text("x")
    check_refusal(["new", "mine"], "folder-not-empty", "mine")
    check_refusal(["new", "mine/notes"], "not-a-folder", "mine/notes")
    assert capsys.readouterr().err.count("\n") == 2
    assert [path.name for path in Path("mine").iterdir()] == ["notes"]
    Path("empty").mkdir()
    assert call(["new", "empty"]) == 0
    assert Path("empty/study.toml").is_file()


def test_folder_is_written_completely_or_not_at_all(tmp_path, monkeypatch):
    def torn(name):
        return {"README.md": "x", "none/study.toml": "x"}

    monkeypatch.setattr(project, "files", torn)
    with refused("cannot-write", str(tmp_path / "new/mystudy")):
        project.write(tmp_path / "new/mystudy")
    assert not list(tmp_path.iterdir())
