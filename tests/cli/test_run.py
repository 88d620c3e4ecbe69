"""Test `drfl run`."""

from __future__ import annotations

import csv
import html
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import tomllib

import pytest
import torch
from tests.support.marks import long_except
from tests.support.refusals import notices, refusal, refused
from tests.support.rollbacks import set_back_once

import drfl
from drfl.cli.app import call
from drfl.core.run_end import ON_TEST, RESET
from drfl.data.partition.partition import Partition
from drfl.data.partition.partitioners import PARTITIONS
from drfl.report.formatting import scientific
from drfl.report.test_rows import read
from drfl.training.history import CERTIFICATE_COLUMNS, columns_of, history_columns

FILES = {
    "clients.csv",
    "config.toml",
    "history.csv",
    "lambda.csv",
    "manifest.json",
    "model-last.safetensors",
    "model.safetensors",
    "partition.json",
    "report.html",
    "summary.json",
    "test-rows.safetensors",
    "timing.csv",
}
SMALL = ["--engine", "loop", "--clients", "6", "--cohort", "4", "--rounds", "3", "--steps", "2"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_run_writes_every_file_and_prints_the_folder(tmp_path, capsys):
    assert call(["run", *SMALL, "--out", "a"]) == 0
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES
    assert "a/report.html" in capsys.readouterr().out
    history = rows(tmp_path / "a/history.csv")
    assert list(history[0]) == [*history_columns()]
    assert [row["round"] for row in history] == ["0", "1", "2", "3"]
    clients = rows(tmp_path / "a/clients.csv")
    assert len(clients) == 6
    assert sum(float(row["lambda"]) for row in clients) == pytest.approx(1, abs=1e-6)
    assert min(float(row["accuracy"]) for row in clients) == float(history[-1]["worst_accuracy"])
    assert sum(int(row["train_samples"]) for row in clients) == 1198
    model = drfl.load_model(tmp_path / "a/model.safetensors")
    assert {name: tuple(t.shape) for name, t in model.weights.items()} == {"1.weight": (10, 64), "1.bias": (10,)}
    assert model.about["module"] == {"class": "drfl.models.linear", "arguments": {"shape": [1, 8, 8], "classes": 10}}
    task = {"kind": "classification", "loss": "cross-entropy", "score": "accuracy", "outputs": 10}
    assert model.about["task"] == task
    assert model.about["metrics"]["worst_accuracy"] == float(history[-1]["worst_accuracy"])


def test_clients_csv_has_sums_and_a_file_has_row_values(tmp_path):
    metrics = [part for name in ("accuracy", "brier", "log_loss", "f1") for part in ("--metric", name)]
    call(["run", "--dataset", "heart-disease", "--score", "auc", *metrics, "--rounds", "2", "--out", "a"])
    measures = {m["name"]: m["rows"] for m in json.loads((tmp_path / "a/summary.json").read_text())["measures"]}
    assert measures == {"auc": "ranks", "accuracy": "binary", "brier": "unit", "log_loss": "real", "f1": "whole"}
    table, each = rows(tmp_path / "a/clients.csv"), read(tmp_path / "a/test-rows.safetensors")
    assert list(table[0])[8:] == [
        "accuracy", "brier", "log_loss", "f1", "auc_positive", "auc_pairs", "auc_positive_squares",
        "auc_negative_squares", "accuracy_count", "brier_sum", "brier_squares", "log_loss_sum", "log_loss_squares",
        "auc_low", "auc_high",
    ]  # fmt: skip
    for row, start, end in zip(table, each.starts[:-1], each.starts[1:], strict=True):
        own = {name: values[start:end].double() for name, values in each.scores.items()}
        n, positive = len(own["accuracy"]), int(own["auc.positive"].sum())
        assert (int(row["samples"]), int(row["accuracy_count"])) == (n, int(own["accuracy"].sum()))
        assert float(row["accuracy"]) == pytest.approx(int(row["accuracy_count"]) / n, abs=1e-6)
        assert float(row["brier_sum"]) == pytest.approx(float(own["brier"].sum()), rel=1e-14)
        assert float(row["log_loss_squares"]) == pytest.approx(float(own["log_loss"].square().sum()), rel=1e-14)
        ahead = own["auc.output"][own["auc.positive"] == 1, None] - own["auc.output"][own["auc.positive"] == 0]
        assert int(row["auc_positive"]) == positive
        assert float(row["auc_pairs"]) == float((ahead > 0).sum() + (ahead == 0).sum() / 2)
        order = (ahead > 0).double() + (ahead == 0).double() / 2
        assert float(row["auc_positive_squares"]) == float(order.sum(1).square().sum())
        assert float(row["auc_negative_squares"]) == float(order.sum(0).square().sum())
        expected = float(row["auc_pairs"]) / ahead.numel() if ahead.numel() else math.nan  # Switzerland: all are ill
        assert float(row["auc"]) == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_summary_agrees_with_the_files(tmp_path):
    call(["run", *SMALL, "--seed", "4", "--out", "a"])
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    last = rows(tmp_path / "a/history.csv")[-1]
    assert summary["final"] == {name: float(last[name]) for name in summary["final"]}
    assert summary["ledger"]["bytes_up"] == int(last["bytes_up"])
    expected = {"algorithm": "DualDRDM", "dataset": "digits", "clients": 6, "rounds": 3, "seed": 4, "device": "cpu"}
    assert {name: summary[name] for name in expected} == expected


@pytest.mark.long
def test_returned_model_and_last_iterate_are_reported_and_saved(tmp_path, capsys):
    call(["run", *SMALL, "--rounds", "20", "--algorithm", "DRFA", "--out", "a"])
    printed = capsys.readouterr().out
    call(["run", *SMALL, "--rounds", "20", "--algorithm", "DRFA", "--returned", "last", "--out", "b"])
    one, two = (json.loads((tmp_path / f"{name}/summary.json").read_text()) for name in "ab")
    call(["run", *SMALL, "--rounds", "20", "--algorithm", "DRFA", "--returned", "best", "--out", "best"])
    chosen = json.loads((tmp_path / "best/summary.json").read_text())
    assert (one["returned"], two["returned"]) == ("average", "last")
    assert chosen["final"] == {"average": one, "last": two}[chosen["returned"]]["final"]
    assert one["final"] != one["last"] == two["last"] == two["final"]
    last, same = (drfl.load_model(tmp_path / name) for name in ("a/model-last.safetensors", "b/model.safetensors"))
    assert all(torch.equal(value, same.weights[name]) for name, value in last.weights.items())
    assert last.about["metrics"] == same.about["metrics"]
    assert not (tmp_path / "b/model-last.safetensors").exists()
    size = one["step_size"]
    assert size["lr"] == pytest.approx(1 / size["curvature"], rel=1e-5)
    assert f"η = {size['lr']:.3g}, from curvature {size['curvature']:.3g} at {size['client']}" in printed
    call(["run", *SMALL, "--rounds", "20", "--lr", "0.2", "--out", "c"])
    assert json.loads((tmp_path / "c/summary.json").read_text())["step_size"] is None


@pytest.mark.long
def test_run_that_ends_worse_than_it_began_fails(tmp_path, capsys):
    failure = notices(["run", *SMALL, "--lr", "1e9", "--out", "a"], exit_code=1)[-1]
    assert (failure.code, failure.field) == ("loss-rose", "lr")
    assert json.loads((tmp_path / "a/summary.json").read_text())["failure"] == failure
    assert html.escape(failure) in (tmp_path / "a/report.html").read_text()
    capsys.readouterr()
    assert call(["compare", *SMALL, "--algorithms", "FedAvg", "--seeds", "1", "--lr", "1e9", "--out", "b"]) == 1
    (outcome,) = json.loads((tmp_path / "b/outcomes.json").read_text())["outcomes"]
    assert f"FedAvg, seed 0: {outcome['reason']}" in capsys.readouterr().err


@pytest.mark.long
def test_averaged_iterate_is_reported_and_saved(tmp_path, capsys):
    call(["run", *SMALL, "--algorithm", "DRFA", "--averaged", "--out", "a"])
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES | {"model-averaged.safetensors"}
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["averaged"].keys() == summary["final"].keys()
    assert summary["averaged"] != summary["final"]
    assert "averaged" in capsys.readouterr().out
    last, mean = (
        drfl.load_model(tmp_path / f"a/{name}.safetensors").weights["1.weight"] for name in ("model", "model-averaged")
    )
    assert not last.equal(mean)


def test_algorithm_without_averaged_solution_refuses_averaged(tmp_path, capsys):
    error = refusal(["run", *SMALL, "--algorithm", "QFedAvg", "--averaged", "--out", "a"])
    assert (error.code, error.field) == ("no-average", "averaged")
    assert "QFedAvg" in str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_table_dir_does_not_change_results(tmp_path):
    (tmp_path / "tables").mkdir()
    call(["run", *SMALL, "--algorithm", "SCAFFOLD", "--out", "a"])
    call(["run", *SMALL, "--algorithm", "SCAFFOLD", "--table-dir", "tables", "--out", "b"])
    for name in ("history.csv", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.parametrize("algorithm", long_except(["DRDM"], ["FedAvg", "DRFA", "DRDM"]))
def test_same_seed_gives_same_bytes_and_saved_config_repeats_the_run(algorithm, tmp_path):
    call(["run", *SMALL, "--algorithm", algorithm, "--zipf", "0.5", "--out", "a"])
    call(["run", "a/config.toml", "--out", "b"])
    for name in FILES - {"timing.csv", "summary.json", "report.html"}:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.long
def test_engines_and_threads_give_the_same_history_in_float64(tmp_path):
    call(["run", *SMALL, "--dtype", "float64", "--threads", "1", "--out", "a"])
    call(["run", *SMALL, "--dtype", "float64", "--threads", "2", "--out", "b"])
    call(["run", *SMALL, "--dtype", "float64", "--engine", "loop", "--out", "c"])
    first = (tmp_path / "a/history.csv").read_bytes()
    assert first == (tmp_path / "b/history.csv").read_bytes()
    assert first == (tmp_path / "c/history.csv").read_bytes()


CERTIFIED = [*SMALL, "--algorithm", "DRFA", "--param", "weight_decay=0.01", "--certificate"]


@pytest.mark.long
def test_certificate_is_reported_and_saved(tmp_path, capsys):
    assert call(["run", *CERTIFIED, "--averaged", "--out", "a"]) == 0
    history = rows(tmp_path / "a/history.csv")
    assert list(history[0]) == [*history_columns(certified=True)]
    for row in history:
        assert float(row["gap"]) == pytest.approx(float(row["primal"]) - float(row["lower"]), abs=2e-9)
        assert float(row["gap"]) > 0
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    last = {name: float(value) for name, value in history[-1].items() if name in summary["final"]}
    assert summary["final"] == {**last, "gradient_norm": summary["final"]["gradient_norm"], "proven": True}
    assert summary["final"]["gradient_norm"] < 1e-3
    assert summary["averaged"].keys() == summary["final"].keys()
    assert summary["averaged"]["gap"] != summary["final"]["gap"]
    printed = capsys.readouterr().out
    assert f"{summary['final']['primal']:.6g}" in printed
    assert f"{summary['averaged']['primal']:.6g}" in printed
    assert scientific([summary["final"]["gap"]]) in html.unescape((tmp_path / "a/report.html").read_text())


@pytest.mark.long
def test_certificate_does_not_affect_other_results(tmp_path):
    plain = [argument for argument in CERTIFIED if argument != "--certificate"]
    call(["run", *CERTIFIED, "--out", "a"])
    call(["run", *plain, "--out", "b"])
    certified, bare = ((tmp_path / name / "history.csv").read_text().splitlines() for name in "ab")
    assert bare[0] == ",".join(history_columns())
    first = history_columns(certified=True).index(CERTIFICATE_COLUMNS[0])
    at = slice(first, first + len(CERTIFICATE_COLUMNS))
    for line, other in zip(certified, bare, strict=True):
        cells = line.split(",")
        del cells[at]
        assert cells == other.split(",")
    for name in ("clients.csv", "lambda.csv", "partition.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    ours, theirs = (drfl.load_model(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(own, theirs.weights[name]) for name, own in ours.weights.items())
    # The digest of the configuration, which names the certificate, is another.
    assert {k: v for k, v in ours.about.items() if k != "run"} == {k: v for k, v in theirs.about.items() if k != "run"}
    assert "certificate" not in (tmp_path / "b/config.toml").read_text()
    assert 'id="certificate"' not in (tmp_path / "b/report.html").read_text()
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in "ab"]
    assert summaries[0]["ledger"] == summaries[1]["ledger"]
    assert set(summaries[1]["final"]) == set(columns_of("accuracy"))


@pytest.mark.long
def test_certified_run_is_reproducible(tmp_path):
    call(["run", *CERTIFIED, "--out", "a"])
    call(["run", "a/config.toml", "--out", "b"])
    assert (tmp_path / "a/history.csv").read_bytes() == (tmp_path / "b/history.csv").read_bytes()
    call(["run", "a/config.toml", "--no-certificate", "--out", "c"])
    assert list(rows(tmp_path / "c/history.csv")[0]) == [*history_columns()]


@pytest.mark.long
def test_file_selects_the_method_of_the_lower_bound(tmp_path):
    text = "certificate = 'gradient'\nclients = 6\nrounds = 1\n[algorithms.DRFA]\nweight_decay = 0.01\n"
    (tmp_path / "job.toml").write_text(text)
    assert call(["run", "job.toml", "--algorithm", "DRFA", "--out", "a"]) == 0
    assert call(["run", "job.toml", "--algorithm", "DRFA", "--certificate", "--out", "b"]) == 0
    gradient, pooled = (rows(tmp_path / name / "history.csv")[-1] for name in "ab")
    assert tomllib.loads((tmp_path / "a/config.toml").read_text())["certificate"] == "gradient"
    assert float(gradient["primal"]) == pytest.approx(float(pooled["primal"]), abs=1e-5)
    assert float(gradient["lower"]) < float(pooled["lower"])


@pytest.mark.long
def test_certificates_are_computed_at_evaluations(tmp_path):
    assert call(["run", *CERTIFIED, "--evaluate-every", "2", "--out", "a"]) == 0
    history = rows(tmp_path / "a/history.csv")
    assert [row["round"] for row in history] == ["0", "2", "3"]
    assert all(float(row["gap"]) > 0 for row in history)


@pytest.mark.long
def test_set_and_penalty_are_part_of_the_certificate(tmp_path):
    """At the start λ is uniform and has no penalty, so the lower bounds are equal."""
    start = []
    for number, chosen in enumerate(("simplex", "cvar:alpha=0.5", "chi-square:rho=0.1")):
        parameters = ["--param", "weight_decay=0.01", "--param", f"ambiguity={chosen}"]
        small = ["--clients", "6", "--rounds", "0", "--algorithm", "ScaffPD", "--out", f"{number}"]
        assert call(["run", *small, *parameters, "--certificate"]) == 0
        start.append(rows(tmp_path / f"{number}/history.csv")[0])
    simplex, cvar, chi_square = (float(row["primal"]) for row in start)
    assert simplex > max(cvar, chi_square) + 1e-3
    assert float(start[1]["lower"]) == pytest.approx(float(start[0]["lower"]), abs=1e-5)
    assert float(start[2]["lower"]) == pytest.approx(float(start[0]["lower"]), abs=1e-5)


@pytest.mark.long
def test_unproven_gap_is_marked(capsys):
    call(["run", *SMALL, "--certificate", "--out", "a"])
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"not proven\b.*\bgradient of norm\b.*\bweight_decay\b", printed)


def test_help_names_every_partition(capsys):
    call(["run", "--help-all"])
    printed = capsys.readouterr().out
    assert [name for name in PARTITIONS if name not in printed] == []


def test_options_override_the_file(tmp_path, capsys):
    (tmp_path / "job.toml").write_text(
        "rounds = 9\nclients = 6\nseed = 3\n[algorithms.dualdrdm]\nmu = 2.0\nsteps = 1\n"
    )
    assert call(["run", "job.toml", "--rounds", "1", "--param", "gamma=0.5", "--batch", "full", "--out", "a"]) == 0
    assert ", 1 round\n" in capsys.readouterr().out
    config = tomllib.loads((tmp_path / "a/config.toml").read_text())
    table = config["algorithms"]["DualDRDM"]
    assert (config["rounds"], config["seed"], config["clients"]) == (1, 3, 6)
    assert (table["mu"], table["gamma"], table["steps"], table["batch"], table["m"]) == (2.0, 0.5, 1, "full", 6)


def test_common_options_and_parameters_override_tables_of_the_file(tmp_path):
    (tmp_path / "job.toml").write_text("clients = 6\nrounds = 1\n[algorithms.dualdrdm]\nlr = 0.5\nmu = 2.0\nm = 3\n")
    assert call(["run", "job.toml", "--lr", "0.2", "--cohort", "5", "--out", "a"]) == 0
    assert call(["run", "a/config.toml", "--param", "lr=0.4", "--out", "b"]) == 0
    tables = [tomllib.loads((tmp_path / name / "config.toml").read_text())["algorithms"]["DualDRDM"] for name in "ab"]
    assert [(table["lr"], table["mu"], table["m"]) for table in tables] == [(0.2, 2.0, 5), (0.4, 2.0, 5)]


@pytest.mark.long
def test_none_resets_a_parameter_to_its_default(tmp_path):
    (tmp_path / "job.toml").write_text("clients = 6\nrounds = 1\n[algorithms.DualDRDM]\ngamma = 0.5\n")
    assert call(["run", "job.toml", "--param", "gamma=none", "--out", "a"]) == 0
    assert call(["run", "--clients", "6", "--rounds", "1", "--out", "b"]) == 0
    assert call(["run", "a/config.toml", "--out", "c"]) == 0
    a, b, c = ((tmp_path / name / "lambda.csv").read_bytes() for name in "abc")
    assert a == b == c


@pytest.mark.parametrize(
    ("tables", "options", "algorithm"),
    [
        ("[algorithms.drfa]\ngamma = 0.5\n", [], "DRFA"),
        pytest.param("[algorithms.drfa]\ngamma = 0.5\n", ["--algorithm", "FedAvg"], "FedAvg", marks=pytest.mark.long),
        pytest.param(
            "[algorithms.DRFA]\ngamma = 0.5\n[algorithms.DRDM]\nmu = 1.0\n", [], "DualDRDM", marks=pytest.mark.long
        ),
    ],
)
def test_only_table_of_a_file_names_the_algorithm(tables, options, algorithm, tmp_path):
    (tmp_path / "job.toml").write_text(f"clients = 6\nrounds = 0\n{tables}")
    assert call(["run", "job.toml", *options, "--out", "a"]) == 0
    config = tomllib.loads((tmp_path / "a/config.toml").read_text())
    assert config["algorithm"] == algorithm
    assert (config["algorithms"].get("DRFA", {}).get("gamma") == 0.5) == (algorithm == "DRFA")


def test_runs_without_out_get_their_own_folders(tmp_path):
    call(["run", *SMALL])
    call(["run", *SMALL])
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["dualdrdm-digits-seed0", "dualdrdm-digits-seed0-2"]


def test_json_prints_only_one_object(capsys):
    call(["run", *SMALL, "--json", "--out", "a"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["directory"] == "a"
    assert printed.err == ""


def strict(text):
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_is_valid_if_numbers_are_infinite(tmp_path, capsys):
    assert call(["run", *SMALL, "--alpha", "inf", "--json", "--out", "a"]) == 0
    printed = strict(capsys.readouterr().out)
    assert printed["partition"]["alpha"] == "inf"
    assert strict((tmp_path / "a/summary.json").read_text())["partition"] == printed["partition"]
    assert call(["run", "a/config.toml", "--out", "b"]) == 0
    assert (tmp_path / "a/history.csv").read_bytes() == (tmp_path / "b/history.csv").read_bytes()
    assert call(["compare", *SMALL, "--alpha", "inf", "--seeds", "1", "--algorithms", "DRFA", "--out", "c"]) == 0
    assert strict((tmp_path / "c/summary.json").read_text())["partition"]["alpha"] == "inf"


@pytest.mark.long
def test_two_simultaneous_runs_keep_both_results(tmp_path):
    command = [sys.executable, "-m", "drfl", "run", *SMALL, "--rounds", "30"]
    processes = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    found = sorted((tmp_path / "runs").iterdir())
    assert [path.name for path in found] == ["dualdrdm-digits-seed0", "dualdrdm-digits-seed0-2"]
    assert found[0].joinpath("history.csv").read_bytes() == found[1].joinpath("history.csv").read_bytes()


def held_and_trained(folder):
    """Return the training rows of the clients, and the rows on which they train."""
    sizes = [len(rows) for rows in Partition.load(folder / "partition.json").train]
    return sum(sizes), sum(int(row["train_samples"]) for row in rows(folder / "clients.csv"))


def test_until_holds_out_validation_rows_and_stops_by_them(tmp_path, capsys):
    assert call(["run", "--rounds", "50", "--clients", "6", "--until", "avg_accuracy=0.5", "--out", "a"]) == 0
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    history = rows(tmp_path / "a/history.csv")
    assert (summary["stopped"], summary["stopped_on"]) == ("target", "validation")
    assert summary["rounds"] == int(history[-1]["round"]) < 50
    assert float(history[-1]["validation_avg_accuracy"]) >= 0.5 > float(history[-2]["validation_avg_accuracy"])
    held, trained = held_and_trained(tmp_path / "a")
    assert 0.7 * held < trained < 0.85 * held
    assert "accuracy_low" in rows(tmp_path / "a/clients.csv")[0]
    assert re.search(r"avg_accuracy=0\.5 reached\b", " ".join(capsys.readouterr().out.split()))
    assert drfl.assess(tmp_path / "a").worst.low < 1
    half = ["--until", "avg_accuracy=0.5", "--validation", "0.5", "--out", "b"]
    assert call(["run", "--rounds", "1", "--clients", "6", *half]) == 0
    held, trained = held_and_trained(tmp_path / "b")
    assert trained < 0.6 * held


@pytest.mark.long
def test_run_stopped_by_test_rows_is_marked_and_has_no_intervals(tmp_path, capsys):
    target = ["--until", "test:avg_accuracy=0.5"]
    assert call(["run", "--rounds", "50", "--clients", "6", *target, "--out", "a"]) == 0
    assert ON_TEST in " ".join(capsys.readouterr().out.split())
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    history, clients = rows(tmp_path / "a/history.csv"), rows(tmp_path / "a/clients.csv")
    assert (summary["stopped"], summary["stopped_on"]) == ("target", "test")
    assert float(history[-1]["avg_accuracy"]) >= 0.5 > float(history[-2]["avg_accuracy"])
    assert "validation_avg_accuracy" not in history[0]
    held, trained = held_and_trained(tmp_path / "a")
    assert held == trained
    assert not any(name.endswith(("_low", "_high")) for name in clients[0])
    assert ON_TEST in (tmp_path / "a/report.html").read_text(encoding="utf-8")
    assert call(["assess", "a"]) == 0
    out = capsys.readouterr().out
    assert len(out.strip().splitlines()) == 1
    assert ON_TEST in out
    assert call(["assess", "a", "--json"]) == 0
    (run,) = strict(capsys.readouterr().out)["runs"]
    assert run["assessment"] is None
    assert ON_TEST in run["reason"]
    for assess in (lambda: drfl.assess(tmp_path / "a"), lambda: drfl.assess_gain(tmp_path / "a", tmp_path / "a")):
        with refused("no-results"):
            assess()
    # a run that test rows did not stop has done all rounds, so it keeps its intervals
    assert call(["run", *SMALL, "--until", "test:avg_loss=0", "--out", "b"]) == 0
    assert json.loads((tmp_path / "b/summary.json").read_text())["stopped_on"] is None
    assert "accuracy_low" in rows(tmp_path / "b/clients.csv")[0]


@pytest.mark.long
def test_overwrite_replaces_the_whole_old_run(tmp_path, capsys):
    call(["run", *SMALL, "--algorithm", "DRFA", "--averaged", "--out", "a"])
    capsys.readouterr()
    assert call(["run", *SMALL, "--out", "a", "--overwrite"]) == 0
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert "left as they were" not in capsys.readouterr().err


def test_divergence_is_one_line_and_leaves_no_files(tmp_path, capsys):
    arguments = ["--param", "lr=1e30", "--param", "mu=1e30", "--out", "a"]
    assert call(["run", *SMALL, *arguments]) == 1
    complaint = capsys.readouterr().err.strip().splitlines()[-1]
    assert complaint.startswith("drfl: DualDRDM diverged in round ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_ctrl_c_stops_after_the_round_with_a_valid_run_directory(tmp_path):
    options = ["--engine", "loop", "--clients", "6", "--rounds", "100000", "--evaluate-every", "7", "--out", "a"]
    command = [sys.executable, "-m", "drfl", "run", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    process.stderr.readline()  # round 0: training has begun
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "a/report.html" in out
    assert {path.name for path in (tmp_path / "a").iterdir()} == {*FILES, "checkpoint"}
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["stopped"] == "interrupted"
    assert int(rows(tmp_path / "a/history.csv")[-1]["round"]) == summary["rounds"]


@pytest.mark.long
def test_rolled_back_run_shows_how_many_rounds_count(tmp_path, capsys, monkeypatch):
    set_back_once(monkeypatch, 0)
    arguments = ["run", *SMALL, "--algorithm", "FedAvg"]
    for rounds, effective, is_late in ((5, 2, True), (7, 4, False)):
        out = f"r{rounds}"
        assert call([*arguments, "--rounds", str(rounds), "--out", out]) == 0
        said, err = capsys.readouterr()
        assert re.search(rf"{RESET}, {effective} of {rounds}\b", " ".join(said.split()))
        summary = json.loads((tmp_path / out / "summary.json").read_text())
        assert (summary["rounds"], summary["rollbacks"], summary["effective_rounds"]) == (rounds, 1, effective)
        assert sum(f"{effective} of {rounds}" in text for text in summary["warnings"]) == is_late
        assert (f"{effective} of {rounds}" in err) is is_late
    assert call([*arguments, "--rounds", "5", "--lr", "0.1", "--out", "own"]) == 0
    summary = json.loads((tmp_path / "own/summary.json").read_text())
    assert (summary["rollbacks"], summary["effective_rounds"]) == (0, 5)
    assert RESET not in capsys.readouterr().out
