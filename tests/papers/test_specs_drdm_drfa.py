"""Test the specifications of the DRDM and DRFA papers: their numbers, and the runs that tables and figures share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from tests.support.marks import crossed, long_beyond, long_except

from drfl.experiments.config.config import load_config
from drfl_papers.plan import Plan, Scale, plan
from drfl_papers.specification import Specification, load_job, load_spec
from drfl_papers.tuning_jobs import methods_of

TABLES = [f"drdm-table-{n}" for n in range(1, 7)]
FIGURES = [f"drdm-figure-{n}" for n in range(1, 7)]
ALL = [*TABLES, *FIGURES, "drfa-figure-1", "drfa-figure-2", "drfa-figure-3"]
JOBS = ["mnist-linear", "kmnist-cnn", "fashion-resnet18", "fashion-one-class", "kmnist-cnn-sizes"]
PAPER = ["DRDM", "DRFA", "SCAFFOLD", "SCAFF-PD (m = 20)", "FedAvg"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Path:
    """Return made-up hyperparameters for every method and job."""
    folder = tmp_path_factory.mktemp("tuned")
    for i, job in enumerate(JOBS):
        text = tomli_w.dumps({"algorithms": {name: {"lr": 0.05 + i / 100} for name in methods_of(job)}})
        (folder / f"{job}.toml").write_text(text, encoding="utf-8")
    return folder


def keys(made: Plan, setting: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for planned in made.cells:
        if planned.setting == setting:
            found.setdefault(planned.method, []).append(planned.cell.key)
    return found


def column(spec: Specification, setting: str, metric: int) -> list[float]:
    return [row[metric] for row in spec.values[setting].values()]


@pytest.mark.parametrize("name", JOBS)
def test_jobs_are_valid_configurations(name):
    config = load_config(None, load_job(name).values)
    assert config.steps == 10
    assert config.cohort == (10 if name == "fashion-one-class" else 20)


SCALES = [pytest.param(True, True, id="quick"), pytest.param(False, False, id="full")]


@pytest.mark.parametrize(("quick", "stand_in", "name"), crossed(SCALES, long_beyond(4, ALL)))
def test_every_specification_can_be_planned(name, quick, stand_in, tuned):
    spec = load_spec(name)
    made = plan(spec, Scale(quick=quick, stand_in=stand_in, tuned=tuned))
    assert len(made.cells) == made.repeats * len(made.settings) * len(spec.methods)
    assert len({planned.cell.key for planned in made.cells}) == len(made.cells)
    assert made.rounds <= (20 if quick else 300)
    for text in (spec.note, spec.stand_in.why if spec.stand_in else "None."):
        assert text == " ".join(text.split())
        assert text.endswith(".")


@pytest.mark.parametrize(
    ("table", "sums"),
    [  # sums over all methods: (average, worst, standard deviation) per setting
        (1, [(437.99, 388.18, 20.22), (439.17, 412.28, 12.40), (441.45, 415.20, 12.46), (442.86, 420.35, 10.81)]),
        (2, [(433.23, 361.25, 23.81), (423.74, 352.81, 28.79), (415.85, 341.52, 29.07)]),
        (3, [(444.25, 414.26, 15.75), (439.82, 417.55, 14.06), (445.33, 421.20, 13.27), (441.88, 421.62, 11.85)]),
        (4, [(442.73, 408.67, 15.72), (443.19, 405.47, 18.37), (443.61, 400.63, 21.19)]),
        (
            5,
            [
                (328.04, 177.80, 65.80),
                (315.47, 199.65, 50.71),
                (312.77, 222.05, 44.214),
                (316.94, 238.68, 38.70),
                (321.59, 249.25, 35.10),
            ],
        ),
        (6, [(318.50, 170.40, 66.54), (326.77, 183.24, 62.07), (321.59, 157.92, 67.17)]),
    ],
)
def test_papers_numbers_are_consistent(table, sums):
    spec = load_spec(f"drdm-table-{table}")
    found = [tuple(sum(column(spec, setting.name, metric)) for metric in range(3)) for setting in spec.settings]
    assert [pytest.approx(row, abs=1e-9) for row in sums] == found
    assert all(list(rows) == PAPER for rows in spec.values.values())


@pytest.mark.parametrize(
    ("table", "setting", "method", "numbers"),
    [
        (1, "α = 0.1", "SCAFF-PD (m = 20)", [85.62, 78.18, 3.79]),
        (2, "σ = 0.7", "DRFA", [78.86, 61.42, 6.94]),
        (3, "α = 0.5", "FedAvg", [88.86, 82.99, 2.97]),
        (4, "σ = 0.5", "SCAFFOLD", [89.34, 80.18, 3.70]),
        (5, "α = 0.5", "SCAFFOLD", [64.83, 47.05, 8.494]),  # as printed in the paper
        (6, "σ = 0.7", "DRDM", [67.66, 40.62, 12.77]),
    ],
)
def test_papers_numbers_are_in_their_rows(table, setting, method, numbers):
    assert load_spec(f"drdm-table-{table}").values[setting][method] == numbers


@pytest.mark.parametrize("quick", long_except(["True"], [False, True]))
@pytest.mark.parametrize(
    ("table", "setting", "figure", "stand_in"),
    [
        ("drdm-table-1", "α = 0.1", "drdm-figure-1", False),
        ("drdm-table-1", "α = 0.1", "drdm-figure-1", True),
        ("drdm-table-2", "σ = 0.3", "drdm-figure-2", False),
        ("drdm-table-3", "α = 0.1", "drdm-figure-5", False),
        ("drdm-table-4", "σ = 0.3", "drdm-figure-6", False),
    ],
)
def test_tables_and_figures_share_their_runs(table, setting, figure, stand_in, quick, tuned):
    scale = Scale(quick=quick, stand_in=stand_in, tuned=tuned)
    curves = load_spec(figure)
    column = replace(scale, settings=(setting,))
    there, here = keys(plan(load_spec(table), column), setting), keys(plan(curves, scale), curves.settings[0].name)
    assert {method: own[: len(there[method])] for method, own in here.items()} == {m: there[m] for m in here}
    everybody = "SCAFF-PD" if figure in ("drdm-figure-5", "drdm-figure-6") else "SCAFF-PD (minibatch reports)"
    assert set(here) == {*PAPER, everybody, "dual DRDM", "FedDyn"}


@pytest.mark.parametrize("stand_in", [False, True])
def test_energy_map_uses_the_runs_of_figure_3(stand_in, tuned):
    rounds, energy = (plan(load_spec(f"drdm-figure-{n}"), Scale(stand_in=stand_in, tuned=tuned)) for n in (3, 4))
    assert [c.cell.key for c in rounds.cells] == [c.cell.key for c in energy.cells]
    assert {(c.cell.job["steps"], c.cell.job["rounds"]) for c in rounds.cells} == {
        *((1, 400), (5, 200), *((steps, 150) for steps in (10, 15, 20, 25, 30)))
    }


def test_figure_3_has_the_papers_rounds_to_its_first_target():
    spec = load_spec("drdm-figure-3")
    assert spec.reached == {"τ = 5": 48, "τ = 10": 41, "τ = 20": 32, "τ = 30": 25}
    assert [target.value for target in spec.targets] == [0.85, 0.8]


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("drdm-table-1", {"dataset": "kmnist-t10k", "model": "cnn", "rounds": 60, "zipf": 0.0}),
        ("drdm-table-2", {"dataset": "kmnist-t10k", "model": "cnn", "rounds": 60, "zipf": 0.3, "alpha": 0.1}),
        ("drdm-table-3", {"dataset": "mnist", "model": "linear", "rounds": 100}),
        ("drdm-table-6", {"backbone": "efficientnet-lite0-imagenet", "dataset": "fashion-mnist", "rounds": 100}),
    ],
)
def test_stand_ins_for_unavailable_data(name, job, tuned):
    first = plan(load_spec(name), Scale(stand_in=True, repeats=1, tuned=tuned)).cells[0].cell.job
    assert {key: first[key] for key in job} == job


def test_drfa_values_are_those_of_the_paper(tuned):
    made = {n: plan(load_spec(f"drfa-figure-{n}"), Scale(tuned=tuned)) for n in (1, 2, 3)}
    figure_1, figure_2 = (keys(made[n], "one class per client") for n in (1, 2))
    assert figure_1["τ = 10"] == figure_2["DRFA, paper's η, γ"]
    jobs = {c.method: c.cell.job for c in made[2].cells}
    assert jobs["AFL, paper's η, γ"]["algorithms"] == {"AFL": {"lr": 0.1, "gamma": 0.008, "dual_batch": 50}}
    assert jobs["AFL, paper's η, γ"]["steps"] == 1
    assert jobs["q-FedAvg, paper's η, q"]["algorithms"] == {"QFedAvg": {"lr": 0.1, "q": 0.2}}
    tuned_rates = {name: job["algorithms"] for name, job in jobs.items() if name.endswith(", tuned")}
    assert all(next(iter(table.values()))["lr"] == 0.08 for table in tuned_rates.values())
    assert len(tuned_rates) == 10
    assert {c.cell.job["rounds"] for c in made[3].cells} == {100}
    assert figure_1["τ = 10, authors' γ and λ"] == figure_2["DRFA, authors' γ and λ"]
    afl = jobs["AFL (DRFA, τ = 1)"]
    assert (afl["algorithms"], afl["steps"], afl["rounds"]) == (jobs["DRFA, paper's η, γ"]["algorithms"], 1, 600)
    by_rows = {on: [c.cell.job for c in made[3].cells if c.cell.job["judged_on"] == on] for on in ("training", "test")}
    assert [job | {"judged_on": "test"} for job in by_rows["training"]] == by_rows["test"]
    assert len(by_rows["test"]) == len(made[3].cells) / 2


@pytest.mark.parametrize("name", ["drdm-figure-3", "drdm-figure-4"])
def test_figures_over_tau_use_the_tuned_mu_and_gamma(name):
    made = plan(load_spec(name), Scale(stand_in=True))
    given = [(planned.method, planned.cell.job["algorithms"]["DRDM"]) for planned in made.cells]
    # Otherwise both would depend on the number of steps, which these figures vary.
    assert len({method for method, _ in given}) == len(load_spec(name).methods)
    assert len({(values["mu"], values["gamma"]) for _, values in given}) == 1
