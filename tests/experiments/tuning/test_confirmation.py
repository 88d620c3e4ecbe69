"""Test the confirmation of a chosen setting at new seeds."""

from __future__ import annotations

import math
import tomllib

import pytest
import torch
from tests.support.refusals import refused
from tests.support.small_search import Here, Killed, small_search, tuned

import drfl
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.tuning.confirmation import Confirmation, check_seeds, compare_settings, confirm, headline
from drfl.experiments.tuning.criterion import Criterion
from drfl.experiments.tuning.output import content, make_place, write
from drfl.experiments.tuning.suggestion import Trial
from drfl.task.metrics import ACCURACY

WORST, LOSS = Criterion("worst", ACCURACY), Criterion("loss", ACCURACY)
SEEDS = range(1002, 1007)
HIGH, LOW, NOISY = (0.8, 0.81, 0.79, 0.8, 0.82), (0.6, 0.62, 0.6, 0.61, 0.6), (0.9, 0.5, 0.6, 0.7, 0.61)
FAILS = (0.8, math.nan, 0.79, 0.8, 0.82)
NEVER = (math.nan,) * 5


@pytest.mark.parametrize(
    ("criterion", "tuned_values", "default_values", "verdict", "failed"),
    [
        (WORST, HIGH, LOW, "statistically significantly better", (0, 0)),
        (LOSS, HIGH, LOW, "worse", (0, 0)),
        (WORST, LOW, HIGH, "worse", (0, 0)),
        (LOSS, LOW, HIGH, "statistically significantly better", (0, 0)),
        (WORST, NOISY, LOW, "not decided", (0, 0)),
        (WORST, LOW, LOW, "not decided", (0, 0)),
        (WORST, FAILS, LOW, "worse", (1, 0)),
        (LOSS, FAILS, HIGH, "worse", (1, 0)),
        (WORST, HIGH, NEVER, "statistically significantly better", (0, 5)),
        (WORST, LOW, FAILS, "not decided", (0, 1)),
        (WORST, FAILS, FAILS, "not decided", (1, 1)),
        (LOSS, NEVER, NEVER, "not decided", (5, 5)),
    ],
)
def test_verdicts_with_and_without_failed_runs(criterion, tuned_values, default_values, verdict, failed):
    found = compare_settings({"A": (tuned_values, default_values)}, SEEDS, criterion)["A"]
    assert (found.verdict, found.failed) == (verdict, failed)
    assert found.use == ("tuned" if verdict == "statistically significantly better" else "default")
    assert found.to_plain()["tuned"] == ["failed" if math.isnan(x) else x for x in tuned_values]
    assert verdict in headline({"A": found}, criterion.shown)


def test_several_algorithms_are_holm_corrected():
    alone = compare_settings({"A": (HIGH, (0.7, 0.75, 0.78, 0.79, 0.76))}, SEEDS, WORST)["A"]
    many = compare_settings(
        {"A": (HIGH, (0.7, 0.75, 0.78, 0.79, 0.76)), "B": (NOISY, LOW), "C": (NOISY, HIGH)}, SEEDS, WORST
    )
    assert alone.verdict == "statistically significantly better"
    assert many["A"].verdict == "not decided"
    assert many["A"].p == pytest.approx(3 * alone.p)


def test_headline_names_every_algorithm_once():
    found = compare_settings({"A": (HIGH, LOW), "B": (NOISY, LOW), "C": (FAILS, LOW)}, SEEDS, WORST)
    found["D"] = Confirmation("default chosen")
    words = headline(found, WORST.shown)
    assert [words.count(f" {name}:") for name in "ABCD"] == [1, 1, 1, 1]
    assert headline({}, WORST.shown) == ""


def test_number_of_confirmation_seeds():
    for count in (0, 5, 6):
        check_seeds(count)
    for count in (-1, 1, 4):
        with refused("out-of-range", "confirm_seeds", str(count)):
            check_seeds(count)


def overfitted(search):
    """Make trials whose best score is no better than the default: the same step size to three digits."""
    ended = ("rounds",) * search.repeats
    return {
        "FedAvg": [
            Trial(0, {}, {}, (0.5,) * search.repeats, ended),
            Trial(1, {}, {"lr_schedule": "constant:factor=1.001"}, (0.9,) * search.repeats, ended),
        ]
    }


@pytest.mark.long
def test_confirmation_detects_a_lucky_score(tmp_path):
    search, pool = small_search(("FedAvg",), trials=2, relative=True), Here()
    found = confirm(search, overfitted(search), tmp_path, seeds=5, pool=pool)
    assert found["FedAvg"].verdict == "not decided"
    assert found["FedAvg"].seeds == (1002, 1003, 1004, 1005, 1006), "the search had 1000 and 1001"
    assert abs(found["FedAvg"].difference.mean) < 0.1
    assert len(pool.ran) == 10
    assert confirm(search, overfitted(search), tmp_path, seeds=5, pool=Here(0)) == found
    assert confirm(search, overfitted(search), tmp_path, seeds=0, pool=Here(0)) == {}


@pytest.mark.long
def test_diverging_setting_is_worse(tmp_path):
    search = small_search(("FedAvg",), trials=2, tables={"FedAvg": {"weight_decay": 0.0}})
    trials = overfitted(search)
    trials["FedAvg"][1] = trials["FedAvg"][1]._replace(table={"lr": 1e38})
    found = confirm(search, trials, tmp_path, seeds=5, pool=Here())["FedAvg"]
    assert (found.verdict, found.use, found.failed) == ("worse", "default", (5, 0))


@pytest.mark.long
def test_killed_confirmation_ends_with_the_same_files(tmp_path):
    search = small_search(trials=3)

    def files(folder):
        make_place(folder, "small")
        trials = tuned(search, folder)
        found = confirm(search, trials, folder, seeds=5, pool=Here())
        path = write(search, trials, folder, "drfl tune small", found)
        assert tomllib.loads(path.read_text()) == content(search, trials, "drfl tune small", found)
        json_text(content(search, trials, "drfl tune small", found))
        return path.read_bytes(), found

    whole, found = files(tmp_path / "a")
    make_place(tmp_path / "b", "small")
    trials = tuned(search, tmp_path / "b")
    runs = sum(10 for confirmation in found.values() if confirmation.seeds)
    assert runs, "a search in which the default was best has nothing to confirm"
    with pytest.raises(Killed):
        confirm(search, trials, tmp_path / "b", seeds=5, pool=Here(runs - 1))
    assert files(tmp_path / "b")[0] == whole


@pytest.mark.long
def test_search_on_few_rows_overfits():
    """With one tuning seed and equivalent batches of 20 to 40 samples, the best score is luck."""
    lines = list[str]()

    def space(trial):
        batch = trial.suggest_int("batch", 20, 40)
        return drfl.FedAvg(m=4, local=drfl.LocalSGD(steps=3, batch=batch, lr=0.1))

    digits = drfl.data_spec(dataset="digits", clients=6, alpha=0.5)
    torch.manual_seed(0)  # for the initial model
    task = drfl.Task(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    options = {"rounds": 4, "trials": 8, "seeds": 1, "first": {"batch": 32}, "progress": lines.append}
    found = drfl.tune(space, digits, task, **options)
    assert found.best_value > found.trials[0].score, "the search believes that it has found something"
    assert found.confirmation is not None
    assert found.confirmation.verdict == "not decided"
    assert found.confirmation.use == "default"
    assert found.headline == lines[-1]
    assert "not decided" in repr(found)
    again = drfl.tune(space, digits, task, **{**options, "confirm_seeds": 0})
    assert (again.trials, again.confirmation, again.headline) == (found.trials, None, "")
