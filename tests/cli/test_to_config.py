"""Test the precedence of --param, options and files."""

from __future__ import annotations

import pytest
from tests.support.refusals import refused

from drfl.cli.to_config import overrides
from drfl.experiments.config.config import load_config

PAIR = ["DRDM", "DRFA"]


@pytest.mark.parametrize("order", [1, -1])
def test_param_for_one_algorithm_overrides_one_for_all(order):
    param = ["gamma=1", "DRDM.gamma=2"][::order]
    assert overrides({}, param, PAIR)["algorithms"] == {"DRDM": {"gamma": 2}, "DRFA": {"gamma": 1}}


@pytest.mark.parametrize("option", [("cohort", "m"), ("steps", "steps"), ("lr", "lr"), ("batch", "batch")])
def test_param_for_one_algorithm_overrides_the_common_option(option):
    name, parameter = option
    found = overrides({name: 6}, [f"DRDM.{parameter}=5"], PAIR)
    assert found == {name: 6, "algorithms": {"DRDM": {parameter: 5}}}


def test_params_and_options_override_the_tables_of_the_file(tmp_path):
    (tmp_path / "job.toml").write_text("[algorithms.DRDM]\nlr = 0.1\nm = 3\n[algorithms.DRFA]\nlr = 0.2\nm = 4\n")
    changed = overrides({"lr": 0.3, "cohort": 5}, ["DRDM.lr=0.4", "DRFA.m=6"], PAIR)
    config = load_config(tmp_path / "job.toml", changed)
    assert [(config.parameters(name)["lr"], config.parameters(name)["m"]) for name in PAIR] == [(0.4, 5), (0.3, 6)]


def test_option_applies_only_to_algorithms_that_have_it():
    # AFL has no cohort, and DRDM sets its own, so --cohort has no effect
    with refused("unused-option", "cohort", "--cohort", "--param DRDM.m=5"):
        overrides({"cohort": 6}, ["DRDM.m=5"], ["AFL", "DRDM"])
    assert overrides({"cohort": 6}, ["AFL.lr=5"], ["AFL", "DRDM"])["cohort"] == 6
