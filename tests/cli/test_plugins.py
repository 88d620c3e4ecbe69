"""Test commands and tuning jobs of other packages, found by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
from tests.support.refusals import refused

from drfl.cli.app import app, call
from drfl.core import plugins
from drfl.experiments.tuning import job


def hello(name: str = "you") -> int:
    """Greet."""
    print(f"hello {name}")
    return 7


class Jobs:
    """A package with one job."""

    @staticmethod
    def job_names():
        return ["mine"]

    @staticmethod
    def job(name, changes, *, stand_in=False):
        return name, dict(changes), stand_in


@pytest.fixture
def installed(monkeypatch):
    """Set the entry points of a group; commands that a test adds are removed after it."""
    before = list(app.registered_commands)

    def install(kind, **values):
        points = [EntryPoint(name, value, f"drfl.{kind}") for name, value in values.items()]
        monkeypatch.setattr(plugins, "entry_points", lambda group: [p for p in points if p.group == group])

    yield install
    app.registered_commands[:] = before


def test_command_of_another_package(installed, capsys):
    installed("commands", hello=f"{__name__}:hello")
    assert call(["hello", "--name", "all"]) == 7
    assert capsys.readouterr().out == "hello all\n"
    assert call(["--help"]) == 0
    assert "hello" in capsys.readouterr().out
    assert call(["hullo"]) == 2
    assert "'hello'" in capsys.readouterr().err
    call(["--help"])
    assert capsys.readouterr().out.count("Greet") == 1  # a second look does not add the command again


def test_command_that_cannot_be_loaded_leaves_the_others(installed, capsys):
    installed("commands", broken="no_such_module:main", hello=f"{__name__}:hello")
    assert call(["hello"]) == 7
    assert "no_such_module" in capsys.readouterr().err


def test_jobs_that_cannot_be_loaded_leave_the_others(installed, capsys):
    installed("tuning_jobs", broken="no_such_module", mine=f"{__name__}:Jobs")
    assert job.resolve("mine", {}) == ("mine", {}, False)
    assert "no_such_module" in capsys.readouterr().err


def test_plugin_cannot_replace_a_drfl_command(installed, capsys):
    installed("commands", run=f"{__name__}:hello", hello=f"{__name__}:hello")
    call(["--help"])
    assert capsys.readouterr().out.count("Greet") == 1


@pytest.mark.parametrize("words", [["algorithms"], ["run", "--help"], ["deploy", "--help"], ["--version"]])
def test_built_in_commands_do_not_load_plugins(words, installed, monkeypatch, capsys):
    monkeypatch.setattr(plugins, "entry_points", lambda group: pytest.fail("looked for"))
    assert call(words) == 0


def test_tuning_job_of_another_package(installed):
    installed("tuning_jobs", mine=f"{__name__}:Jobs")
    assert job.resolve("MINE", {"rounds": 2}, stand_in=True) == ("mine", {"rounds": 2}, True)
    with refused("unknown-name"):
        job.resolve("other", {})


def test_papers_commands_and_jobs_are_entry_points(capsys):
    assert call(["reproduce", "--json"]) == 0
    assert "drdm-table-1" in capsys.readouterr().out
    assert job.resolve("mnist-linear", {}).name == "mnist-linear"
