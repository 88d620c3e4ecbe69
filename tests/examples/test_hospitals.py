"""Test the four hospitals: scores by hand, files with the simulation's data, and pages that match stored results."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from pathlib import Path

import choose
import numpy as np
import prepare
import pytest
import simulate
import site_table
import torch
from scoring import Scores, calibration_error, scores
from tests.support.marks import long_beyond

import drfl
from drfl.core.key import Key
from drfl.data import Natural, make_partition
from drfl.experiments.config.build import build
from drfl.experiments.run.artifacts import json_text

HERE = Path(simulate.__file__).parent
NAMES = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")


@pytest.fixture(scope="module")
def dataset():
    return drfl.load("heart-disease")


def test_calibration_error_by_hand():
    risk, ill = np.array([0.05, 0.15, 0.15, 0.85, 1.0]), np.array([0, 0, 1, 1, 0])
    # risks: one 0.05 too high, two 0.35 too low on average, one 0.15 too low, one 1 too high
    assert calibration_error(risk, ill) == pytest.approx((1 * 0.05 + 2 * 0.35 + 1 * 0.15 + 1 * 1) / 5)


def test_bins_include_their_lower_edge():
    assert calibration_error(np.array([0.1, 0.15]), np.array([0, 1])) == pytest.approx(0.375)


def test_scores_by_hand():
    assert scores(np.array([0.2, 0.6, 0.4, 0.8]), np.array([0, 0, 1, 1])) == Scores(
        accuracy=0.5, auc=0.75, ece=pytest.approx(0.4), brier=pytest.approx((0.04 + 0.36 + 0.36 + 0.04) / 4)
    )


def test_auc_of_one_class_is_undefined():
    found = scores(np.array([0.5, 0.9]), np.array([1, 1]))
    assert math.isnan(found.auc)
    assert found[0] == 0.5
    assert found[2:] == pytest.approx((0.3, 0.13))


def test_risks_equal_the_federations_outputs(dataset):
    job = build(simulate.config_of("mlp", "FedAvg", 1, 1), dataset)
    expected = job.fed.evaluate(job.fed.w0)
    for i, (name, inputs, ill) in enumerate(simulate.tested(job.data)):
        risk = simulate.risks(job, job.fed.w0, inputs)
        assert name == NAMES[i]
        assert -np.log(np.where(ill == 1, risk, 1 - risk)).mean() == pytest.approx(float(expected.loss[i]), rel=1e-5)
        assert scores(risk, ill).accuracy == float(expected.score[i])


@pytest.mark.parametrize(
    ("model", "name"), long_beyond(4, [*(("linear", name) for name in simulate.RUNS), ("mlp", "DualDRDM")])
)
def test_two_rounds_give_finite_numbers(model, name, dataset):
    sites = simulate.simulate(model, name, 0, dataset, rounds=2)
    assert tuple(site.site for site in sites) == NAMES
    assert [site.patients for site in sites] == [101, 87, 15, 43]
    undefined = [(site.site, i) for site in sites for i, value in enumerate(site.scores) if not math.isfinite(value)]
    assert undefined == [("Switzerland", Scores._fields.index("auc"))]
    assert all(0 < site.train_loss < 2 and 0 < site.test_loss < 2 for site in sites)
    assert sum(site.lam for site in sites) == pytest.approx(1)


def test_control_differs_from_fedavg_only_in_its_weights():
    a, b = (simulate.config_of("linear", name, 0).parameters("FedAvg") for name in ("FedAvg", "FedAvg, sites alike"))
    assert {name for name in a if a[name] != b[name]} == {"by_samples"}


def test_constant_model_predicts_the_share_of_ill_patients(dataset):
    cleveland, _, swiss, _ = simulate.baseline("linear", 0, dataset)
    assert cleveland.scores[:2] == (55 / 101, 0.5)
    assert swiss.scores[2:] == pytest.approx((1 / 31, (1 / 31) ** 2))


def test_worst_and_average_cover_every_seed_with_a_value():
    accuracies = {("A", 0): 0.5, ("B", 0): 0.7, ("A", 1): 0.9, ("B", 1): 0.5}
    sites = [
        site_table.Site("m", "X", seed, name, 9, 9, Scores(accuracy, 0.8 if name == "A" else math.nan, 0, 0))
        for (name, seed), accuracy in accuracies.items()
    ]
    text = site_table.table(sites)
    assert "| X | 50.0 ± 0.0 | 65.0 ± 7.1 | 0.800 ± 0.000 | 0.800 ± 0.000 | 0.000" in text
    assert "| X | 70.0 ± 28.3 | 60.0 ± 14.1 | 50.0 ± 0.0 | 65.0 ± 7.1 |" in text
    assert "| X | 0.800 ± 0.000 | – | 0.800 ± 0.000 | 0.800 ± 0.000 |" in text
    assert site_table.cells(sites[1])[6:9] == ["0.700000", "", "0.000000"]


@pytest.mark.parametrize("seed", [0, 3])
def test_prepared_files_have_the_simulations_rows(seed, tmp_path, dataset, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["prepare.py", str(tmp_path / "new"), "--seed", str(seed)])
    prepare.main()
    out = capsys.readouterr().out
    data = drfl.ClientData.from_dataset(dataset, make_partition(dataset, Natural(), Key(seed).fold("partition")))
    assert (tmp_path / "new" / "order.txt").read_text().splitlines() == list(data.names) == list(NAMES)
    for name, train, test in zip(data.names, data.train, data.test, strict=True):
        with np.load(tmp_path / "new" / f"{name}.npz", allow_pickle=False) as file:
            found = dict(file)
        expected = {
            "train_inputs": data.inputs[train], "train_targets": data.targets[train],
            "test_inputs": data.test_inputs[test], "test_targets": data.test_targets[test],
        }  # fmt: skip
        assert set(found) == set(expected)
        for key, value in expected.items():
            assert torch.from_numpy(found[key]).equal(value)
        assert f"{name}.npz: train_inputs {len(train)}×13 float32" in out


@pytest.mark.parametrize(("model", "name"), [("linear", "DualDRDM"), ("mlp", "FedAvg")])
def test_run_on_the_files_equals_the_simulation(model, name, tmp_path, dataset):
    prepare.prepare(tmp_path, seed=2)
    job = build(simulate.config_of(model, name, 2, 2), dataset)
    files = {site: np.load(tmp_path / f"{site}.npz") for site in (tmp_path / "order.txt").read_text().splitlines()}
    train, test = (
        {site: (file[f"{part}_inputs"], file[f"{part}_targets"]) for site, file in files.items()}
        for part in ("train", "test")
    )
    fed = drfl.Simulation(drfl.ClientData.from_arrays(train, test), job.task)
    expected = drfl.run(job.algorithm, job.fed, rounds=2, seed=2)
    found = drfl.run(job.algorithm, fed, rounds=2, seed=2)
    # up to rounding, because a pool with other rows changes the order of summation
    assert torch.allclose(found.state.w, expected.state.w, rtol=1e-5, atol=1e-6)
    assert torch.allclose(found.lam, expected.lam, rtol=1e-6)
    assert found.evaluation.score.equal(expected.evaluation.score)


def test_impossible_seed_is_a_one_line_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["prepare.py", str(tmp_path / "new"), "--seed", "-1"])
    with pytest.raises(SystemExit) as stop:
        prepare.main()
    assert stop.value.code == 2
    assert "`seed` must be at least 0, got -1" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_files_contain_the_chosen_settings():
    with (HERE / "results" / "choices.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for model in simulate.MODELS:
        for name, settings in choose.GRID.items():
            own = [row for row in rows if (row["model"], row["algorithm"]) == (model, name)]
            assert len(own) == len(settings)
            best = min(own, key=lambda row: statistics.fmean(float(row[k]) for k in row if k.startswith("worst")))
            chosen = simulate.config_of(model, name, 0).parameters(name)
            for part in best["setting"].split():
                key, value = part.split("=")
                assert chosen[key] == float(value), (model, name)


def test_stored_results_used_the_settings_of_the_files():
    stored = json.loads((HERE / "results" / "summary.json").read_text(encoding="utf-8"))
    now = json.loads(json_text(simulate.about(stored["seeds"], rounds=None)))
    assert {key: stored[key] for key in ("rounds", "parameters", "dtype")} == {
        key: now[key] for key in ("rounds", "parameters", "dtype")
    }


@pytest.mark.long
def test_settings_are_chosen_on_validation_rows(dataset):
    losses = {choose.worst_loss("linear", name, own[0], 0, dataset) for name, own in choose.GRID.items()}
    assert all(0.4 < loss < 0.8 for loss in losses)
    with (HERE / "results" / "choices.csv").open(newline="", encoding="utf-8") as file:
        stored = {row["worst_validation_loss_seed_0"] for row in csv.DictReader(file) if row["model"] == "linear"}
    assert {f"{loss:.2f}" for loss in losses} <= {f"{float(loss):.2f}" for loss in stored}


def test_page_shows_the_stored_results():
    page = (HERE / "README.md").read_text(encoding="utf-8")
    files = (HERE / "results" / f"{name}.md" for name in ("table", "deployed"))
    stored = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    shown = [line for line in page.splitlines() if line.startswith("|")]
    assert len(shown) > 20
    assert [line for line in shown if line not in stored] == []


def test_scripts_and_links_of_the_page_exist():
    page = (HERE / "README.md").read_text(encoding="utf-8")
    scripts = re.findall(r"python examples/hospitals/(\w+\.py)", page)
    links = [link for link in re.findall(r"\]\(([^)#]+)", page) if not link.startswith("http")]
    assert scripts
    assert [name for name in [*scripts, *links] if not (HERE / name).exists()] == []
