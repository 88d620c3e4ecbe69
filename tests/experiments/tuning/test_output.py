"""Test the file of chosen hyperparameters."""

from __future__ import annotations

import csv
import tomllib

import pytest
from tests.support.refusals import refused
from tests.support.small_search import small_search

from drfl.experiments.config.config import load_config
from drfl.experiments.tuning.job import VALIDATION_SETTINGS
from drfl.experiments.tuning.output import check_place, make_place, write
from drfl.experiments.tuning.suggestion import Trial
from drfl_papers.plan import hyperparameters

ENDED = ("rounds", "rounds")
TRIALS = {
    "FedAvg": [
        Trial(0, {"lr": 0.1}, {"lr": 0.1}, (0.5, 0.6), ENDED),
        Trial(1, {"lr": 0.3}, {"lr": 0.3}, (0.7, 0.6), ENDED),
        Trial(2, {"lr": 0.2}, {"lr": 0.2}, (0.6, 0.7), ENDED),
        Trial(3, {"lr": 0.9}, {"lr": 0.9}, (0.9, 0.0), ("rounds", "diverged")),
    ],
    "DRFA": [
        Trial(0, {"lr": 0.1}, {"lr": 0.1}, (0.8, 0.8), ENDED),
        Trial(1, {"lr": 0.3, "gamma": 0.01}, {"lr": 0.3, "gamma": 0.01}, (0.1, 0.0), ("rounds", "refused")),
    ],
}


@pytest.fixture
def written(tmp_path):
    search = small_search(trials=4)
    make_place(tmp_path, "small")
    path = write(search, TRIALS, tmp_path, "drfl tune small")
    assert path == tmp_path / "small.toml"
    return search, tomllib.loads(path.read_text()), tmp_path


def test_file_records_the_choice_and_its_provenance(written):
    search, content, _ = written
    assert content["algorithms"] == {"FedAvg": {"lr": 0.3}, "DRFA": {"lr": 0.1}}
    assert content["scores"]["FedAvg"] == {
        "score": 0.65,
        "trial": 1,
        "default": 0.55,
        "trials": 4,
        "diverged": 1,
        "refused": 0,
    }
    assert content["scores"]["DRFA"]["trial"] == 0
    assert content["scores"]["DRFA"]["refused"] == 1
    provenance = content["provenance"]
    assert provenance["command"] == "drfl tune small"
    assert provenance["criterion"] == search.criterion.sentence()
    assert (provenance["trials"], provenance["seeds"], provenance["rounds"]) == (4, [1000, 1001], 2)
    assert (provenance["metric"], provenance["validation"]) == ("worst_accuracy", 0.2)
    assert (provenance["stand_in"], provenance["device"]) == (False, "cpu")
    assert provenance["job"] == search.about["job"]
    assert provenance["versions"].keys() == {"python", "platform", "drfl", "torch", "numpy", "optuna"}


def test_reproduce_reads_the_file(written):
    search, content, folder = written
    tables = hyperparameters(folder, "small")["algorithms"]
    assert tables == content["algorithms"]
    for name, table in tables.items():
        values = {**search.about["job"], **VALIDATION_SETTINGS, "algorithms": {name: table}}
        assert load_config(None, values).parameters(name)["lr"] > 0


def test_table_of_trials(written):
    with (written[2] / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["algorithm", "trial", "lr", "gamma", "score", "seed1000", "seed1001"]
    assert [row["algorithm"] for row in rows] == ["FedAvg"] * 4 + ["DRFA"] * 2
    assert list(rows[3].values()) == ["FedAvg", "3", "0.9", "", "0.000000", "0.900000", "diverged"]
    assert list(rows[5].values()) == ["DRFA", "1", "0.3", "0.01", "0.000000", "0.100000", "refused"]


def test_foreign_file_is_not_overwritten(written, tmp_path):
    check_place(written[2], "small")  # drfl's own file may be overwritten
    (tmp_path / "job.toml").write_text("[provenance]")
    with refused("foreign-file", str(tmp_path / "job.toml"), "job.toml"):
        check_place(tmp_path, "job")
    (tmp_path / "manifest.json").unlink()
    with refused("foreign-folder", str(tmp_path)):
        check_place(tmp_path, "small")
    with refused("not-a-folder", str(tmp_path / "job.toml")):
        check_place(tmp_path / "job.toml", "job")


def test_unwritable_places_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("cannot-write", str(tmp_path / "file/folder")):
        make_place(tmp_path / "file" / "folder", "job")
    make_place(tmp_path / "a" / "b", "job")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["manifest.json"]
    check_place(tmp_path / "a" / "b", "job")
