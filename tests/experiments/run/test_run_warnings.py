"""Test the notices at the end of a run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import drfl
from drfl.core.run_end import Marks
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.config.learned import Origin
from drfl.experiments.run.run_warnings import check_strict, end_checks, warnings_of
from drfl.resilience import Protected
from drfl.task.metrics import ACCURACY


def finished(accuracy, majority, *, partition="natural", losses=(1.0, 0.5), rounds=9, skipped=0, algorithm=None):
    """Return the parts of a job and a result that the checks read."""
    n = len(accuracy)
    job = SimpleNamespace(
        origin=Origin({}, ""),
        fed=SimpleNamespace(
            majority=None if majority is None else torch.tensor(majority, dtype=torch.float64),
            measures=(ACCURACY,),
            target_advice=lambda: "",
            raw_columns=False,
            untested=(),
        ),
        algorithm=algorithm or drfl.FedAvg(m=1),
        partition=SimpleNamespace(recipe={"partition": partition}),
        data=SimpleNamespace(n=n, names=tuple(f"site {i}" for i in range(n))),
    )
    rows = [SimpleNamespace(metrics=SimpleNamespace(avg_loss=loss, worst_loss=loss)) for loss in losses]
    result = SimpleNamespace(
        rounds=rounds,
        skipped=skipped,
        state=None,
        step_size=None,
        history=SimpleNamespace(rows=rows, last=rows[-1]),
        evaluation=SimpleNamespace(score=torch.tensor(accuracy, dtype=torch.float64), others=()),
        selection=None,
        fallback=None,
        marks=Marks(on_test=False, rollbacks=0, rounds=rounds, effective_rounds=rounds),
    )
    return job, result


def test_sites_that_missed_the_last_test_are_named():
    job, result = finished([0.9, 0.8], None)
    job.fed.untested = ("site 1",)
    (warning,) = end_checks(job, result).warnings
    assert (warning.code, warning.field) == ("site-untested", "site 1")


@pytest.mark.parametrize(
    ("losses", "rounds", "fails"),
    [
        ((1.0, 0.9), 9, False),
        ((1.0, 1.1), 9, True),
        ((1.0, float("nan")), 9, True),
        ((1.0, 1.1), 2, False),  # too early for the check
        ((1.0, 1.6), 2, True),
        ((1.0, 9.0), 0, False),
    ],
)
def test_final_loss_above_the_start_is_a_failure(losses, rounds, fails):
    failure = end_checks(*finished([0.9], [0.5], losses=losses, rounds=rounds)).failure
    assert (failure is not None) == fails
    assert failure is None or (failure.code, failure.field) == ("loss-rose", "lr")


@pytest.mark.parametrize(("skipped", "said"), [(0, False), (2, False), (3, True), (20, True)])
def test_many_skipped_rounds_give_a_notice(skipped, said):
    found = end_checks(*finished([0.9], [0.5], rounds=20, skipped=skipped)).warnings
    assert [(line.code, line.field, f"{skipped} of 20" in line) for line in found] == [
        ("skipped-rounds", "min_replies", True)
    ] * said


def test_fine_tuned_runs_are_not_compared_with_their_start():
    tuned = Protected(drfl.FineTuned(m=1))
    assert end_checks(*finished([0.9], [0.5], losses=(1.0, 1.1), algorithm=tuned)).failure is None
    assert end_checks(*finished([0.9], [0.5], losses=(1.0, float("nan")), algorithm=tuned)).failure is not None
    assert end_checks(*finished([0.9], [0.5], losses=(1.0, 1.1), algorithm=Protected(drfl.LocalOnly()))).failure


def test_clients_no_better_than_a_constant_are_named_worst_first():
    (line,) = end_checks(*finished([0.9, 0.6, 0.5, 0.7, 0.4], [0.8, 0.6, 0.9, 0.75, 0.45])).warnings
    assert (line.code, line.field) == ("no-better-than-constant", None)
    assert line.index("site 2 (50.0 %, 90.0 %") < line.index("site 3 (70.0 %, 75.0 %")
    assert "site 0" not in line
    (line,) = end_checks(*finished([0.9, 0.5], [0.8, 0.9])).warnings
    assert line.field == "site 1"


@pytest.mark.parametrize(
    ("majority", "partition"), [([0.9], "one-class"), ([0.9], "zipf-dirichlet"), ([1.0], "natural"), (None, "natural")]
)
def test_constant_answer_is_ignored_if_meaningless(majority, partition):
    assert end_checks(*finished([0.5], majority, partition=partition)).warnings == ()


def test_table_without_clients_is_divided_at_random_with_a_notice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(60, 9, 600).round(1), "dataset": rng.choice(["x", "y"], 600)})
    frame["Hospital"], frame["sex"] = rng.choice([*"abc"], 600), rng.choice(["f", "m"], 600)
    frame["ill"] = rng.choice(["no", "yes"], 600)
    frame.to_csv("all.csv", index=False)

    def notices(**options):
        job = build(load_config(None, {"data": ["all.csv"], "target": "ill", "algorithm": "FedAvg", **options}))
        found = [notice for notice in warnings_of(job) if notice.code == "random-clients"]
        check_strict(True, found)  # the notice does not raise
        return found

    (notice,) = notices()
    assert notice.field == "group"
    assert "30 simulated clients" in notice
    assert "'Hospital'" in notice
    (notice,) = notices(drop=["Hospital", "dataset"], clients=7)
    assert "7 simulated clients" in notice
    assert "'" not in notice.replace("`", "")
    assert notices(group="Hospital") == []


def test_data_sets_of_drfl_are_divided_without_a_notice():
    job = build(load_config(None, {"dataset": "digits", "algorithm": "FedAvg"}))
    assert warnings_of(job) == ()
