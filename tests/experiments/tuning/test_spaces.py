"""Test that the search spaces fit their algorithms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfl.ambiguity import parse
from drfl.experiments.config.config import load_config
from drfl.experiments.config.hyperparameters import KNOWN, has_parameter, make_algorithm
from drfl.experiments.tuning.spaces import (
    LR,
    MULTIPLE,
    SPACES,
    Dimension,
    default_point,
    default_table,
    fixed_parameters,
    round_value,
    space_around,
    table_at,
)
from drfl.optim.schedules import Constant


def config(algorithm, table=None, **values):
    own = {"algorithms": {algorithm: table or {}}}
    return load_config(None, {"dataset": "digits", "algorithm": algorithm, **own, **values})


def place(algorithm, run):
    return default_point(run.parameters(algorithm), space_around(algorithm, 0.1))


def test_spaces_belong_to_algorithms_and_share_the_step_size_range():
    assert set(SPACES) <= set(KNOWN)
    # Adam-type steps have no 1/L̂.
    assert {name for name, space in SPACES.items() if space[0] != LR} == {"FGDROKLAdam"}


def test_algorithm_without_a_space_tunes_its_step_size():
    space = space_around("mine.py:Own", 1.0)
    assert space == (LR,)
    assert table_at(space, {"m": 2}, {"lr": 0.3}) == {"m": 2, "lr": 0.3}


@pytest.mark.parametrize("algorithm", SPACES)
def test_both_ends_of_a_space_are_valid(algorithm):
    for end in ("low", "high"):
        point = {d.name: getattr(d, end) for d in SPACES[algorithm]}
        table = table_at(SPACES[algorithm], {"m": 2} if has_parameter(algorithm, "m") else {}, point)
        made = make_algorithm(algorithm, table)
        for dimension in SPACES[algorithm]:
            if dimension.name == "rho":
                assert made.ambiguity == parse(f"chi-square:rho={point['rho']}")
            else:
                holder = made.local if dimension.name == "lr" else made
                assert getattr(holder, dimension.name) == point[dimension.name]


@given(st.sampled_from([d for space in SPACES.values() for d in space]), st.floats(0, 1))
def test_rounding_keeps_range_and_three_digits(dimension, share):
    value = round_value(dimension.low + share * (dimension.high - dimension.low))
    assert dimension.low <= value <= dimension.high
    assert float(f"{value:.2e}") == value


def test_papers_values_are_in_the_ranges():
    known = {
        "DRFA": {"lr": 0.1, "gamma": 8e-3},
        "QFedAvg": {"lr": 0.1, "q": 0.2},
        "DRDM": {"lr": 0.1, "mu": 0.1, "gamma": 1e-4},
        "DualDRDM": {"lr": 0.1, "mu": 0.1, "gamma": 1e-4},
        "ScaffPD": {"lr": 0.3, "sigma": 0.01},
        "DRFAGA": {"lr": 0.1, "gamma": 0.08},
        "SCAFFOLD": {"lr": 0.3, "server_lr": 1.5},
    }
    for algorithm, table in known.items():
        assert place(algorithm, config(algorithm, table)) == table


def test_first_trial_has_the_defaults():
    for algorithm in SPACES:
        run = config(algorithm)
        table = default_table(run, {})
        assert table == ({"lr": 0.01} if algorithm == "FGDROKLAdam" else {}), "η is found in the run"
        assert make_algorithm(algorithm, {**run.parameters(algorithm), **table}) == make_algorithm(
            algorithm, run.parameters(algorithm)
        )


def test_rule_as_default_has_no_point_in_the_space():
    assert place("FedProx", config("FedProx", {"lr": 0.2})) == {"lr": 0.2, "mu": 0.1}
    assert place("DRDM", config("DRDM")) == {}
    assert place("DRFAProx", config("DRFAProx")) == {}
    assert place("FedAvg", config("FedAvg", {"lr": 1.5})) == {}


def test_job_values_override_the_defaults():
    run = config("DRDM", {"mu": 0.5}, lr=0.2)
    assert default_table(run, {"mu": 0.5}) == {"mu": 0.5, "lr": 0.2}
    assert place("DRDM", run) == {}, "gamma is a rule"


def test_eta_range_is_relative_to_one_over_the_curvature():
    assert space_around("DRDM", 1.0) == SPACES["DRDM"]
    lr, *others = space_around("DRDM", 3e-4)
    assert (lr.low, lr.high, lr.log) == (7.5e-5, 1.2e-3, True)
    assert tuple(others) == SPACES["DRDM"][1:]


def test_eta_can_be_searched_in_multiples():
    multiple, *others = space_around("FedProx", None)
    assert (multiple, tuple(others)) == (MULTIPLE, SPACES["FedProx"][1:])
    assert (multiple.name, multiple.low, multiple.high, multiple.log) == LR[:4]
    local = make_algorithm("FedProx", table_at(space_around("FedProx", None), {}, {"lr": 2.5, "mu": 0.2})).local
    assert (local.lr, local.lr_schedule) == (None, Constant(2.5))


def test_default_multiple_is_one():
    run = config("FedProx")
    point = default_point(run.parameters("FedProx"), space_around("FedProx", None))
    assert point == {"lr": 1.0, "mu": 0.1}
    written = table_at(space_around("FedProx", None), {}, point)
    assert make_algorithm("FedProx", written) == make_algorithm("FedProx", run.parameters("FedProx")), (
        "the first trial is at its place"
    )


def test_scaffpd_uses_all_clients_unless_the_job_sets_m():
    assert [name for name in SPACES if fixed_parameters(name, {}, 30)] == ["ScaffPD"]
    assert fixed_parameters("ScaffPD", {}, 30) == {"m": 30}
    assert fixed_parameters("ScaffPD", {"m": 7, "dual_batch": 5}, 30) == {"m": 7, "dual_batch": 5}


def test_dimension_prints_its_range():
    assert str(Dimension("theta", 0.1, 0.9, log=False)) == "0.1 to 0.9"
    assert str(LR) == "0.25 to 4, log"
