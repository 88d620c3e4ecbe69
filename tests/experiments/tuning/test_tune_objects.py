"""Test `drfl.tune`, which searches hyperparameters of an algorithm made by an Optuna function."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from tests.support.refusals import refused

import drfl
from drfl.algorithms.fedavg import FedAvg
from drfl.core.errors import DrflError
from drfl.data.validation_split import held_out_training


@dataclass(frozen=True)
class Halfway(FedAvg):
    share: float = 1.0

    def round(self, state, fed, key):
        new, info = super().round(state, fed, key)
        return new._replace(w=state.w + self.share * (new.w - state.w)), info


def space(trial, m=3):
    share = trial.suggest_float("share", 0.1, 1)
    lr = trial.suggest_float("lr", 0.01, 1, log=True)
    return Halfway(m=m, share=share, local=drfl.LocalSGD(steps=2, batch=8, lr=lr))


def clients(numbers=False, seed=0):
    noise = torch.Generator().manual_seed(seed)
    found = {}
    for i in range(3):
        x = torch.randn(30, 4, generator=noise) + i / 2
        found[f"site{i}"] = (x, x.sum(1, keepdim=True) if numbers else (x.sum(1) > i).long())
    return drfl.ClientData.from_arrays(found)


def task(numbers=False):
    torch.manual_seed(1)
    return drfl.Task(torch.nn.Linear(4, 1), torch.nn.MSELoss()) if numbers else drfl.Task(torch.nn.Linear(4, 2))


def tuned(own=space, data=None, learned=None, **options):
    settings = {"rounds": 3, "trials": 3, "seeds": 1, "progress": None}
    return drfl.tune(own, data or clients(), learned or task(), **{**settings, **options})


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_trial_that_cannot_start_is_refused_and_reported(jobs):
    def of_cohort(trial):
        return space(trial, m=trial.suggest_categorical("m", [9, 2]))  # of three clients

    lines = list[str]()
    found = tuned(of_cohort, trials=5, jobs=jobs, progress=lines.append)
    ends = {trial.table["m"]: trial.stopped for trial in found.trials}
    assert ends == {2: ("rounds",), 9: ("refused",)}
    assert found.best_params["m"] == 2
    assert any("refused" in line and "m=9" in line for line in lines)


@pytest.mark.long
def test_best_algorithm_is_chosen_on_validation_rows():
    found = tuned(seeds=2)
    best = found.best_algorithm
    assert (best.share, best.local.lr) == (found.best_params["share"], found.best_params["lr"])
    frame = found.to_frame()
    assert list(frame) == ["trial", "share", "lr", "worst_accuracy", "seed1000", "seed1001"]
    assert found.best_value == frame.worst_accuracy.max()
    assert frame.worst_accuracy[found.best_trial.number] == found.best_value
    for seed, value in zip((1000, 1001), found.best_trial.scores, strict=True):
        held = held_out_training(clients(), 0.2, drfl.Key(seed))
        result = drfl.run(best, drfl.Simulation(held, task()), rounds=3, seed=seed, evaluate_every=3)
        assert value == pytest.approx(result.history.last.metrics.worst_score, abs=1e-6)
    assert repr(found).startswith("<Tuned Halfway: share=0.")
    assert repr(found).endswith(" of 3>")


@pytest.mark.long
def test_test_rows_are_ignored_and_given_validation_rows_used():
    split = clients().with_validation(0.5, drfl.Key(3))
    found = tuned(data=split)
    odd = torch.full_like(split.test_inputs, 1e6)
    other = replace(split, test_inputs=odd, test_targets=split.test_targets)
    assert tuned(data=other).trials == found.trials
    assert tuned().trials != found.trials


@pytest.mark.long
def test_search_resumes_with_the_same_trials(tmp_path):
    lines = []
    tuned(trials=2, out=tmp_path / "kept", progress=lines.append)
    found = tuned(trials=4, out=tmp_path / "kept", progress=lines.append)
    assert [line.split(":")[0] for line in lines] == [
        *("[1/2] Halfway trial 0", "[2/2] Halfway trial 1", "[3/4] Halfway trial 2", "[4/4] Halfway trial 3"),
    ]
    assert found == tuned(trials=4)._replace(directory=tmp_path / "kept")
    assert {path.name for path in found.directory.iterdir()} >= {"Halfway.toml", "trials.csv", "study.db"}
    for changes, error in (
        ({"own": lambda trial: space(trial)}, ("other-run", "the code of the space")),
        ({"own": partial(space, m=2)}, ("other-run", "Halfway.m", "Halfway.m = 3", "2")),
        ({"data": clients(seed=1)}, ("other-run", "the data at seed 1000")),
        ({"criterion": "average"}, ("other-run", "metric", "worst_accuracy", "avg_accuracy")),
        ({"rounds": 4}, ("other-run", "rounds", "3", "4")),
        (
            {"learned": drfl.Task(task().model, torch.nn.CrossEntropyLoss(label_smoothing=0.1))},
            ("other-run", "loss", "0.0", "0.1"),
        ),
    ):
        with refused(*error):
            tuned(out=tmp_path / "kept", **changes)


def test_first_trial_can_be_given_and_score_minimised():
    found = tuned(data=clients(True), learned=task(True), first={"share": 1.0, "lr": 0.05}, criterion="average")
    assert found.trials[0].table == {"share": 1.0, "lr": 0.05}
    assert found.criterion.metric == "avg_rmse"
    assert found.best_value == min(trial.score for trial in found.trials)


@pytest.mark.long
def test_failed_run_is_never_the_best():
    def wide(trial):
        lr = 1e38 if trial.suggest_int("bad", 0, 9) == 9 else 0.05
        return Halfway(m=3, local=drfl.LocalSGD(steps=2, batch=8, lr=lr))

    first = {"bad": 9}
    found = tuned(wide, data=clients(True), learned=task(True), first=first, trials=2)
    assert found.trials[0].stopped == ("diverged",)
    assert found.trials[0].score == math.inf
    assert found.best_trial.number == 1
    assert math.isnan(found.to_frame().seed1000[0])
    with refused("no-results", "space", "Halfway", kind=DrflError):
        tuned(wide, data=clients(True), learned=task(True), first=first, trials=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 50),
        pytest.param("lr", 0.001, marks=pytest.mark.long),
        pytest.param("share", -1.0, marks=pytest.mark.long),
    ],
)
def test_first_trial_outside_the_space_is_refused(name, value, tmp_path):
    with refused("out-of-range", "first", name, str(value)):
        tuned(first={"share": 1.0, "lr": 0.05, name: value}, out=tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_data_and_task_can_be_functions_of_the_seed():
    def learned(seed):
        torch.manual_seed(seed)
        return drfl.Task(torch.nn.Linear(4, 2))

    found = tuned(data=lambda seed: clients(seed=seed), learned=learned, trials=1, seeds=2)
    assert found.best_trial.scores[0] != found.best_trial.scores[1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"own": Halfway}, ("wrong-type", "space", "Halfway")),
        ({"own": Halfway(m=3)}, ("wrong-type", "space", "Halfway")),
        ({"own": lambda trial: {"lr": 0.1}}, ("wrong-type", "space", "dict")),
        ({"own": lambda trial: None}, ("wrong-type", "space", "NoneType")),
        ({"own": lambda trial: Halfway}, ("wrong-type", "space", "Halfway")),
        ({"rounds": 0}, ("out-of-range", "rounds", "0")),
        ({"own": lambda trial: 1 / 0}, ("user-code-failed", "space", "test_tune_objects.py", "ZeroDivisionError")),
        # Optuna raises this error, but the line to correct is the user's.
        ({"own": lambda trial: trial.suggest_int("m", 3, 1)}, ("user-code-failed", "space", "test_tune_objects.py")),
        ({"own": partial(space, m=9)}, ("out-of-range", "m", "m=9")),
        ({"criterion": "wurst"}, ("unknown-name", "criterion", "'wurst'", "'worst'")),
        ({"trials": 0}, ("out-of-range", "trials", "1")),
        ({"first": {"share": 0.5}}, ("missing-option", "first", "lr")),
        ({"first": {"share": 0.5, "lrr": 0.1}}, ("missing-option", "first", "lr")),
        ({"first": {"share": 0.5, "lr": 0.1, "m": 3}}, ("unknown-name", "first", "m")),
        ({"first": {"share": 0.5, "lr": "a"}}, ("user-code-failed", "first", "'a'")),
        ({"first": [0.5]}, ("wrong-type", "first", "list")),
        ({"validation": 1.5}, ("invalid-value", "validation", "1.5")),
    ],
)
def test_mistakes_are_one_line_and_leave_no_files(options, error, tmp_path):
    with refused(*error) as caught:
        tuned(**options, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_two_processes_give_the_same_search(tmp_path):
    assert tuned(seeds=2, jobs=2).trials == tuned(seeds=2).trials
