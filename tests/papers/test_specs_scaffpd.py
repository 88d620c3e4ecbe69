"""Test the specifications of the SCAFF-PD paper: their numbers, stand-ins and shared runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w
from tests.support.marks import crossed, long_beyond
from tests.support.refusals import refused

from drfl.ambiguity import ChiSquare, parse
from drfl.experiments.config.config import load_config
from drfl_papers import specification as specs
from drfl_papers.plan import Plan, Scale, plan
from drfl_papers.specification import load_job, load_spec
from drfl_papers.tuning_jobs import methods_of

TABLES = [f"scaffpd-table-{n}" for n in range(1, 5)]
TRAINED = [*TABLES, "scaffpd-figure-3", "scaffpd-figure-4"]
MEASURED = ["scaffpd-figure-2", "scaffpd-figure-5"]
JOBS = {"cifar100-entk": "cifar-100", "tiny-imagenet-entk": "tiny-imagenet", "cifar10-entk": "cifar-10"}
PAPER = ["FedAvg", "SCAFFOLD", "q-FFL", "AFL", "DRFA", "SCAFF-PD"]
OURS = [
    "DRDM",
    "dual DRDM",
    "DRFA (everybody)",
    "DRDM (everybody)",
    "dual DRDM (everybody)",
    "SCAFFOLD (η_g = 1)",
]
ALPHAS = ["0.01", "0.05", "0.1"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Path:
    """Return made-up hyperparameters for every method and job; the same on all data."""
    folder = tmp_path_factory.mktemp("tuned")
    for job in (*JOBS, "cifar100-entk-50-clients"):
        text = tomli_w.dumps({"algorithms": {name: {"lr": 0.05} for name in methods_of(job)}})
        (folder / f"{job}.toml").write_text(text, encoding="utf-8")
    return folder


def keys(made: Plan, setting: str, method: str) -> list[str]:
    return [planned.cell.key for planned in made.cells if (planned.setting, planned.method) == (setting, method)]


@pytest.mark.parametrize(("name", "dataset"), JOBS.items())
def test_jobs_are_valid_configurations(name, dataset):
    config = load_config(None, load_job(name).values)
    assert (config.dataset, config.clients, config.cohort, config.partition) == (dataset, 20, 20, "dirichlet-drop")
    assert (config.features, config.feature_count, config.loss) == ("entk", 50_000, "squared")


SCALES = [pytest.param(True, True, id="quick"), pytest.param(False, False, id="full")]


@pytest.mark.parametrize(("quick", "stand_in", "name"), crossed(SCALES, long_beyond(4, [*TRAINED, *MEASURED])))
def test_every_specification_can_be_planned(name, quick, stand_in, tuned):
    spec = load_spec(name)
    made = plan(spec, Scale(quick=quick, stand_in=stand_in, tuned=tuned))
    assert len(made.cells) == made.repeats * len(spec.settings) * len(spec.methods)
    assert (made.rounds, made.repeats) == ((5, 2) if quick else (400, 10) if name in MEASURED else (100, 10))
    for text in (spec.note, spec.stand_in.why if spec.stand_in else "None."):
        assert text == " ".join(text.split())
        assert text.endswith(".")


@pytest.mark.parametrize(
    ("name", "setting", "average", "worst"),
    [  # sums over the paper's methods
        (1, "CIFAR-100, α = 0.01", 245.42, 110.12),
        (1, "CIFAR-100, α = 0.05", 229.24, 145.91),
        (1, "CIFAR-100, α = 0.1", 234.36, 166.17),
        (1, "Tiny ImageNet, α = 0.01", 214.33, 110.02),
        (1, "Tiny ImageNet, α = 0.05", 211.66, 152.08),
        (1, "Tiny ImageNet, α = 0.1", 227.29, 168.84),
        (2, "50 clients, α = 0.01", 274.03, 143.23),
        (3, "α = 0.05", 461.33, 364.46),
        (4, "CIFAR-100, α = 0.01", 117.88, 52.14),
        (4, "CIFAR-100, α = 0.05", 111.15, 68.76),
        (4, "CIFAR-100, α = 0.1", 111.87, 75.85),
        (4, "Tiny ImageNet, α = 0.01", 103.97, 55.35),
        (4, "Tiny ImageNet, α = 0.05", 107.61, 76.13),
        (4, "Tiny ImageNet, α = 0.1", 112.68, 77.50),
    ],
)
def test_papers_numbers_of_tables(name, setting, average, worst):
    spec = load_spec(f"scaffpd-table-{name}")
    rows = spec.values[setting]
    assert spec.metrics == ["avg_accuracy", "worst20_accuracy"]
    assert sum(row[0] for row in rows.values()) == pytest.approx(average)
    assert sum(row[1] for row in rows.values()) == pytest.approx(worst)
    assert list(rows) == (["FedProx", "Δ-FL", "SCAFF-PD"] if name == 4 else PAPER)
    assert set(spec.values) == {known.name for known in spec.settings}


def test_single_numbers_of_the_paper():
    first, second, third, fourth = (load_spec(name).values for name in TABLES)
    assert first["CIFAR-100, α = 0.01"]["q-FFL"] == [26.39, 5.43]
    assert first["Tiny ImageNet, α = 0.1"]["SCAFF-PD"] == [41.23, 29.78]
    assert second["50 clients, α = 0.01"]["DRFA"] == [51.07, 31.23]
    assert third["α = 0.05"]["SCAFF-PD"] == [79.71, 69.59]
    assert fourth["Tiny ImageNet, α = 0.05"]["Δ-FL"] == [36.77, 22.24]
    assert all(rows["SCAFF-PD"] == first[setting]["SCAFF-PD"] for setting, rows in fourth.items())


def test_all_baselines_are_included():
    assert [method.name for method in load_spec("scaffpd-table-1").methods] == [*PAPER, *OURS]
    for name in TRAINED:
        for method in load_spec(name).methods:
            penalty = method.parameters.get("ambiguity")
            assert (penalty is not None) == (method.algorithm == "ScaffPD")
            assert penalty is None or isinstance(parse(str(penalty)), ChiSquare)


@pytest.mark.parametrize("stand_in", [False, True])
@pytest.mark.long
def test_tables_and_figures_share_their_runs(stand_in, tuned):
    scale = Scale(stand_in=stand_in, tuned=tuned)
    made = {name: plan(load_spec(name), scale) for name in TRAINED}
    table, others = made["scaffpd-table-1"], made["scaffpd-table-4"]
    for data in ("CIFAR-100", "Tiny ImageNet"):
        for alpha in ALPHAS:
            setting = f"{data}, α = {alpha}"
            assert keys(others, setting, "SCAFF-PD") == keys(table, setting, "SCAFF-PD") != []
    first = "CIFAR-100, α = 0.01"
    assert keys(made["scaffpd-figure-3"], first, "SCAFF-PD, ρ = 0.1") == keys(table, first, "SCAFF-PD")
    assert keys(made["scaffpd-figure-3"], first, "SCAFFOLD") == keys(table, first, "SCAFFOLD")
    for method in (*PAPER, *OURS):
        last = "Tiny ImageNet, α = 0.01"
        assert keys(made["scaffpd-figure-4"], last, method) == keys(table, last, method)


@pytest.mark.long
def test_figures_2_and_5_share_scaffpds_runs():
    two, five = (plan(load_spec(name), Scale()) for name in MEASURED)
    shared = keys(two, "ρ = 0.1", "SCAFF-PD")
    assert shared == keys(five, "σ = 0.1", "SCAFF-PD") == keys(five, "J = 100", "SCAFF-PD")
    assert len(set(shared)) == 10
    assert {planned.cell.job["steps"] for planned in five.cells} == {1, 10, 100}


@pytest.mark.long
def test_each_setting_has_its_own_stand_in(tuned):
    made = plan(load_spec("scaffpd-table-1"), Scale(stand_in=True, tuned=tuned))
    found = {planned.setting: (planned.cell.job["dataset"], planned.cell.job["alpha"]) for planned in made.cells}
    assert found == {
        "CIFAR-100, α = 0.01": ("fashion-mnist", 0.1),
        "CIFAR-100, α = 0.05": ("fashion-mnist", 0.5),
        "CIFAR-100, α = 0.1": ("fashion-mnist", 1.0),
        "Tiny ImageNet, α = 0.01": ("kmnist-t10k", 0.1),
        "Tiny ImageNet, α = 0.05": ("kmnist-t10k", 0.5),
        "Tiny ImageNet, α = 0.1": ("kmnist-t10k", 1.0),
    }
    for name in TRAINED:
        for planned in plan(load_spec(name), Scale(stand_in=True, tuned=tuned)).cells:
            job = planned.cell.job
            assert (job["feature_count"], job["resize"]) == (2000, 28)
            assert job["backbone"] == ("cnn-fashion-mnist" if job["dataset"] == "mnist" else "cnn-mnist")
            assert job["clients"] == job["cohort"] == (50 if name == "scaffpd-table-2" else 20)


def test_missing_stand_in_of_a_setting_is_refused():
    values = load_spec("scaffpd-table-2").model_dump()
    values["stand_in"]["settings_job"] = {"α = 0.1": {"alpha": 0.5}}
    with refused("invalid-value", None, "'α = 0.1'"):
        specs.parse(values)
