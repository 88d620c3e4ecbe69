"""Test the values shown beside accuracies and rates: the score of a constant answer, and the threshold."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from tests.report.conftest import MEASURES, write_directory

import drfl
from drfl.cli.app import call
from drfl.data.pools import constant_answer
from drfl.report.read_run import constant_line, threshold_line


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Write three sites; one row in twelve is "yes", and one in ten at the smallest site."""
    path = tmp_path_factory.mktemp("data") / "patients.csv"
    rng = np.random.default_rng(0)
    lines = ["a,b,ill,site"]
    for site, rows, ill in (("north", 300, 25), ("south", 350, 29), ("west", 50, 5)):
        for k in range(rows):
            x = rng.normal(k < ill, 1, 2)
            lines.append(f"{x[0]:.3f},{x[1]:.3f},{'yes' if k < ill else 'no'},{site}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run(table, out, *more, score="accuracy"):
    arguments = ["--data", str(table), "--group", "site", "--target", "ill", "--rounds", "2", "--score", score]
    assert call(["run", *arguments, "--out", str(out), *more]) == 0


def test_commands_show_the_score_of_a_constant_answer(table, tmp_path, capsys):
    run(table, tmp_path / "a")
    printed = capsys.readouterr().out
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    with (tmp_path / "a/clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    shares = [float(row["constant_accuracy"]) for row in rows]
    samples = np.array([int(row["samples"]) for row in rows])
    assert summary["constant"] == {
        "class": "no",
        "accuracy": pytest.approx(float(np.dot(shares, samples) / samples.sum()), abs=1e-6),
        "worst_accuracy": min(shares),
    }
    line = constant_line(summary)
    assert line.startswith("always predicting no: 9")
    assert line in printed
    assert call(["assess", str(tmp_path / "a")]) == 0
    assert f"{line[0].upper()}{line[1:]}." in " ".join(capsys.readouterr().out.split())
    assert call(["assess", str(tmp_path / "a"), "--json"]) == 0
    assert line[1:] in json.loads(capsys.readouterr().out)["runs"][0]["sentences"][0]
    assert line in (tmp_path / "a/report.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_constant_answer_is_not_shown_for_other_scores_or_even_classes(table, tmp_path, capsys):
    run(table, tmp_path / "a", score="auc")
    assert "always predicting" not in capsys.readouterr().out
    assert json.loads((tmp_path / "a/summary.json").read_text())["constant"] is None
    assert call(["run", "--dataset", "digits", "--clients", "5", "--rounds", "1", "--out", str(tmp_path / "b")]) == 0
    assert "always predicting" not in capsys.readouterr().out
    assert constant_line({}) is None


@pytest.mark.parametrize(
    ("targets", "names", "label", "shares"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 1], None, "0", [1, 0.75]),
        ([0.0, 0, 0, 0, 0, 0, 0, 1], ("no", "yes"), "no", [1, 0.75]),  # targets of a binary cross-entropy
        ([5, 5, 5, 5, 5, 5, 7, 9], None, "5", [1, 0.5]),
        ([0, 0, 0, 0, 0, 0, 1, 1], None, None, None),  # a quarter is not rare
        ([0, 1, 2, 3, 4, 5, 6, 7], None, None, None),  # all classes are rare
        ([0, 0, 0, 0, 0, 0, 0, 0], None, None, None),
        ([0.0, 0, 0, 0, 0, 0, 0, 2.5], None, None, None),
        ([0, 0, 0, 0, 0, 0, 0, -100], None, None, None),  # an ignored target
    ],
)
def test_constant_answer_needs_a_rare_and_a_frequent_class(targets, names, label, shares):
    found = constant_answer(torch.tensor(targets), (torch.arange(4), torch.arange(4, 8)), names)
    if label is None:
        assert found is None
    else:
        assert (found.label, found.shares.tolist()) == (label, shares)
        assert found.overall == pytest.approx(sum(shares) / 2)


def test_line_names_the_class_if_it_has_a_name():
    told = {"constant": {"class": "no", "accuracy": 0.9167, "worst_accuracy": 0.85}}
    assert constant_line(told) == "always predicting no: 91.7 % of all test rows, 85.0 % at the worst client"
    told["constant"]["class"] = None  # in a deployment, the server does not know the class
    assert constant_line(told).startswith("always predicting each client's most frequent class: 91.7 %")


@pytest.mark.long
def test_rates_show_their_threshold(table, tmp_path, capsys):
    run(table, tmp_path / "a", "--metric", "accuracy", score="sensitivity")
    default = "rates use the threshold 0.5, because no validation rows of both classes could choose one"
    assert default in capsys.readouterr().out
    run(table, tmp_path / "b", "--metric", "ppv", "--validation", "0.3", score="sensitivity")
    printed = " ".join(capsys.readouterr().out.split())
    summary = json.loads((tmp_path / "b/summary.json").read_text())
    assert summary["threshold"]["chosen_on"] == "validation"
    assert 0 < summary["threshold"]["probability"] < 0.5  # one row in twelve is ill
    assert threshold_line(summary) in printed
    assert call(["assess", str(tmp_path / "b"), "--measure", "ppv"]) == 0
    assert "on validation rows." in " ".join(capsys.readouterr().out.split())


@pytest.mark.long
def test_comparison_shows_what_all_its_runs_share(table, tmp_path, capsys):
    arguments = ["--data", str(table), "--group", "site", "--target", "ill", "--rounds", "1", "--seeds", "1"]
    options = ["--algorithms", "FedAvg,DRFA", "--metric", "ppv", "--out", str(tmp_path / "a")]
    assert call(["compare", *arguments, *options]) == 0
    printed = capsys.readouterr().out
    assert printed.count("always predicting no: ") == 1
    assert printed.count("rates use the threshold 0.5, because no validation rows") == 1


@pytest.mark.long
def test_option_selects_the_distribution_free_interval(table, tmp_path, capsys):
    run(table, tmp_path / "a", score="auc")
    widths = {}
    for name in ("delong", "distribution-free"):
        capsys.readouterr()
        assert call(["assess", str(tmp_path / "a"), "--auc-interval", name, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["runs"]
        direct = drfl.assess(tmp_path / "a", auc_interval=name)
        assert found["worst"]["low"] == direct.worst.low
        assert found["method"] == direct.method
        widths[name] = direct.high - direct.low
    assert (widths["delong"] < widths["distribution-free"])[:2].all()
    # West has a single row of one class and ranks every pair correctly, so both methods count one correct answer.
    assert direct.values[2] == 1
    assert widths["delong"][2] == pytest.approx(widths["distribution-free"][2])
    assert call(["assess", str(tmp_path / "a"), "--auc-interval", "free"]) == 2
    assert "unknown AUC interval 'free'" in capsys.readouterr().err


def test_table_of_worst_clients_has_every_deployed_site(tmp_path, capsys):
    sites = [f"site-{i:02d}" for i in range(45)]
    write_directory(tmp_path, "simulated", clients=45, names=sites, summary={"measures": MEASURES})
    write_directory(
        tmp_path, "deployed", clients=45, names=sites, config={"sites": sites}, summary={"measures": MEASURES}
    )
    assert call(["assess", str(tmp_path / "simulated")]) == 0
    assert "and 15 more clients" in capsys.readouterr().out
    assert call(["assess", str(tmp_path / "deployed")]) == 0
    table = capsys.readouterr().out.split(" has the lowest measured ")[0]
    assert "more clients" not in table
    assert all(site in table for site in sites)
