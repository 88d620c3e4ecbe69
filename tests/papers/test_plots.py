"""Test mean curves over repeats."""

from __future__ import annotations

import math

import pytest
from tests.support.refusals import refused
from tests.support.results import broken, metrics, results, trained
from tests.support.small_spec import SMALL, small_spec

from drfl_papers.plots import curve, to_csv
from drfl_papers.records import runs


def group(*records):
    spec = small_spec(settings=SMALL["settings"][:1], repeats=len(records))
    return runs(results(spec, lambda s, m, k: records[k]))["α = 0.1", "DRDM"]


def test_mean_and_interval_of_curves():
    found = curve(group(trained(0.1, 0.80), trained(0.1, 0.82)), "round", "worst_accuracy")
    assert found.x == (0, 1)
    assert found.mean == pytest.approx((0.1, 0.81))
    assert found.half == pytest.approx((0.0, 12.7062 * 0.01), abs=1e-5)
    assert found.has_band


def test_single_repeat_has_no_band():
    found = curve(group(trained(0.1, 0.8)), "round", "worst_accuracy")
    assert found.mean == (0.1, 0.8)
    assert not found.has_band


def test_curve_ends_with_the_shortest_seed():
    found = curve(group(trained(0.1, 0.2, 0.3, 0.4), trained(0.1, 0.4, stopped="target")), "round", "worst_accuracy")
    assert found.x == (0, 1)
    assert found.mean == pytest.approx((0.1, 0.3))


def test_only_rounds_evaluated_at_all_seeds_are_drawn():
    found = curve(group(trained(0.1, 0.2, 0.3, every=2), trained(0.1, 0.4, every=4)), "round", "worst_accuracy")
    assert found.x == (0, 4)


def test_method_with_a_failed_seed_has_no_curve():
    found = curve(group(trained(0.1, 0.2), trained(0.1, 0.4)), "round", "worst_accuracy")
    assert found.mean == pytest.approx((0.1, 0.3))
    assert curve(group(broken(), trained(0.1, 0.2), trained(0.1, 0.4)), "round", "worst_accuracy") is None
    assert curve(group(broken(), broken()), "round", "worst_accuracy") is None


@pytest.mark.parametrize(
    ("x", "places"), [("round", (0, 5, 10)), ("iterations", (0, 15, 30)), ("bytes", (0, 0.01, 0.02))]
)
def test_x_axis_can_be_selected(x, places):
    assert curve(group(trained(0.1, 0.2, 0.3, every=5, steps=3)), x, "avg_loss").x == pytest.approx(places)


def test_unknown_axis_is_refused():
    with refused("unknown-name", "x", "'rounds'", "'round'"):
        curve(group(trained(0.1)), "rounds", "avg_loss")


def test_file_has_every_point():
    record = trained(0.1, 0.2, every=5, steps=3)
    lines = to_csv(results(small_spec(repeats=1), lambda s, m, k: record if m == "DRDM" else broken())).splitlines()
    numbers = ",".join(f"{value:.6f}" for value in metrics(0.2))
    assert lines[0].startswith("setting,method,seed,round,iterations,bytes,avg_accuracy,worst_accuracy,")
    assert lines[2] == f"α = 0.1,DRDM,0,5,15,10000,{numbers}"
    assert len(lines) == 1 + 2 * 2
    assert not any(math.isnan(float(cell)) for line in lines[1:] for cell in line.split(",")[3:])
