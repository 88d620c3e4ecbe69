"""Test the cost of reaching a target, and tables and figures for papers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from tests.support.marks import long_except
from tests.support.refusals import check_refusal, refused

import drfl
from drfl.cli.app import call
from drfl.experiments.compare.costs import costs_to_target
from drfl.report.formatting import size
from drfl.task.metrics import ACCURACY

SMALL = ["--clients=4", "--rounds=4", "--steps=2", "--engine=loop", "--cohort=2", "--threads=1", "--seeds=2",
         "--param=lr=0.1"]  # fmt: skip


def histories():
    """Return histories of two algorithms at two seeds; "slow" reaches 0.8 at only one, and falls below it again."""
    worst = {("fast", 0): [0.1, 0.8, 0.9], ("fast", 1): [0.1, 0.2, 0.85], ("slow", 0): [0.1, 0.81, 0.3]}
    worst["slow", 1] = [0.1, 0.2, 0.3]
    rows = [
        {"algorithm": name, "seed": seed, "round": r, "worst_accuracy": value, "avg_loss": 1 - value,
         "bytes_up": 10 * r, "bytes_down": 5 * r, "gradient_evaluations": 7 * r, "seconds": r / 2}
        for (name, seed), values in worst.items()
        for r, value in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows)


CELLS = [("fast", 0), ("fast", 1), ("slow", 0), ("slow", 1), ("broken", 0)]


@pytest.mark.parametrize(("metric", "level"), [("worst_accuracy", 0.8), ("avg_loss", 0.2)])
def test_cost_counts_the_first_round_and_requires_all_seeds(metric, level):
    found = costs_to_target(histories(), CELLS, metric, level, (ACCURACY,))
    assert found["reached"].tolist() == [2, 1, 0]
    assert found["seeds"].tolist() == [2, 2, 1]
    fast = found.loc["fast"]
    assert fast[["rounds", "bytes", "gradients", "seconds"]].tolist() == [1.5, 22.5, 10.5, 0.75]
    half = 12.706204736 * np.std([1, 2], ddof=1) / math.sqrt(2)
    assert fast[["rounds_low", "rounds_high"]].tolist() == pytest.approx([1.5 - half, 1.5 + half])
    assert found.loc[["slow", "broken"], "rounds"].isna().all()


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Return the folder of a comparison."""
    folder = tmp_path_factory.mktemp("costs") / "c"
    assert call(["compare", *SMALL, "--algorithms", "FedAvg,DRFA", "--out", str(folder)]) == 0
    return folder


@pytest.mark.long
def test_latex_table_has_the_named_columns(compared):
    found = drfl.load_comparison(compared)
    plain, named = (
        found.to_latex(),
        found.to_latex({"worst_accuracy": "worst", "avg_loss": "loss"}, target="avg_loss=9"),
    )
    assert (
        plain.splitlines()[2]
        == (compared / "table.md").read_text().splitlines()[0].strip("| ").replace(" | ", " & ").replace("%", r"\%")
        + r" \\"
    )
    head = named.splitlines()[2]
    assert head.startswith("algorithm & worst & 95")
    assert head.endswith(r"& loss & rounds to avg\_loss=9 \\")
    assert found.to_latex(["std_accuracy"]).splitlines()[2] == r"algorithm & standard deviation, points \\"
    with refused("unknown-name", "metric", "worst_acuracy", "worst_accuracy"):
        found.to_latex(["worst_acuracy"])


@pytest.mark.parametrize("target", ["worst_accuracy", "worst_accuracy=nan"])
def test_invalid_target_is_refused(target, compared):
    with refused("invalid-format", "target"):
        drfl.load_comparison(compared).costs_to(target)


def test_command_checks_the_target_before_it_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared = ["compare", *SMALL, "--algorithms", "FedAvg", "--out", "a"]
    check_refusal([*shared, "--costs-to", "worst_accuracy"], "invalid-format", "target")
    check_refusal([*shared, "--costs-to", "worst_acuracy=0.5"], "unknown-name", "metric", "worst_accuracy")
    assert list(tmp_path.iterdir()) == []


def test_runs_without_a_history_do_not_reach_the_target():
    found = costs_to_target(pd.DataFrame(columns=["algorithm", "seed"]), CELLS, "worst_accuracy", 0.8, (ACCURACY,))
    assert found[["reached", "seeds"]].values.tolist() == [[0, 2], [0, 2], [0, 1]]
    assert found["rounds"].isna().all()


def test_command_writes_the_costs_of_failed_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(
        "import dataclasses\nimport drfl\n@dataclasses.dataclass(frozen=True)\nclass Bad(drfl.FedAvg):\n"
        "    def round(self, state, fed, key):\n        raise drfl.DivergedError('NaN')\n"
    )
    arguments = ["compare", *SMALL, "--algorithms", "bad.py:Bad", "--out", "a", "--costs-to", "worst_accuracy=0.1"]
    assert call([*arguments, "--latex", "t.tex"]) == 1
    assert "0 of 2" in (tmp_path / "t.tex").read_text()


@pytest.mark.parametrize(
    "x",
    long_except(["bytes"], ["rounds", "bytes", "gradients", "seconds"]),
)
def test_curves_are_drawn_over_each_cost(x, compared):
    found = drfl.load_comparison(compared)
    line = found.plot("worst", x=x).axes[0].lines[0]
    own = found.to_histories().query("algorithm == 'FedAvg'")
    columns = {"rounds": ["round"], "bytes": ["bytes_up", "bytes_down"], "gradients": ["gradient_evaluations"]}
    costs = own[columns.get(x, [x])].sum(axis=1).groupby(own["round"]).mean()
    unit = 1000 if x == "bytes" else 1
    assert line.get_xdata().tolist() == pytest.approx((costs / unit).tolist())
    assert found.plot("worst_accuracy").axes[0].get_ylabel() == found.plot("worst").axes[0].get_ylabel()
    with refused("unknown-name", "worst_loss", "worst_accuracy"):
        found.plot("worst_loss")
    assert found.plot("worst", x=x).axes[0].get_xlabel().startswith("kB" if x == "bytes" else "")
    with refused("unknown-name", "x", "byte", "bytes"):
        found.plot(x="byte")


def test_command_writes_tables_and_figures_from_folders(compared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["report", str(compared), "--latex", "t.tex", "--figure", "f.svg", "--x-axis", "bytes"]
    capsys.readouterr()
    assert call([*words, "--costs-to", "avg_loss=9"]) == 0
    spent = drfl.load_comparison(compared).costs_to("avg_loss=9").loc["FedAvg", "bytes"]
    shown = capsys.readouterr().err.split()  # a narrow table breaks lines between number and unit
    assert set(size(spent).split()) <= set(shown)
    assert {path.name for path in tmp_path.iterdir()} == {"t.tex", "f.svg"}
    assert "rounds to" in (tmp_path / "t.tex").read_text()
    check_refusal(words, "already-exists", "t.tex")
    check_refusal(["report", str(compared), "--x-axis", "bytes"], "unused-option", "x-axis")
    check_refusal(["report", str(compared), "--figure", "f.doc"], "unsupported-file", "figure")
    check_refusal(["report", str(compared), "--figure", "g.svg", "--x-axis", "byte"], "unknown-name", "x-axis")
    check_refusal(["report", str(compared), "--latex", "no/t.tex"], "folder-not-found", "no")
