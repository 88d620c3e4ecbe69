"""Test cells that measure the distance to a known saddle point."""

from __future__ import annotations

import json
import math

import pytest
from tests.support.refusals import refused

from drfl.ambiguity import ChiSquare
from drfl.experiments.config.hyperparameters import make_algorithm
from drfl.experiments.execution.cells import Cell, read, write
from drfl.testing.problems import robust_regression
from drfl.training.loop import run
from drfl_papers.execute import run_cell
from drfl_papers.saddle_distance import FLOOR, ROUNDING, Track, approach, cell
from drfl_papers.specification import MethodRow

SMALL = {"sigma": 0.3, "rho": 0.1, "steps": 4, "clients": 3, "d": 4, "samples": 20, "trial": 30}
SCAFFPD = {"reach": [0.5, 1.0], "sigma": [0.1, 1.0]}


def a_cell(algorithm: str, grid: dict[str, list[float]], seed: int = 0, rounds: int = 120, **changes: object) -> Cell:
    job, parameters = {**SMALL, **changes}, {}
    return cell(job, MethodRow(name="one", algorithm=algorithm, grid=grid, parameters=parameters), seed, rounds)


@pytest.mark.long
def test_scaffpd_reaches_the_saddle_point_and_drfa_does_not():
    near = approach(a_cell("ScaffPD", SCAFFPD).job)
    assert near["errors"][-1] < FLOOR
    assert near["rounds"] == len(near["errors"]) - 1 < 120
    far = approach(a_cell("DRFAProx", {"reach": [0.25, 0.5], "gamma": [0.01, 0.1]}).job)
    assert far["rounds"] == 120
    assert 1e-10 < far["errors"][-1] < far["errors"][0]


@pytest.mark.parametrize(
    ("algorithm", "grid"),
    [
        ("ScaffPD", {"reach": [0.8], "sigma": [0.5]}),
        ("DRFAProx", {"reach": [0.8], "gamma": [0.05]}),
        ("DualDRDM", {"reach": [0.8], "gamma": [0.05]}),
        ("AFL", {"reach": [0.8], "gamma": [0.05]}),
        ("SCAFFOLD", {"reach": [0.8]}),
    ],
)
def test_errors_equal_those_of_a_simulated_run(algorithm, grid):
    """The exact federation and its loop give the numbers of a simulated federation and `run`."""
    record = approach(a_cell(algorithm, grid, seed=5, rounds=6).job)
    problem = robust_regression(0.3, 5, 3, 4, 20)
    values = record["parameters"]
    assert values["lr"] == pytest.approx(0.8 / 4 / problem.smoothness)
    assert values["batch"] is None
    algorithm, optimum, found = make_algorithm(algorithm, values), problem.saddle(ChiSquare(0.1)).w, []
    run(
        algorithm,
        problem.federation(),
        rounds=6,
        seed=5,
        callbacks=[lambda step: found.append(float((step.state.w - optimum).square().sum()))],
    )
    assert record["errors"] == pytest.approx(found, rel=1e-9)


@pytest.mark.long
def test_best_grid_point_is_continued():
    grid = {"reach": [0.05, 1.0], "sigma": [1.0, 0.001]}
    record = approach(a_cell("ScaffPD", grid, rounds=60).job)
    alone = {
        (reach, sigma): approach(a_cell("ScaffPD", {"reach": [reach], "sigma": [sigma]}, rounds=60).job)["errors"]
        for reach in grid["reach"]
        for sigma in grid["sigma"]
    }
    best = min(alone, key=lambda point: alone[point][30])
    assert record["chosen"] == {"reach": best[0], "sigma": best[1]}
    assert record["errors"] == alone[best]
    assert record["grid"] == 4


def test_diverging_grid_points_are_skipped():
    record = approach(a_cell("ScaffPD", {"reach": [40.0, 1.0], "sigma": [1.0]}, rounds=40).job)
    assert (record["chosen"], record["failed"], record["stopped"]) == ({"reach": 1.0, "sigma": 1.0}, 1, "rounds")


def test_fully_diverging_grid_is_a_result(tmp_path):
    made = a_cell("AFL", {"reach": [40.0, 60.0], "gamma": [1.0]}, rounds=40)
    record = run_cell(made, None)
    assert (record["stopped"], record["failed"]) == ("diverged", 2)
    assert "after round" in str(record["reason"])
    assert all(math.isfinite(error) for error in record["errors"])
    write(tmp_path, made, record)
    assert json.loads(json.dumps(read(tmp_path, made)))["errors"] == record["errors"]


def test_cell_is_reproducible_from_its_record(tmp_path):
    made = a_cell("DRFAProx", {"reach": [0.3], "gamma": [0.1]}, rounds=20)
    first = approach(made.job)
    write(tmp_path, made, first)
    again = approach(json.loads(json.dumps(made.job)))
    drop = {"seconds"}
    assert {k: v for k, v in first.items() if k not in drop} == {k: v for k, v in again.items() if k not in drop}
    kept = read(tmp_path, made)
    assert kept is not None
    assert kept["errors"] == first["errors"]


def test_seeds_give_different_problems():
    starts = {approach(a_cell("FedAvg", {}, seed=seed, rounds=1).job)["errors"][0] for seed in range(3)}
    assert len(starts) == 3


def test_key_contains_every_value():
    one = a_cell("ScaffPD", SCAFFPD)
    assert one.key == a_cell("scaffpd", SCAFFPD).key
    others = [
        a_cell("ScaffPD", SCAFFPD, seed=1),
        a_cell("ScaffPD", SCAFFPD, rounds=121),
        a_cell("ScaffPD", {**SCAFFPD, "reach": [0.5]}),
        a_cell("ScaffPD", {**SCAFFPD, "theta": [1.0]}),
        *(a_cell("ScaffPD", SCAFFPD, **{name: 2 * value}) for name, value in SMALL.items()),
        a_cell("ScaffPD", SCAFFPD, c=2.0),
        a_cell("ScaffPD", SCAFFPD, mu=0.1),
    ]
    assert len({one.key, *(other.key for other in others)}) == len(others) + 1


def test_trials_are_not_longer_than_the_run():
    made = a_cell("ScaffPD", SCAFFPD, rounds=5)
    assert made.job["trial"] == 5
    assert approach(made.job)["rounds"] == 5


def test_default_set_without_penalty_is_the_simplex():
    made = a_cell("ScaffPD", {"reach": [1.0], "sigma": [0.05]}, rho=0.0, rounds=10)
    assert made.job["parameters"]["ambiguity"] == "simplex"
    errors = approach(made.job)["errors"]
    assert errors[-1] < errors[0]


@pytest.mark.parametrize(
    ("algorithm", "grid", "job", "error"),
    [
        ("ScaffPD", {}, {"sgima": 0.1}, ("unknown-name", "key", "'sigma'")),
        ("ScaffPD", {}, {"sigma": "wide"}, ("invalid-value", "sigma", "'wide'")),
        ("ScaffPD", {}, {"steps": 2.5}, ("invalid-value", "steps", "2.5")),
        ("ScaffPD", {}, {"steps": 0}, ("out-of-range", "steps")),
        ("ScaffPD", {}, {"trial": 0}, ("out-of-range", "trial")),
        ("ScaffPD", {}, {"clients": 0}, ("out-of-range", "n")),
        ("ScaffPD", {}, {"rho": -1.0}, ("out-of-range", "rho")),
        ("ScaffPDD", {}, {}, ("unknown-name", "algorithm", "'ScaffPD'")),
        ("ScaffPD", {"gama": [1.0]}, {}, ("unknown-name", "ScaffPD.gama", "'gama' of ScaffPD")),
        ("ScaffPD", {"sigma": [1.0, -1.0]}, {}, ("out-of-range", "sigma")),
        ("ScaffPD", {"sigma": []}, {}, ("missing-option", "sigma")),
        ("ScaffPD", {"reach": [1.0], "lr": [0.1]}, {}, ("conflicting-options", "lr")),
        ("DRFA", {"reach": [1.0]}, {}, ("unsupported-combination", "ambiguity", "DRFAProx")),
    ],
)
def test_impossible_cells_are_refused(algorithm, grid, job, error):
    with refused(*error) as caught:
        a_cell(algorithm, grid, **job)
    assert "\n" not in str(caught.value)


def test_scores():
    ended, later = Track([1.0, ROUNDING / 2, ROUNDING / 5], None), Track([1.0, 0.1, ROUNDING / 9], None)
    assert ended.score < later.score < Track([1.0, 1e-20], None).score < Track([1.0], "it left").score
    assert Track([1.0, 1.234e-7], None).score == Track([1.0, 1.2e-7], None).score < Track([1.0, 1.3e-7], None).score
