"""Test `drfl tune` with the user's own algorithm, search space and score."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.support.refusals import check_refusal
from tests.support.small_search import Here

from drfl.cli import tune
from drfl.cli.app import call
from drfl.experiments.config.config import load_config
from drfl.experiments.tuning.criterion import Criterion
from drfl.task.metrics import METRICS

MINE = """
from dataclasses import dataclass

import torch
from drfl.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Halfway(FedAvg):
    share: float = 1.0

    @staticmethod
    def space(trial):
        return {"share": trial.suggest_float("share", 0.1, 0.5)}


@dataclass(frozen=True)
class Plain(FedAvg):
    share: float = 1.0


def wide(trial):
    return {"share": trial.suggest_float("share", 0.6, 0.9), "batch": trial.suggest_categorical("batch", [4, 8])}


def wrong(trial):
    return {"shares": trial.suggest_float("share", 0.6, 0.9)}


def surprise(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)
"""
JOB = "dataset = 'digits'\nclients = 4\ncohort = 3\nengine = 'loop'\nsteps = 2\nbatch = 8\nrounds = 2\n"
SMALL = ["--trials", "2", "--seeds", "1", "--jobs", "1", "--out", "a", "--confirm-seeds", "0"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "make_pool", Here())
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "mine.py").write_text(MINE)


def tried(*arguments):
    """Return the exit code and the rows of the trials."""
    code = call(["tune", "job.toml", *SMALL, *arguments])
    with open("a/trials.csv", newline="") as file:
        return code, list(csv.DictReader(file))


@pytest.mark.long
def test_space_of_the_class_and_named_space(capsys):
    both = "mine.py:Halfway,mine.py:Plain"
    code, rows = tried("--algorithms", both, "--space", "Plain=mine.py:wide", "--criterion", "average", "--json")
    assert code == 0
    values = {(row["algorithm"].rpartition(":")[2], row["trial"]): row for row in rows}
    assert 0.1 <= float(values["Halfway", "1"]["share"]) <= 0.5
    assert 0.6 <= float(values["Plain", "1"]["share"]) <= 0.9
    assert values["Plain", "1"]["batch"] in ("4", "8")
    content = json.loads(capsys.readouterr().out)
    assert content["provenance"]["metric"] == "avg_accuracy"
    assert content["provenance"]["command"].endswith("--confirm-seeds 0 --space Plain=mine.py:wide")
    chosen = load_config(Path("job.toml"), {"algorithms": content["algorithms"]})
    for name, table in content["algorithms"].items():
        assert table.items() <= chosen.parameters(name).items()


@pytest.mark.long
def test_score_can_be_minimised(capsys):
    code, rows = tried("--algorithms", "FedAvg", "--set", "score=log-loss", "--json")
    assert code == 0
    content = json.loads(capsys.readouterr().out)
    assert content["scores"]["FedAvg"]["score"] == min(float(row["score"]) for row in rows)
    assert content["provenance"]["criterion"] == Criterion("worst", METRICS["log_loss"]).sentence()


@pytest.mark.long
def test_changed_space_or_file_is_another_search(tmp_path, capsys):
    own = ["--algorithms", "mine.py:Plain"]
    assert tried(*own)[0] == 0
    capsys.readouterr()
    check_refusal(["tune", "job.toml", *SMALL, *own, "--space", "mine.py:wide"], "other-run", None, "mine.py:Plain")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--algorithms", "mine.py:Plain", "--space", "wide"],
            ("invalid-format", "space", "ALGORITHM=FILE.py:FUNCTION"),
        ),
        (["--algorithms", "mine.py:Plain", "--space", "mine.py:wid"], ("unknown-name", "space", "'wide'")),
        (
            ["--algorithms", "mine.py:Plain,FedAvg", "--space", "mine.py:wide"],
            ("invalid-format", "space", "Plain=mine.py:wide"),
        ),
        (["--algorithms", "FedAvg", "--space", "AFL=mine.py:wide"], ("unused-option", "space", "AFL")),
        (["--algorithms", "mine.py:Plain", "--space", "mine.py:wrong"], ("unknown-name", "Plain.shares")),
        (
            ["--algorithms", "mine.py:Plain", "--space", "mine.py:surprise"],
            ("user-code-failed", "space", "Plain", "TypeError"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_and_leave_no_files(arguments, error, tmp_path, capsys):
    check_refusal(["tune", "job.toml", *SMALL, *arguments], *error)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.long
@pytest.mark.parametrize("name", ["Plain", "mine.py:Plain"])
def test_table_and_space_are_named_with_or_without_the_file(name, tmp_path):
    (tmp_path / "job.toml").write_text(f'{JOB}[algorithms."{name}"]\nmomentum = 0.5\n')
    code, rows = tried("--algorithms", "mine.py:Plain", "--space", f"{name}=mine.py:wide")
    assert (code, {row["algorithm"] for row in rows}) == (0, {"mine.py:Plain"})
    assert all(0.6 <= float(row["share"]) <= 0.9 for row in rows[1:])
