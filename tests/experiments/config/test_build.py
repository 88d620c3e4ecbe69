"""Test the data and loss that a configuration gives."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from tests.support.marks import long_except

import drfl
from drfl.data import load
from drfl.data.features import featurise
from drfl.experiments.compare.comparison import Design, PreparedComparison, compare, from_config
from drfl.experiments.config import data_settings as module
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config
from drfl.experiments.config.data_settings import load_data
from drfl.experiments.run.run_directory import claim_folder
from drfl.experiments.run.runner import StopSignal, execute
from drfl.task.models import cnn
from drfl.training.loop import run

SMALL = {"clients": 5, "cohort": 3, "rounds": 2, "steps": 2}


def test_files_that_changed_are_read_again(tmp_path):
    def rows(folder, top):
        for site in "ab":
            x = [*range(29), top]
            pd.DataFrame({"x": x, "ill": [k % 2 for k in range(30)]}).to_csv(folder / f"{site}.csv", index=False)

    def largest(*paths):
        inputs = drfl.data_spec(data=[str(path) for path in paths], target="ill").for_seed(0)
        return round(float((inputs.inputs * inputs.standardisation.scale + inputs.standardisation.mean).max()))

    folders = tmp_path, tmp_path / "sub"
    folders[1].mkdir()
    for folder in folders:
        rows(folder, 50)
        assert [largest(folder), largest(folder / "a.csv", folder / "b.csv")] == [50, 50]
        rows(folder, 99)
        assert [largest(folder), largest(folder / "a.csv", folder / "b.csv")] == [99, 99]


def test_data_sets_are_loaded_by_name():
    digits = load("digits")
    assert load_data(Config()).inputs.equal(digits.inputs)


@pytest.mark.parametrize("engine", long_except(["stacked"], ["loop", "threads", "stacked"]))
def test_squared_loss_runs_on_every_engine(engine):
    losses = [build(Config(loss="squared", engine=name, dtype="float64", **SMALL)) for name in ("loop", engine)]
    a, b = (run(job.algorithm, job.fed, rounds=2, seed=0) for job in losses)
    torch.testing.assert_close(a.state.w, b.state.w, rtol=0, atol=1e-10)
    job = losses[0]
    x, y = job.data.inputs[:3].double(), job.data.targets[:3]
    expected = (torch.nn.functional.one_hot(y, 10) - job.task.model(x)).square().sum(1) / 2
    torch.testing.assert_close(job.task.sample_losses(job.task.model(x), y), expected)
    assert a.history.last.metrics.avg_loss < a.history.rows[0].metrics.avg_loss


def test_validation_does_not_change_the_test_part():
    dataset = load("digits")
    plain, held = (
        build(Config(validation=v, judged_on="validation" if v else "test", seed=3, **SMALL), dataset)
        for v in (None, 0.25)
    )
    assert held.data.test_inputs is held.data.inputs is dataset.inputs
    assert held.partition == plain.partition
    for whole, kept, tested in zip(plain.data.train, held.data.train, held.data.test, strict=True):
        assert sorted([*kept.tolist(), *tested.tolist()]) == whole.tolist()


@pytest.mark.long
def test_validation_results_do_not_depend_on_test_rows():
    dataset = load("digits")
    other = dataclasses.replace(dataset, test_inputs=1 - dataset.test_inputs)
    a, b = (
        execute(build(Config(validation=0.25, judged_on="validation", **SMALL), data)).result
        for data in (dataset, other)
    )
    assert a.history.to_csv() == b.history.to_csv()
    assert execute(build(Config(**SMALL), other)).result.history.to_csv() != a.history.to_csv()


def test_training_curves_belong_to_runs_that_use_test_rows():
    dataset = load("digits")
    test, training = (execute(build(Config(judged_on=on, **SMALL), dataset)).result for on in ("test", "training"))
    assert torch.equal(test.state.w, training.state.w)
    assert test.history.last.metrics.avg_loss != training.history.last.metrics.avg_loss
    assert training.evaluation.samples.sum() == 1198


def test_other_seeds_give_other_validation_rows():
    dataset = load("digits")
    a, b, c = (
        build(Config(validation=0.25, judged_on="validation", seed=s, partition="iid", **SMALL), dataset)
        for s in (0, 0, 1)
    )
    assert a.data.test[0].equal(b.data.test[0])
    assert not a.data.test[0].equal(c.data.test[0])


@pytest.fixture
def features(tmp_path, monkeypatch):
    """Return options for features of an untrained network; caches are below a temporary folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    save_file({name: v.contiguous() for name, v in cnn((1, 8, 8), 10).state_dict().items()}, tmp_path / "a.safetensors")
    return {"features": "penultimate", "backbone": str(tmp_path / "a.safetensors")}


def test_clients_train_on_features(features):
    job = build(Config(**features, **SMALL))
    assert job.data.inputs.shape == (1198, 500)
    assert job.task.layout.d == 5010
    held = build(Config(validation=0.5, judged_on="validation", **features, **SMALL))
    assert held.data.test_inputs is held.data.inputs
    assert held.data.inputs.equal(job.data.inputs)


@pytest.mark.long
def test_comparison_computes_features_once(features, tmp_path, monkeypatch):
    asked = []

    def counted(*arguments, **options):
        asked.append(arguments)
        return featurise(*arguments, **options)

    monkeypatch.setattr(module, "featurise", counted)
    said: list[str] = []
    config = Config(**features, **SMALL)
    ready = PreparedComparison.of(Design(config, ("FedAvg", "DRDM"), (0, 1)), from_config(config, said.append))
    with claim_folder(tmp_path / "out", "comparison") as claim:
        assert len(list(compare(ready, claim, StopSignal()))) == 4
    assert len(asked) == 1
    assert said == [f"features of digits by {features['backbone']}: 1797 images"]
