"""Test the study of a sweep: the runs that a grid and a list give."""

from __future__ import annotations

import pytest
from tests.support.marks import long_except
from tests.support.refusals import refused

from drfl.experiments.sweep.study import read_study


def study(**tables):
    return read_study({"clients": 4, "rounds": 2, **tables}, {})


def points(**tables):
    return [dict(run.changes) for run in study(**tables).runs]


def test_grid_gives_every_combination_with_algorithms_first():
    found = points(grid={"algorithm": ["FedAvg", "DRFA"], "seed": "3..4", "alpha": [0.1, 1.0]})
    assert len(found) == 8
    assert found[:3] == [
        {"alpha": 0.1, "seed": 3, "algorithm": "FedAvg"},
        {"alpha": 0.1, "seed": 3, "algorithm": "DRFA"},
        {"alpha": 0.1, "seed": 4, "algorithm": "FedAvg"},
    ]


def test_list_entries_run_with_every_point_of_the_grid():
    found = points(grid={"seed": [0, 1]}, list=[{"algorithm": "FedAvg"}, {"algorithm": "DRFA", "steps": 3}])
    assert found == [
        {"algorithm": "FedAvg", "seed": 0},
        {"algorithm": "FedAvg", "seed": 1},
        {"algorithm": "DRFA", "steps": 3, "seed": 0},
        {"algorithm": "DRFA", "steps": 3, "seed": 1},
    ]


@pytest.mark.parametrize("name", ["gamma", "DRFA.gamma"])
def test_parameter_that_an_algorithm_lacks_does_not_repeat_runs(name):
    runs = study(grid={"algorithm": ["FedAvg", "DRFA"], name: [0.1, 0.2]}).runs
    assert [run.config.algorithm for run in runs] == ["FedAvg", "DRFA", "DRFA"]
    assert [run.config.parameters("DRFA")["gamma"] for run in runs[1:]] == [0.1, 0.2]


def test_common_option_overrides_tables_of_the_study():
    (run,) = study(algorithm="DRFA", algorithms={"DRFA": {"steps": 9}}, grid={"steps": [2]}).runs
    assert run.config.parameters("DRFA")["steps"] == 2


def test_run_name_depends_only_on_its_settings():
    names = {run.name for run in study(grid={"alpha": [0.1, 1.0]}).runs}
    assert names == {run.name for run in study(checkpoint_every=3, grid={"alpha": [1.0, 0.1]}).runs}
    assert names.isdisjoint(run.name for run in study(rounds=3, grid={"alpha": [0.1, 1.0]}).runs)


@pytest.mark.parametrize(
    ("tables", "error"),
    [
        ({}, ("missing-option", "grid")),
        ({"grid": {"alpha": 0.1}}, ("wrong-type", "alpha", "0.1")),
        ({"grid": {"alpha": []}}, ("wrong-type", "alpha")),
        ({"grid": [1]}, ("invalid-format", "grid")),
        ({"list": {"alpha": 0.1}}, ("invalid-format", "grid")),
        ({"grid": {"alhpa": [0.1]}}, ("unknown-name", "setting", "alhpa", "alpha")),
        ({"grid": {"DRFA.gama": [0.1], "algorithm": ["DRFA"]}}, ("unknown-name", "DRFA.gama", "gama", "gamma")),
        ({"grid": {"gama": [0.1], "algorithm": ["DRFA"]}}, ("unknown-name", "setting", "gama", "gamma")),
        ({"grid": {"algorithm": ["DRAF"]}}, ("unknown-name", "algorithm", "DRAF", "DRFA")),
        ({"grid": {"seed": "x"}}, ("invalid-format", "seeds", "x")),
        ({"grid": {"clients": [0]}}, ("invalid-value", "clients", "0")),
        ({"grid": {"DRFA.gamma": [0.1], "algorithm": ["FedAvg"]}}, ("unused-option", "DRFA.gamma")),
        ({"grid": {"alpha": [0.1]}, "list": [{"alpha": 0.2}]}, ("given-twice", "alpha")),
        ({"grid": {"seed": "0..9999", "rounds": list(range(11))}}, ("out-of-range", "grid")),
    ],
)
def test_invalid_study_is_refused(tables, error):
    with refused(*error):
        study(**tables)


def test_option_for_a_varied_setting_is_refused():
    with refused("given-twice", "alpha"):
        read_study({"grid": {"alpha": [0.1]}}, {"alpha": 0.2})


@pytest.mark.parametrize(
    "name",
    long_except(["{}:Halfway.share"], ["Halfway.share", "halfway.share", "{}:Halfway.share"]),
)
def test_own_class_parameter_is_named_with_or_without_the_file(tmp_path, name):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from dataclasses import dataclass\nimport drfl\n\n@dataclass(frozen=True)\nclass Halfway(drfl.FedAvg):\n"
        "    share: float = 0.5\n"
    )
    reference = f"{mine}:Halfway"
    runs = study(
        algorithms={"Halfway": {"steps": 7}},
        grid={"algorithm": ["FedAvg", reference], name.format(mine): [0.1, 0.2]},
    ).runs
    assert [run.config.algorithm for run in runs] == ["FedAvg", reference, reference]
    assert [run.config.parameters(reference)["share"] for run in runs[1:]] == [0.1, 0.2]
    assert {run.config.parameters(reference)["steps"] for run in runs} == {7}


def test_unknown_algorithm_of_a_parameter_lists_all_algorithms():
    with refused("unknown-name", "algorithm", "Nobody", "DRFA", "Ditto", "LocalOnly"):
        study(grid={"Nobody.share": [0.1]})
