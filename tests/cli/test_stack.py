"""`--stack` of `drfl compare` and `drfl tune`."""

from __future__ import annotations

import csv

import pytest
from tests.support.refusals import check_refusal
from tests.support.small_search import Here

from drfl.cli import tune
from drfl.cli.app import call
from drfl.engine import lockstep
from drfl.experiments.compare import comparison

SMALL = [
    "--algorithms",
    "FedAvg,DRFA",
    "--clients",
    "6",
    "--cohort",
    "4",
    "--rounds",
    "2",
    "--steps",
    "2",
    "--lr",
    "0.1",
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
def test_seeds_of_an_algorithm_are_run_side_by_side(tmp_path, monkeypatch, capsys):
    groups = []

    def counted(runs):
        groups.append([run.args[3:] for run in runs])
        return lockstep.run_in_lockstep(runs)

    monkeypatch.setattr(comparison, "run_in_lockstep", counted)
    assert call(["compare", *SMALL, "--seeds", "3", "--stack", "2", "--out", "a"]) == 0
    # The third seed's runs are by themselves.
    assert groups == [[("FedAvg", 0), ("FedAvg", 1)], [("DRFA", 0), ("DRFA", 1)]]
    assert "[6/6] DRFA, seed 2:" in capsys.readouterr().err
    with (tmp_path / "a/compare.csv").open(newline="") as file:
        rows = [(row["algorithm"], row["seed"]) for row in csv.DictReader(file)]
    assert rows == [(name, seed) for seed in "012" for name in ("FedAvg", "DRFA")]


@pytest.mark.long
def test_a_search_hands_over_stacks(tmp_path, monkeypatch):
    class Stacks(Here):
        def submit(self, stack, folder):
            sizes.append(len(stack))
            futures = [super(Stacks, self).submit([cell], folder) for cell in stack]
            futures[0].result().extend(record for future in futures[1:] for record in future.result())
            return futures[0]

    sizes = []
    monkeypatch.setattr(tune, "pool_of", Stacks())
    (tmp_path / "job.toml").write_text('dataset = "digits"\nclients = 6\ncohort = 4\nrounds = 2\nsteps = 2\n')
    words = ["--algorithms", "FedAvg", "--trials", "2", "--seeds", "3", "--stack", "2", "--out", "a"]
    assert call(["tune", "job.toml", *words]) == 0
    assert sizes == [2, 1] * 2


@pytest.mark.parametrize("command", [["compare", *SMALL], ["tune", "job.toml"]])
def test_a_cluster_has_no_stacks(command, tmp_path, capsys):
    check_refusal([*command, "--stack", "2", "--ray", "local", "--out", "a"], "conflicting-options", "stack")
    assert not (tmp_path / "a").exists()
