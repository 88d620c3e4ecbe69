"""Test the local steps with the least energy, from records."""

from __future__ import annotations

import math

import pytest
from tests.support.refusals import refused
from tests.support.results import KILO, broken, results, trained
from tests.support.small_spec import SMALL, small_spec

from drfl_papers.energy.cost import CAPACITANCE, FREQUENCY, POWER
from drfl_papers.energy_map import check, plans, processor_of, tables, to_csv
from drfl_papers.plan import Scale, plan

SPEC = {
    "kind": "energy",
    "values": {},
    "settings": SMALL["settings"][:1],
    "methods": [
        {"name": "τ = 1", "algorithm": "DRDM", "job": {"steps": 1}},
        {"name": "τ = 2", "algorithm": "DRDM", "job": {"steps": 2}},
        {"name": "τ = 4", "algorithm": "DRDM", "job": {"steps": 4}},
    ],
    "energy": {"target": 0.5, "snr": [0.0], "bandwidth": [1e2, 1e10]},
}
ROUNDS = {"τ = 1": 6, "τ = 2": 3, "τ = 4": 2}


def record(setting, method, seed):
    """Return a record that reaches the target after 6, 3 or 2 rounds with 1, 2 or 4 local steps."""
    return trained(*[0.1] * ROUNDS[method], 0.6, steps=int(method[-1]))


def test_energy_follows_equation_18():
    collected = results(small_spec(**SPEC), record)
    narrow, wide = plans(collected)["α = 0.1"].cells
    step = 10 * processor_of(collected.plan, "α = 0.1").cycles_per_sample * CAPACITANCE * FREQUENCY**2
    round_ = POWER * 8 * KILO / 1e2  # at 0 dB the rate is 1 bit/s per Hz
    assert (narrow.best.tau, wide.best.tau) == (4, 2), "sending costs little: least T·τ; sending costs all: least T"
    assert narrow.best.joules == pytest.approx(2 * (4 * step + round_))
    assert wide.best.joules == pytest.approx(3 * (2 * step + round_ / 1e8))
    assert wide.runner_up.tau == 1, "the same T·τ with more rounds"


def test_operations_of_the_model_are_counted():
    # 64 inputs, 10 classes: forward pass and weights' gradient take 640 multiplications and 640 additions each.
    assert processor_of(plan(small_spec(**SPEC), Scale()), "α = 0.1").cycles_per_sample == 4 * 640


def test_tau_that_never_arrives_is_excluded_and_reported():
    def stuck(setting, method, seed):
        return trained(0.1, 0.2, steps=4) if method == "τ = 4" and seed else record(setting, method, seed)

    collected = results(small_spec(**SPEC), stuck)
    assert [cell.best.tau for cell in plans(collected)["α = 0.1"].cells] == [2, 2]
    assert "τ = 4 is excluded: seed 1 never reached the target." in tables(collected)[0].notes


def test_no_choice_if_nothing_arrives():
    def stuck(setting, method, seed):
        return broken(steps=1) if method == "τ = 1" else trained(0.1, steps=int(method[-1]))

    collected = results(small_spec(**SPEC), stuck)
    assert [[entry.text for entry in row] for row in tables(collected)[0].rows] == [["100 Hz", "–"], ["10 GHz", "–"]]
    assert to_csv(collected).splitlines()[1] == "α = 0.1,0,100,,,,,"


def test_table_and_file_agree():
    collected = results(small_spec(**SPEC), record)
    table = tables(collected)[0]
    assert table.header == ("bandwidth", "0 dB")
    best = plans(collected)["α = 0.1"].cells[0].best
    assert table.rows[0][1].text == f"4 ({best.joules:.3g} J)"
    assert to_csv(collected).splitlines()[1].startswith(f"α = 0.1,0,100,4,{best.joules:.6g},2,")
    assert not math.isnan(best.joules)


def test_unsupported_maps_are_refused_before_any_run():
    with refused("missing-option", "energy", "[energy]"):
        check(plan(small_spec(**{**SPEC, "energy": None}), Scale()))
    features = {**SMALL["job"], "features": "penultimate", "backbone": "cnn-mnist"}
    with refused("unsupported-combination", "features"):
        check(plan(small_spec(**SPEC, job=features), Scale()))
    check(plan(small_spec(**SPEC), Scale()))
