"""Who serves the worst-off client best, and what the seeds show of it."""

import dataclasses

import numpy as np
import pytest

from drfl.assessment.seeds import seed_difference
from drfl.report.compared import decided, paired, standing
from drfl.report.groups import group_runs
from drfl.report.read_run import measures_of

WORST = {"FedAvg": 0.70, "DRFA": 0.80, "DRDM": 0.801}
NOISE = (0.003, -0.004, 0.002, -0.003, 0.004, 0.0)


@pytest.fixture
def groups(record):
    """The algorithms at this many seeds; DRFA and DRDM differ by less than their seeds do."""

    def made(seeds, *names, **changes):
        return group_runs(
            [
                record(f"{n}-{s}", n, s, rounds=1, worst=WORST[n] + NOISE[(s + i) % 6], **changes)
                for i, n in enumerate(names or WORST)
                for s in range(seeds)
            ]
        )

    return made


def test_five_seeds_show_a_large_difference_and_no_small_one(groups):
    found = standing(groups(5))
    assert found is not None
    assert (found.best.label, found.tests, found.shown) == ("DRDM", 3, False)
    assert [(one.rival.label, one.verdict) for one in found.against] == [
        ("DRFA", "no difference shown"),
        ("FedAvg", "better"),
    ]
    assert found.against[1].gain.mean == pytest.approx(0.101, abs=2e-3)
    assert [one.rival.label for one in found.rivals("better")] == ["FedAvg"]


def test_the_best_of_all_needs_no_correction_for_the_pairs_of_the_others():
    """Their p-values would be too large for the six pairs of four."""
    own = [seed_difference(np.array([1.0, 1.3, 0.8, 1.2, 0.7]) * scale) for scale in (1, 2, 3)]
    weak = own[0]._replace(p_t=0.012)
    others = [weak._replace(p_t=0.5)] * 3
    assert decided([weak] * 3, others) == (["better"] * 3, 3)
    assert decided([weak, weak, weak._replace(p_t=0.06)], others) == (["no difference shown"] * 3, 6)
    assert decided([weak._replace(n=4), *own[1:]], others)[0] == ["not decided", "better", "better"]


def test_fewer_seeds_decide_nothing(groups):
    found = standing(groups(4))
    assert found is not None
    assert {one.verdict for one in found.against} == {"not decided"}
    assert (found.tests, found.shown) == (0, False)


def test_less_is_better(record):
    measure = {"name": "brier", "more_is_better": False, "percent": False, "rows": "unit"}
    runs = []
    for name, value in (("FedAvg", 0.3), ("DRFA", 0.2)):
        run = record(name, name, rounds=1)
        run.summary["final"] = {"worst_brier": value}
        runs.append(dataclasses.replace(run, measures=measures_of({"measures": [measure]})))
    found = standing(group_runs(runs))
    assert found is not None
    assert (found.best.label, found.against[0].verdict) == ("DRFA", "one pair only")
    assert found.against[0].gain.mean == pytest.approx(0.1)


def test_runs_on_other_clients_are_no_pairs(groups, record):
    one, other = group_runs([record("a", "FedAvg", worst=0.7), record("b", "DRFA", worst=0.8, clients=7)])
    assert paired(one, other) == []
    found = standing([one, other])
    assert found is not None
    assert found.against[0].verdict == "no pair"
    one, other = group_runs([record("c", "FedAvg"), record("d", "DRFA", dataset="letters")])
    assert paired(one, other) == []


def test_a_seed_that_failed_leaves_its_algorithm_out(groups):
    found = groups(5)
    found[1].runs[2].summary["final"] = {"avg_accuracy": None, "worst_accuracy": None}
    told = standing(found)
    assert told is not None
    assert [one.rival.label for one in told.against] == ["FedAvg"]
    assert standing(found[1:2] + found[:1]) is None


def test_the_gain_is_paired_by_seed(groups):
    found = groups(5)
    told = standing(found)
    assert told is not None
    by_seed = [
        b.final("worst_score") - a.final("worst_score") for a, b in zip(found[0].runs, found[2].runs, strict=True)
    ]
    assert told.against[1].gain == seed_difference(by_seed)
