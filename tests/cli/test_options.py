"""Test the options that set a run's configuration."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from typer.main import get_command

from drfl.cli import options
from drfl.cli.app import app
from drfl.data import PARTITIONS
from drfl.data.features.recipe import COUNT
from drfl.engine import ENGINES
from drfl.experiments.config.config import Config
from drfl.experiments.config.guards_and_failures import KNOWN
from drfl.experiments.config.settings import Settings
from drfl.optim.local import LocalSGD
from drfl.resilience import FailureModel
from drfl.task.models import LOSSES, MODELS

RUN = {param.name: param for param in get_command(app).commands["run"].params}


@pytest.mark.parametrize("name", options.RUN)
def test_every_setting_has_an_option(name):
    assert RUN[name].help.startswith(options.ABOUT[name].help)
    assert RUN[name].default is None  # so that the file determines settings without an option


def test_options_cover_the_configuration_except_its_tables():
    assert {*Config.model_fields} == {*options.ABOUT, "algorithms", "files"}
    assert {*options.ABOUT} - {*RUN} == {"judged_on"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("partition", PARTITIONS),
        ("model", MODELS),
        ("loss", LOSSES),
        ("engine", ENGINES),
        ("guards", KNOWN),
        ("faults", [field.name for field in fields(FailureModel)]),
    ],
)
def test_help_names_the_available_choices(name, words):
    assert not [word for word in words if word not in re.split(r"[\s,:;=]+", RUN[name].help.replace(".", " "))]


def test_defaults_from_other_modules_are_shown():
    assert options.ABOUT["steps"].none == str(LocalSGD().steps)
    assert options.ABOUT["batch"].none == str(LocalSGD().batch)
    assert options.ABOUT["feature_count"].none == str(COUNT)
    sizes = {name: PARTITIONS[name]().clients for name in ("zipf-dirichlet", "one-class", "dirichlet-drop", "iid")}
    assert sizes["zipf-dirichlet"] == sizes["iid"]
    assert options.ABOUT["clients"].none == (
        f"natural: all; one-class: {sizes['one-class']}; dirichlet-drop: {sizes['dirichlet-drop']}; "
        f"zipf-dirichlet, iid: {sizes['iid']}"
    )


def test_only_given_settings_are_passed_on(monkeypatch):
    seen = []
    monkeypatch.setattr("drfl.cli.run.run_command", lambda given: seen.append(given) or 0)
    words = ["--rounds", "3", "--no-averaged", "--guard", "trim:f=2", "--batch", "full", "--json"]
    get_command(app)(["run", *words], standalone_mode=False)
    (given,) = seen
    assert given == options.RunOptions(
        settings={"rounds": 3, "averaged": False, "guards": ["trim:f=2"], "batch": "full"}, as_json=True, param=None
    )
    assert Settings.rounds == 100
