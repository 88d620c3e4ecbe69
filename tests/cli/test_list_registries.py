"""Test `drfl algorithms`, `drfl datasets`, `drfl --help` and `drfl --version`."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from drfl.algorithms import ALGORITHMS, BASELINES, CLIENT_SIDE, FULL_PARTICIPATION
from drfl.ambiguity import AMBIGUITY_SETS
from drfl.cli.app import call
from drfl.data import DATASETS
from drfl.experiments.config.hyperparameters import SAMPLINGS
from drfl.optim.schedules import SCHEDULES
from drfl.optim.server_optimizers import SERVER_OPTIMIZERS


def test_algorithms_are_listed(capsys):
    assert call(["algorithms"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*ALGORITHMS, *BASELINES))
    assert "gamma=" in out
    assert "steps=1" in out.replace("steps=10", "")  # AFL has its own default number of steps
    assert "AFL, LocalOnly, Pooled" in out
    assert f"({', '.join(sorted(cls.__name__ for cls in FULL_PARTICIPATION))}: all clients)" in out
    assert [name for name in (*AMBIGUITY_SETS, *SAMPLINGS, *SCHEDULES, *SERVER_OPTIMIZERS) if name not in out] == []


def test_algorithms_as_json_have_their_defaults(capsys):
    assert call(["algorithms", "--json"]) == 0
    found = {row["name"]: row["parameters"] for row in json.loads(capsys.readouterr().out)}
    assert list(found) == [*ALGORITHMS, *CLIENT_SIDE, *BASELINES]
    assert found["DRDM"]["mu"] == ALGORITHMS["DRDM"](m=1).mu
    assert found["DRDM"]["sampling"] == "with-replacement"


def test_datasets_are_listed(capsys):
    assert call(["datasets", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(DATASETS)
    assert call(["datasets"]) == 0
    assert "digits" in capsys.readouterr().out


def test_version_is_printed(capsys):
    assert call(["--version"]) == 0
    assert capsys.readouterr().out == f"drfl {importlib.metadata.version('drfl')}\n"


@pytest.mark.parametrize("command", [[], ["run"], ["compare"], ["algorithms"], ["datasets"]])
def test_help_lists_the_commands(command, capsys):
    assert call([*command, "--help"]) == 0
    assert "Usage: drfl" in capsys.readouterr().out
