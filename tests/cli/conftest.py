"""A trained model of a table, made once for the tests of a process."""

from __future__ import annotations

import shutil
from contextlib import chdir

import pytest
from tests.data.test_model import SCHEMA, table

from drfl.cli.app import call


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory):
    """Return a folder with a table, its schema, and the run ``r`` on it; tests use a copy."""
    folder = tmp_path_factory.mktemp("trained")
    with chdir(folder):
        table().to_csv("t.csv", index=False)
        SCHEMA.write("s.toml")
        rates = ["--score", "auc", "--metric", "sensitivity", "--validation", "0.2"]
        assert call(["run", "--data", "t.csv", "--schema", "s.toml", "--rounds", "3", "--out", "r", *rates]) == 0
    return folder


@pytest.fixture
def trained(trained_run, tmp_path, monkeypatch):
    """Use a copy of the folder as the working directory, and return its table."""
    shutil.copytree(trained_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return table()
